"""What people are told: Events on objects, and notices to the owners of Workloads, once per key."""

from collections import deque
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from gpubank.domain.loan import WorkloadKey
from gpubank.simulation.clock import Clock

KEPT: Final = 10_000
"""Newest events that are remembered; a cluster forgets them after an hour."""


@dataclass(frozen=True)
class Event:
    """One Event on an object."""

    at: datetime
    kind: str
    namespace: str
    name: str
    reason: str
    message: str
    warning: bool = False


class EventLog:
    """The newest events, oldest first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._events: deque[Event] = deque(maxlen=KEPT)

    def record(self, kind: str, namespace: str, name: str, *, reason: str, message: str, warning: bool = False) -> None:
        """Remember an Event on an object."""
        self._events.append(Event(self._clock.now(), kind, namespace, name, reason, message, warning))

    def on(self, kind: str | None = None, name: str | None = None) -> tuple[Event, ...]:
        """Return the events on a kind of object, or on one object."""
        return tuple(e for e in self._events if kind in (None, e.kind) and name in (None, e.name))


class Notices:
    """Tells owners by Events on their Workloads; implements `Notifier`."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._told: set[str] = set()

    async def notify(self, *, key: str, pool: str, workload: WorkloadKey, reason: str, message: str) -> None:
        """Tell the owner of a Workload, once per key."""
        if key in self._told:
            return
        self._told.add(key)
        self._log.record("Workload", workload.namespace, workload.name, reason=reason, message=message)
