"""The last holders of this node's devices, in a file, so that tombstones outlive the exporter's own restart.

The file is written when a holder changes, and only touched otherwise: its time says when the exporter last saw what it
says. What it says is believed as little as anything else that is read: names and values that could not be, are dropped.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from gpubank.domain.attribution import FIELDS, is_object_name, is_uid, permitted
from nodeagent.attribution.mapping import DeviceMapping, Holder, MappingStatus
from nodeagent.files import replace

log = logging.getLogger(__name__)

LARGEST: Final = 1024 * 1024
"""Bytes of the largest file that is read or written; a node with 64 devices has some 30 KiB."""

_VERSION: Final = 1
_MOST: Final = 1024
_LONGEST_UUID: Final = 128
_MOST_HOLDERS: Final = 64

Ages = Mapping[str, tuple[DeviceMapping, float]]
"""Mapping by device, and seconds since it was last seen so."""


class HoldersFile:
    """Keeps the last holders on the host."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        """`clock` is in seconds since 1970: a process that starts anew knows no other."""
        self._path, self._clock = path, clock
        self._written: bytes | None = None
        self.unsaved = 0
        """Changes that could not be written."""

    def load(self) -> Ages:
        """Read what was kept; nothing, with a line in the log, where there is nothing that can be read."""
        try:
            with self._path.open("rb") as file:
                seen_at, raw = os.fstat(file.fileno()).st_mtime, file.read(LARGEST + 1)
        except FileNotFoundError:
            return {}
        except OSError as error:
            log.warning("last holders %s cannot be read: %s", self._path, error.strerror)
            return {}
        now = self._clock()
        try:
            return {uuid: (mapping, max(now - (gone or seen_at), 0.0)) for uuid, mapping, gone in parse(raw)}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            log.warning("last holders %s make no sense (%s): nobody is remembered", self._path, type(error).__name__)
            return {}

    def save(self, held: Mapping[str, DeviceMapping], graves: Ages) -> None:
        """Keep who holds what now, and who held what lately; never raises."""
        now = self._clock()
        # A grave's time is a whole second, and is worked out from an age: it must not look changed every time.
        devices = [_device(uuid, mapping, None) for uuid, mapping in sorted(held.items()) if mapping.holders]
        devices += [_device(uuid, mapping, round(now - age)) for uuid, (mapping, age) in sorted(graves.items())]
        raw = json.dumps({"version": _VERSION, "devices": devices[:_MOST]}, separators=(",", ":")).encode()
        try:
            if self._same(raw):
                os.utime(self._path)
            elif len(raw) > LARGEST:
                raise OSError(0, f"{len(raw)} bytes are more than {LARGEST}")
            else:
                replace(self._path, raw)
                self._written = raw
        except OSError as error:
            self._written = None
            if not self.unsaved:
                log.warning("last holders %s cannot be written: %s; a restart forgets them", self._path, error.strerror)
            self.unsaved += 1

    def _same(self, raw: bytes) -> bool:
        return self._written == raw and self._path.exists()


def parse(raw: bytes) -> Iterator[tuple[str, DeviceMapping, float | None]]:
    """Yield device, who held it, and since when it is a grave. Raises ValueError, KeyError, TypeError for nonsense."""
    if len(raw) > LARGEST:
        raise ValueError("too large")
    body = json.loads(raw)
    if body["version"] != _VERSION:
        raise ValueError("another version")
    for device in body["devices"][:_MOST]:
        uuid, gone = device["uuid"], device.get("gone")
        if not isinstance(uuid, str) or not 0 < len(uuid) <= _LONGEST_UUID:
            continue
        if gone is not None and (isinstance(gone, bool) or not isinstance(gone, int)):
            continue
        holders = tuple(holder for each in device["holders"][:_MOST_HOLDERS] if (holder := _read_holder(each)))
        if holders and len(holders) == len(device["holders"]):
            status = MappingStatus.MAPPED if len(holders) == 1 else MappingStatus.SHARED
            yield uuid, DeviceMapping(status, holders), gone


def _device(uuid: str, mapping: DeviceMapping, gone: int | None) -> dict[str, Any]:
    found: dict[str, Any] = {"uuid": uuid, "holders": [_holder(holder) for holder in mapping.holders]}
    return found if gone is None else {**found, "gone": gone}


def _holder(holder: Holder) -> dict[str, Any]:
    return {
        "uid": holder.uid,
        "namespace": holder.namespace,
        "pod": holder.pod,
        "container": holder.container,
        "fields": dict(sorted(holder.fields.items())),
        "unverified": list(holder.unverified),
    }


def _read_holder(body: Mapping[str, Any]) -> Holder | None:
    uid, namespace, pod, container = body["uid"], body["namespace"], body["pod"], body["container"]
    if not (is_uid(uid) and is_object_name(namespace) and is_object_name(pod)):
        return None
    if container != "" and not is_object_name(container):
        return None
    fields = {name: value for name in FIELDS if (value := permitted(name, body["fields"].get(name))) is not None}
    return Holder(uid, namespace, pod, container, fields, tuple(name for name in FIELDS if name in body["unverified"]))
