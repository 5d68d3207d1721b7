"""Generated from k8s.io/kubelet v0.37.2, deviceplugin/v1beta1/api.proto, by nodeagent/pb/regenerate.sh."""
