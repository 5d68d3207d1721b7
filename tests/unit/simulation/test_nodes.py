"""Where pods go, and what happens to them there."""

from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubank.domain.contract import Side
from gpubank.domain.facts import PoolFacts
from gpubank.simulation.nodes import Node, NodeBook
from gpubank.simulation.workloads import Pod
from tests.contract.simulated_world import SimulatedWorld, simulated_world
from tests.contract.world import DeploymentRequest, JobRequest, layout, pods_of, the


def a_pod(number: int, gpus: int, priority: int = 0, selector: dict[str, str] | None = None) -> Pod:
    return Pod(f"uid-{number}", f"pod-{number}", "team", gpus, 0, priority, number, selector or {}, 30.0)


def a_book(*gpus: int) -> NodeBook:
    book = NodeBook()
    for number, each in enumerate(gpus):
        book.add(Node(f"node-{number}", each))
    return book


def test_a_pod_goes_where_the_least_is_left_over() -> None:
    book = a_book(8, 4, 2)
    pods = [a_pod(1, 3), a_pod(2, 2), a_pod(3, 8)]
    assert len(book.place(pods)) == 3
    assert [pod.node for pod in pods] == ["node-1", "node-2", "node-0"]


def test_pods_come_in_the_order_of_priority_then_creation() -> None:
    pods = [a_pod(1, 8), a_pod(2, 8), a_pod(3, 8, priority=5)]
    assert [pod.name for pod in a_book(8, 8).place(pods)] == ["pod-3", "pod-1"]


def test_a_pod_that_fits_nowhere_lets_the_next_pass() -> None:
    pods = [a_pod(1, 16), a_pod(2, 4)]
    assert [pod.name for pod in a_book(8, 8).place(pods)] == ["pod-2"]


def test_closed_nodes_and_nodes_of_other_pools_take_no_pods() -> None:
    book = NodeBook()
    book.add(Node("closed", 8, {"pool": "a"}, ready=False))
    book.add(Node("other", 8, {"pool": "b"}))
    assert book.place([a_pod(1, 1, selector={"pool": "a"})]) == ()


@given(
    nodes=st.lists(st.integers(0, 8), max_size=6),
    pods=st.lists(st.tuples(st.integers(1, 8), st.integers(-1, 1)), max_size=12),
)
def test_no_node_is_ever_overfull_and_nobody_waits_beside_room(nodes: list[int], pods: list[tuple[int, int]]) -> None:
    book = a_book(*nodes)
    waiting = [a_pod(number, gpus, priority) for number, (gpus, priority) in enumerate(pods)]
    placed = book.place(waiting)
    free = [node.free for node in book.with_labels({})]
    assert all(each >= 0 for each in free)
    assert all(pod.gpus > max(free, default=0) for pod in waiting if pod not in placed)
    for pod in placed:
        book.release(pod)
    assert [node.free for node in book.with_labels({})] == nodes


@pytest.fixture
async def world() -> AsyncIterator[SimulatedWorld]:
    async with simulated_world() as world:
        await world.backend.lay_out(layout(world, "ads"))
        await world.add_nodes(8, 8)
        await world.backend.write_quota(world.pool, "ads", Side.OWN, nominal=16, revision=1)
        yield world


def both_placed(facts: PoolFacts) -> bool:
    return the(facts, "train").placed


async def test_a_job_whose_node_is_lost_keeps_its_quota_and_waits_for_another(world: SimulatedWorld) -> None:
    await world.submit_job(JobRequest("ads", "train", pods=2))
    before = the(await world.wait_until(both_placed), "train")
    world.simulated.remove_node("h100-node-1")
    await world.pause(1)
    facts = await world.backend.observe(world.pool)
    seen = the(facts, "train")
    assert (seen.reserved, seen.placed, [node.name for node in facts.nodes]) == (True, False, ["h100-node-2"])
    assert sorted(pod.node for pod in seen.pod_facts) == ["", "h100-node-2"]
    assert [pod.index for pod in seen.pod_facts if not pod.node] == [
        pod.index for pod in before.pod_facts if pod.node == "h100-node-1"
    ]
    await world.add_nodes(8)
    await world.wait_until(both_placed)


async def test_a_lost_pod_of_a_deployment_is_replaced_by_a_new_workload(world: SimulatedWorld) -> None:
    await world.submit_deployment(DeploymentRequest("ads", "serve", replicas=2, gpus_per_pod=8))
    facts = await world.wait_until(lambda facts: all(each.placed for each in pods_of(facts, "serve")))
    before = {each.key.uid for each in pods_of(facts, "serve")}
    world.simulated.remove_node("h100-node-1")
    facts = await world.wait_until(lambda facts: {each.key.uid for each in pods_of(facts, "serve")} != before)
    await world.pause(3)
    facts = await world.backend.observe(world.pool)
    serving = pods_of(facts, "serve")
    assert [each.placed for each in serving].count(True) == 1
    assert len({each.key.uid for each in serving} - before) == 1


async def test_pods_outside_every_queue_take_room(world: SimulatedWorld) -> None:
    world.simulated.set_node("h100-node-1", foreign=1)
    world.simulated.set_node("h100-node-2", ready=False)
    await world.submit_job(JobRequest("ads", "train"))
    await world.pause(2)
    facts = await world.backend.observe(world.pool)
    assert [(node.used, node.ready) for node in facts.nodes] == [(1, True), (0, False)]
    assert (the(facts, "train").reserved, the(facts, "train").placed) == (True, False)
    world.simulated.set_node("h100-node-1", foreign=0)
    await world.wait_until(both_placed)


def test_an_unknown_node_is_named_with_those_that_exist() -> None:
    with pytest.raises(KeyError, match=r"no node 'x'; there are node-0"):
        a_book(8).get("x")
