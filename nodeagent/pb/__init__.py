"""Generated stubs of the kubelet's gRPC APIs; see regenerate.sh."""
