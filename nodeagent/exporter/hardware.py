"""The node's GPUs as the exporter sees them: which there are, looked up now and then, and what they measure."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

from nodeagent.exporter.telemetry import Reading, Telemetry
from nodeagent.nvml.port import GpuLostError, NvmlError, NvmlHungError, NvmlMissingError
from nodeagent.nvml.snapshot import Gpu, NodeSnapshot

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 30.0
"""How old the list of GPUs and MIG devices may be; an event that says it changed has it read at once."""

_REOPEN_SECONDS: Final = 15.0


class Node(Protocol):
    """Which GPUs there are."""

    def open(self) -> str:
        """Start the session and return the driver's version. Raises NvmlError."""
        ...

    def look(self, driver: str) -> NodeSnapshot:
        """Read every GPU. Raises NvmlError."""
        ...

    def close(self) -> None:
        """End; never raises."""
        ...


class Hardware:
    """Keeps the list of GPUs and measures them; one thread at a time, but for `stale`."""

    def __init__(
        self,
        node: Node,
        telemetry: Telemetry | None,
        *,
        look_seconds: float = LOOK_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node, self._telemetry, self._look_seconds, self._clock = node, telemetry, look_seconds, clock
        self._driver: str | None = None
        self._tried_at: float | None = None
        self._looked_at: float | None = None
        self._stale = threading.Event()
        self._warned: set[str] = set()
        self.snapshot = NodeSnapshot()
        """What the last look found."""
        self.failures: dict[str, int] = {}
        """What went wrong so far: `nvml`, `gpu_lost`, `gpu_hung`, `gpu_error`."""

    def stale(self) -> None:
        """Say that GPUs or MIG devices may have changed."""
        self._stale.set()

    def look(self) -> NodeSnapshot:
        """Return the GPUs; where they cannot be looked up now, those that are known. Never raises."""
        if not self._opened():
            return self.snapshot
        now = self._clock()
        fresh = self._looked_at is not None and now - self._looked_at < self._look_seconds
        if fresh and not self._stale.is_set():
            return self.snapshot
        self._stale.clear()
        try:
            self.snapshot = _with_lost(self._node.look(self._driver or ""), self.snapshot)
        except NvmlError as error:
            self._failed("nvml", "nvml", error)
            return self.snapshot
        self._looked_at = now
        self._warned.discard("nvml")
        if self._telemetry is not None:
            try:
                self._telemetry.keep([gpu.uuid for gpu in self.snapshot.gpus])
            except NvmlError as error:
                self._failed("nvml", "nvml", error)
        return self.snapshot

    def measure(self, gpus: Sequence[Gpu]) -> Mapping[str, Reading]:
        """Measure every GPU; one that does not answer is left out. Never raises."""
        found: dict[str, Reading] = {}
        if self._telemetry is None or self._driver is None:
            return found
        for gpu in gpus:
            try:
                found[gpu.uuid] = self._telemetry.read(gpu)
            except NvmlError as error:
                what = {GpuLostError: "gpu_lost", NvmlHungError: "gpu_hung"}.get(type(error), "gpu_error")
                self._failed(what, gpu.uuid, error)
                self.stale()
            else:
                self._warned.discard(gpu.uuid)
        return found

    def close(self) -> None:
        """End."""
        if self._telemetry is not None:
            self._telemetry.close()
        self._node.close()

    def _opened(self) -> bool:
        if self._driver is not None:
            return True
        now = self._clock()
        if self._tried_at is not None and now - self._tried_at < _REOPEN_SECONDS:
            return False
        self._tried_at = now
        try:
            driver = self._node.open()
            if self._telemetry is not None:
                self._telemetry.open()
        except NvmlError as error:
            self._failed("nvml_missing" if isinstance(error, NvmlMissingError) else "nvml", "nvml", error)
            return False
        self._driver = driver
        return True

    def _failed(self, what: str, subject: str, error: NvmlError) -> None:
        self.failures[what] = self.failures.get(what, 0) + 1
        if subject not in self._warned:  # once, until it answers again
            self._warned.add(subject)
            log.warning("%s", error)


def _with_lost(found: NodeSnapshot, before: NodeSnapshot) -> NodeSnapshot:
    """Keep what is known of a GPU that is still there by its index and cannot be described: its pod still holds it."""
    there = {gpu.uuid for gpu in found.gpus}
    lost = {each.index for each in found.unreadable}
    kept = [gpu for gpu in before.gpus if gpu.index in lost and gpu.uuid not in there]
    if not kept:
        return found
    return replace(found, gpus=tuple(sorted((*found.gpus, *kept), key=lambda gpu: gpu.index)))
