"""A bank in a known state for the tests of the command line: real books in SQLite, a cluster and a Temporal of records.

    search holds 8 of ads and 4 of the surplus (train), wants 4 of ads back from tune, has parked sweep, waits for next;
    ads waits for 8 GPUs and must approve; probe of search has ended

Every time is fixed, so that what is printed can be compared as a whole.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from gpubank.adapters.ledger import SqlLedger
from gpubank.cli.door import Door
from gpubank.client import IncidentRow, LoanRow, NoSuchProcessError, ReclaimRow
from gpubank.domain.demand import DemandKind
from gpubank.domain.errors import BackendError, ConflictError
from gpubank.domain.facts import PoolFacts
from gpubank.domain.incident import IncidentState, IncidentWord
from gpubank.domain.loan import SURPLUS, Line, LineState
from gpubank.domain.recall import (
    Decision,
    Extension,
    LoanState,
    ReclaimPhase,
    ReclaimState,
)
from gpubank.domain.transaction import (
    CapacityChange,
    DemandOpening,
    GuaranteeChange,
    Move,
    Offer,
    Transaction,
)
from gpubank.settings import Settings
from tests.unit.cli.incident_records import incident_rows, incident_states
from tests.unit.cli.records import (
    CLUSTER,
    DEMAND,
    FAR,
    POOL,
    RECLAIM,
    at,
    facts,
    job,
    loan,
    loan_rows,
    loan_states,
    objects,
    reclaim_state,
)


class FakeCluster:
    """`Cluster` on plain objects."""

    def __init__(self, objects: Sequence[dict[str, Any]], *, user: str | None = None) -> None:
        self.objects = list(objects)
        self.user = user
        self.applied: list[dict[str, Any]] = []
        self.broken = False

    async def list(self, kind: str) -> Sequence[dict[str, Any]]:
        return [item for item in self.objects if item["kind"] == kind]

    async def get(self, kind: str, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        items = await self.list(kind)
        return next((item for item in items if item["metadata"]["name"] == name), None)

    async def apply(self, body: Mapping[str, Any]) -> dict[str, Any]:
        self.applied.append(dict(body))
        return dict(body)

    async def delete(self, kind: str, name: str, namespace: str | None = None) -> bool:
        return await self.get(kind, name, namespace) is not None

    async def patch_status(
        self,
        kind: str,
        name: str,
        namespace: str | None,
        status: Mapping[str, Any],
        *,
        seen: str,
        dry_run: bool = False,
    ) -> None:
        body = await self.get(kind, name, namespace)
        assert body is not None
        if body["metadata"].get("resourceVersion", "") != seen:
            raise ConflictError(f"{kind} {name!r} has moved on since version {seen!r}: read again, decide again")
        if not dry_run:
            body["status"] = dict(status)

    async def observe(self, pool: str) -> PoolFacts:
        if self.broken:
            raise BackendError(f"pool {pool!r} has no flavor; wait for the controller")
        return facts()

    async def whoami(self) -> str | None:
        return self.user


class FakeProcesses:
    """`Processes` on records; remembers what was ordered."""

    def __init__(self) -> None:
        self.rows = loan_rows()
        self.states = loan_states()
        self.reclaim_rows = [
            ReclaimRow(
                reclaim=RECLAIM,
                running=True,
                phase=ReclaimPhase.AWAITING_APPROVAL,
                cluster=CLUSTER,
                pool=POOL,
                lender="ads",
                gpus=8,
                needs_approval=True,
                due_at=FAR,
                started_at=at(30),
            )
        ]
        self.reclaim_states = {RECLAIM: reclaim_state()}
        self.incident_rows = incident_rows()
        self.incident_states = incident_states()
        self.orders: list[tuple[str, str, Extension | Decision | IncidentWord]] = []
        self.refusal: Exception | None = None
        self.down = ""
        """Why Temporal does not answer; empty while it does."""
        self.workers_down = False

    async def loans(
        self,
        *,
        cluster: str | None = None,
        pool: str | None = None,
        borrower: str | None = None,
        running_only: bool = True,
        limit: int = 500,
    ) -> Sequence[LoanRow]:
        self._answer()
        return [row for row in self.rows if row.running or not running_only]

    async def reclaims(
        self,
        *,
        cluster: str | None = None,
        pool: str | None = None,
        lender: str | None = None,
        running_only: bool = True,
        limit: int = 500,
    ) -> Sequence[ReclaimRow]:
        self._answer()
        return [row for row in self.reclaim_rows if row.running or not running_only]

    async def loan_state(self, loan: str) -> LoanState:
        self._answer()
        if self.workers_down:
            raise BackendError(f"loan {loan!r}: Temporal does not answer (DEADLINE_EXCEEDED): no worker")
        if loan not in self.states:
            raise NoSuchProcessError(f"loan {loan!r} is not there")
        return self.states[loan]

    async def reclaim_state(self, reclaim: str) -> ReclaimState:
        self._answer()
        if reclaim not in self.reclaim_states:
            raise NoSuchProcessError(f"reclaim {reclaim!r} is not there")
        return self.reclaim_states[reclaim]

    async def extend(self, loan: str, extension: Extension) -> LoanState:
        self._order("extend", loan, extension)
        state = self.states[loan]
        assert state.deadline is not None
        return state.model_copy(update={"deadline": state.deadline + extension.by})

    async def return_now(self, loan: str, decision: Decision) -> LoanState:
        self._order("return", loan, decision)
        return self.states[loan]

    async def approve(self, reclaim: str, decision: Decision) -> ReclaimState:
        self._order("approve", reclaim, decision)
        return self.reclaim_states[reclaim]

    async def deny(self, reclaim: str, decision: Decision) -> ReclaimState:
        self._order("deny", reclaim, decision)
        return self.reclaim_states[reclaim]

    async def incidents(
        self,
        *,
        cluster: str | None = None,
        pool: str | None = None,
        node: str | None = None,
        running_only: bool = True,
        limit: int = 500,
    ) -> Sequence[IncidentRow]:
        self._answer()
        rows = [row for row in self.incident_rows if pool in (None, row.pool) and node in (None, row.node)]
        return [row for row in rows if row.running or not running_only]

    async def incident_state(self, incident: str) -> IncidentState:
        self._answer()
        return self.incident_states[incident]

    async def incident_waits(self, incident: str) -> Sequence[str]:
        self._answer()
        return ["pod ads/serve-0 may not be evicted yet: it would violate its budget"]

    async def repaired(self, incident: str, word: IncidentWord) -> IncidentState:
        self._order("repaired", incident, word)
        return self.incident_states[incident]

    async def retire(self, incident: str, word: IncidentWord) -> IncidentState:
        self._order("retire", incident, word)
        return self.incident_states[incident]

    async def approve_incident(self, incident: str, word: IncidentWord) -> IncidentState:
        self._order("approve", incident, word)
        return self.incident_states[incident]

    def _order(self, verb: str, subject: str, message: Extension | Decision | IncidentWord) -> None:
        self._answer()
        if self.refusal is not None:
            raise self.refusal
        self.orders.append((verb, subject, message))

    def _answer(self) -> None:
        if self.down:
            raise BackendError(self.down)


class Bench:
    """The bank that the commands find behind their door."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.cluster = FakeCluster(objects())
        self.processes = FakeProcesses()

    @asynccontextmanager
    async def open_door(self, settings: Settings) -> AsyncIterator[Door]:
        temporal = settings.temporal.model_copy(update={"ui_url": "http://127.0.0.1:8233"})
        known = settings.model_copy(update={"temporal": temporal})
        async with await SqlLedger.open(self.url, upgrade=False) as ledger:
            yield Door(known, self.cluster, ledger, self.processes)


