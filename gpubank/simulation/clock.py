"""The cluster's time: what happens later, in order, on a clock that runs by itself or is moved by hand.

    Timeline ── after(seconds, action) ──▶ heap of what is due ──▶ run_due()
       │
    SystemClock: an asyncio task runs what is due      ManualClock: `move_to`, then what is due

On a clock that is moved by hand nobody sleeps, and the same calls give the same cluster.
"""

import heapq
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol


class Clock(Protocol):
    """Tells the time, twice: for people, and for measuring."""

    def now(self) -> datetime:
        """Return the wall clock's time, with its offset."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go back, from any start."""
        ...


class SystemClock:
    """The machine's own time."""

    def now(self) -> datetime:
        """Return the wall clock's time in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return the machine's monotonic seconds."""
        return time.monotonic()


DAWN: Final = datetime(2026, 1, 5, 9, tzinfo=UTC)
"""When a clock that is moved by hand starts, unless it is told otherwise."""


class ManualClock:
    """A clock that stands until it is moved."""

    def __init__(self, start: datetime = DAWN) -> None:
        self._start = start
        self._elapsed = 0.0

    def now(self) -> datetime:
        """Return the start plus what the clock was moved by."""
        return self._start + timedelta(seconds=self._elapsed)

    def monotonic(self) -> float:
        """Return the seconds that the clock was moved by."""
        return self._elapsed

    def move_to(self, seconds: float) -> None:
        """Set the seconds since the start; never back."""
        self._elapsed = max(self._elapsed, seconds)


@dataclass(order=True)
class Due:
    """Something that happens at a time, unless it is cancelled first."""

    at: float
    number: int
    action: Callable[[], None] = field(compare=False)
    cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        """Let it not happen."""
        self.cancelled = True


class Timeline:
    """What is due, in order of time; at the same time, in the order in which it was arranged."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.on_arranged: Callable[[], None] | None = None
        """Called when something new is arranged; wakes whoever sleeps until the next."""

        self._heap: list[Due] = []
        self._numbers = itertools.count()

    def after(self, seconds: float, action: Callable[[], None]) -> Due:
        """Arrange `action` for `seconds` from now; 0 means as soon as the timeline runs."""
        due = Due(self.clock.monotonic() + seconds, next(self._numbers), action)
        heapq.heappush(self._heap, due)
        if self.on_arranged is not None:
            self.on_arranged()
        return due

    def next_at(self) -> float | None:
        """Return when the next action is due, in monotonic seconds; None if there is none."""
        while self._heap and self._heap[0].cancelled:
            heapq.heappop(self._heap)
        return self._heap[0].at if self._heap else None

    def run_next(self) -> None:
        """Run the one action that is next, if it is due."""
        at = self.next_at()
        if at is not None and at <= self.clock.monotonic():
            heapq.heappop(self._heap).action()

    def run_due(self) -> None:
        """Run everything that is due, what is arranged meanwhile included."""
        while (at := self.next_at()) is not None and at <= self.clock.monotonic():
            heapq.heappop(self._heap).action()


@dataclass(frozen=True)
class Timing:
    """How long the cluster takes for what it does, in seconds; the defaults are of the order seen on a real one."""

    acknowledge: float = 0.03
    """From a quota's edit until the scheduler uses it for new cycles and says so."""

    cycle: float = 0.01
    """Length of an admission cycle; what it began with holds until its end, an edit meanwhile notwithstanding."""

    batch: float = 1.0
    """From a capacity event until those who did not fit are considered again; more events in between fold."""

    eviction: float = 0.05
    """From `active=false`, or a job's deletion, until its pods are told to end and its quota is free."""

    creation: float = 0.05
    """From admission, or the end of a pod, until the job's new pods exist."""

    start: float = 0.05
    """From a pod's placement until it runs."""

    termination: float = 0.3
    """From SIGTERM until a pod without a command is gone; its termination grace is the limit."""

    retry: float = 1.0
    """From a pod's failure until the next attempt."""
