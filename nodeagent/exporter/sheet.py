"""From one collection to families of series: devices, attribution, and how the exporter itself is doing."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Final

from nodeagent.attribution.attributor import Source, SourceState
from nodeagent.attribution.inventory import Inventory
from nodeagent.attribution.mapping import Attribution, MappingStatus
from nodeagent.exporter import names
from nodeagent.exporter.entities import Entity, entities
from nodeagent.exporter.exposition import Family, Labels, labels
from nodeagent.exporter.naming import Naming
from nodeagent.exporter.quantities import XID, Dialect, Quantity, Scope
from nodeagent.exporter.telemetry import Reading
from nodeagent.exporter.xids import XidCount
from nodeagent.nvml.snapshot import Gpu, Unreadable

CAPABILITIES: Final[Mapping[str, str]] = {
    "power": "power",
    "energy": "energy",
    "temperature": "gpu_temperature",
    "memory": "memory_used",
    "utilization": "gpu_utilization",
    "row_remapping": "row_remap_failure",
    "nvlink": "nvlink_throughput",
}
"""Capabilities that are proved by a quantity."""


@dataclass(frozen=True, slots=True)
class Collected:
    """What one collection found."""

    gpus: Sequence[Gpu] = ()
    unreadable: Sequence[Unreadable] = ()
    driver: str = ""
    readings: Mapping[str, Reading] = field(default_factory=dict)
    """By UUID of the GPU; of a GPU that did not answer there is none, and no old one either."""

    attribution: Attribution = field(default_factory=Attribution)
    classes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Labels of the device's class, by UUID of the GPU or MIG device."""

    last_xids: Mapping[str, int] = field(default_factory=dict)
    xid_counts: Sequence[XidCount] = ()
    listening: frozenset[str] = frozenset()
    """GPUs whose XIDs are heard."""

    sources: Mapping[Source, SourceState] = field(default_factory=dict)
    collections: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    """What went wrong so far, by what it was."""

    seconds: float = 0.0
    """How long this collection took."""

    at: float = 0.0
    """When it ended, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Options:
    """What is shown."""

    quantities: tuple[Quantity, ...] = ()
    """Empty where another exporter measures and this one only attributes."""

    dialect: Dialect = Dialect.CLASSIC
    info: bool = True
    """Attribution as `gpubank_gpu_pod_info`, to be joined."""

    direct: bool = True
    """Attribution as labels of every device's own series."""


def families(seen: Collected, naming: Naming, options: Options) -> list[Family]:
    """Write a collection down."""
    whole = _whole(seen)
    found = [*_measured(seen, whole, naming, options)] if options.quantities else []
    if options.info:
        found.append(_pod_info(whole, naming))
    found += _counts(seen, whole)
    if seen.gpus:
        found += _devices(seen, naming)
    found += _self(seen)
    dropped = Family(*names.LABELS_DROPPED)
    for name in sorted(naming.dropped):
        dropped.add(labels({"label": name}), 1)
    refused = Family(*names.SAMPLES_REFUSED)
    refused.add("", sum(family.refused for family in found))
    return [*found, dropped, refused]


def _whole(seen: Collected) -> list[Entity]:
    gpus: Iterable[Gpu] = seen.gpus
    if not seen.gpus:
        # Without NVML: what the kubelet handed out is all that is known of the node's GPUs.
        bare = Inventory()
        found = (bare.resolve(uuid) for uuid in seen.attribution.devices)
        gpus = [device.gpu for device in found if device is not None]
    return list(entities(gpus, seen.attribution))


def _measured(seen: Collected, whole: Sequence[Entity], naming: Naming, options: Options) -> Iterator[Family]:
    """Yield a family for every quantity, and the last XIDs."""
    rows: list[tuple[Entity, Labels, Mapping[str, float]]] = []
    for entity in whole:
        reading = seen.readings.get(entity.gpu.uuid)
        if reading is None:
            continue
        pairs = naming.identity(entity.gpu, gi=entity.gi, profile=entity.profile, driver=seen.driver)
        pairs.update(seen.classes.get(entity.device, {}))
        if options.direct:
            pairs.update(naming.direct(entity.mapping))
        values = reading.gpu if entity.gi is None else reading.instances.get(entity.gi, {})
        rows.append((entity, labels(naming.within_budget(pairs)), values))
    for quantity in options.quantities:
        named = quantity.named(options.dialect)
        family = Family(named.name, quantity.kind, help_of(quantity, options.dialect))
        for entity, series, values in rows:
            value = values.get(quantity.key)
            if value is not None and _belongs(quantity, entity):
                family.add(series, named.scale(value) if isfinite(value) else value)
        yield family
    last = Family(XID.named(options.dialect).name, XID.kind, help_of(XID, options.dialect))
    for entity, series, _ in rows:
        uuid = entity.gpu.uuid
        if entity.gi is None and (uuid in seen.listening or uuid in seen.last_xids):
            last.add(series, seen.last_xids.get(uuid, 0))
    yield last


