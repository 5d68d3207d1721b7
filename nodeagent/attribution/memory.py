"""What is remembered from one collection to the next: tombstones, and what was told about pods that are still here.

A pod's last samples are scraped after its death: without a tombstone they would be nobody's. A tombstone ends when its
time is up, or at once when somebody else holds the device; it outlives a restart in a file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from nodeagent.attribution.holders import HoldersFile
from nodeagent.attribution.inventory import Inventory
from nodeagent.attribution.mapping import Attribution, DeviceMapping, Holder, MappingStatus

DEFAULT_SECONDS: Final = 120.0
"""How long a device's last holder is shown; longer than two scrapes."""


@dataclass(frozen=True, slots=True)
class _Last:
    mapping: DeviceMapping
    seen_at: float


class Memory:
    """Remembers, for a bounded time and only for devices and pods that are or just were here."""

    def __init__(self, seconds: float = DEFAULT_SECONDS, file: HoldersFile | None = None) -> None:
        """With a file it remembers what the process before it knew."""
        self._seconds, self._file = seconds, file
        self._last: dict[str, _Last] = {}
        self._told: dict[str, Holder] = {}
        self._taken_over = file is None

    @property
    def unsaved(self) -> int:
        """Changes that a restart would forget, for the file could not be written."""
        return self._file.unsaved if self._file is not None else 0

    def complete(self, found: Attribution, inventory: Inventory, *, now: float) -> Attribution:
        """Add tombstones, and what was told about a pod before the control plane forgot it.

        `now` is in seconds of a clock that never goes back.
        """
        self._take_over(now)
        found = replace(found, devices={uuid: self._filled(mapping) for uuid, mapping in found.devices.items()})
        self._told = {
            holder.uid: holder for mapping in found.devices.values() for holder in mapping.holders if holder.fields
        }
        for uuid, mapping in found.devices.items():
            if mapping.holders:
                self._last[uuid] = _Last(mapping, now)
            else:
                self._last.pop(uuid, None)  # somebody holds it, and nobody knows who
        alive = {uuid: last for uuid, last in self._last.items() if self._stands(uuid, last, inventory, now)}
        self._last = alive
        graves: Mapping[str, DeviceMapping] = {
            uuid: last.mapping for uuid, last in alive.items() if uuid not in found.devices
        }
        if self._file is not None:
            ages = {uuid: (alive[uuid].mapping, now - alive[uuid].seen_at) for uuid in graves}
            self._file.save(found.devices, ages)
        return replace(found, devices={**found.devices, **graves}, tombstones=frozenset(graves))

    def _take_over(self, now: float) -> None:
        """Go on from what the file says; once, and not before there is something to compare it with."""
        if self._file is None or self._taken_over:
            return
        self._taken_over = True
        for uuid, (mapping, age) in self._file.load().items():
            self._last[uuid] = _Last(mapping, now - age)
            self._told.update((holder.uid, holder) for holder in mapping.holders if holder.fields)

    def _stands(self, uuid: str, last: _Last, inventory: Inventory, now: float) -> bool:
        return now - last.seen_at <= self._seconds and inventory.resolve(uuid) is not None

    def _filled(self, mapping: DeviceMapping) -> DeviceMapping:
        if mapping.status is MappingStatus.UNKNOWN or all(holder.fields for holder in mapping.holders):
            return mapping
        return replace(mapping, holders=tuple(self._remembered(holder) for holder in mapping.holders))

    def _remembered(self, holder: Holder) -> Holder:
        before = self._told.get(holder.uid)
        if holder.fields or before is None or (before.namespace, before.pod) != (holder.namespace, holder.pod):
            return holder
        return replace(holder, fields=before.fields, unverified=before.unverified)
