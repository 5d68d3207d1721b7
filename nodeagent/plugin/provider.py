"""Another provider of the same GPUs: a GPU that is reported twice is sold twice."""

import json
import socket
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from gpubank.domain.device import RESOURCE_PREFIX

NVIDIA_SOCKETS: Final = ("nvidia-gpu.sock", "nvidia.sock", "nvidia-mig-*.sock")
"""Sockets of NVIDIA's device plugin in the kubelet's folder of device plugins."""

DRA_SOCKETS: Final = ("gpu.nvidia.com-reg.sock", "gpu.nvidia.com.sock")
"""Sockets of NVIDIA's DRA driver in the kubelet's folder of plugins; the one for ComputeDomains hands out no GPUs."""

CHECKPOINT: Final = "kubelet_internal_checkpoint"
"""The kubelet's own memory of which plugin registered which devices."""


def other_provider(plugins: Path, registry: Path, uuids: Collection[str], ours: Collection[str] = ()) -> str | None:
    """Say who else reports GPUs of this node, in a sentence; None if nobody does.

    A socket counts only if somebody answers on it: files of programs that are gone prove nothing. `ours` are the names
    of our own sockets.
    """
    for path in _sockets(plugins, NVIDIA_SOCKETS):
        if _answers(path):
            return _sentence(f"NVIDIA's device plugin answers on {str(path)!r}")
    for path in _sockets(registry, DRA_SOCKETS):
        if _answers(path):
            return _sentence(f"NVIDIA's DRA driver answers on {str(path)!r}")
    foreign = _registered(plugins / CHECKPOINT, uuids)
    if foreign:
        for path in _sockets(plugins, ("*.sock",)):
            if path.name not in ours and path.name != "kubelet.sock" and _answers(path):
                return _sentence(f"{foreign!r} is registered for GPUs of this node, and {str(path)!r} answers")
    return None


def _sentence(fact: str) -> str:
    return f"{fact}: a GPU has one provider; take this node out of that one's DaemonSet, or out of this agent's"


def _sockets(folder: Path, patterns: Iterable[str]) -> list[Path]:
    return sorted(path for pattern in patterns for path in folder.glob(pattern) if path.is_socket())


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except TimeoutError:
            return True  # there is a listener, and it is busy
        except OSError:
            return False
    return True


def _registered(checkpoint: Path, uuids: Collection[str]) -> str:
    """Name a resource of another domain that the kubelet knows these GPUs by; empty if there is none."""
    try:
        body: Any = json.loads(checkpoint.read_bytes())
        devices = body["Data"]["RegisteredDevices"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""  # an internal file of the kubelet: what it no longer says is not evidence
    if not isinstance(devices, Mapping):
        return ""
    for resource, names in sorted(devices.items()):
        if not isinstance(names, list) or str(resource).startswith(f"{RESOURCE_PREFIX}/"):
            continue
        if any(isinstance(name, str) and name.split("::", 1)[0] in uuids for name in names):
            return str(resource)
    return ""
