#!/usr/bin/env bash
# Generates the stubs of the kubelet's gRPC APIs anew, from the Go module that publishes their protos.
# Every proto there is called api.proto: each gets a folder of its own, which is also its name in protobuf's registry.
# Needs: go, and grpcio-tools and mypy-protobuf beside the Python that runs it (PYTHON, default: python3).
set -euo pipefail
cd "$(dirname "$0")/../.."
version=v0.37.2
folder=$(cd /tmp && go mod download -json "k8s.io/kubelet@${version}" | sed -n 's/^.*"Dir": "\(.*\)".*$/\1/p')
python=${PYTHON:-python3}
for api in deviceplugin/v1beta1 podresources/v1 pods/v1alpha1; do
  name=${api%%/*}
  mkdir -p "nodeagent/pb/${name}"
  printf '"""Generated from k8s.io/kubelet %s, %s/api.proto, by nodeagent/pb/regenerate.sh."""\n' "${version}" "${api}" \
    > "nodeagent/pb/${name}/__init__.py"
  install -m 644 "${folder}/pkg/apis/${api}/api.proto" "nodeagent/pb/${name}/api.proto"
  PATH="$(dirname "${python}"):${PATH}" "${python}" -m grpc_tools.protoc -I . \
    --python_out=. --grpc_python_out=. --mypy_out=. --mypy_grpc_out=. "nodeagent/pb/${name}/api.proto"
  rm "nodeagent/pb/${name}/api.proto"
done
