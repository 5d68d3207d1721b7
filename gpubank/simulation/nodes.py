"""Nodes and what stands on them: a pod is placed whole, on the node that it fills best, or waits."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpubank.domain.facts import NodeFacts
from gpubank.simulation.workloads import Pod


@dataclass(eq=False)
class Node:
    """One node with GPUs."""

    name: str
    gpus: int
    labels: dict[str, str] = field(default_factory=dict)
    ready: bool = True
    """Ready and schedulable; pods that stand on it stay when it is not."""

    cordoned_by: str = ""
    """Who closed it for new pods; empty while it is open."""

    foreign: int = 0
    """GPUs of pods that no queue of ours knows."""

    pods: dict[str, Pod] = field(default_factory=dict)
    """By uid, terminating ones included."""

    @property
    def used(self) -> int:
        """GPUs of everything that stands on it."""
        return self.foreign + sum(pod.gpus for pod in self.pods.values())

    @property
    def free(self) -> int:
        """GPUs that a new pod could have."""
        return self.gpus - self.used

    def carries(self, labels: Mapping[str, str]) -> bool:
        """Whether it has every one of these labels."""
        return all(self.labels.get(key) == value for key, value in labels.items())

    def facts(self) -> NodeFacts:
        """Say what the bank may know of it."""
        return NodeFacts(name=self.name, gpus=self.gpus, used=self.used, ready=self.ready and not self.cordoned_by)


class NodeBook:
    """All nodes, by name."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}

    def add(self, node: Node) -> None:
        """Add a node, or replace what its namesake says without touching the pods on it."""
        before = self._nodes.get(node.name)
        if before is not None:
            node.pods, node.foreign, node.cordoned_by = before.pods, before.foreign, before.cordoned_by
        self._nodes[node.name] = node

    def get(self, name: str) -> Node:
        """Return the node; raise KeyError saying that there is none."""
        if name not in self._nodes:
            raise KeyError(f"no node {name!r}; there are {', '.join(sorted(self._nodes)) or 'none'}")
        return self._nodes[name]

    def find(self, name: str) -> Node | None:
        """Return the node, or None where there is none."""
        return self._nodes.get(name)

    def drop(self, name: str) -> tuple[Pod, ...]:
        """Remove a node and return the pods that are lost with it."""
        node = self.get(name)
        del self._nodes[name]
        return tuple(node.pods.values())

    def with_labels(self, labels: Mapping[str, str]) -> tuple[Node, ...]:
        """Nodes that carry these labels, by name."""
        return tuple(node for _, node in sorted(self._nodes.items()) if node.carries(labels))

    def place(self, waiting: Iterable[Pod]) -> tuple[Pod, ...]:
        """Bind every pod that fits somewhere, and return those.

        Pods come in the order of priority, then creation. Each goes where the least is left over (name breaks ties),
        so that whole nodes stay free for those that need them; one that fits nowhere lets the next pass.
        """
        placed = []
        for pod in sorted(waiting, key=lambda pod: (-pod.priority, pod.order)):
            fitting = [
                node
                for node in self.with_labels(pod.selector)
                if node.ready and not node.cordoned_by and node.free >= pod.gpus
            ]
            if fitting:
                best = min(fitting, key=lambda node: (node.free, node.name))
                best.pods[pod.uid] = pod
                pod.node = best.name
                placed.append(pod)
        return tuple(placed)

    def release(self, pod: Pod) -> None:
        """Take a pod that is gone off its node."""
        if pod.node in self._nodes:
            self._nodes[pod.node].pods.pop(pod.uid, None)
