"""Orders of an incident on a node with a running plugin, NVML's stand-in below, a kubelet that says who holds what."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TypeVar

import grpc
import pytest

from gpubank.domain.errors import BackendError
from gpubank.domain.incident import NodeOrder
from gpubank.domain.servicing import PodName
from nodeagent.attribution.kubelet import PodResources
from nodeagent.plugin.agent import Agent
from nodeagent.plugin.control import listening
from nodeagent.reporting.edges import look
from nodeagent.reporting.orders import NodeOrders
from tests.fakes.podsockets import FakePod, PodSockets
from tests.support.waiting import seen
from tests.unit.nodeagent.conftest import Node

T = TypeVar("T")

ORDER = NodeOrder(incident="incident/local/n1/GPU-0", uuid="GPU-0", key="k1", reason="xid 119: it must be reset")


@pytest.fixture
def kubelet(node: Node) -> Iterator[PodSockets]:
    sockets = PodSockets(node.folder)
    yield sockets
    sockets.close()


@pytest.fixture
async def agent(node: Node) -> AsyncIterator[Agent]:
    node.facts.gpu("GPU-0", recovery=0)
    node.facts.gpu("GPU-1", recovery=0)
    agent = await node.start_agent()
    async with listening(node.folder / "state", agent):
        yield agent


@pytest.fixture
def orders(node: Node, agent: Agent, kubelet: PodSockets) -> NodeOrders:
    return NodeOrders(node.folder / "state", PodResources(kubelet.pod_resources).list)


async def done(work: Callable[[], T]) -> T:
    return await asyncio.to_thread(work)


async def test_an_incident_sees_faults_verdict_and_who_is_on_the_gpu(
    node: Node, agent: Agent, orders: NodeOrders, kubelet: PodSockets
) -> None:
    kubelet.pods = [
        FakePod("team-a", "train-0", "u-1", {"accelerator.aik8s.run/h100": ["GPU-0"]}),
        FakePod("team-b", "serve-0", "u-2", {"accelerator.aik8s.run/h100": ["GPU-1"]}),
    ]
    sight = await done(lambda: orders.inspect(ORDER))
    assert (sight.found, sight.marks, sight.wrong, sight.verdict) == (True, (), "", "NONE")
    assert sight.holders == (PodName(namespace="team-a", name="train-0"),)
    node.facts.change("GPU-0", recovery=1)
    await seen(lambda: agent.monitor.book.marks, "a mark", 20)
    sight = await done(lambda: orders.inspect(ORDER))
    assert [(mark.cause, mark.fault) for mark in sight.marks] == [("recovery action GPU_RESET", "reset")]
    assert (sight.wrong, sight.verdict) == ("recovery action GPU_RESET", "GPU_RESET")
    edges = look(await done(orders.inspected), {}, node="n1", boot_id="", burst=180).edges
    assert {uuid: [edge.cause for edge in found] for uuid, found in edges.items()} == {
        "GPU-0": ["recovery action GPU_RESET"]
    }


async def test_a_gpu_that_its_hardware_slows_down_for_heat_is_told_and_passes_by_itself(
    node: Node, agent: Agent, orders: NodeOrders
) -> None:
    agent.monitor.book.policy.quiet_seconds = 0
    node.facts.change("GPU-0", clock_reasons=0x40)
    await seen(lambda: agent.monitor.book.marks, "a mark", 20)
    (mark,) = (await done(lambda: orders.inspect(ORDER))).marks
    assert (mark.cause, mark.fault) == ("thermal", "transient")
    node.facts.change("GPU-0", clock_reasons=0)
    await seen(lambda: not agent.monitor.book.marks, "the end of the mark", 20)


async def test_a_kubelet_that_does_not_tell_leaves_the_holders_unknown(orders: NodeOrders, kubelet: PodSockets) -> None:
    kubelet.refuse = grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await done(lambda: orders.inspect(ORDER))).holders is None


async def test_a_gpu_is_taken_out_in_the_incidents_name_once_and_put_back(
    node: Node, agent: Agent, orders: NodeOrders
) -> None:
    for _ in range(2):
        await done(lambda: orders.quarantine(ORDER))
    assert agent.monitor.book.reason("GPU-0") == (
        "quarantine (manual, incident/local/n1/GPU-0: xid 119: it must be reset)"
    )
    assert (await done(lambda: orders.inspect(ORDER))).marks == (), "its own quarantine is no fault"
    released = await done(lambda: orders.release(ORDER.model_copy(update={"key": "k2"})))
    assert (released.released, agent.monitor.book.marks) == (True, {})


async def test_a_gpu_that_still_reports_a_fault_is_not_put_back(node: Node, agent: Agent, orders: NodeOrders) -> None:
    node.facts.change("GPU-0", recovery=2)
    await seen(lambda: agent.monitor.book.marks, "a mark", 20)
    released = await done(lambda: orders.release(ORDER))
    assert (released.released, released.mended) == (False, False)
    assert "still reports recovery action NODE_REBOOT" in released.why_not


async def test_what_a_person_took_out_stays_out_in_the_persons_name(agent: Agent, orders: NodeOrders) -> None:
    await agent.quarantine("GPU-0", "ann", "smell")
    await done(lambda: orders.quarantine(ORDER))
    assert "ann: smell" in agent.monitor.book.reason("GPU-0")
    released = await done(lambda: orders.release(ORDER.model_copy(update={"key": "k2"})))
    assert (released.released, released.mended) == (False, True)
    assert released.why_not == "the GPU stays out: quarantined by ann: smell"
    assert "ann: smell" in agent.monitor.book.reason("GPU-0")


async def test_no_later_incident_puts_a_retired_gpu_back(agent: Agent, orders: NodeOrders) -> None:
    await done(lambda: orders.quarantine(ORDER))
    retired = {"key": "k2", "reason": "retired by ann: burnt", "for_good": True}
    await done(lambda: orders.quarantine(ORDER.model_copy(update=retired)))
    again = ORDER.model_copy(update={"key": "k3", "reason": "xid 79"})
    await done(lambda: orders.quarantine(again))
    released = await done(lambda: orders.release(again.model_copy(update={"key": "k4"})))
    assert (released.released, released.mended) == (False, True)
    assert "retired by ann: burnt" in released.why_not
    assert "retired by ann: burnt" in agent.monitor.book.reason("GPU-0")
    await agent.release("GPU-0")
    assert agent.monitor.book.marks == {}, "a person on the node may"


async def test_a_gpu_that_is_not_on_the_node_is_not_found_and_needs_no_release(orders: NodeOrders) -> None:
    other = ORDER.model_copy(update={"uuid": "GPU-9"})
    assert not (await done(lambda: orders.inspect(other))).found
    assert (await done(lambda: orders.quarantine(other))).found is False
    assert (await done(lambda: orders.release(other))).mended


async def test_without_a_plugin_the_node_says_so(node: Node, kubelet: PodSockets) -> None:
    orders = NodeOrders(node.folder / "state", PodResources(kubelet.pod_resources).list)
    with pytest.raises(BackendError, match="does not answer"):
        await done(lambda: orders.inspect(ORDER))
