"""Measuring GPUs through NVML: every number that a GPU gives, and none that it does not.

A call that is not supported leaves its quantity out; it is never zero. Readings of a GPU are taken together, in a
thread of the GPU's own with a deadline, so that a GPU that hangs costs its own numbers and no others'.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from nodeagent.exporter.gpm import METRICS, TRAFFIC, GpmSamples
from nodeagent.nvml.guard import Lane
from nodeagent.nvml.port import GpuLostError, NvmlError, NvmlMissingError
from nodeagent.nvml.snapshot import Gpu

T = TypeVar("T")

Values = Mapping[str, float]
"""Numbers by the key of their quantity, in NVML's units."""

_HOTTEST: Final = 200
"""Degrees above which a memory temperature is no temperature."""

_ALL_LINKS: Final = 0xFFFFFFFF
_SHARED_MEMORY: Final = {
    "memory_total": "total",
    "memory_used": "used",
    "memory_free": "free",
    "memory_reserved": "reserved",
}


@dataclass(frozen=True, slots=True)
class Reading:
    """What one GPU says of itself and its GPU instances."""

    gpu: Values = field(default_factory=dict)
    """Of the physical GPU; of one that is not in MIG mode everything."""

    instances: Mapping[int, Values] = field(default_factory=dict)
    """Of each GPU instance."""

    gpm: bool = False
    """Whether the GPU has GPM."""

    recovery_action: int | None = None
    """The driver's verdict, in NVML's numbers; None if it gives none."""


class Telemetry(Protocol):
    """Measures GPUs."""

    def open(self) -> None:
        """Start. Raises NvmlMissingError."""
        ...

    def read(self, gpu: Gpu) -> Reading:
        """Measure one GPU. Raises GpuLostError, NvmlHungError, NvmlError."""
        ...

    def keep(self, uuids: Sequence[str]) -> None:
        """Forget every GPU but these."""
        ...

    def close(self) -> None:
        """End; never raises."""
        ...


