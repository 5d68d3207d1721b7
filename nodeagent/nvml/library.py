"""NVML itself, through NVIDIA's own binding: blocking, and as truthful as the driver.

What a driver does not support is left out rather than guessed. The binding is imported when a session is opened, so
that a machine without it can still read this module.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

from nodeagent.nvml.port import GpuLostError, NvmlError, NvmlMissingError
from nodeagent.nvml.snapshot import (
    Ancestor,
    Condition,
    Event,
    EventKind,
    Gpu,
    Links,
    MigDevice,
    RecoveryAction,
    Unreadable,
    pair,
)

T = TypeVar("T")

_MIB: Final = 1024 * 1024
_PROFILE: Final = re.compile(r"MIG (\S+)$", re.IGNORECASE)
_MOST_LINKS: Final = 18
_HW_THERMAL_SLOWDOWN: Final = 0x40
"""Bit of the reasons why clocks are held down: too hot, by the hardware's own judgement."""

_NO_TEXT: Final = "what it says of itself is no text"

_WANTED: Final = (
    EventKind.XID,
    EventKind.DOUBLE_BIT_ECC,
    EventKind.MIG_CONFIG_CHANGE,
    EventKind.GPU_UNAVAILABLE,
    EventKind.RECOVERY_ACTION,
)


