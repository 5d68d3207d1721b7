"""What incidents may rely on when they take nodes out of service, whatever cluster it is."""

import uuid
from datetime import UTC, datetime
from typing import Protocol

import pytest

from activities.failures import settled
from gpubank.domain.errors import PolicyError
from gpubank.domain.servicing import CordonMark, CordonScope, Evicted, EvictionOutcome, NodePod, Uncordoned
from gpubank.ports import Nodes
from tests.support.waiting import seen

PATIENCE = 30.0


class Site(Protocol):
    """A pool of two nodes with 8 GPUs each, and what people do there."""

    pool: str
    names: list[str]

    @property
    def nodes(self) -> Nodes:
        """The port."""
        ...

    async def run(self, node: str, name: str, *, gpus: int = 1, kept: bool = False) -> None:
        """Put a pod on a node; `kept` ones are the node's own."""
        ...

    async def budget(self, names: str, min_available: int) -> None:
        """Say that so many pods whose names begin like this stay up; less than none removes it."""
        ...

    async def close(self, node: str) -> None:
        """Cordon a node by hand."""
        ...

    async def open(self, node: str) -> None:
        """Uncordon a node by hand."""
        ...


def mark(scope: CordonScope = CordonScope.NODE, incident: str = "incident/c/n/GPU-1", gpu: str = "GPU-1") -> CordonMark:
    return CordonMark(incident=incident, scope=scope, uuid=gpu, since=datetime(2026, 1, 5, 12, tzinfo=UTC))


async def cordon(site: Site, name: str, mark: CordonMark) -> None:
    """Cordon as activities do: a node that was changed meanwhile is read anew."""
    await settled(lambda: site.nodes.cordon(name, mark))


async def uncordon(site: Site, name: str, incident: str) -> Uncordoned:
    return await settled(lambda: site.nodes.uncordon(name, incident))


