"""Nodes taken out of service in memory: marks, cordons, disruption budgets and evictions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpubank.domain.contract import FIELD_MANAGER, NODE_POOL_LABEL
from gpubank.domain.errors import PolicyError
from gpubank.domain.servicing import (
    CordonMark,
    CordonScope,
    Evicted,
    EvictionOutcome,
    NodePod,
    NodeView,
    Uncordoned,
)
from gpubank.simulation.nodes import Node, NodeBook
from gpubank.simulation.pulse import Pulse
from gpubank.simulation.workloads import Pod


@dataclass(frozen=True)
class Budget:
    """A disruption budget: so many pods of a namespace, told by the beginning of their names, stay up."""

    namespace: str
    names: str
    min_available: int

    def covers(self, namespace: str, name: str) -> bool:
        """Whether it is about this pod."""
        return namespace == self.namespace and name.startswith(self.names)


class SimulatedNodes:
    """Implements `Nodes` on the simulation."""

    def __init__(self, nodes: NodeBook, pulse: Pulse, evict: Callable[[Pod], None], place: Callable[[], None]) -> None:
        self._nodes, self._pulse, self._evict, self._place = nodes, pulse, evict, place
        self._marks: dict[str, dict[str, CordonMark]] = {}
        self._budgets: dict[str, Budget] = {}
        self._stay: set[str] = set()

    # ---- the port

    async def view(self, name: str) -> NodeView | None:
        """Return one node; None where there is none."""
        node = self._nodes.find(name)
        return None if node is None else self._view(node)

    async def of_pool(self, pool: str) -> Sequence[NodeView]:
        """Every node of a pool, by name."""
        return [self._view(node) for node in self._nodes.with_labels({NODE_POOL_LABEL: pool})]

    async def cordon(self, name: str, mark: CordonMark) -> None:
        """Put an incident's mark on a node; see the port."""
        node = self._nodes.find(name)
        if node is None:
            raise PolicyError(f"node {name!r} has left the cluster; there is nothing to cordon")
        marks = self._marks.setdefault(name, {})
        before = marks.get(mark.incident)
        if before is not None and (before.scope, before.since) == (mark.scope, mark.since):
            return
        marks[mark.incident] = mark
        if mark.scope is CordonScope.NODE:
            self._close(node, FIELD_MANAGER)
        self._pulse.beat()

    async def uncordon(self, name: str, incident: str) -> Uncordoned:
        """Take an incident's mark off a node; see the port."""
        node = self._nodes.find(name)
        if node is None:
            return Uncordoned(note=f"node {name!r} has left the cluster")
        mine = self._marks.get(name, {}).pop(incident, None)
        if mine is None:
            return Uncordoned(note="it bears no mark of this incident")
        self._pulse.beat()
        done = self._view(node).without(mine)
        if done.opened:
            self.open(name)
        return done

    async def pods(self, name: str) -> Sequence[NodePod]:
        """Every pod on a node."""
        node = self._nodes.find(name)
        return [self._pod(pod) for pod in node.pods.values()] if node is not None else []

    async def evict(self, pod: NodePod) -> Evicted:
        """Ask for the eviction of this very pod, within its disruption budgets."""
        node = self._nodes.find(pod.node)
        found = node.pods.get(pod.uid) if node is not None else None
        if found is None:
            return Evicted(EvictionOutcome.GONE)
        if found.terminating:
            return Evicted(EvictionOutcome.ASKED)
        for name, budget in self._budgets.items():
            if budget.covers(pod.namespace, pod.name) and self._healthy(budget) <= budget.min_available:
                return Evicted(EvictionOutcome.BLOCKED, f"it would violate the disruption budget {name!r}")
        self._evict(found)
        return Evicted(EvictionOutcome.ASKED)

    # ---- what people do

    def close(self, name: str, by: str = "kubectl") -> None:
        """Cordon a node by hand; one that is cordoned already stays whose it is."""
        self._close(self._nodes.get(name), by)
        self._pulse.beat()

    def open(self, name: str) -> None:
        """Uncordon a node, whoever cordoned it."""
        self._nodes.get(name).cordoned_by = ""
        self._place()
        self._pulse.beat()

    def set_budget(self, name: str, budget: Budget | None) -> None:
        """Set or remove a disruption budget."""
        if budget is None:
            self._budgets.pop(name, None)
        else:
            self._budgets[name] = budget

    def run_pod(self, pod: Pod, node: str, *, stays: bool = False) -> None:
        """Put a pod on a node that no queue knows."""
        pod.node, pod.running = node, True
        self._nodes.get(node).pods[pod.uid] = pod
        if stays:
            self._stay.add(pod.uid)
        self._pulse.beat()

    # ---- inside

    def _close(self, node: Node, by: str) -> None:
        node.cordoned_by = node.cordoned_by or by

    def _healthy(self, budget: Budget) -> int:
        return sum(
            pod.running and not pod.terminating and budget.covers(pod.namespace, pod.name)
            for node in self._nodes.with_labels({})
            for pod in node.pods.values()
        )

    def _view(self, node: Node) -> NodeView:
        return NodeView(
            name=node.name,
            pool=node.labels.get(NODE_POOL_LABEL, ""),
            gpus=node.gpus,
            unschedulable=bool(node.cordoned_by),
            ready=node.ready,
            ours=node.cordoned_by == FIELD_MANAGER,
            marks=tuple(self._marks.get(node.name, {}).values()),
        )

    def _pod(self, pod: Pod) -> NodePod:
        return NodePod(
            namespace=pod.namespace,
            name=pod.name,
            uid=pod.uid,
            node=pod.node,
            gpus=pod.gpus,
            terminating=pod.terminating,
            stays=pod.uid in self._stay,
        )