# ---- books


async def fill(url: str) -> None:
    """Write the books."""
    async with await SqlLedger.open(url, clock=lambda: at(60)) as ledger:
        guarantees = tuple(
            GuaranteeChange(group=name, version=0, in_force=gpus) for name, gpus in (("ads", 24), ("search", 8))
        )
        await ledger.commit(_tx("founding", -60, capacity=CapacityChange(capacity=36), guarantees=guarantees))
        await _lend(ledger, "probe", -50, ads=2)
        await _end(ledger, "probe", -40, "the job finished")
        await _lend(ledger, "sweep", -30, ads=4)
        await _end(ledger, "sweep", -10, "ads waits for 4 GPUs")
        await _lend(ledger, "train", 0, ads=8, pool=4)
        tune = await _lend(ledger, "tune", 5, ads=4)
        opening = DemandOpening(
            demand_id=DEMAND,
            lender="ads",
            kind=DemandKind.WORKLOAD,
            gpus=8,
            workload=job("serve", "ads"),
            due_at=FAR,
            reason="job-serve-1a2b of ads waits for 8 GPUs",
        )
        await ledger.commit(_tx("demand", 30, openings=(opening,)))
        recall = tuple(_move(line, LineState.RECALLED, demand=DEMAND, reason="ads waits for 8 GPUs") for line in tune)
        await ledger.commit(_tx("recall/tune", 31, moves=recall))
        await ledger.commit(_tx("offer/next", 32, offers=(_offer("next", "search", 2),)))
        await ledger.note(
            key="extend",
            at=at(33),
            actor=loan("tune"),
            subject=loan("tune"),
            action="extend",
            detail={"by": "5m", "identity": "mia"},
        )


def _tx(key: str, minutes: float, **writes: Any) -> Transaction:
    return Transaction(key=key, cluster=CLUSTER, pool=POOL, at=at(minutes), actor="controller", note=key, **writes)


def _offer(name: str, lender: str, gpus: int) -> Offer:
    return Offer(lender=lender, borrower="search", gpus=gpus, workload=job(name), term=1)


def _move(line: Line, state: LineState, **fields: Any) -> Move:
    return Move(line_id=line.line_id, version=line.version, from_state=line.state, to_state=state, **fields)


async def _lend(ledger: SqlLedger, name: str, minutes: float, **lenders: int) -> Sequence[Line]:
    offers = tuple(_offer(name, SURPLUS if lender == "pool" else lender, gpus) for lender, gpus in lenders.items())
    books = await ledger.commit(_tx(f"offer/{name}", minutes, offers=offers))
    moves = tuple(_move(line, LineState.GRANTED) for line in books.lines_of(f"u-{name}"))
    books = await ledger.commit(_tx(f"grant/{name}", minutes + 0.1, moves=moves))
    return books.lines_of(f"u-{name}")


async def _end(ledger: SqlLedger, name: str, minutes: float, reason: str) -> None:
    for number, state in enumerate((LineState.RECALLED, LineState.RETURNED)):
        lines = (await ledger.books(CLUSTER, POOL)).lines_of(f"u-{name}")
        moves = tuple(_move(line, state, reason=reason) for line in lines)
        await ledger.commit(_tx(f"{state}/{name}", minutes + number / 10, moves=moves))


# ---- processes
