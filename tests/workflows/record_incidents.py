"""Records histories of incidents: `python -m tests.workflows.record_incidents`, to be replayed by `test_replay`."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from gpubank.domain.incident import Asks, IncidentPhase, IncidentWord
from gpubank.exit import clean_exit
from tests.fakes.incidents import ANN, Incidents, hasty
from tests.fakes.node import FakeNode
from tests.workflows.record import bank_of_its_own, keep


async def passed(incidents: Incidents) -> FakeNode:
    """A fault that passes by itself."""
    node = incidents.node()
    async with node.serving():
        await incidents.report(node, node.fault("hung", "transient", "HUNG"))
        await incidents.where(node, lambda state: state.cause, "it is judged")
        node.pass_by()
        await incidents.reaches(node, IncidentPhase.RECOVERED)
    return node


async def repaired(incidents: Incidents) -> FakeNode:
    """A node that is emptied, jobs with a hook after a checkpoint, and repaired by a person at the second try."""
    bank = incidents.bank
    train = await bank.borrow("research", "train", 8, hook=True)
    node = incidents.node(int(train.pod_facts[0].node[-1]))
    async with node.serving():
        await incidents.report(node, node.fault("lost", "hardware", "LOST"))
        await incidents.reaches(node, IncidentPhase.TICKETED)
        node.wrong = "lost"
        await bank.client.repaired(incidents.id(node), ANN)
        await incidents.where(node, lambda state: "lost" in state.note, "the GPU disagrees")
        node.mend()
        await bank.client.repaired(incidents.id(node), ANN)
        await incidents.reaches(node, IncidentPhase.RECOVERED)
    return node


async def widened(incidents: Incidents) -> FakeNode:
    """A GPU that is taken out alone, then with its whole node, and mended by the driver's word."""
    node = incidents.node()
    async with node.serving():
        await incidents.report(node, node.fault("xid 119", "reset", "RESET_GPU", verdict="GPU_RESET"))
        await incidents.reaches(node, IncidentPhase.TICKETED)
        await incidents.report(node, node.fault("xid 79", "hardware", "RESTART_BM", verdict="NODE_REBOOT"))
        await incidents.where(
            node, lambda state: len(state.history) >= 6 and state.phase is IncidentPhase.TICKETED, "it is widened"
        )
        node.mend()
        await incidents.reaches(node, IncidentPhase.RECOVERED)
    return node


async def approved_and_retired(incidents: Incidents) -> FakeNode:
    """A cordon that a person approves, and a GPU that is retired."""
    incidents.servicing.close("h100-node-2")
    node = incidents.node()
    async with node.serving():
        await incidents.report(node, node.fault("lost", "hardware", "LOST"))
        await incidents.where(node, lambda state: state.asks is Asks.CORDON, "it asks")
        await incidents.bank.client.approve_incident(incidents.id(node), ANN)
        await incidents.reaches(node, IncidentPhase.TICKETED)
        await incidents.bank.client.retire(incidents.id(node), IncidentWord(identity="ann", reason="burnt"))
        await incidents.reaches(node, IncidentPhase.RETIRED)
    return node


async def silent(incidents: Incidents) -> FakeNode:
    """A node whose agent does not answer."""
    node = incidents.node()
    await incidents.report(node, node.fault("xid 119", "reset", "RESET_GPU"))
    await incidents.reaches(node, IncidentPhase.TICKETED)
    await incidents.bank.client.retire(incidents.id(node), ANN)
    await incidents.reaches(node, IncidentPhase.RETIRED)
    return node


SCENES: Final[tuple[Callable[[Incidents], Awaitable[FakeNode]], ...]] = (
    passed,
    repaired,
    widened,
    approved_and_retired,
    silent,
)


async def record() -> None:
    """Play every scene on a server of its own, and keep the history of its incident."""
    for scene in SCENES:
        async with bank_of_its_own() as bank, hasty(bank) as incidents:
            node = await scene(incidents)
            await asyncio.sleep(0.5)
            await keep(bank.client, f"incident-{scene.__name__}", incidents.id(node))


if __name__ == "__main__":
    asyncio.run(record())
    clean_exit(0)