class NodesSuite:
    @pytest.fixture
    def site(self) -> Site:
        raise NotImplementedError

    async def test_nodes_of_a_pool_are_seen_with_their_gpus(self, site: Site) -> None:
        found = await site.nodes.of_pool(site.pool)
        assert [(node.name, node.pool, node.gpus, node.ready) for node in found] == [
            (name, site.pool, 8, True) for name in sorted(site.names)
        ]
        assert await site.nodes.view(site.names[0]) == found[0]
        assert await site.nodes.view("nowhere") is None
        assert await site.nodes.of_pool("no-such-pool") == []

    async def test_a_cordon_closes_the_node_and_goes_with_its_mark(self, site: Site) -> None:
        name = site.names[0]
        await cordon(site, name, mark())
        await cordon(site, name, mark())
        node = await site.nodes.view(name)
        assert node is not None
        assert (node.unschedulable, node.ours, node.marks) == (True, True, (mark(),))
        other = await site.nodes.view(site.names[1])
        assert other is not None
        assert not other.unschedulable
        done = await uncordon(site, name, mark().incident)
        assert (done.opened, done.note) == (True, "")
        node = await site.nodes.view(name)
        assert node is not None
        assert (node.unschedulable, node.ours, node.marks) == (False, False, ())
        again = await uncordon(site, name, mark().incident)
        assert (again.opened, again.note) == (False, "it bears no mark of this incident")

    async def test_a_mark_on_a_gpu_leaves_the_node_open_and_can_be_widened(self, site: Site) -> None:
        name = site.names[0]
        await cordon(site, name, mark(CordonScope.GPU))
        node = await site.nodes.view(name)
        assert node is not None
        assert (node.unschedulable, [each.scope for each in node.marks]) == (False, [CordonScope.GPU])
        await cordon(site, name, mark(CordonScope.NODE))
        node = await site.nodes.view(name)
        assert node is not None
        assert (node.unschedulable, [each.scope for each in node.marks]) == (True, [CordonScope.NODE])
        assert (await uncordon(site, name, mark().incident)).opened

    async def test_the_last_incident_opens_the_node(self, site: Site) -> None:
        name, other = site.names[0], mark(incident="incident/c/n/GPU-2", gpu="GPU-2")
        await cordon(site, name, mark())
        await cordon(site, name, other)
        first = await uncordon(site, name, mark().incident)
        assert (first.opened, first.note) == (False, f"it stays cordoned for {other.incident}")
        assert (await uncordon(site, name, other.incident)).opened

    async def test_a_person_who_cordoned_before_keeps_the_cordon(self, site: Site) -> None:
        name = site.names[0]
        await site.close(name)
        await cordon(site, name, mark())
        node = await site.nodes.view(name)
        assert node is not None
        assert (node.unschedulable, node.ours) == (True, False)
        done = await uncordon(site, name, mark().incident)
        assert (done.opened, done.note) == (False, "it stays cordoned: somebody else cordoned it")
        node = await site.nodes.view(name)
        assert node is not None
        assert (node.unschedulable, node.marks) == (True, ())

    async def test_a_person_who_opens_and_closes_it_meanwhile_owns_the_cordon(self, site: Site) -> None:
        name = site.names[0]
        await cordon(site, name, mark())
        await site.open(name)
        await cordon(site, name, mark())
        node = await site.nodes.view(name)
        assert node is not None
        assert not node.unschedulable, "who opened it had a reason"
        await site.close(name)
        assert not (await uncordon(site, name, mark().incident)).opened
        node = await site.nodes.view(name)
        assert node is not None
        assert node.unschedulable

    async def test_a_mark_that_an_earlier_incident_left_behind_keeps_no_node_open(self, site: Site) -> None:
        name, later = site.names[0], mark().model_copy(update={"since": datetime(2026, 1, 6, 12, tzinfo=UTC)})
        await cordon(site, name, mark())
        await site.open(name)
        await cordon(site, name, later)
        node = await site.nodes.view(name)
        assert node is not None
        assert (node.unschedulable, node.ours, node.marks) == (True, True, (later,))

    async def test_a_node_that_is_gone_cannot_be_cordoned_and_need_not_be_opened(self, site: Site) -> None:
        with pytest.raises(PolicyError, match="has left the cluster"):
            await cordon(site, "nowhere", mark())
        assert "has left the cluster" in (await uncordon(site, "nowhere", "x")).note
        assert await site.nodes.pods("nowhere") == []

    async def test_pods_are_seen_with_their_gpus_and_whose_they_are(self, site: Site) -> None:
        await site.run(site.names[0], "train-0", gpus=4)
        await site.run(site.names[0], "agent", gpus=1, kept=True)
        await site.run(site.names[1], "train-1", gpus=2)
        found = {pod.name.partition("-")[0]: pod for pod in await site.nodes.pods(site.names[0])}
        assert {name: (pod.gpus, pod.stays, pod.terminating) for name, pod in found.items()} == {
            "train": (4, False, False),
            "agent": (1, True, False),
        }

    async def test_an_eviction_waits_for_its_budget_and_then_ends_that_very_pod(self, site: Site) -> None:
        for number in range(2):
            await site.run(site.names[number], f"serve-{number}")
        await site.budget("serve", 2)
        (pod,) = await site.nodes.pods(site.names[0])
        blocked = await self._evict(site, pod, EvictionOutcome.BLOCKED)
        assert "disruption budget" in blocked
        assert [each.uid for each in await site.nodes.pods(site.names[0])] == [pod.uid]
        await site.budget("serve", 1)
        await self._evict(site, pod, EvictionOutcome.ASKED)
        await self._gone(site, pod)
        assert (await site.nodes.evict(pod)).outcome is EvictionOutcome.GONE

    async def test_another_pod_of_the_same_name_is_not_the_one_that_was_meant(self, site: Site) -> None:
        await site.run(site.names[0], "serve-0")
        (pod,) = await site.nodes.pods(site.names[0])
        stranger = pod.model_copy(update={"uid": str(uuid.uuid4())})
        assert (await site.nodes.evict(stranger)).outcome is EvictionOutcome.GONE
        assert [each.uid for each in await site.nodes.pods(site.names[0])] == [pod.uid]

    async def _evict(self, site: Site, pod: NodePod, wanted: EvictionOutcome) -> str:
        """Ask until the answer is the one that is wanted: a budget is counted a moment after it was written."""

        async def answer() -> Evicted | None:
            found = await site.nodes.evict(pod)
            assert found.outcome in {wanted, EvictionOutcome.BLOCKED}, found
            return found if found.outcome is wanted else None

        found: Evicted = await seen(answer, f"the answer {wanted}", PATIENCE)
        return found.message

    async def _gone(self, site: Site, pod: NodePod) -> None:
        async def gone() -> bool:
            return not await site.nodes.pods(pod.node)

        await seen(gone, "the pod's end", PATIENCE)
