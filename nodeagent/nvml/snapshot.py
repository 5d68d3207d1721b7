"""What NVML says about a node, as plain records."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

ANY_INSTANCE: Final = 0xFFFFFFFF
"""GPU or compute instance of an event that concerns all of them."""


class RecoveryAction(IntEnum):
    """The driver's own verdict of what a GPU needs, in NVML's numbers."""

    NONE = 0
    GPU_RESET = 1
    NODE_REBOOT = 2
    DRAIN_P2P = 3
    DRAIN_AND_RESET = 4
    RECOVER_IMEX = 5
    BUS_RESET = 6
    SYSTEM_REBOOT = 7


class Ancestor(IntEnum):
    """Nearest common ancestor of two GPUs on PCIe, nearest first, in NVML's numbers."""

    INTERNAL = 0
    SINGLE_SWITCH = 10
    MULTIPLE_SWITCHES = 20
    HOST_BRIDGE = 30
    NUMA_NODE = 40
    SYSTEM = 50


class EventKind(IntEnum):
    """Kinds of events that the agent listens to, in NVML's bits."""

    SINGLE_BIT_ECC = 0x1
    DOUBLE_BIT_ECC = 0x2
    XID = 0x8
    MIG_CONFIG_CHANGE = 0x100
    GPU_UNAVAILABLE = 0x4000
    RECOVERY_ACTION = 0x8000


@dataclass(frozen=True, slots=True)
class MigDevice:
    """One MIG device of a GPU."""

    uuid: str
    """As in `MIG-…`."""

    profile: str
    """As in `1g.10gb`."""

    gi: int
    """GPU instance."""

    ci: int
    """Compute instance."""

    memory_mib: int | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU: what does not change while the driver is loaded, but for its MIG devices."""

    uuid: str
    index: int
    name: str
    memory_mib: int | None
    compute_capability: str = ""
    pci_bus_id: str = ""
    """As in `0000:18:00.0`."""

    pci_device_id: str = ""
    """As in `10de:2330`."""

    minor: int | None = None
    """Number of the device file `/dev/nvidiaN`."""

    numa_node: int | None = None
    """NUMA node; None if the machine has none or does not say."""

    mig_enabled: bool = False
    migs: tuple[MigDevice, ...] = ()


@dataclass(frozen=True, slots=True)
class Condition:
    """How a GPU is right now; what NVML does not support on it is None, which is never read as zero."""

    recovery_action: RecoveryAction | None = None
    remap_pending: bool | None = None
    """A row is to be remapped at the next reset."""

    remap_failed: bool | None = None
    """A row could not be remapped: the memory is worn out."""

    ecc_uncorrected: int | None = None
    """Uncorrected memory errors since the driver was loaded."""

    thermal_slowdown: bool | None = None
    """Its hardware holds its clocks down because it is too hot."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event of NVML, as it came."""

    uuid: str
    """GPU; empty if NVML does not say which."""

    kind: EventKind
    data: int
    """XID, for events of that kind."""

    gi: int = ANY_INSTANCE
    ci: int = ANY_INSTANCE


@dataclass(frozen=True, slots=True)
class Links:
    """How near two GPUs are to each other; a pair stands once, in sorted order."""

    nvlinks: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """NVLinks between two GPUs; through a switch each counts its own links."""

    ancestors: Mapping[tuple[str, str], Ancestor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A GPU that is there by its index but cannot be described."""

    index: int
    reason: str
    lost: bool = False


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """The GPUs of a node at one moment."""

    gpus: tuple[Gpu, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()
    driver: str = ""
    """For people only; no class is decided by it."""

    def gpu(self, uuid: str) -> Gpu | None:
        """Find a GPU by its UUID."""
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)


def pair(one: str, other: str) -> tuple[str, str]:
    """Key of two GPUs in `Links`."""
    return (one, other) if one <= other else (other, one)
