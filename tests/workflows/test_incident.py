"""Incidents of GPUs through Temporal: from the first report to the end, with people and faults on the way."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from temporalio import workflow

from activities.interfaces import BANK_QUEUE
from gpubank.domain.errors import PolicyError
from gpubank.domain.incident import Asks, IncidentInput, IncidentPhase, IncidentState, IncidentWord
from gpubank.domain.servicing import CordonScope, PodName
from gpubank.simulation.servicing import Budget
from tests.contract.world import job_of
from tests.fakes.bank import POOL, FakeBank
from tests.fakes.incidents import ANN, GPU, Incidents, hasty
from tests.fakes.node import FakeNode
from tests.workflows.test_replay import replayer
from workflows.incident import CLOSED, OPENED, GpuIncidentWorkflow
from workflows.incident_desk import IncidentDesk

pytestmark = pytest.mark.temporal
P = IncidentPhase


@pytest.fixture
async def incidents(bank: FakeBank) -> AsyncIterator[Incidents]:
    async with hasty(bank) as found:
        yield found
        if not found.replayed:
            await replay(bank)


async def replay(bank: FakeBank) -> None:
    """See every history of the test replay: what it did was decided by nothing but what the history says."""
    async for found in bank.client.temporal.list_workflows("WorkflowType = 'GpuIncident'"):
        history = await bank.client.temporal.get_workflow_handle(found.id, run_id=found.run_id).fetch_history()
        await replayer().replay_workflow(history)


def phases(state: IncidentState) -> list[IncidentPhase]:
    return [record.phase for record in state.history]


async def pods_of(incidents: Incidents, name: str) -> list[PodName]:
    facts = await incidents.bank.world.backend.observe(POOL)
    found = job_of(facts, name)
    assert found is not None
    return [PodName(namespace=found.key.namespace, name=pod.name) for pod in found.pod_facts]


async def node_of(incidents: Incidents, name: str) -> int:
    found = await incidents.bank.workload(name)
    assert found is not None
    (pod,) = found.pod_facts
    return int(pod.node[-1])


async def test_a_fault_that_passes_by_itself_cordons_nothing(incidents: Incidents) -> None:
    node = incidents.node()
    async with node.serving():
        edge = node.fault("hung", "transient", "HUNG")
        await incidents.report(node, edge)
        state = await incidents.where(node, lambda state: state.cause == "hung", "it is judged")
        assert (state.phase, state.cordoned, state.pool) == (P.SUSPECT, CordonScope.NONE, POOL)
        node.pass_by()
        ended = await incidents.reaches(node, P.RECOVERED)
    assert phases(ended) == [P.RECOVERED]
    assert node.orders == []
    assert incidents.desk.tickets == []
    view = await incidents.servicing.view(node.node)
    assert view is not None
    assert view.marks == ()


async def test_a_gpu_that_must_be_reset_is_emptied_alone_and_comes_back_when_the_driver_says_so(
    incidents: Incidents,
) -> None:
    bank = incidents.bank
    await bank.borrow("research", "train", 4, hook=True)
    node = incidents.node(await node_of(incidents, "train"))
    node.holders = tuple(await pods_of(incidents, "train"))
    before = node.holders
    await bank.own("research", "other", 4)
    await bank.placed("other")
    async with node.serving():
        await incidents.report(node, node.fault("xid 119", "reset", "RESET_GPU", verdict="GPU_RESET"))
        state = await incidents.reaches(node, P.TICKETED)
        assert (state.cordoned, state.cause) == (CordonScope.GPU, "xid 119")
        assert not await incidents.closed(node), "the other GPUs of the node are sound"
        (pod,) = state.pods
        assert pod.state.startswith("saved at step")
        assert pod.gone
        assert [request.epoch for request in bank.trainers.asked] == [0]
        assert await pods_of(incidents, "train") != list(before), "its job has another pod"
        other = await bank.workload("other")
        assert other is not None
        assert all(not each.terminating for each in other.pod_facts)
        assert [order.reason for order in node.orders] == ["xid 119: it must be reset"]

        node.mend()
        ended = await incidents.reaches(node, P.RECOVERED)
    assert node.released
    assert ended.repaired_by.startswith("the driver")
    assert phases(ended) == [P.CORDONED, P.DRAINED, P.TICKETED, P.REPAIRED, P.UNCORDONED, P.RECOVERED]
    assert [ticket.type for ticket in incidents.desk.tickets] == [OPENED, CLOSED]
    assert incidents.desk.tickets[0].data["gpu"] == GPU
    events = await bank.ledger.audit(subject=incidents.id(node))
    assert [event.action for event in reversed(events)] == [f"incident {phase}" for phase in phases(ended)]


async def test_a_node_that_must_be_restarted_is_emptied_within_budgets_and_waits_for_a_person(
    incidents: Incidents,
) -> None:
    bank, client = incidents.bank, incidents.bank.client
    await bank.own("serving", "serve", 8)
    await bank.placed("serve")
    node = incidents.node(await node_of(incidents, "serve"))
    incidents.servicing.set_budget("serve", Budget("team-serving", "serve", min_available=1))
    async with node.serving():
        await incidents.report(node, node.fault("xid 79", "hardware", "RESTART_BM"))
        await incidents.reaches(node, P.CORDONED)
        assert await incidents.closed(node)
        await budget_is_in_the_way(incidents, node)
        assert (await incidents.state(node)).phase is P.CORDONED
        incidents.servicing.set_budget("serve", None)
        state = await incidents.reaches(node, P.TICKETED)
        assert state.told
        node.wrong = "lost"
        await client.repaired(incidents.id(node), ANN)
        state = await incidents.where(
            node, lambda state: len(state.history) == 5 and state.phase is P.TICKETED, "the GPU disagrees"
        )
        assert state.history[-1].why == "it was not put back: it still reports lost"
        assert await incidents.closed(node)
        node.mend()
        await client.repaired(incidents.id(node), ANN)
        ended = await incidents.reaches(node, P.RECOVERED)
    assert not await incidents.closed(node)
    assert ended.repaired_by == "ann: as agreed"
    await bank.placed("serve")
    with pytest.raises(PolicyError, match="does not run; `gpubank incident list`"):
        await client.retire(incidents.id(node), ANN)


async def test_when_much_of_a_pool_is_out_the_next_cordon_needs_a_person(incidents: Incidents) -> None:
    client = incidents.bank.client
    first, second = incidents.node(1), incidents.node(2, "GPU-2")
    async with first.serving(), second.serving():
        await incidents.report(first, first.fault("lost", "hardware", "LOST"))
        await incidents.reaches(first, P.TICKETED)
        await incidents.report(second, second.fault("lost", "hardware", "LOST"))
        state = await incidents.where(second, lambda state: state.asks is Asks.CORDON, "it asks")
        assert state.waits_for == (
            "8 of 16 GPUs of pool 'h100' are out of service already; with this one it would be 16, beyond 20 %"
        )
        assert not await incidents.closed(second)

        async def listed() -> bool:
            rows = await client.incidents(pool=POOL)
            return {row.node: (row.phase, row.needs_approval, row.cause) for row in rows} == {
                "h100-node-1": (P.TICKETED, False, "lost"),
                "h100-node-2": (P.SUSPECT, True, "lost"),
            }

        await incidents.until(listed, "the list says who waits for approval")
        with pytest.raises(PolicyError, match="nothing waits for approval"):
            await client.approve_incident(incidents.id(first), ANN)
        await client.approve_incident(incidents.id(second), ANN)
        await incidents.reaches(second, P.TICKETED)
        assert await incidents.closed(second)


async def test_a_cordon_that_waits_for_approval_is_forgotten_when_the_fault_has_gone(incidents: Incidents) -> None:
    incidents.servicing.close("h100-node-1")
    node = incidents.node(2)
    async with node.serving():
        await incidents.report(node, node.fault("xid 119", "reset", "RESET_GPU"))
        await incidents.where(node, lambda state: state.asks is Asks.CORDON, "it asks")
        node.pass_by()
        ended = await incidents.reaches(node, P.RECOVERED)
    assert ended.asks is Asks.NOTHING
    assert phases(ended) == [P.RECOVERED]


async def test_a_worse_report_widens_what_is_cordoned(incidents: Incidents) -> None:
    node = incidents.node()
    async with node.serving():
        await incidents.report(node, node.fault("xid 119", "reset", "RESET_GPU"))
        await incidents.reaches(node, P.TICKETED)
        assert not await incidents.closed(node)
        await incidents.report(node, node.fault("lost", "hardware", "LOST"))
        state = await incidents.where(
            node, lambda state: state.cordoned is CordonScope.NODE and state.phase is P.TICKETED, "it is widened"
        )
        assert await incidents.closed(node)
    assert phases(state)[3:] == [P.CORDONED, P.DRAINED, P.TICKETED]
    assert "worse than it seemed: lost" in state.history[3].why


async def test_a_node_whose_agent_is_silent_is_cordoned_as_a_whole(incidents: Incidents) -> None:
    node = incidents.node()
    await incidents.report(node, node.fault("xid 119", "reset", "RESET_GPU"))
    state = await incidents.reaches(node, P.TICKETED)
    assert state.cordoned is CordonScope.NODE
    assert "its agent does not answer" in state.reason
    await incidents.bank.client.retire(incidents.id(node), ANN)
    ended = await incidents.reaches(node, P.RETIRED)
    assert await incidents.closed(node), "nobody has taken the GPU out"
    assert "its node stays cordoned" in ended.note


@pytest.mark.parametrize("keep", [False, True])
async def test_a_person_retires_a_gpu_and_decides_about_its_node(incidents: Incidents, keep: bool) -> None:
    node = incidents.node()
    async with node.serving():
        await incidents.report(node, node.fault("xid 79", "hardware", "RESTART_BM"))
        await incidents.reaches(node, P.TICKETED)
        word = IncidentWord(identity="ann", verified=True, reason="burnt", keep_cordon=keep)
        await incidents.bank.client.retire(incidents.id(node), word)
        await incidents.reaches(node, P.RETIRED)
    assert await incidents.closed(node) is keep
    assert not node.released
    assert node.orders[-1].reason == "retired by ann: burnt"


async def test_a_persons_cordon_outlives_the_incident(incidents: Incidents) -> None:
    node = incidents.node()
    incidents.servicing.close(node.node)
    async with node.serving():
        await incidents.report(node, node.fault("lost", "hardware", "LOST"))
        await incidents.reaches(node, P.TICKETED)
        node.mend()
        await incidents.bank.client.repaired(incidents.id(node), ANN)
        ended = await incidents.reaches(node, P.RECOVERED)
    assert await incidents.closed(node)
    assert "it stays cordoned: somebody else cordoned it" in [record.why for record in ended.history]


async def test_pods_that_do_not_leave_in_time_are_a_matter_for_a_person(bank: FakeBank) -> None:
    async with hasty(bank, drain_limit=timedelta(seconds=1)) as incidents:
        await bank.own("serving", "serve", 8)
        await bank.placed("serve")
        node = incidents.node(await node_of(incidents, "serve"))
        incidents.servicing.set_budget("serve", Budget("team-serving", "serve", min_available=1))
        async with node.serving():
            await incidents.report(node, node.fault("lost", "hardware", "LOST"))
            state = await incidents.where(node, lambda state: state.asks is Asks.PODS, "it asks")
            assert state.waits_for.startswith("pods are left: team-serving/serve-")
            await bank.client.approve_incident(incidents.id(node), ANN)
            state = await incidents.reaches(node, P.TICKETED)
        assert "1 pods are left; approved by ann: as agreed" in [record.why for record in state.history]


async def test_a_report_that_is_delivered_twice_or_late_counts_once(incidents: Incidents) -> None:
    node = incidents.node()
    async with node.serving():
        edge = node.fault("xid 119", "reset", "RESET_GPU")
        await asyncio.gather(*(incidents.report(node, edge) for _ in range(3)))
        state = await incidents.reaches(node, P.TICKETED)
        assert len(state.known) == len(state.faults) == 1
        node.mend()
        await incidents.reaches(node, P.RECOVERED)
        ran = await run_of(incidents, node)
        await incidents.report(node, edge)
        assert await run_of(incidents, node) != ran
        ended = await incidents.reaches(node, P.RECOVERED)
    assert phases(ended) == [P.RECOVERED], "the node says that nothing is held against it"


async def budget_is_in_the_way(incidents: Incidents, node: FakeNode) -> None:
    """See the incident say that a disruption budget forbids the eviction; between two attempts, none is in hand."""

    async def blocked() -> bool:
        texts = await incidents.bank.client.incident_waits(incidents.id(node))
        return any("disruption budget" in text for text in texts)

    await incidents.until(blocked, "the budget is said to be in the way")


async def run_of(incidents: Incidents, node: FakeNode) -> str:
    handle = incidents.bank.client.temporal.get_workflow_handle(incidents.id(node))
    return str((await handle.describe()).run_id)


async def test_it_goes_on_where_it_was_when_its_worker_comes_back(incidents: Incidents) -> None:
    bank = incidents.bank
    await bank.own("serving", "serve", 8)
    await bank.placed("serve")
    node = incidents.node(await node_of(incidents, "serve"))
    incidents.servicing.set_budget("serve", Budget("team-serving", "serve", min_available=1))
    async with node.serving():
        await incidents.report(node, node.fault("lost", "hardware", "LOST"))
        await budget_is_in_the_way(incidents, node)
        await bank.stop_workers()
        incidents.servicing.set_budget("serve", None)
        await bank.start_workers()
        await incidents.reaches(node, P.TICKETED)
    assert len(incidents.desk.tickets) == 1


async def test_no_report_is_lost_and_no_step_repeated_while_it_continues_as_new(
    incidents: Incidents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(IncidentDesk, "rests", property(lambda self: workflow.info().get_current_history_length() > 40))
    node = incidents.node()
    async with node.serving():
        edges = [node.fault(f"xid {number}", "reset", "RESET_GPU") for number in range(200, 230)]
        for edge in edges:
            await incidents.report(node, edge)
        state = await incidents.where(
            node, lambda state: len(state.faults) == 30 and state.phase is P.TICKETED, "all are heard"
        )
        assert len(state.known) == 30
        handle = incidents.bank.client.temporal.get_workflow_handle(incidents.id(node))
        description = await handle.describe()
        assert description.raw_description.workflow_execution_info.first_run_id != description.run_id
        node.mend()
        ended = await incidents.reaches(node, P.RECOVERED)
    assert phases(ended) == [P.CORDONED, P.DRAINED, P.TICKETED, P.REPAIRED, P.UNCORDONED, P.RECOVERED]
    assert [ticket.type for ticket in incidents.desk.tickets] == [OPENED, CLOSED]
    await replay(incidents.bank)  # by the same rule of when to continue as new
    incidents.replayed = True


async def test_a_ticket_that_cannot_be_delivered_holds_nothing_up(bank: FakeBank) -> None:
    async with hasty(bank, ticket_limit=timedelta(seconds=1)) as incidents:
        incidents.desk.down = True
        node = incidents.node()
        async with node.serving():
            await incidents.report(node, node.fault("xid 119", "reset", "RESET_GPU"))
            state = await incidents.reaches(node, P.TICKETED)
    assert not state.told
    assert state.ticket == "nobody could be told: the desk does not answer"


async def test_without_a_node_of_that_name_there_is_nothing_to_do(incidents: Incidents) -> None:
    node = incidents.node(7)
    async with node.serving():
        await incidents.report(node, node.fault("lost", "hardware", "LOST"))
        ended = await incidents.reaches(node, P.RECOVERED)
    assert ended.note == "its node has left the cluster"


async def test_one_that_is_handed_over_goes_on_from_its_phase(incidents: Incidents) -> None:
    """As after a reset, or by another namespace's bank: the state alone says where it stands."""
    node = incidents.node()
    async with node.serving():
        await incidents.report(node, node.fault("xid 119", "reset", "RESET_GPU"))
        state = await incidents.reaches(node, P.TICKETED)
        await incidents.bank.client.temporal.get_workflow_handle(incidents.id(node)).terminate()
        start = IncidentInput(cluster=node.cluster, node=node.node, uuid=node.uuid, state=state)
        await incidents.bank.client.temporal.start_workflow(
            GpuIncidentWorkflow.run, start, id=incidents.id(node), task_queue=BANK_QUEUE
        )
        node.mend()
        ended = await incidents.reaches(node, P.RECOVERED)
    assert ended.opened_at == state.opened_at
    assert ended.opened_at is not None
    assert ended.opened_at <= datetime.now(UTC)
