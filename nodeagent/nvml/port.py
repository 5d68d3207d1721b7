"""The port: what the agent asks of NVML, and how it fails."""

from collections.abc import Sequence
from typing import ClassVar, Protocol

from gpubank.domain.errors import BackendError
from nodeagent.nvml.snapshot import Condition, Event, Gpu, Links, Unreadable


class NvmlError(BackendError):
    """NVML refused or failed; the message says what and where."""


class NvmlMissingError(NvmlError):
    """There is no NVML here: no driver, no library, or no binding."""


class GpuLostError(NvmlError):
    """The GPU fell off the bus, or is in no state to answer."""


class NvmlHungError(NvmlError):
    """NVML did not answer in time; the call may still be stuck."""

    retryable: ClassVar[bool] = True


class Nvml(Protocol):
    """One session with NVML; every call may block for as long as the driver likes, see `guard`."""

    def open(self) -> str:
        """Start the session and return the driver's version. Raises NvmlMissingError."""
        ...

    def enumerate(self) -> Sequence[str | Unreadable]:
        """UUIDs of the GPUs by index; an entry that cannot be read says why."""
        ...

    def describe(self, uuid: str) -> Gpu:
        """Describe one GPU with its MIG devices. Raises GpuLostError, NvmlError."""
        ...

    def condition(self, uuid: str) -> Condition:
        """How the GPU is. Raises GpuLostError, NvmlError."""
        ...

    def links(self, uuids: Sequence[str]) -> Links:
        """How near the GPUs are to each other; pairs that NVML does not know are left out."""
        ...

    def listen(self, uuids: Sequence[str]) -> None:
        """Register for the events of these GPUs, replacing earlier registrations."""
        ...

    def wait(self, timeout_ms: int) -> Event | None:
        """Wait for the next event; None after the time-out. Raises GpuLostError, NvmlError."""
        ...

    def close(self) -> None:
        """End the session; never raises."""
        ...
