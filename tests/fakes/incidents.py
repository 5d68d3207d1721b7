"""A bank whose incidents are in a hurry, and what a test sees of one."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final

from gpubank.domain.errors import BackendError, BankError
from gpubank.domain.incident import ENDED, HealthEdge, IncidentPhase, IncidentState, IncidentWord, incident_id
from gpubank.domain.incidentpolicy import IncidentPolicy
from gpubank.domain.incidentsteps import Receipt, Ticket
from tests.fakes.bank import FakeBank
from tests.fakes.node import FakeNode

GPU: Final = "GPU-1"
ANN: Final = IncidentWord(identity="ann", verified=True, reason="as agreed")
HASTE: Final = IncidentPolicy(
    revision="test",
    burst=timedelta(milliseconds=100),
    quiet=timedelta(milliseconds=100),
    agent_silence=timedelta(seconds=2),
    probation=timedelta(milliseconds=100),
)


class Desk:
    """Implements `Tickets`: keeps what was sent, or is down."""

    def __init__(self) -> None:
        self.tickets: list[Ticket] = []
        self.down = False

    async def send(self, ticket: Ticket) -> Receipt:
        if self.down:
            raise BackendError("the desk does not answer")
        self.tickets.append(ticket)
        return Receipt(sent=True, note="taken by the desk")


class Incidents:
    """The incidents of one bank."""

    def __init__(self, bank: FakeBank, desk: Desk) -> None:
        self.bank, self.desk = bank, desk
        self.servicing = bank.world.simulated.servicing
        self.replayed = False
        """Whether the test has seen its histories replay."""

    def node(self, number: int = 1, uuid: str = GPU) -> FakeNode:
        """One of the two nodes, with a GPU."""
        return FakeNode(self.bank.client.temporal, self.bank.cluster, f"h100-node-{number}", uuid)

    def id(self, node: FakeNode) -> str:
        return incident_id(node.cluster, node.node, node.uuid)

    async def report(self, node: FakeNode, *edges: HealthEdge) -> None:
        """Deliver reports as a node's reporter does."""
        await self.bank.client.signal_incident(node.cluster, node.node, node.uuid, edges)

    async def state(self, node: FakeNode) -> IncidentState:
        return await self.bank.client.incident_state(self.id(node))

    async def where(
        self, node: FakeNode, holds: Callable[[IncidentState], object], what: str, timeout: float = 60
    ) -> IncidentState:
        """See the incident of a GPU so that something holds."""
        last: list[Any] = [None]

        async def look() -> IncidentState | None:
            with contextlib.suppress(BankError):
                last[0] = await self.state(node)
                return last[0] if holds(last[0]) else None
            return None

        end = asyncio.get_running_loop().time() + timeout
        while True:
            if (found := await look()) is not None:
                return found
            assert asyncio.get_running_loop().time() < end, f"not within {timeout} s: {what}; {last[0]!r}"
            await asyncio.sleep(0.05)

    async def reaches(self, node: FakeNode, phase: IncidentPhase) -> IncidentState:
        """See the incident of a GPU in a phase; one in which it ends includes the end itself."""
        state = await self.where(node, lambda state: state.phase is phase, f"{node.uuid} is {phase}")
        if phase not in ENDED:
            return state
        await asyncio.wait_for(self.bank.client.temporal.get_workflow_handle(self.id(node)).result(), 60)
        return await self.state(node)

    async def closed(self, node: FakeNode) -> bool:
        """Whether the node is cordoned."""
        view = await self.servicing.view(node.node)
        assert view is not None
        return view.unschedulable

    async def until(self, look: Callable[[], Awaitable[Any]], what: str) -> Any:
        return await self.bank.until(look, what, 60)


@asynccontextmanager
async def hasty(bank: FakeBank, **policy: Any) -> AsyncIterator[Incidents]:
    """Have a bank's workers follow a policy that waits for nothing long."""
    desk = Desk()
    await bank.stop_workers()
    bank.ports = dataclasses.replace(bank.ports, incidents=HASTE.model_copy(update=policy), tickets=desk)
    await bank.start_workers()
    yield Incidents(bank, desk)
