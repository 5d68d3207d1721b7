"""What series are of: physical GPUs, and what of them can be held.

Two compute instances in one GPU instance share its memory and its counters. Such an instance is shown once, and is one
pod's only if one pod holds all of it that is held.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from nodeagent.attribution.mapping import UNALLOCATED, UNKNOWN, Attribution, DeviceMapping, Holder, MappingStatus
from nodeagent.nvml.snapshot import Gpu

PARTITIONED = DeviceMapping(MappingStatus.PARTITIONED)


@dataclass(frozen=True, slots=True)
class Entity:
    """One physical GPU, or one GPU instance."""

    gpu: Gpu
    mapping: DeviceMapping
    device: str
    """UUID of the GPU, or of the first MIG device in the instance: what its class is judged by."""

    gi: int | None = None
    profile: str = ""

    @property
    def can_be_held(self) -> bool:
        """Whether it is handed out as it is."""
        return self.mapping.status is not MappingStatus.PARTITIONED


def entities(gpus: Iterable[Gpu], attribution: Attribution) -> Iterator[Entity]:
    """Yield every physical GPU, each followed by its GPU instances."""
    for gpu in gpus:
        if not gpu.mig_enabled:
            yield Entity(gpu, attribution.of(gpu.uuid), gpu.uuid)
            continue
        yield Entity(gpu, PARTITIONED, gpu.uuid)
        instances: defaultdict[int, list[tuple[str, str]]] = defaultdict(list)
        for mig in gpu.migs:
            instances[mig.gi].append((mig.uuid, mig.profile))
        for gi, devices in sorted(instances.items()):
            mapping = merged(attribution.of(uuid) for uuid, _ in devices)
            yield Entity(gpu, mapping, devices[0][0], gi, devices[0][1])


def merged(mappings: Iterable[DeviceMapping]) -> DeviceMapping:
    """Judge a whole by its parts: unknown if any part is, else by how many pods hold any of it."""
    found = list(mappings)
    if len(found) == 1:
        return found[0]
    if any(mapping.status is MappingStatus.UNKNOWN for mapping in found):
        return UNKNOWN
    holders: dict[str, Holder] = {}
    for mapping in found:
        for holder in mapping.holders:
            known = holders.get(holder.uid)
            same = known is None or known.container == holder.container
            holders[holder.uid] = (
                holder
                if same
                else Holder(holder.uid, holder.namespace, holder.pod, "", holder.fields, holder.unverified)
            )
    if not holders:
        return UNALLOCATED
    status = MappingStatus.MAPPED if len(holders) == 1 else MappingStatus.SHARED
    return DeviceMapping(status, tuple(holders[uid] for uid in sorted(holders)))
