"""Generated from k8s.io/kubelet v0.37.2, pods/v1alpha1/api.proto, by nodeagent/pb/regenerate.sh."""