def _belongs(quantity: Quantity, entity: Entity) -> bool:
    """Whether a quantity is of such an entity; a GPU in MIG mode has no devices' numbers, or they would count twice."""
    return entity.gi is None if quantity.scope is Scope.GPU else entity.can_be_held


def help_of(quantity: Quantity, dialect: Dialect) -> str:
    """Text of a quantity's HELP line."""
    unit = quantity.named(dialect).unit
    return f"{quantity.meaning}, {unit}." if unit else f"{quantity.meaning}."


def _pod_info(whole: Sequence[Entity], naming: Naming) -> Family:
    info = Family(*names.POD_INFO)
    for entity in whole:
        key = naming.key(entity.gpu, entity.gi)
        mapping = entity.mapping
        if mapping.status is MappingStatus.UNKNOWN:
            info.add(labels(key | naming.info(mapping, None)), 1)
        for holder in mapping.holders:
            info.add(labels(naming.within_budget(key | naming.info(mapping, holder))), 1)
    return info


def _counts(seen: Collected, whole: Sequence[Entity]) -> Iterator[Family]:
    counted = Counter(entity.mapping.status for entity in whole)
    devices = Family(*names.DEVICES)
    for status in MappingStatus:
        devices.add(labels({"mapping_status": str(status)}), counted[status])
    yield devices
    tombstones = Family(*names.TOMBSTONES)
    tombstones.add("", len(seen.attribution.tombstones))
    yield tombstones
    strays = Family(*names.STRAYS)
    strays.add("", seen.attribution.strays)
    yield strays


def _devices(seen: Collected, naming: Naming) -> Iterator[Family]:
    readable, capable = Family(*names.READABLE), Family(*names.CAPABILITY)
    recovery, xids = Family(*names.RECOVERY_ACTION), Family(*names.XID_ERRORS)
    by_uuid = {gpu.uuid: gpu for gpu in seen.gpus}
    for gpu in seen.gpus:
        reading, key = seen.readings.get(gpu.uuid), naming.key(gpu)
        readable.add(labels(key), int(reading is not None))
        if reading is None:
            continue
        for name, has in _capabilities(reading, gpu.uuid in seen.listening).items():
            capable.add(labels({**key, "capability": name}), int(has))
        if reading.recovery_action is not None:
            recovery.add(labels(key), reading.recovery_action)
    for each in seen.xid_counts:
        if each.gpu in by_uuid:
            xids.add(labels({**naming.key(by_uuid[each.gpu], each.gi), "xid": each.xid}), each.count)
    yield from (readable, capable, recovery, xids)


def _capabilities(reading: Reading, listening: bool) -> dict[str, bool]:
    said = set(reading.gpu).union(*(set(values) for values in reading.instances.values()))
    found = {name: key in said for name, key in CAPABILITIES.items()}
    return {
        **found,
        "gpm": reading.gpm,
        "xid_events": listening,
        "recovery_action": reading.recovery_action is not None,
    }


def _self(seen: Collected) -> Iterator[Family]:
    for family, value in (
        (Family(*names.UNREADABLE), len(seen.unreadable)),
        (Family(*names.COLLECTIONS), seen.collections),
        (Family(*names.COLLECTION_SECONDS), seen.seconds),
        (Family(*names.COLLECTED_AT), seen.at),
    ):
        family.add("", value)
        yield family
    errors = Family(*names.ERRORS)
    for what, count in sorted(seen.failures.items()):
        errors.add(labels({"source": what}), count)
    up, calls = Family(*names.SOURCE_UP), Family(*names.SOURCE_CALLS)
    for source, state in seen.sources.items():
        up.add(labels({"source": str(source)}), int(not state.problem))
        calls.add(labels({"source": str(source)}), state.calls)
    yield from (errors, up, calls)
