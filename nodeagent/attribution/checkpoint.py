"""The kubelet's own note of which devices it gave to which pod UID: `kubelet_internal_checkpoint`.

An internal format, read as a second witness and as a fallback where the Pods API is off: never a reason to fail.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from gpubank.domain.attribution import is_uid
from gpubank.domain.errors import BackendError
from nodeagent.attribution.places import CHECKPOINT

LARGEST: Final = 32 * 1024 * 1024
"""Bytes of the largest file that is read."""

Holdings = Mapping[tuple[str, str, str], frozenset[str]]
"""UIDs by container, resource and device id; more than one where a pod took over from another."""


class CheckpointError(BackendError):
    """The file is not there, or is no checkpoint that is known."""


def read_checkpoint(path: Path = CHECKPOINT) -> Holdings:
    """Read the file. Raises CheckpointError."""
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST + 1)
    except OSError as error:
        raise CheckpointError(f"kubelet's checkpoint {str(path)!r} cannot be read: {error.strerror}") from error
    return parse_checkpoint(raw)


def parse_checkpoint(raw: bytes) -> Holdings:
    """Read its bytes; an entry that makes no sense is passed over. Raises CheckpointError if none can."""
    if len(raw) > LARGEST:
        raise CheckpointError(f"kubelet's checkpoint has more than {LARGEST} bytes")
    try:
        entries = json.loads(raw)["Data"]["PodDeviceEntries"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"kubelet's checkpoint is none that is known: {type(error).__name__}") from error
    if entries is not None and not isinstance(entries, list):
        raise CheckpointError("kubelet's checkpoint is none that is known: its entries are no list")
    found: defaultdict[tuple[str, str, str], set[str]] = defaultdict(set)
    for entry in entries or ():
        for uid, key in _read_entry(entry):
            found[key].add(uid)
    return {key: frozenset(uids) for key, uids in found.items()}


def _read_entry(entry: Any) -> Iterator[tuple[str, tuple[str, str, str]]]:
    if not isinstance(entry, dict) or not is_uid(entry.get("PodUID")):
        return
    container, resource, ids = entry.get("ContainerName"), entry.get("ResourceName"), entry.get("DeviceIDs")
    if not isinstance(container, str) or not isinstance(resource, str):
        return
    # Since Kubernetes 1.20 by NUMA node; before that a plain list.
    lists = ids.values() if isinstance(ids, dict) else [ids]
    for devices in lists:
        for device_id in devices if isinstance(devices, list) else ():
            if isinstance(device_id, str):
                yield entry["PodUID"], (container, resource, device_id)
