"""Whether work fits the nodes: quota in sum is not enough, for a pod needs its GPUs on one node.

All pods of a Workload are of one size, so a Workload of `pods` pods fits exactly when the nodes have room for that
many pods of that size: Σ ⌊free ÷ GPUs per pod⌋ ≥ pods.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush
from typing import Self

from gpubank.domain.facts import NodeFacts, PodFacts, WorkloadFacts


class Room:
    """Free GPUs by node, from which work can be taken and to which stopped work can be given back."""

    def __init__(self, free: Mapping[str, int]) -> None:
        self._free = dict(free)
        self._nodes = Counter(self._free.values())
        """How many nodes have so many GPUs free."""

        self._names: dict[int, list[str]] | None = None
        """Heaps of the names of nodes by what they have free, and some that have it no more; made when needed."""

    @classmethod
    def of(cls, nodes: Iterable[NodeFacts]) -> Self:
        """Return what the nodes have free: nothing on those that are not ready."""
        return cls({node.name: max(node.gpus - node.used, 0) if node.ready else 0 for node in nodes})

    @classmethod
    def emptied(cls, nodes: Iterable[NodeFacts]) -> Self:
        """Return what the nodes would have free if nothing ran."""
        return cls({node.name: node.gpus if node.ready else 0 for node in nodes})

    @property
    def free(self) -> dict[str, int]:
        """Free GPUs by node."""
        return dict(self._free)

    def copy(self) -> "Room":
        """Return the same room, to be tried out."""
        other = Room({})
        other._free, other._nodes = dict(self._free), self._nodes.copy()
        if self._names is not None:
            other._names = {free: names.copy() for free, names in self._names.items()}
        return other

    def places(self, gpus_per_pod: int) -> int:
        """Return for how many pods of this size there is room."""
        return sum(free // gpus_per_pod * count for free, count in self._nodes.items())

    def holds(self, pods: int, gpus_per_pod: int) -> bool:
        """Whether all pods fit; pods without GPUs always do."""
        return gpus_per_pod <= 0 or pods <= 0 or self.places(gpus_per_pod) >= pods

    def take(self, pods: int, gpus_per_pod: int) -> int:
        """Place as many of the pods as fit and return how many did.

        Each goes where the least remains (ties by node name), so that whole nodes stay whole. The scheduler may
        choose otherwise; what comes of it is seen in the next facts.
        """
        if gpus_per_pod <= 0:
            return pods
        placed = 0
        while placed < pods:
            least = min((free for free in self._nodes if free >= gpus_per_pod), default=0)
            if not least:
                break
            name = self._first_with(least)
            count = min(least // gpus_per_pod, pods - placed)
            self._set(name, least - count * gpus_per_pod)
            placed += count
        return placed

    def _first_with(self, free: int) -> str:
        """Return the first by name of the nodes that have so many GPUs free; there must be one."""
        if self._names is None:
            self._names = {}
            for name, gpus in self._free.items():
                self._names.setdefault(gpus, []).append(name)
            for names in self._names.values():
                heapify(names)
        names = self._names[free]
        while self._free[names[0]] != free:
            heappop(names)
        return names[0]

    def _set(self, name: str, free: int) -> None:
        before, self._free[name] = self._free[name], free
        self._nodes[free] += 1
        self._nodes[before] -= 1
        if not self._nodes[before]:
            del self._nodes[before]
        if self._names is not None and free != before:
            heappush(self._names.setdefault(free, []), name)

    def give(self, pods: Iterable[PodFacts], *, unready: frozenset[str] = frozenset()) -> None:
        """Give back the GPUs of pods that will be stopped; nodes that are not ready give none."""
        for pod in pods:
            if pod.node in self._free and pod.node not in unready:
                self._set(pod.node, self._free[pod.node] + pod.gpus)


def unplaced(workload: WorkloadFacts) -> int:
    """Return how many pods of the Workload are not on a node yet."""
    bound = sum(1 for pod in workload.pod_facts if pod.node and not pod.terminating)
    return max(workload.pods - bound, 0)


def pod_size(workload: WorkloadFacts) -> int:
    """Return the GPUs that each pod needs on one node: what its pods say, else its share of the request."""
    return max((pod.gpus for pod in workload.pod_facts), default=0) or workload.gpus_per_pod