class PynvmlSession:
    """A session of the `nvidia-ml-py` binding."""

    def __init__(self) -> None:
        self._nvml: Any = None
        """The binding; kept after the end, for a call that is still under way reads the driver's answer with it."""

        self._is_open = False
        self._handles: dict[str, Any] = {}
        self._events: Any = None

    def open(self) -> str:
        """Start the session and return the driver's version."""
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
                f"NVML does not start ({_words(error)}); see that this node has a GPU and its driver is loaded"
            ) from error
        self._nvml, self._is_open = pynvml, True
        return str(self._optional(pynvml.nvmlSystemGetDriverVersion) or "")

    def enumerate(self) -> Sequence[str | Unreadable]:
        """UUIDs of the GPUs by index; an entry that cannot be read says why."""
        nvml = self._nvml
        with self._translated("the GPUs cannot be counted"):
            count = nvml.nvmlDeviceGetCount()
        found: list[str | Unreadable] = []
        handles: dict[str, Any] = {}
        for index in range(count):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                uuid = nvml.nvmlDeviceGetUUID(handle)
            except nvml.NVMLError as error:
                found.append(Unreadable(index, _words(error), lost=self._is_lost(error)))
            except UnicodeDecodeError:
                found.append(Unreadable(index, _NO_TEXT))
            else:
                handles[uuid] = handle
                found.append(uuid)
        self._handles = handles
        return found

    def describe(self, uuid: str) -> Gpu:
        """Describe one GPU with its MIG devices."""
        nvml, handle = self._nvml, self._handle(uuid)
        with self._translated(f"GPU {uuid!r} cannot be described"):
            name, index = nvml.nvmlDeviceGetName(handle), nvml.nvmlDeviceGetIndex(handle)
            memory = self._optional(nvml.nvmlDeviceGetMemoryInfo, handle)
            capability = self._optional(nvml.nvmlDeviceGetCudaComputeCapability, handle)
            pci = self._optional(nvml.nvmlDeviceGetPciInfo, handle)
            mode = self._optional(nvml.nvmlDeviceGetMigMode, handle)
            enabled = mode is not None and mode[0] == nvml.NVML_DEVICE_MIG_ENABLE
            total = memory.total // _MIB if memory is not None and memory.total else None
            return Gpu(
                uuid=uuid,
                index=index,
                name=name,
                memory_mib=total,
                compute_capability=f"{capability[0]}.{capability[1]}" if capability else "",
                pci_bus_id=_bus_id(pci.busId) if pci is not None else "",
                pci_device_id=_pci_device(pci.pciDeviceId) if pci is not None else "",
                minor=self._optional(nvml.nvmlDeviceGetMinorNumber, handle),
                numa_node=self._numa(handle),
                mig_enabled=enabled,
                migs=tuple(self._migs(handle, total)) if enabled else (),
            )

    def condition(self, uuid: str) -> Condition:
        """How the GPU is."""
        nvml, handle = self._nvml, self._handle(uuid)
        with self._translated(f"GPU {uuid!r} does not say how it is"):
            # Asked first and not optional: a GPU that cannot even tell its temperature is in no state to work.
            nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
            remap = self._optional(nvml.nvmlDeviceGetRemappedRows, handle)
            ecc = self._optional(
                nvml.nvmlDeviceGetTotalEccErrors,
                handle,
                nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                nvml.NVML_VOLATILE_ECC,
            )
            reasons = self._optional(nvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
            return Condition(
                recovery_action=self._recovery_action(handle),
                remap_pending=bool(remap[2]) if remap else None,
                remap_failed=bool(remap[3]) if remap else None,
                ecc_uncorrected=ecc,
                thermal_slowdown=bool(reasons & _HW_THERMAL_SLOWDOWN) if reasons is not None else None,
            )

    def links(self, uuids: Sequence[str]) -> Links:
        """How near the GPUs are to each other."""
        nvml = self._nvml
        known = [uuid for uuid in uuids if uuid in self._handles]
        ancestors: dict[tuple[str, str], Ancestor] = {}
        for place, one in enumerate(known):
            for other in known[place + 1 :]:
                level = self._optional(
                    nvml.nvmlDeviceGetTopologyCommonAncestor, self._handles[one], self._handles[other]
                )
                if level in tuple(Ancestor):
                    ancestors[pair(one, other)] = Ancestor(level)
        return Links(nvlinks=self._nvlinks(known), ancestors=ancestors)

    def listen(self, uuids: Sequence[str]) -> None:
        """Register for the events of these GPUs, replacing earlier registrations."""
        nvml = self._nvml
        self._forget_events()
        with self._translated("events cannot be listened to"):
            events = nvml.nvmlEventSetCreate()
        for uuid in uuids:
            handle = self._handles.get(uuid)
            supported = self._optional(nvml.nvmlDeviceGetSupportedEventTypes, handle) if handle is not None else None
            wanted = sum(kind for kind in _WANTED if supported is not None and supported & kind)
            if wanted:
                with suppress(nvml.NVMLError):
                    nvml.nvmlDeviceRegisterEvents(handle, wanted, events)
        self._events = events

    def wait(self, timeout_ms: int) -> Event | None:
        """Wait for the next event; None after the time-out."""
        nvml = self._nvml
        if self._events is None:
            raise NvmlError("nothing is listened to; call listen first")
        try:
            data = nvml.nvmlEventSetWait_v2(self._events, timeout_ms)
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_TIMEOUT:
                return None
            raise self._error("events cannot be waited for", error) from error
        if data.eventType not in tuple(EventKind):
            return None
        uuid = self._optional(nvml.nvmlDeviceGetUUID, data.device) if data.device else None
        return Event(
            uuid=uuid or self._uuid_of(data.device),
            kind=EventKind(data.eventType),
            data=int(data.eventData),
            gi=data.gpuInstanceId,
            ci=data.computeInstanceId,
        )

    def close(self) -> None:
        """End the session; never raises."""
        if not self._is_open:
            return
        self._is_open = False
        self._forget_events()
        with suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()
        self._handles = {}

    # ------------------------------------------------------------------------------------------------ parts

    def _handle(self, uuid: str) -> Any:
        handle = self._handles.get(uuid)
        if handle is None:
            raise GpuLostError(f"GPU {uuid!r} is not there; look at the node's GPUs again")
        return handle

    def _migs(self, handle: Any, total_mib: int | None) -> Iterator[MigDevice]:
        nvml = self._nvml
        for index in range(self._optional(nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
            device = self._optional(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
            if device is None:
                continue
            memory = self._optional(nvml.nvmlDeviceGetMemoryInfo, device)
            yield MigDevice(
                uuid=nvml.nvmlDeviceGetUUID(device),
                profile=self._profile(device, total_mib),
                gi=nvml.nvmlDeviceGetGpuInstanceId(device),
                ci=nvml.nvmlDeviceGetComputeInstanceId(device),
                memory_mib=memory.total // _MIB if memory is not None and memory.total else None,
            )

    def _profile(self, device: Any, total_mib: int | None) -> str:
        """Profile of a MIG device: from its name, which tells variants such as `+me` apart, else from its size."""
        nvml = self._nvml
        named = _PROFILE.search(self._optional(nvml.nvmlDeviceGetName, device) or "")
        if named:
            return named.group(1).lower()
        attributes = self._optional(nvml.nvmlDeviceGetAttributes, device)
        if attributes is None or not total_mib:
            return ""
        # Profiles are eighths of the memory, named by whole GB.
        eighths = math.ceil(attributes.memorySizeMB / total_mib * 8 - 0.05)
        gigabytes = round(eighths / 8 * math.ceil(total_mib / 1024))
        compute = attributes.computeInstanceSliceCount
        slices = attributes.gpuInstanceSliceCount
        prefix = f"{compute}c." if compute and compute != slices else ""
        return f"{prefix}{slices}g.{gigabytes}gb"

    def _numa(self, handle: Any) -> int | None:
        """NUMA node nearest to the GPU; -1, which drivers use for "none", is None."""
        nvml = self._nvml
        affinity = self._optional(nvml.nvmlDeviceGetMemoryAffinity, handle, 16, nvml.NVML_AFFINITY_SCOPE_NODE)
        for word, bits in enumerate(affinity or ()):
            if bits:
                return int(word * 64 + (int(bits) & -int(bits)).bit_length() - 1)
        return None

    def _recovery_action(self, handle: Any) -> RecoveryAction | None:
        nvml = self._nvml
        field = nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
        values = self._optional(nvml.nvmlDeviceGetFieldValues, handle, [field])
        if values is None or values[0].nvmlReturn != nvml.NVML_SUCCESS:
            return None
        number = int(values[0].value.uiVal)
        # A verdict from a newer driver is no reason to call a GPU sound.
        return RecoveryAction(number) if number in tuple(RecoveryAction) else RecoveryAction.SYSTEM_REBOOT

    def _nvlinks(self, uuids: Sequence[str]) -> dict[tuple[str, str], int]:
        nvml = self._nvml
        places = {}
        for uuid in uuids:
            pci = self._optional(nvml.nvmlDeviceGetPciInfo, self._handles[uuid])
            if pci is not None:
                places[_bus_id(pci.busId)] = uuid
        direct: dict[tuple[str, str], int] = {}
        switched: dict[str, int] = {}
        for uuid in uuids:
            for link in range(_MOST_LINKS):
                state = self._optional(nvml.nvmlDeviceGetNvLinkState, self._handles[uuid], link)
                if state != nvml.NVML_FEATURE_ENABLED:
                    continue
                remote = self._optional(nvml.nvmlDeviceGetNvLinkRemotePciInfo, self._handles[uuid], link)
                other = places.get(_bus_id(remote.busId)) if remote is not None else None
                if other is None:
                    switched[uuid] = switched.get(uuid, 0) + 1
                elif uuid < other:  # each link is seen from both ends
                    direct[(uuid, other)] = direct.get((uuid, other), 0) + 1
        for one, count in switched.items():
            for other, others in switched.items():
                if one < other:
                    direct[(one, other)] = direct.get((one, other), 0) + min(count, others)
        return direct

    def _forget_events(self) -> None:
        if self._events is not None:
            with suppress(self._nvml.NVMLError):
                self._nvml.nvmlEventSetFree(self._events)
            self._events = None

    def _uuid_of(self, handle: Any) -> str:
        """Which GPU a handle is, where the GPU itself can no longer say."""
        wanted = _address(handle)
        return next((uuid for uuid, known in self._handles.items() if wanted and _address(known) == wanted), "")

    # ----------------------------------------------------------------------------------------------- errors

    def _optional(self, call: Callable[..., T], *arguments: Any) -> T | None:
        """Ask for what not every GPU or driver has: None where it is not; only a lost GPU is an error."""
        try:
            return call(*arguments)
        except self._nvml.NVMLError as error:
            if self._is_lost(error):
                raise
            return None
        except UnicodeDecodeError:  # the binding decodes what the driver says, and believes it
            return None

    @contextmanager
    def _translated(self, subject: str) -> Iterator[None]:
        try:
            yield
        except self._nvml.NVMLError as error:
            raise self._error(subject, error) from error
        except UnicodeDecodeError as error:
            raise NvmlError(f"{subject}: {_NO_TEXT}") from error

    def _error(self, subject: str, error: Any) -> NvmlError:
        if self._is_lost(error):
            return GpuLostError(f"{subject}: the GPU is lost ({_words(error)}); its node needs a look")
        return NvmlError(f"{subject}: {_words(error)}")

    def _is_lost(self, error: Any) -> bool:
        nvml = self._nvml
        return error.value in (
            nvml.NVML_ERROR_GPU_IS_LOST,
            nvml.NVML_ERROR_GPU_NOT_FOUND,
            nvml.NVML_ERROR_RESET_REQUIRED,
        )


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


def _bus_id(raw: Any) -> str:
    """Write a bus id with a domain of four digits, in lower case, as the kernel does."""
    text = (raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw)).strip("\0").lower()
    domain, _, rest = text.partition(":")
    return f"{domain[-4:]}:{rest}" if rest else text


def _pci_device(number: int) -> str:
    """Write NVML's combined number as vendor and device."""
    return f"{number & 0xFFFF:04x}:{number >> 16 & 0xFFFF:04x}"


def _address(handle: Any) -> int:
    try:
        from ctypes import addressof

        return addressof(handle.contents)
    except (AttributeError, TypeError, ValueError):
        return 0
