"""Incidents of GPUs in what an attacker, a bad night or a hasty person makes of them."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from gpubank.domain.incident import Asks, IncidentPhase, IncidentWord
from gpubank.domain.servicing import CordonScope
from tests.fakes.bank import FakeBank
from tests.fakes.incidents import ANN, Incidents, hasty
from tests.workflows.test_incident import node_of, phases, replay

pytestmark = pytest.mark.temporal
P = IncidentPhase


@pytest.fixture
async def incidents(bank: FakeBank) -> AsyncIterator[Incidents]:
    async with hasty(bank) as found:
        yield found
        await replay(bank)


async def test_nobody_is_told_that_a_gpu_is_empty_when_it_is_not_known_who_is_on_it(incidents: Incidents) -> None:
    await incidents.bank.own("serving", "serve", 8)
    await incidents.bank.placed("serve")
    node = incidents.node(await node_of(incidents, "serve"))
    node.holders = None
    async with node.serving():
        await incidents.report(node, node.fault("xid 119", "reset", "RESET_GPU"))
        state = await incidents.reaches(node, P.TICKETED)
    drained = next(record for record in state.history if record.phase is P.DRAINED)
    assert drained.why.startswith("it is not known which pods are on the GPU"), drained.why
    (ticket,) = incidents.desk.tickets
    assert ticket.data["note"] == drained.why


async def test_a_report_from_before_a_restart_empties_no_node_whose_broken_gpu_has_been_taken_away(
    incidents: Incidents,
) -> None:
    await incidents.bank.own("serving", "serve", 8)
    await incidents.bank.placed("serve")
    node = incidents.node(await node_of(incidents, "serve"))
    node.boot_id = "first"
    late = node.fault("xid 79", "hardware", "RESTART_BM")
    node.taken_away()
    async with node.serving():
        await incidents.report(node, late)
        state = await incidents.reaches(node, P.TICKETED)
        assert state.cordoned is CordonScope.GPU
        assert not await incidents.closed(node)
        await incidents.bank.placed("serve")
        await incidents.bank.client.repaired(incidents.id(node), ANN)
        await incidents.reaches(node, P.RECOVERED)


async def test_who_approved_one_gpu_has_not_approved_its_whole_node(incidents: Incidents) -> None:
    incidents.servicing.close("h100-node-2")
    node, client = incidents.node(1), incidents.bank.client
    async with node.serving():
        await incidents.report(node, node.fault("xid 119", "reset", "RESET_GPU", verdict="GPU_RESET"))
        await incidents.where(node, lambda state: state.asks is Asks.CORDON, "it asks")
        await client.approve_incident(incidents.id(node), ANN)
        state = await incidents.reaches(node, P.TICKETED)
        assert "approved by ann: as agreed" in state.history[0].why, "the audit trail says who let it go"
        await incidents.report(node, node.fault("lost", "hardware", "LOST", verdict="GPU_RESET"))
        state = await incidents.where(node, lambda state: state.asks is Asks.CORDON, "it asks anew")
        assert "beyond 20 %" in state.waits_for
        assert not await incidents.closed(node)
        unconfirmed = IncidentWord(identity="bob", reason="now it must")
        await client.approve_incident(incidents.id(node), unconfirmed)
        state = await incidents.where(
            node, lambda state: state.phase is P.TICKETED and state.cordoned is CordonScope.NODE, "it is widened"
        )
    events = await incidents.bank.ledger.audit(subject=incidents.id(node))
    said = [str(event.detail["why"]) for event in events]
    assert any("approved by bob (unverified): now it must" in why for why in said)


async def test_a_worse_report_does_not_wait_until_the_receiver_of_tickets_is_back(bank: FakeBank) -> None:
    async with hasty(bank, ticket_limit=timedelta(hours=1)) as incidents:
        incidents.desk.down = True
        node = incidents.node()
        async with node.serving():
            await incidents.report(node, node.fault("xid 119", "reset", "RESET_GPU", verdict="GPU_RESET"))
            await incidents.reaches(node, P.DRAINED)
            await incidents.report(node, node.fault("lost", "hardware", "LOST", verdict="GPU_RESET"))
            await incidents.where(node, lambda state: state.cordoned is CordonScope.NODE, "it is widened")
            assert await incidents.closed(node)
            incidents.desk.down = False
            await incidents.reaches(node, P.TICKETED)
        assert len(incidents.desk.tickets) == 1
        await replay(bank)


async def test_a_fault_that_comes_back_during_probation_and_stays_is_not_forgotten(bank: FakeBank) -> None:
    async with hasty(bank, probation=timedelta(seconds=3), escalate_after=timedelta(seconds=6)) as incidents:
        node = incidents.node()
        async with node.serving():
            await incidents.report(node, node.fault("xid 119", "reset", "RESET_GPU"))
            await incidents.reaches(node, P.TICKETED)
            node.mend()
            await incidents.reaches(node, P.UNCORDONED)
            await incidents.report(node, node.fault("thermal", "transient", "THERMAL", verdict="GPU_RESET"))
            state = await incidents.where(
                node,
                lambda state: phases(state).count(P.CORDONED) == 2 or state.phase is P.RECOVERED,
                "it is taken out",
            )
        assert phases(state).count(P.CORDONED) == 2
        assert "has lasted" in state.reason
        await replay(bank)


async def test_a_node_that_was_opened_after_a_retirement_is_closed_by_the_next_incident(incidents: Incidents) -> None:
    node = incidents.node()
    async with node.serving():
        await incidents.report(node, node.fault("xid 79", "hardware", "RESTART_BM"))
        await incidents.reaches(node, P.TICKETED)
        word = IncidentWord(identity="ann", reason="burnt", keep_cordon=True)
        await incidents.bank.client.retire(incidents.id(node), word)
        await incidents.reaches(node, P.RETIRED)
        assert node.orders[-1].for_good
        incidents.servicing.open(node.node)
        view = await incidents.servicing.view(node.node)
        assert view is not None
        assert view.out_without("incident/another") == 1, "only the retired GPU is out"
        await incidents.report(node, node.fault("xid 79", "hardware", "RESTART_BM"))
        await incidents.reaches(node, P.TICKETED)
        assert await incidents.closed(node)


async def test_whoever_owns_an_evicted_pod_is_told_which_incident_ended_it(incidents: Incidents) -> None:
    await incidents.bank.own("serving", "serve", 8)
    await incidents.bank.placed("serve")
    node = incidents.node(await node_of(incidents, "serve"))
    async with node.serving():
        await incidents.report(node, node.fault("lost", "hardware", "LOST"))
        await incidents.reaches(node, P.TICKETED)
    events = incidents.bank.world.simulated.events.on("Workload")
    (told,) = [event for event in events if event.reason == "GpuIncident"]
    assert f"GPU {node.uuid} of its node {node.node} is broken" in told.message
    assert f"`gpubank incident show {incidents.id(node)}`" in told.message
