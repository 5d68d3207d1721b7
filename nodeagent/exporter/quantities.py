"""What is measured, by the names and units of two dialects; never both under one name.

`classic` is what dcgm-exporter called things until 4.8, `dcgm47` what it calls them since 4.9. A quantity is read in
NVML's own unit; each dialect says its name and how the number becomes its unit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from nodeagent.exporter.exposition import Kind


class Dialect(StrEnum):
    """Whose names and units."""

    CLASSIC = "classic"
    DCGM47 = "dcgm47"


class Scope(StrEnum):
    """What a quantity is of."""

    GPU = "gpu"
    """The physical GPU, also where it is cut into MIG devices: shown once and never divided among holders."""

    DEVICE = "device"
    """What can be held: the GPU, or in MIG mode each GPU instance of it."""


class Level(StrEnum):
    """Whether a quantity is shown unasked."""

    DEFAULT = "default"
    EXTENDED = "extended"
    TRAFFIC = "traffic"
    """Byte rates of GPM, whose unit NVIDIA's header and NVIDIA's own exporter read differently."""


Scale = Callable[[float], float]


def same(value: float) -> float:
    """Leave the number as it is."""
    return value


def thousandth(value: float) -> float:
    """From milli to the unit, or from KiB/s to what DCGM calls MB/s."""
    return value / 1000


def percent(value: float) -> float:
    """From percent to a ratio."""
    return value / 100


def mega(value: float) -> float:
    """From MHz to Hz."""
    return value * 1_000_000


def kibi(value: float) -> float:
    """From KiB to bytes."""
    return value * 1024


def mebi(value: float) -> float:
    """From MiB to bytes."""
    return value * 1024 * 1024


def whole_mib(value: float) -> float:
    """From bytes to whole MiB."""
    return int(value) // (1024 * 1024)


@dataclass(frozen=True, slots=True)
class Named:
    """A quantity in one dialect."""

    name: str
    unit: str
    """As people read it; empty for a plain number."""

    scale: Scale = same


@dataclass(frozen=True, slots=True)
class Quantity:
    """One thing that is measured."""

    key: str
    meaning: str
    scope: Scope
    classic: Named
    dcgm47: Named
    source: str
    """Where NVML says it."""

    kind: Kind = Kind.GAUGE
    level: Level = Level.DEFAULT

    def named(self, dialect: Dialect) -> Named:
        """Its name in a dialect."""
        return self.classic if dialect is Dialect.CLASSIC else self.dcgm47


def _both(classic: str, dcgm47: str, unit: str = "", scale: Scale = same) -> tuple[Named, Named]:
    return Named(f"DCGM_FI_{classic}", unit, scale), Named(f"DCGM_FI_{dcgm47}", unit, scale)


def _apart(classic: str, unit: str, scale: Scale, dcgm47: str, new_unit: str, new_scale: Scale) -> tuple[Named, Named]:
    return Named(f"DCGM_FI_{classic}", unit, scale), Named(f"DCGM_FI_{dcgm47}", new_unit, new_scale)


_GPU, _DEVICE = Scope.GPU, Scope.DEVICE
_RATIO: Final = ("0 to 1", percent)

QUANTITIES: Final[tuple[Quantity, ...]] = (
    Quantity("sm_clock", "SM clock", _GPU,
             *_apart("DEV_SM_CLOCK", "MHz", same, "DEV_SM_CLOCK_HERTZ", "Hz", mega), "ClockInfo(SM)"),
    Quantity("memory_clock", "Memory clock", _GPU,
             *_apart("DEV_MEM_CLOCK", "MHz", same, "DEV_MEMORY_CLOCK_HERTZ", "Hz", mega), "ClockInfo(MEM)"),
    Quantity("memory_temperature", "Memory temperature", _GPU,
             *_both("DEV_MEMORY_TEMP", "DEV_MEMORY_TEMP_CELSIUS", "°C"), "field MEMORY_TEMP"),
    Quantity("gpu_temperature", "GPU temperature", _GPU,
             *_both("DEV_GPU_TEMP", "DEV_GPU_TEMP_CELSIUS", "°C"), "Temperature(GPU)"),
    Quantity("power", "Power draw of the board", _GPU,
             *_both("DEV_POWER_USAGE", "DEV_BOARD_POWER_WATTS", "W", thousandth), "PowerUsage"),
    Quantity("energy", "Energy since the driver was loaded", _GPU,
             *_apart("DEV_TOTAL_ENERGY_CONSUMPTION", "mJ", same, "DEV_GPU_ENERGY_JOULES_TOTAL", "J", thousandth),
             "TotalEnergyConsumption", Kind.COUNTER),
    Quantity("pcie_replays", "PCIe replays", _GPU,
             *_both("DEV_PCIE_REPLAY_COUNTER", "DEV_PCIE_REPLAY_TOTAL"), "PcieReplayCounter", Kind.COUNTER),
    Quantity("gpu_utilization", "Time in which some kernel ran", _DEVICE,
             *_apart("DEV_GPU_UTIL", "%", same, "DEV_GPU_UTIL_RATIO", *_RATIO), "UtilizationRates; not on MIG"),
    Quantity("memory_utilization", "Time in which memory was read or written", _DEVICE,
             *_apart("DEV_MEM_COPY_UTIL", "%", same, "DEV_MEMORY_UTIL_RATIO", *_RATIO),
             "UtilizationRates; not on MIG"),
    Quantity("encoder_utilization", "Encoder utilization", _DEVICE,
             *_apart("DEV_ENC_UTIL", "%", same, "DEV_ENC_UTIL_RATIO", *_RATIO), "EncoderUtilization; not on MIG"),
    Quantity("decoder_utilization", "Decoder utilization", _DEVICE,
             *_apart("DEV_DEC_UTIL", "%", same, "DEV_DEC_UTIL_RATIO", *_RATIO), "DecoderUtilization; not on MIG"),
    Quantity("memory_free", "Free memory", _DEVICE,
             *_apart("DEV_FB_FREE", "MiB", whole_mib, "DEV_FB_FREE_BYTES", "bytes", same), "MemoryInfo v2"),
    Quantity("memory_used", "Used memory", _DEVICE,
             *_apart("DEV_FB_USED", "MiB", whole_mib, "DEV_FB_USED_BYTES", "bytes", same), "MemoryInfo v2"),
    Quantity("memory_reserved", "Memory that the driver keeps", _DEVICE,
             *_apart("DEV_FB_RESERVED", "MiB", whole_mib, "DEV_FB_RESERVED_BYTES", "bytes", same), "MemoryInfo v2"),
    Quantity("memory_total", "All memory", _DEVICE,
             *_apart("DEV_FB_TOTAL", "MiB", whole_mib, "DEV_FB_CAPACITY_BYTES", "bytes", same), "MemoryInfo v2"),
    Quantity("nvlink_throughput", "NVLink traffic of all links in both directions", _GPU,
             *_apart("DEV_NVLINK_BANDWIDTH_TOTAL", "MB/s (KiB/s by 1000, as DCGM has it)", thousandth,
                     "DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND", "bytes/s", kibi),
             "fields NVLINK_THROUGHPUT_DATA_TX and _RX, by the time between two collections"),
    Quantity("uncorrectable_remapped_rows", "Rows remapped after uncorrectable errors", _GPU,
             *_both("DEV_UNCORRECTABLE_REMAPPED_ROWS", "DEV_ROW_REMAP_UNCORRECTABLE_TOTAL"), "RemappedRows",
             Kind.COUNTER),
    Quantity("correctable_remapped_rows", "Rows remapped after correctable errors", _GPU,
             *_both("DEV_CORRECTABLE_REMAPPED_ROWS", "DEV_ROW_REMAP_CORRECTABLE_TOTAL"), "RemappedRows",
             Kind.COUNTER),
    Quantity("row_remap_failure", "Whether a row could not be remapped", _GPU,
             *_both("DEV_ROW_REMAP_FAILURE", "DEV_ROW_REMAP_FAILED"), "RemappedRows"),
    Quantity("gr_engine_active", "Time in which the graphics or compute engine was active", _DEVICE,
             *_both("PROF_GR_ENGINE_ACTIVE", "PROF_GR_ENGINE_UTIL_RATIO", *_RATIO), "GPM 1"),
    Quantity("sm_active", "Time in which an SM had a warp, over all SMs", _DEVICE,
             *_both("PROF_SM_ACTIVE", "PROF_SM_UTIL_RATIO", *_RATIO), "GPM 2"),
    Quantity("sm_occupancy", "Warps on an SM, of those that fit", _DEVICE,
             *_both("PROF_SM_OCCUPANCY", "PROF_SM_OCCUPANCY_RATIO", *_RATIO), "GPM 3"),
    Quantity("tensor_active", "Cycles in which a tensor pipe was active", _DEVICE,
             *_both("PROF_PIPE_TENSOR_ACTIVE", "PROF_TENSOR_UTIL_RATIO", *_RATIO), "GPM 5"),
    Quantity("dram_active", "Cycles in which memory was sending or receiving", _DEVICE,
             *_both("PROF_DRAM_ACTIVE", "PROF_DRAM_UTIL_RATIO", *_RATIO), "GPM 10"),
    Quantity("fp64_active", "Cycles in which the FP64 pipe was active", _DEVICE,
             *_both("PROF_PIPE_FP64_ACTIVE", "PROF_FP64_UTIL_RATIO", *_RATIO), "GPM 11"),
    Quantity("fp32_active", "Cycles in which the FP32 pipe was active", _DEVICE,
             *_both("PROF_PIPE_FP32_ACTIVE", "PROF_FP32_UTIL_RATIO", *_RATIO), "GPM 12"),
    Quantity("fp16_active", "Cycles in which the FP16 pipe was active", _DEVICE,
             *_both("PROF_PIPE_FP16_ACTIVE", "PROF_FP16_UTIL_RATIO", *_RATIO), "GPM 13"),
    Quantity("pcie_tx", "PCIe bytes sent per second", _GPU,
             *_both("PROF_PCIE_TX_BYTES", "PROF_PCIE_TX_BYTES", "bytes/s", mebi), "GPM 20, read as MiB/s",
             level=Level.TRAFFIC),
    Quantity("pcie_rx", "PCIe bytes received per second", _GPU,
             *_both("PROF_PCIE_RX_BYTES", "PROF_PCIE_RX_BYTES", "bytes/s", mebi), "GPM 21, read as MiB/s",
             level=Level.TRAFFIC),
    Quantity("power_limit", "Power limit in force", _GPU,
             *_both("DEV_ENFORCED_POWER_LIMIT", "DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS", "W", thousandth),
             "EnforcedPowerLimit", level=Level.EXTENDED),
    Quantity("ecc_corrected", "Corrected memory errors since the driver was loaded", _GPU,
             *_both("DEV_ECC_SBE_VOL_TOTAL", "DEV_ECC_SBE_VOL_TOTAL"), "TotalEccErrors", Kind.COUNTER,
             Level.EXTENDED),
    Quantity("ecc_uncorrected", "Uncorrected memory errors since the driver was loaded", _GPU,
             *_both("DEV_ECC_DBE_VOL_TOTAL", "DEV_ECC_DBE_VOL_TOTAL"), "TotalEccErrors", Kind.COUNTER,
             Level.EXTENDED),
    Quantity("clock_event_reasons", "Why clocks are held down, as NVML's bits", _GPU,
             *_both("DEV_CLOCKS_EVENT_REASONS", "DEV_CLOCKS_EVENT_REASONS"), "CurrentClocksEventReasons",
             level=Level.EXTENDED),
)  # fmt: skip
"""Every quantity, in the order in which families are written."""

BY_KEY: Final = MappingProxyType({quantity.key: quantity for quantity in QUANTITIES})

XID: Final = Quantity(
    "xid", "Last XID that the driver reported; 0 if none since the exporter started", Scope.GPU,
    *_both("DEV_XID_ERRORS", "DEV_XID_ERROR"), "events",
)  # fmt: skip
"""Kept apart: it comes from events, and sticks."""

NOT_SHOWN: Final = MappingProxyType(
    {
        "DCGM_FI_DEV_VGPU_LICENSE_STATUS": "says something on virtual machines with a vGPU only",
        "DCGM_FI_PROF_NVLINK_TX_BYTES, _RX_BYTES": "DEV_NVLINK_BANDWIDTH_TOTAL says the same without GPM",
        "DCGM_FI_PROF_* on GPUs before Hopper": "NVML has no GPM there, and DCGM needs its proprietary module",
        "per-process utilization": "needs the host's PID namespace",
    }
)
"""What dcgm-exporter shows, or can show, and this exporter does not."""


def shown(level: frozenset[Level]) -> tuple[Quantity, ...]:
    """Quantities of these levels, in order."""
    return tuple(quantity for quantity in QUANTITIES if quantity.level in level)
