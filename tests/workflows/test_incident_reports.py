"""Incidents whose reports come early, twice or while something else is done, and what is asked only once."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from gpubank.domain.incident import IncidentPhase
from gpubank.domain.servicing import CordonScope
from tests.fakes.bank import FakeBank
from tests.fakes.incidents import ANN, Incidents, hasty
from tests.workflows.test_incident import node_of, phases, pods_of, replay
from workflows.incident import CLOSED, OPENED

pytestmark = pytest.mark.temporal
P = IncidentPhase


@pytest.fixture
async def incidents(bank: FakeBank) -> AsyncIterator[Incidents]:
    async with hasty(bank, ticket_limit=timedelta(seconds=1)) as found:
        yield found
        await replay(bank)


async def test_a_first_report_of_a_node_whose_clock_runs_ahead_keeps_nothing_waiting(incidents: Incidents) -> None:
    node = incidents.node()
    async with node.serving():
        ahead = datetime.now(UTC) + timedelta(hours=1)
        edge = node.fault("xid 119", "reset", "RESET_GPU", verdict="GPU_RESET")
        await incidents.report(node, edge.model_copy(update={"last_at": ahead}))
        state = await incidents.reaches(node, P.TICKETED)
        assert state.last_edge_at is not None
        assert state.last_edge_at < ahead
        node.mend()
        await incidents.reaches(node, P.RECOVERED)


async def test_a_worse_report_while_the_gpu_is_put_back_widens_what_is_cordoned(incidents: Incidents) -> None:
    node = incidents.node()
    async with node.serving():
        await incidents.report(node, node.fault("xid 119", "reset", "RESET_GPU", verdict="GPU_RESET"))
        await incidents.reaches(node, P.TICKETED)
    await incidents.bank.client.repaired(incidents.id(node), ANN)
    await incidents.reaches(node, P.REPAIRED)  # its agent is away, and cannot put it back
    await incidents.report(node, node.fault("lost", "hardware", "LOST", verdict="GPU_RESET"))
    await incidents.where(node, lambda state: phases(state).count(P.TICKETED) == 2, "it is not put back")
    async with node.serving():
        state = await incidents.where(
            node, lambda state: state.cordoned is CordonScope.NODE, "it is widened", timeout=15
        )
        assert await incidents.closed(node)
    assert "a fault was reported again" in [record.why for record in state.history]


async def test_whoever_was_told_of_the_beginning_is_told_of_the_end_though_a_later_word_was_lost(
    incidents: Incidents,
) -> None:
    node = incidents.node()
    async with node.serving():
        await incidents.report(node, node.fault("xid 119", "reset", "RESET_GPU", verdict="GPU_RESET"))
        await incidents.reaches(node, P.TICKETED)
        incidents.desk.down = True
        await incidents.report(node, node.fault("lost", "hardware", "LOST", verdict="GPU_RESET"))
        state = await incidents.where(
            node, lambda state: phases(state).count(P.TICKETED) == 2, "it is widened, and nobody hears of it"
        )
        assert state.told
        assert state.ticket == "nobody could be told: the desk does not answer"
        incidents.desk.down = False
        node.mend()
        await incidents.reaches(node, P.RECOVERED)
    assert [ticket.type for ticket in incidents.desk.tickets] == [OPENED, CLOSED]


async def test_a_checkpoint_that_is_verified_with_its_request_is_not_verified_again(incidents: Incidents) -> None:
    bank = incidents.bank
    await bank.borrow("research", "train", 4, hook=True)
    node = incidents.node(await node_of(incidents, "train"))
    node.holders = tuple(await pods_of(incidents, "train"))
    async with node.serving():
        await incidents.report(node, node.fault("xid 119", "reset", "RESET_GPU", verdict="GPU_RESET"))
        state = await incidents.reaches(node, P.TICKETED)
    (pod,) = state.pods
    assert pod.state.startswith("saved at step")
    history = await bank.client.temporal.get_workflow_handle(incidents.id(node)).fetch_history()
    asked = [
        event.activity_task_scheduled_event_attributes.activity_type.name
        for event in history.events
        if event.HasField("activity_task_scheduled_event_attributes")
    ]
    assert [name for name in asked if name.startswith("checkpoint.")] == ["checkpoint.request"]