class PynvmlTelemetry:
    """Measures through NVIDIA's binding; blocking, see `GuardedTelemetry`."""

    def __init__(
        self, *, extended: bool = False, traffic: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._extended, self._traffic, self._clock = extended, traffic, clock
        self._nvml: Any = None
        self._gpm: dict[tuple[str, int | None], GpmSamples] = {}
        self._gpm_support: dict[str, bool] = {}
        self._nvlink: dict[str, tuple[float, float]] = {}

    def open(self) -> None:
        """Start. Raises NvmlMissingError."""
        try:
            import pynvml
        except ImportError as error:
            raise NvmlMissingError(
                "the binding of NVML is not installed; install gpubank with its extra `nodeagent`"
            ) from error
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise NvmlMissingError(
                f"NVML does not start ({error}); see that this node has a GPU and its driver"
            ) from error
        self._nvml = pynvml

    def read(self, gpu: Gpu) -> Reading:
        """Measure one GPU. Raises GpuLostError, NvmlError."""
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
        except nvml.NVMLError as error:
            raise self._error(gpu, error) from error
        found: dict[str, float] = {}
        try:
            self._read_board(handle, found)
            recovery = self._read_fields(gpu, handle, found)
            gpm = self._supports_gpm(gpu, handle)
            if gpu.mig_enabled:
                instances = self._instances(gpu, handle, gpm)
                if gpm and self._traffic:
                    self._read_gpm(gpu, handle, None, TRAFFIC, found)
            else:
                instances = {}
                self._read_device(handle, found)
                if gpm:
                    self._read_gpm(gpu, handle, None, {**METRICS, **(TRAFFIC if self._traffic else {})}, found)
        except nvml.NVMLError as error:
            raise self._error(gpu, error) from error
        gone = [key for key in list(self._gpm) if key[0] == gpu.uuid and key[1] is not None and key[1] not in instances]
        for key in gone:
            self._gpm.pop(key).free()
        return Reading(found, instances, gpm, recovery)

    def keep(self, uuids: Sequence[str]) -> None:
        """Forget every GPU but these, and give back what NVML allocated for them."""
        for key in [key for key in list(self._gpm) if key[0] not in uuids]:
            self._gpm.pop(key).free()
        for known in (self._gpm_support, self._nvlink):
            for uuid in [uuid for uuid in list(known) if uuid not in uuids]:
                known.pop(uuid)

    def close(self) -> None:
        """End; never raises."""
        if self._nvml is None:
            return
        self.keep(())
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:
            pass
        finally:
            self._nvml = None

    # ------------------------------------------------------------------------------------------------ parts

    def _read_board(self, handle: Any, found: dict[str, float]) -> None:
        """Read what only the physical GPU has."""
        nvml = self._nvml
        self._put(found, "sm_clock", nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM)
        self._put(found, "memory_clock", nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM)
        self._put(found, "gpu_temperature", nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
        self._put(found, "power", nvml.nvmlDeviceGetPowerUsage, handle)
        self._put(found, "energy", nvml.nvmlDeviceGetTotalEnergyConsumption, handle)
        self._put(found, "pcie_replays", nvml.nvmlDeviceGetPcieReplayCounter, handle)
        rows = self._optional(nvml.nvmlDeviceGetRemappedRows, handle)
        if rows is not None:
            found["correctable_remapped_rows"], found["uncorrectable_remapped_rows"] = rows[0], rows[1]
            found["row_remap_failure"] = int(bool(rows[3]))
        if self._extended:
            self._put(found, "power_limit", nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
            self._put(found, "clock_event_reasons", nvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
            for key, kind in (
                ("ecc_corrected", nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
                ("ecc_uncorrected", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
            ):
                self._put(found, key, nvml.nvmlDeviceGetTotalEccErrors, handle, kind, nvml.NVML_VOLATILE_ECC)

    def _read_fields(self, gpu: Gpu, handle: Any, found: dict[str, float]) -> int | None:
        """Read what is told by fields, in one call; returns the recovery action."""
        nvml = self._nvml
        links = nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX
        asked = [
            nvml.NVML_FI_DEV_MEMORY_TEMP,
            *((link, _ALL_LINKS) for link in links),
            nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION,
        ]
        values = self._optional(nvml.nvmlDeviceGetFieldValues, handle, asked)
        if values is None:
            return None
        temperature, sent, received, recovery = (self._value(value) for value in values)
        if temperature is not None and 0 < temperature <= _HOTTEST:
            found["memory_temperature"] = temperature
        if sent is not None and received is not None:
            rate = self._rate(gpu.uuid, sent + received)
            if rate is not None:
                found["nvlink_throughput"] = rate
        return int(recovery) if recovery is not None else None

    def _read_device(self, handle: Any, found: dict[str, float]) -> None:
        """Read what a device has that can be held."""
        nvml = self._nvml
        self._read_memory(handle, found)
        rates = self._optional(nvml.nvmlDeviceGetUtilizationRates, handle)
        if rates is not None:
            found["gpu_utilization"], found["memory_utilization"] = rates.gpu, rates.memory
        for key, ask in (
            ("encoder_utilization", nvml.nvmlDeviceGetEncoderUtilization),
            ("decoder_utilization", nvml.nvmlDeviceGetDecoderUtilization),
        ):
            answer = self._optional(ask, handle)
            if answer is not None:
                found[key] = answer[0]

    def _read_memory(self, handle: Any, found: dict[str, float]) -> None:
        memory = self._optional(self._nvml.nvmlDeviceGetMemoryInfo, handle, self._nvml.nvmlMemory_v2)
        if memory is not None and memory.total:
            found.update({key: getattr(memory, name) for key, name in _SHARED_MEMORY.items()})

    def _instances(self, gpu: Gpu, handle: Any, gpm: bool) -> dict[int, Values]:
        """Measure every GPU instance once, however many compute instances it has: they share its memory."""
        measured: dict[int, Values] = {}
        for device, gi in self._first_of_each(handle):
            found: dict[str, float] = {}
            self._read_memory(device, found)
            if gpm:
                self._read_gpm(gpu, handle, gi, METRICS, found)
            measured[gi] = found
        return measured

    def _first_of_each(self, handle: Any) -> Iterator[tuple[Any, int]]:
        """Yield one MIG device of every GPU instance; what is not there any more is passed over."""
        nvml, seen = self._nvml, set[int]()
        for index in range(self._optional(nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
            device = self._optional(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
            gi = self._optional(nvml.nvmlDeviceGetGpuInstanceId, device) if device is not None else None
            if gi is not None and gi not in seen:
                seen.add(gi)
                yield device, gi

    def _read_gpm(
        self, gpu: Gpu, handle: Any, gi: int | None, wanted: Mapping[str, int], found: dict[str, float]
    ) -> None:
        samples = self._gpm.get((gpu.uuid, gi))
        if samples is None or samples.wanted != wanted:
            if samples is not None:
                samples.free()
            samples = self._gpm[gpu.uuid, gi] = GpmSamples(self._nvml, wanted)
        counted = self._optional(samples.take, handle, gi)
        if counted:
            found.update(counted)

    def _supports_gpm(self, gpu: Gpu, handle: Any) -> bool:
        known = self._gpm_support.get(gpu.uuid)
        if known is None:
            answer = self._optional(self._nvml.nvmlGpmQueryDeviceSupport, handle)
            known = self._gpm_support[gpu.uuid] = bool(answer is not None and answer.isSupportedDevice)
        return known

    def _rate(self, uuid: str, total: float) -> float | None:
        """Turn a counter into a rate per second since the last collection; a counter that went back says nothing."""
        now = self._clock()
        before = self._nvlink.get(uuid)
        self._nvlink[uuid] = (total, now)
        if before is None or total < before[0] or now <= before[1]:
            return None
        return (total - before[0]) / (now - before[1])

    # ----------------------------------------------------------------------------------------------- errors

    def _value(self, field_value: Any) -> float | None:
        nvml = self._nvml
        if field_value.nvmlReturn != nvml.NVML_SUCCESS:
            return None
        value = field_value.value
        by_type = {
            nvml.NVML_VALUE_TYPE_DOUBLE: value.dVal,
            nvml.NVML_VALUE_TYPE_UNSIGNED_INT: value.uiVal,
            nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: value.ulVal,
            nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: value.ullVal,
            nvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: value.sllVal,
        }
        return by_type.get(field_value.valueType)

    def _put(self, found: dict[str, float], key: str, ask: Callable[..., float], *arguments: Any) -> None:
        value = self._optional(ask, *arguments)
        if value is not None:
            found[key] = value

    def _optional(self, ask: Callable[..., T], *arguments: Any) -> T | None:
        """Ask for what not every GPU or driver has; only a lost GPU is an error."""
        try:
            return ask(*arguments)
        except self._nvml.NVMLError as error:
            if self._is_lost(error):
                raise
            return None

    def _error(self, gpu: Gpu, error: Any) -> NvmlError:
        if self._is_lost(error):
            return GpuLostError(f"GPU {gpu.uuid!r} cannot be measured: it is lost ({error}); its node needs a look")
        return NvmlError(f"GPU {gpu.uuid!r} cannot be measured: {error}")

    def _is_lost(self, error: Any) -> bool:
        nvml = self._nvml
        lost = (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_GPU_NOT_FOUND, nvml.NVML_ERROR_RESET_REQUIRED)
        return getattr(error, "value", None) in lost


class GuardedTelemetry:
    """The same with deadlines: each GPU in a lane of its own, so that a call that hangs holds up nobody else."""

    def __init__(self, inner: Telemetry, *, timeout: float = 5.0) -> None:
        self._inner, self._timeout = inner, timeout
        self._lanes: dict[str, Lane] = {}

    def open(self) -> None:
        """Start; the driver may take long to wake up. Raises NvmlMissingError, NvmlHungError."""
        self._lane("").run(self._inner.open, self._timeout * 10)

    def read(self, gpu: Gpu) -> Reading:
        """Measure one GPU. Raises GpuLostError, NvmlHungError, NvmlError."""
        return self._lane(gpu.uuid).run(lambda: self._inner.read(gpu), self._timeout)

    def keep(self, uuids: Sequence[str]) -> None:
        """Forget every GPU but these, and those in the middle of a call, whose memory the driver may still write to."""
        stuck = [uuid for uuid, lane in self._lanes.items() if lane.hung]
        for uuid in [uuid for uuid in self._lanes if uuid and uuid not in uuids and uuid not in stuck]:
            self._lanes.pop(uuid).close()
        self._lane("").run(lambda: self._inner.keep([*uuids, *stuck]), self._timeout)

    def close(self) -> None:
        """End; never raises, and leaves behind what is stuck."""
        stuck = any(lane.hung for lane in self._lanes.values())
        try:
            if not stuck:
                self._lane("").run(self._inner.close, self._timeout)
        except NvmlError:
            pass
        finally:
            for lane in self._lanes.values():
                lane.close()
            self._lanes.clear()

    def _lane(self, name: str) -> Lane:
        return self._lanes.setdefault(name, Lane(f"telemetry {name}".strip()))
