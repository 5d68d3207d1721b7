"""Deadlines around NVML: a call that hangs costs one thread and nobody's time.

    caller ─▶ lane "GPU-a" ─▶ thread ─▶ NVML          one lane per GPU, one for the node, one for events
                 │ deadline passed: NvmlHungError; until the stuck call returns, the lane answers so at once

A call inside the driver cannot be cancelled, so it is given up: its thread is a daemon, holds no lock of ours, and its
late answer is thrown away.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from nodeagent.nvml.port import Nvml, NvmlHungError
from nodeagent.nvml.snapshot import Condition, Event, Gpu, Links, Unreadable

T = TypeVar("T")

NODE_LANE: Final = "node"
EVENT_LANE: Final = "events"


class _Call:
    """One call on its way."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.done = threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None


class Lane:
    """Runs calls one after the other in a thread of its own, each no longer than its deadline."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._stuck: _Call | None = None
        self._since = 0.0
        self._thread: threading.Thread | None = None

    def run(self, work: Callable[[], T], timeout: float) -> T:
        """Run `work`, waiting at most `timeout` seconds. Raises NvmlHungError, or what `work` raises."""
        with self._lock:
            if self._stuck is not None:
                if not self._stuck.done.is_set():
                    age = time.monotonic() - self._since
                    raise NvmlHungError(f"NVML has not answered on {self.name!r} for {age:.0f} s; the call is stuck")
                self._stuck = None
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name=f"nvml-{self.name}", daemon=True)
                self._thread.start()
            call, started = _Call(work), time.monotonic()
            self._calls.put(call)
            if not call.done.wait(timeout):
                self._stuck, self._since = call, started
                raise NvmlHungError(f"NVML did not answer on {self.name!r} within {timeout:g} s")
        if call.error is not None:
            raise call.error
        result: T = call.result
        return result

    @property
    def hung(self) -> bool:
        """Whether a call is stuck right now."""
        return self._stuck is not None and not self._stuck.done.is_set()

    def close(self) -> None:
        """Let the thread end after what it is doing."""
        if self._thread is not None:
            self._calls.put(None)

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call.result = call.work()
            except BaseException as error:
                call.error = error
            finally:
                call.done.set()


class Guarded:
    """The port with deadlines: the same calls, none of which blocks for longer than `timeout` seconds."""

    def __init__(self, nvml: Nvml, *, timeout: float = 5.0) -> None:
        self._nvml = nvml
        self._timeout = timeout
        self._lanes: dict[str, Lane] = {}
        self._lock = threading.Lock()

    def open(self) -> str:
        """Start the session; the driver may take long to wake up, so it is given ten times as long."""
        return self._lane(NODE_LANE).run(self._nvml.open, self._timeout * 10)

    def enumerate(self) -> Sequence[str | Unreadable]:
        """UUIDs of the GPUs by index."""
        return self._lane(NODE_LANE).run(self._nvml.enumerate, self._timeout)

    def describe(self, uuid: str, timeout: float | None = None) -> Gpu:
        """Describe one GPU with its MIG devices."""
        return self._lane(uuid).run(lambda: self._nvml.describe(uuid), timeout or self._timeout)

    def condition(self, uuid: str) -> Condition:
        """How the GPU is."""
        return self._lane(uuid).run(lambda: self._nvml.condition(uuid), self._timeout)

    def links(self, uuids: Sequence[str]) -> Links:
        """How near the GPUs are to each other."""
        return self._lane(NODE_LANE).run(lambda: self._nvml.links(uuids), self._timeout)

    def listen(self, uuids: Sequence[str]) -> None:
        """Register for the events of these GPUs."""
        self._lane(EVENT_LANE).run(lambda: self._nvml.listen(uuids), self._timeout)

    def wait(self, timeout_ms: int) -> Event | None:
        """Wait for the next event; None after the time-out."""
        return self._lane(EVENT_LANE).run(lambda: self._nvml.wait(timeout_ms), timeout_ms / 1000 + self._timeout)

    def close(self) -> None:
        """End the session and every thread that is not stuck."""
        try:
            # An event wait may still be inside the library; the session ends after it, not under it.
            self._lane(EVENT_LANE).run(self._nvml.close, self._timeout)
        except NvmlHungError:
            pass
        finally:
            self.drop(list(self._lanes))

    def drop(self, uuids: Sequence[str]) -> None:
        """Forget the lanes of GPUs that are gone; a stuck one stays, or each session would lose another thread."""
        with self._lock:
            for uuid in uuids:
                lane = self._lanes.get(uuid)
                if lane is not None and not lane.hung:
                    lane.close()
                    del self._lanes[uuid]

    def _lane(self, name: str) -> Lane:
        with self._lock:
            return self._lanes.setdefault(name, Lane(name))
