"""Whether work fits the nodes: quota in sum is not enough, for a pod needs its GPUs on one node.

All pods of a Workload are of one size, so a Workload of `pods` pods fits exactly when the nodes have room for that
many pods of that size: Σ ⌊free ÷ GPUs per pod⌋ ≥ pods.
"""

from collections.abc import Iterable, Mapping
from typing import Self

from gpubank.domain.facts import NodeFacts, PodFacts, WorkloadFacts


class Room:
    """Free GPUs by node, from which work can be taken and to which stopped work can be given back."""

    def __init__(self, free: Mapping[str, int]) -> None:
        self._free = dict(free)

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
        return Room(self._free)

    def places(self, gpus_per_pod: int) -> int:
        """Return for how many pods of this size there is room."""
        return sum(free // gpus_per_pod for free in self._free.values())

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
            fitting = [(free, name) for name, free in self._free.items() if free >= gpus_per_pod]
            if not fitting:
                break
            _, name = min(fitting)
            count = min(self._free[name] // gpus_per_pod, pods - placed)
            self._free[name] -= count * gpus_per_pod
            placed += count
        return placed

    def give(self, pods: Iterable[PodFacts], *, unready: frozenset[str] = frozenset()) -> None:
        """Give back the GPUs of pods that will be stopped; nodes that are not ready give none."""
        for pod in pods:
            if pod.node in self._free and pod.node not in unready:
                self._free[pod.node] += pod.gpus


def unplaced(workload: WorkloadFacts) -> int:
    """Return how many pods of the Workload are not on a node yet."""
    bound = sum(1 for pod in workload.pod_facts if pod.node and not pod.terminating)
    return max(workload.pods - bound, 0)


def pod_size(workload: WorkloadFacts) -> int:
    """Return the GPUs that each pod needs on one node: what its pods say, else its share of the request."""
    return max((pod.gpus for pod in workload.pod_facts), default=0) or workload.gpus_per_pod
