"""Names that the lab gives meaning to: annotations of pods and nodes, labels of nodes and namespaces."""

from typing import Final

COMMAND: Final = "lab.gpubank.dev/command"
"""Pod annotation: the command line the runner starts, a JSON list of strings."""
ENV: Final = "lab.gpubank.dev/env"
"""Pod annotation: more environment for it, a JSON object of strings."""
FINALIZER: Final = "lab.gpubank.dev/process"
"""Pod finalizer: held by the runner from before the start until the process is gone."""
COMPLETE_AFTER: Final = "lab.gpubank.dev/complete-after"
"""Pod annotation: how long kwok lets a pod without a command run before it succeeds, such as `90s`."""

FAKE_NODE: Final = "kwok.x-k8s.io/node"
FAKE_NODE_VALUE: Final = "fake"
"""Annotation of the nodes that kwok plays."""

ENDPOINT: Final = "checkpoint.platform.aik8s.run/endpoint"
"""Pod annotation of the workload contract: where the training script answers checkpoint requests."""

POOL_LABEL: Final = "accelerator.aik8s.run/pool"
MODEL_LABEL: Final = "accelerator.aik8s.run/model"
FABRIC_LABEL: Final = "accelerator.aik8s.run/fabric"
GPU_RESOURCE: Final = "nvidia.com/gpu"

REAL_NODE: Final = "real-0"
"""Name of the node that a real kubelet looks after."""
REAL_POOL: Final = "real-pool"
NODE_ADDRESS: Final = "198.18.37.1"
"""Its address, on `lo`: of the range for benchmarks (RFC 2544), which no network routes."""

RUNNER_READY: Final = "ready"
"""File in the runner's folder that says that it has seen every pod once."""
PODS: Final = "pods"
"""Folder below a lab's logs with the output of the pods' processes."""
