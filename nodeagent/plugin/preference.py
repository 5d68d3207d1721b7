"""Which devices go together best. Pure, and never an exception: the kubelet fails a pod on an error here.

The first difference decides:

1. replicas: of as many different GPUs as possible, those with most turns left first;
2. nearness of the chosen ones to each other (MIG devices of one GPU, NVLinks, then PCIe, then NUMA);
3. nearness of those left behind, so that the next one finds neighbours too;
4. ids, so that equal questions have equal answers.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from math import comb
from typing import Final

from nodeagent.nvml.snapshot import Ancestor, Links, pair
from nodeagent.plugin.inventory import Device, base_id

_MOST_SETS: Final = 3000
"""Sets that are compared one by one; above it the set grows greedily, for a pod is waiting."""

_SAME_GPU: Final = 2000
_NVLINK: Final = 100
_NUMA: Final = 5
_NEAR: Final = {
    Ancestor.INTERNAL: 60,
    Ancestor.SINGLE_SWITCH: 50,
    Ancestor.MULTIPLE_SWITCHES: 40,
    Ancestor.HOST_BRIDGE: 30,
    Ancestor.NUMA_NODE: 20,
    Ancestor.SYSTEM: 10,
}


def preferred(
    devices: Mapping[str, Device], links: Links, available: Sequence[str], must: Sequence[str], size: int
) -> tuple[str, ...]:
    """Choose `size` of `available` that include `must`; ids that are not known are taken last, and never refused."""
    pool = sorted(dict.fromkeys(available))
    fixed = tuple(dict.fromkeys(must))
    if size <= 0:
        return ()
    if len(fixed) >= size:
        return fixed[:size]
    try:
        chosen = _choose(devices, links, pool, fixed, size)
    except Exception:  # whatever it is, a pod that could run is not failed for a matter of taste
        chosen = fixed
    rest = [name for name in pool if name not in chosen]
    return (*chosen, *rest)[:size]


def _choose(
    devices: Mapping[str, Device], links: Links, pool: Sequence[str], fixed: tuple[str, ...], size: int
) -> tuple[str, ...]:
    free = [name for name in pool if name not in fixed and name in devices]
    wanted = min(size - len(fixed), len(free))
    if any(name != base_id(name) for name in free):
        return (*fixed, *_turns(free, fixed, wanted))
    score = _Scores(devices, links)
    if comb(len(free), wanted) > _MOST_SETS:
        return _greedy(score, free, fixed, wanted)
    everything = frozenset((*fixed, *free))
    best = max(
        combinations(free, wanted),
        key=lambda extra: (
            score.inside((*fixed, *extra)),
            score.inside(tuple(sorted(everything - set(extra) - set(fixed)))),
            tuple(-index for index in map(free.index, extra)),
        ),
    )
    return (*fixed, *best)


def _greedy(score: "_Scores", free: Sequence[str], fixed: tuple[str, ...], wanted: int) -> tuple[str, ...]:
    """Grow the set one by one from every start, and keep the best."""
    starts: list[tuple[str, ...]] = [fixed] if fixed else [(name,) for name in free]
    grown: list[tuple[str, ...]] = []
    for start in starts:
        chosen = start
        while len(chosen) < len(fixed) + wanted:
            left = [name for name in free if name not in chosen]
            chosen = (*chosen, max(left, key=lambda name: (score.to(name, chosen), -left.index(name))))
        grown.append(chosen)
    return max(grown, key=score.inside)


def _turns(free: Sequence[str], fixed: tuple[str, ...], wanted: int) -> list[str]:
    """Choose turns on different GPUs, where most turns are left first."""
    left, taken = Counter(map(base_id, free)), Counter(map(base_id, fixed))
    chosen: list[str] = []
    for _ in range(wanted):
        name = min(
            (name for name in free if name not in chosen),
            key=lambda name: (taken[base_id(name)], -left[base_id(name)], name),
        )
        chosen.append(name)
        taken[base_id(name)] += 1
        left[base_id(name)] -= 1
    return chosen


class _Scores:
    """Nearness of pairs, computed once each."""

    def __init__(self, devices: Mapping[str, Device], links: Links) -> None:
        self._devices = devices
        self._links = links
        self._known: dict[tuple[str, str], int] = {}

    def inside(self, names: Sequence[str]) -> int:
        return sum(self.between(one, other) for one, other in combinations(names, 2))

    def to(self, name: str, others: Sequence[str]) -> int:
        return sum(self.between(name, other) for other in others)

    def between(self, one: str, other: str) -> int:
        key = pair(one, other)
        if key not in self._known:
            self._known[key] = self._nearness(key)
        return self._known[key]

    def _nearness(self, key: tuple[str, str]) -> int:
        first, second = self._devices.get(key[0]), self._devices.get(key[1])
        if first is None or second is None:
            return 0
        if first.gpu.uuid == second.gpu.uuid:
            return _SAME_GPU
        gpus = pair(first.gpu.uuid, second.gpu.uuid)
        ancestor = self._links.ancestors.get(gpus)
        numa = first.gpu.numa_node
        near = _NEAR[ancestor] if ancestor is not None else 0
        return (
            self._links.nvlinks.get(gpus, 0) * _NVLINK
            + near
            + (_NUMA if numa is not None and numa == second.gpu.numa_node else 0)
        )
