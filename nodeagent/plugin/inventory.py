"""What a node sells: every device of every resource, and what is withheld and why. Pure.

    NodeSnapshot + Rulebook + sharing ─▶ Inventory {resource: devices}

Over exclusive whole GPUs and the quarantine, each physical GPU stands exactly once.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from gpubank.domain.device import FULL, UNKNOWN_CLASS, Offer, Sharing
from nodeagent.classes.classify import Verdict, classify
from nodeagent.classes.observed import facts_of
from nodeagent.classes.rulebook import Rulebook
from nodeagent.nvml.snapshot import ANY_INSTANCE, Gpu, MigDevice, NodeSnapshot
from nodeagent.settings import AgentSettings, MigStrategy

REPLICA: Final = "::"
"""Between a device's UUID and the number of the turn, as upstream writes it."""


@dataclass(frozen=True, slots=True)
class Device:
    """One thing that a container can get: a GPU, a MIG device, or a turn on either."""

    id: str
    """What the kubelet calls it: the UUID, or `UUID::N`."""

    uuid: str
    """UUID of the GPU or MIG device."""

    gpu: Gpu
    """The GPU that it is or is on."""

    offer: Offer
    gi: int = ANY_INSTANCE
    ci: int = ANY_INSTANCE
    reason: str = ""
    """Why it has its class."""


@dataclass(frozen=True, slots=True)
class Withheld:
    """A GPU or MIG device of which nothing is sold."""

    uuid: str
    gpu: str
    reason: str


@dataclass(frozen=True, slots=True)
class Inventory:
    """The devices of a node by what is sold, and what is not."""

    devices: Mapping[Offer, tuple[Device, ...]] = field(default_factory=dict)
    withheld: tuple[Withheld, ...] = ()
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    """Verdict on every whole GPU, MIG mode or not, by UUID: for labels of the node."""

    def device(self, offer: Offer, device_id: str) -> Device | None:
        """Find a device of one resource."""
        return next((device for device in self.devices.get(offer, ()) if device.id == device_id), None)


def build(snapshot: NodeSnapshot, rulebook: Rulebook, settings: AgentSettings) -> Inventory:
    """Say what the node sells."""
    gpus = sorted(snapshot.gpus, key=lambda gpu: (gpu.index, gpu.uuid))
    mixed_up = _not_uniform(gpus) if settings.mig_strategy is MigStrategy.SINGLE else ""
    replicas = {
        shared.offer: shared.replicas for shared in settings.sharing.time_slicing.resources if shared.offer is not None
    }
    devices: dict[Offer, list[Device]] = {}
    withheld: list[Withheld] = []
    verdicts: dict[str, Verdict] = {}
    for gpu in gpus:
        verdicts[gpu.uuid] = classify(facts_of(gpu), rulebook)
        unsold: list[Withheld] = []
        sold = 0
        for found in _parts(gpu, verdicts[gpu.uuid], rulebook, settings.mig_strategy, mixed_up):
            wanted = found if isinstance(found, Withheld) else _offered(found, rulebook, replicas)
            if isinstance(wanted, Withheld):
                unsold.append(wanted)
                continue
            sold += 1
            for device in wanted:
                devices.setdefault(device.offer, []).append(device)
        withheld += unsold
        if unsold and not sold and rulebook.quarantine_resource:
            offer = Offer(UNKNOWN_CLASS)
            devices.setdefault(offer, []).append(Device(gpu.uuid, gpu.uuid, gpu, offer, reason=unsold[0].reason))
    return Inventory({offer: tuple(found) for offer, found in sorted(devices.items())}, tuple(withheld), verdicts)


def _parts(
    gpu: Gpu, verdict: Verdict, rulebook: Rulebook, strategy: MigStrategy, mixed_up: str
) -> Iterator["_Part | Withheld"]:
    """Yield what could be sold of a GPU: itself, or its MIG devices."""
    if mixed_up:
        yield Withheld(gpu.uuid, gpu.uuid, mixed_up)
    elif not gpu.mig_enabled:
        yield _Part(gpu, None, verdict)
    elif strategy is MigStrategy.NONE:
        yield Withheld(gpu.uuid, gpu.uuid, "MIG mode is on, and the strategy 'none' sells whole GPUs only")
    elif not gpu.migs:
        yield Withheld(gpu.uuid, gpu.uuid, "MIG mode is on, but the GPU is not cut into MIG devices")
    else:
        for mig in gpu.migs:
            yield _Part(gpu, mig, classify(facts_of(gpu, mig), rulebook))


@dataclass(frozen=True, slots=True)
class _Part:
    gpu: Gpu
    mig: MigDevice | None
    verdict: Verdict

    @property
    def uuid(self) -> str:
        return self.mig.uuid if self.mig else self.gpu.uuid


def _offered(part: _Part, rulebook: Rulebook, replicas: Mapping[Offer, int]) -> tuple[Device, ...] | Withheld:
    verdict = part.verdict
    plain = Offer(verdict.device_class, verdict.partition)
    turns = replicas.get(plain, 1)
    offer = Offer(plain.device_class, plain.partition, Sharing.TIME_SLICING) if turns > 1 else plain
    if verdict.quarantined:
        return Withheld(part.uuid, part.gpu.uuid, verdict.reason)
    if not rulebook.publishes(offer):
        reason = f"{verdict.reason}; {offer.resource!r} is not published"
        return Withheld(part.uuid, part.gpu.uuid, reason)
    gi, ci = (part.mig.gi, part.mig.ci) if part.mig else (ANY_INSTANCE, ANY_INSTANCE)
    names = [part.uuid] if turns == 1 else [f"{part.uuid}{REPLICA}{turn}" for turn in range(turns)]
    return tuple(Device(name, part.uuid, part.gpu, offer, gi, ci, verdict.reason) for name in names)


def _not_uniform(gpus: list[Gpu]) -> str:
    """Why the strategy `single` sells nothing here; empty if it does."""
    shapes = {tuple(sorted(mig.profile for mig in gpu.migs)) if gpu.mig_enabled else (FULL,) for gpu in gpus}
    profiles = {profile for shape in shapes for profile in shape}
    if len(shapes) <= 1 and len(profiles) <= 1:
        return ""
    found = ", ".join(sorted(profiles)) or "GPUs in MIG mode that are not cut"
    return f"the MIG strategy 'single' wants all GPUs of the node cut alike; found {found}"


def base_id(device_id: str) -> str:
    """UUID of a device id, without its turn."""
    return device_id.split(REPLICA, 1)[0]
