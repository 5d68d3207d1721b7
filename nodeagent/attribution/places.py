"""Where a kubelet has its sockets and files, if nobody moved them."""

from pathlib import Path
from typing import Final

POD_RESOURCES_SOCKET: Final = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
PODS_SOCKET: Final = Path("/var/lib/kubelet/pods-api/pods-api.sock")
CHECKPOINT: Final = Path("/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint")
