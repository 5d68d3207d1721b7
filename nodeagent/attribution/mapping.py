"""Who holds every device: allocations, witnesses and metadata in, one verdict per device out.

    nobody                                  unallocated
    one pod, its UID beyond doubt           mapped
    several pods, every UID beyond doubt    shared        (what the device uses is nobody's alone)
    anything else                           unknown       (no name is shown: it might be its predecessor's)

A GPU in MIG mode is `partitioned`: its MIG devices are held, it is not.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from gpubank.domain.attribution import NodeMetadata
from nodeagent.attribution.allocations import Allocation
from nodeagent.attribution.identity import Witnesses
from nodeagent.attribution.inventory import Inventory, is_gpu_resource, is_turn, looks_like_gpu


class MappingStatus(StrEnum):
    """What is known about who holds a device."""

    MAPPED = "mapped"
    SHARED = "shared"
    UNKNOWN = "unknown"
    PARTITIONED = "partitioned"
    UNALLOCATED = "unallocated"


@dataclass(frozen=True, slots=True)
class Holder:
    """A pod that holds a device."""

    uid: str
    namespace: str
    pod: str
    container: str
    """Empty where several containers of the pod hold the device."""

    fields: Mapping[str, str] = field(default_factory=dict)
    """What it is booked to and what it says of itself, by `gpubank.domain.attribution.FIELDS`."""

    unverified: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceMapping:
    """Who holds one device."""

    status: MappingStatus
    holders: tuple[Holder, ...] = ()
    """By UID; only of a device that is mapped or shared."""


UNALLOCATED = DeviceMapping(MappingStatus.UNALLOCATED)
UNKNOWN = DeviceMapping(MappingStatus.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Attribution:
    """Who holds what on this node, at one moment."""

    devices: Mapping[str, DeviceMapping] = field(default_factory=dict)
    """By UUID of the GPU or MIG device; what nobody holds is left out."""

    strays: int = 0
    """Allocations of GPUs that the node does not know (any more)."""

    tombstones: frozenset[str] = frozenset()
    """Devices whose holder is gone and still shown."""

    def of(self, uuid: str) -> DeviceMapping:
        """Who holds a device."""
        return self.devices.get(uuid, UNALLOCATED)


def attribute(
    allocations: Iterable[Allocation],
    inventory: Inventory,
    witnesses: Witnesses,
    metadata: NodeMetadata | None,
    *,
    now: datetime,
) -> Attribution:
    """Judge every device; never raises, whatever the kubelet says."""
    held: defaultdict[str, list[Allocation]] = defaultdict(list)
    strays = 0
    for allocation in allocations:
        device_id = allocation.device_id
        if allocation.claimed:
            device_id = metadata.devices.get(device_id, "") if metadata is not None else ""
            if not device_id:
                strays += is_gpu_driver(allocation.resource)
                continue
        device = inventory.resolve(device_id)
        if device is None:
            strays += is_gpu_resource(allocation.resource) or looks_like_gpu(device_id)
            continue
        held[device.uuid].append(allocation)
    return Attribution(
        devices={uuid: _judge(found, witnesses, metadata, now) for uuid, found in sorted(held.items())}, strays=strays
    )


def is_gpu_driver(driver: str) -> bool:
    """Whether a DRA driver hands out GPUs."""
    return driver.startswith("gpu.") or driver.endswith((".gpu", "/gpu"))


def _judge(
    allocations: list[Allocation], witnesses: Witnesses, metadata: NodeMetadata | None, now: datetime
) -> DeviceMapping:
    allocations = _in_force(allocations, witnesses)
    containers: defaultdict[str, set[str]] = defaultdict(set)
    names: dict[str, tuple[str, str]] = {}
    for allocation in allocations:
        uid = witnesses.uid(allocation)
        if uid is None or names.setdefault(uid, (allocation.namespace, allocation.pod)) != (
            allocation.namespace,
            allocation.pod,
        ):
            return UNKNOWN
        containers[uid].add(allocation.container)
    holders = tuple(_holder(uid, names[uid], containers[uid], metadata, now) for uid in sorted(names))
    return DeviceMapping(MappingStatus.MAPPED if len(holders) == 1 else MappingStatus.SHARED, holders)


def _in_force(allocations: list[Allocation], witnesses: Witnesses) -> list[Allocation]:
    """Drop pods that have ended: old kubelets list them beside the one that got their device.

    Only where a device cannot be shared, several pods claim it, and the checkpoint names exactly one of them.
    """
    pods = {(allocation.namespace, allocation.pod) for allocation in allocations}
    if len(pods) < 2 or any(is_turn(each.device_id) or each.claimed for each in allocations):
        return allocations
    noted = frozenset[str]().union(*(witnesses.holders(allocation) for allocation in allocations))
    if len(noted) != 1:
        return allocations
    known = witnesses.pods or {}
    running = [each for each in allocations if noted & known.get((each.namespace, each.pod), frozenset())]
    return running or allocations


def _holder(
    uid: str, name: tuple[str, str], containers: set[str], metadata: NodeMetadata | None, now: datetime
) -> Holder:
    told = metadata.pods.get(uid) if metadata is not None else None
    if told is not None and (told.namespace, told.name) != name:
        told = None  # a claim to another's UID
    return Holder(
        uid=uid,
        namespace=name[0],
        pod=name[1],
        container=next(iter(containers)) if len(containers) == 1 else "",
        fields=told.at(now) if told is not None else {},
        unverified=told.unverified if told is not None else (),
    )
