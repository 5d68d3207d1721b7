"""The fence: since when no running admission cycle can still use an older quota.

    quota written ─▶ acknowledged (observedGeneration) ─▶ every cycle that began before is over ─▶ fenced

The scheduler's acknowledgement says that the next admission cycle uses the new quota; one that is running may still
admit against the old one. So each stamp waits twice the slowest cycle after its acknowledgement was first seen.
The clock is monotonic and lives in the process: after a restart every wait begins anew, which is late, never early.
"""

from math import inf
from typing import Final

MINIMUM_WAIT: Final = 0.25
"""Seconds that are waited after an acknowledgement, however quick the admission cycles are."""

CYCLES: Final = 2
"""How many of the slowest admission cycles (p99) are waited, where that is longer."""


class Fence:
    """Remembers, per queue, which stamps were acknowledged since when."""

    def __init__(self, cycle_p99: float = 0.0) -> None:
        self._wait = MINIMUM_WAIT
        self._fenced: dict[str, int] = {}
        self._since: dict[str, float] = {}
        self._acknowledged: dict[str, dict[int, float]] = {}
        self.measured(cycle_p99)

    @property
    def wait(self) -> float:
        """Seconds between an acknowledgement and its fence."""
        return self._wait

    def measured(self, cycle_p99: float) -> None:
        """Take note of how long the scheduler's admission cycles last, as their 99th percentile in seconds."""
        self._wait = max(MINIMUM_WAIT, CYCLES * cycle_p99)

    def seen(self, queue: str, stamp: int, acknowledged: bool, monotonic_seconds: float) -> int:
        """Record one look at a queue, and return the highest stamp that is fenced; -1 while none is.

        `stamp` is the revision that the queue bears (-1 for none), `acknowledged` whether the scheduler has observed
        the queue as it stands. A stamp that has become lower, or an edit under a known stamp that is not acknowledged
        (somebody else's), takes the fence back: it is earned anew.
        """
        waits = self._acknowledged.setdefault(queue, {})
        fenced = before = self._fenced.get(queue, -1)
        for newer in [known for known in waits if known > stamp]:
            del waits[newer]
        if acknowledged:
            waits.setdefault(stamp, monotonic_seconds)
        else:
            waits.pop(stamp, None)
            if fenced >= stamp:
                fenced = -1
        fenced = min(fenced, stamp)
        for known, since in sorted(waits.items()):
            if monotonic_seconds - since >= self._wait:
                fenced = max(fenced, known)
        # The newest stamp's clock is kept; older ones have said what they know once they are fenced.
        self._acknowledged[queue] = {known: since for known, since in waits.items() if known >= fenced}
        self._fenced[queue] = fenced
        if fenced != before:
            self._since[queue] = monotonic_seconds
        return fenced

    def since(self, queue: str) -> float:
        """Return when the stamp that is fenced was found to be so: at the latest by then nobody could use an older one.

        Infinity for a queue none of whose stamps ever was.
        """
        return self._since.get(queue, inf)

    def forget(self, queue: str) -> None:
        """Drop what is known of a queue that is gone."""
        self._fenced.pop(queue, None)
        self._since.pop(queue, None)
        self._acknowledged.pop(queue, None)
