"""How long the scheduler's admission cycles last, from what it counts of them.

    counts since its start, per process ─▶ what came in the last WINDOW ─▶ 99th percentile ─▶ the fence

The fence may wait too long and never too short, so every doubt is settled upwards: a cycle counts as long as its bucket
allows, and of several processes of the scheduler the slowest counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite
from typing import Final

WINDOW: Final = 600.0
"""Seconds of which cycles are looked at; older ones say little about the next."""

SHARE: Final = 0.99


@dataclass(frozen=True, slots=True)
class CycleCounts:
    """Cycles that one process of the scheduler has counted, as a histogram."""

    buckets: tuple[tuple[float, float], ...]
    """Upper bound in seconds and how many lasted at most as long; bounds ascend and the last is infinite."""

    seconds: float
    """Sum of all durations."""

    @property
    def total(self) -> float:
        """How many there were."""
        return self.buckets[-1][1] if self.buckets else 0.0

    def since(self, earlier: "CycleCounts") -> "CycleCounts | None":
        """Return what was counted after `earlier`; None where that is no earlier count of the same process."""
        if not earlier.buckets:
            return self
        if [bound for bound, _ in earlier.buckets] != [bound for bound, _ in self.buckets]:
            return None
        pairs = zip(self.buckets, earlier.buckets, strict=True)
        grown = tuple((bound, count - before) for (bound, count), (_, before) in pairs)
        if any(count < 0 for _, count in grown):
            return None
        return CycleCounts(grown, max(self.seconds - earlier.seconds, 0.0))


NOTHING: Final = CycleCounts((), 0.0)


def longest(counts: CycleCounts, share: float = SHARE) -> float | None:
    """Return seconds that `share` of the cycles did not exceed, as little as is certain; None without any cycle.

    It is the upper bound of the bucket in which the quantile lies. Beyond the last finite bound it is what the longest
    cycle can have lasted, given the sum of all durations.
    """
    if counts.total <= 0:
        return None
    below = last = least = 0.0
    for bound, count in (bucket for bucket in counts.buckets if isfinite(bucket[0])):
        if count >= share * counts.total:
            return bound
        least += (count - below) * last
        below, last = count, bound
    beyond = counts.total - below
    return max(last, counts.seconds - least - (beyond - 1) * last)


class Cycles:
    """Remembers what was counted when, and says how long cycles last now."""

    def __init__(self, assumed: float = 0.0) -> None:
        """`assumed`: the 99th percentile in seconds until something is known."""
        self.p99 = assumed
        """99th percentile in seconds: of the cycles in the window, else as it was last known."""
        self._seen: dict[str, list[tuple[float, CycleCounts]]] = {}

    def read(self, counts: Mapping[str, CycleCounts], monotonic_seconds: float) -> float:
        """Take note of one reading, by process, and return the 99th percentile in seconds.

        A process that is missing, as another replica may have answered, counts until its last reading has left the
        window. Counts that have fallen are those of a process that has started anew.
        """
        for process, now in counts.items():
            seen = self._seen.get(process, [(-inf, NOTHING)])
            if now.since(seen[-1][1]) is None:
                seen = [(-inf, NOTHING)]
            self._seen[process] = [*seen, (monotonic_seconds, now)]
        horizon = monotonic_seconds - WINDOW
        slowest: list[float] = []
        for process, seen in sorted(self._seen.items()):
            if seen[-1][0] < horizon:
                del self._seen[process]
                continue
            # The newest reading before the window is where it begins.
            while len(seen) > 1 and seen[1][0] <= horizon:
                seen.pop(0)
            grown = seen[-1][1].since(seen[0][1])
            found = longest(grown) if grown is not None else None
            if found is not None:
                slowest.append(found)
        self.p99 = max(slowest, default=self.p99)
        return self.p99
