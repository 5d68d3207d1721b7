"""Recalls as people see them: the demands of one lender, put together with what its Reclaim does about them.

ledger: live demands ──┐
                       ├──▶ ReclaimView per pool and lender ──▶ `reclaim list`, `reclaim show`
Temporal: Reclaim ─────┘
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from pydantic import AwareDatetime

from gpubank.cli.context import AmbiguousError, NotFoundError
from gpubank.cli.door import Door, Processes
from gpubank.cli.loandesk import ui_link
from gpubank.domain.base import Message
from gpubank.domain.demand import Demand
from gpubank.domain.errors import BackendError, PolicyError
from gpubank.domain.loan import SURPLUS
from gpubank.domain.recall import DemandProgress, ReclaimPhase, ReclaimState, VictimProgress, loan_id, reclaim_id

if TYPE_CHECKING:
    from gpubank.client import LoanRow, ReclaimRow

WAITS: Final = "Waiting"
"""Phase of demands that no Reclaim serves (yet): it is being started, or the last one ended PARTIAL."""

MOST: Final = 10_000


class VictimView(Message):
    """One Workload that is asked to give GPUs back."""

    loan: str
    workload: str
    """`namespace/job`."""

    group: str
    gpus: int
    phase: str
    """Where its Loan stands; empty where that is not known."""

    answer: str
    """What its Loan has answered; empty while it is awaited."""

    reason: str


class DemandView(Message):
    """What one demand of the lender has come to."""

    demand: str
    kind: str
    workload: str
    """`namespace/job` that waits; empty where none does."""

    gpus: int
    state: str
    """Its state in the ledger; empty once it has ended."""

    phase: str
    opened_at: AwareDatetime | None
    due_at: AwareDatetime | None
    overdue: bool
    approved_by: str
    reason: str
    victims: tuple[VictimView, ...]


class ReclaimView(Message):
    """One lender that wants its GPUs back."""

    reclaim: str
    """Workflow id."""

    cluster: str
    pool: str
    lender: str
    phase: str
    gpus: int
    """GPUs that its live demands are about."""

    due_at: AwareDatetime | None
    overdue: bool
    needs_approval: bool
    approvers: tuple[str, ...]
    """Who may approve: the admins of the lender."""

    demands: tuple[DemandView, ...]
    ui: str

    @property
    def victims(self) -> tuple[VictimView, ...]:
        """Victims of every demand."""
        return tuple(victim for demand in self.demands for victim in demand.victims)


class Reclaims(NamedTuple):
    """Recalls, and what could not be learned about them."""

    views: list[ReclaimView]
    missing: str = ""


class _Seen(NamedTuple):
    """What Temporal says."""

    rows: "Mapping[str, ReclaimRow]"
    states: Mapping[str, ReclaimState]
    loans: "Mapping[str, LoanRow]"


async def find_reclaims(
    door: Door, *, pool: str | None = None, lender: str | None = None, ended: bool = False
) -> Reclaims:
    """Read every lender's live demands and running Reclaims; with `ended`, Reclaims that have ended too."""
    demands: dict[tuple[str, str], list[Demand]] = defaultdict(list)
    for name in await _pools(door, pool):
        for demand in (await (await door.ledger()).books(door.cluster_name, name)).demands:
            demands[name, demand.lender].append(demand)
    missing: list[str] = []
    seen, admins = _Seen({}, {}, {}), dict[str, tuple[str, ...]]()
    try:
        seen = await _ask(await door.processes(), door.cluster_name, pool, lender, ended=ended)
    except BackendError as error:
        missing.append(str(error))
    try:
        admins = await _admins(door)
    except BackendError as error:
        missing.append(f"who must approve is not known: {error}")
    keys = {*demands, *((row.pool, row.lender) for row in seen.rows.values())}
    views = [
        _view(door, key, demands.get(key, []), seen, admins.get(key[1], ()))
        for key in sorted(keys)
        if lender is None or key[1] == lender
    ]
    return Reclaims(views, "; ".join(missing))


async def _pools(door: Door, only: str | None) -> Sequence[str]:
    if only is not None:
        return await door.pools(only)
    return [pool for cluster, pool in await (await door.ledger()).pools() if cluster == door.cluster_name]


async def _ask(processes: Processes, cluster: str, pool: str | None, lender: str | None, *, ended: bool) -> _Seen:
    rows = await processes.reclaims(cluster=cluster, pool=pool, lender=lender, running_only=not ended, limit=MOST)
    # Ids are used again; the newest run of each speaks.
    newest = {row.reclaim: row for row in sorted(rows, key=lambda row: (row.running, row.started_at))}

    async def state(reclaim: str) -> ReclaimState | None:
        try:
            return await processes.reclaim_state(reclaim)
        except PolicyError:
            return None  # it has been forgotten since it was listed

    found = await asyncio.gather(*(state(reclaim) for reclaim in newest))
    states = {reclaim: state for reclaim, state in zip(newest, found, strict=True) if state is not None}
    victims = any(demand.victims for state in states.values() for demand in state.demands)
    loans = await processes.loans(cluster=cluster, pool=pool, limit=MOST) if victims else ()
    return _Seen(newest, states, {row.loan: row for row in loans})


async def _admins(door: Door) -> dict[str, tuple[str, ...]]:
    groups = await door.cluster.list("BusinessGroup")
    return {group["metadata"]["name"]: tuple(group.get("spec", {}).get("admins") or ()) for group in groups}


def _view(
    door: Door, key: tuple[str, str], demands: Sequence[Demand], seen: _Seen, admins: tuple[str, ...]
) -> ReclaimView:
    pool, lender = key
    reclaim = reclaim_id(door.cluster_name, pool, lender)
    row, state = seen.rows.get(reclaim), seen.states.get(reclaim)
    progress = {each.demand: each for each in state.demands} if state else {}
    live = {demand.demand_id: demand for demand in demands}
    # A Reclaim that runs also tells of demands that have ended in it.
    views = tuple(
        _demand(door.cluster_name, name, live.get(name), progress.get(name), seen)
        for name in dict.fromkeys((*live, *progress))
    )
    due = [demand.due_at for demand in views if demand.due_at is not None and demand.state]
    waits = [demand for demand in views if demand.phase == ReclaimPhase.AWAITING_APPROVAL]
    return ReclaimView(
        reclaim=reclaim,
        cluster=door.cluster_name,
        pool=pool,
        lender=lender,
        phase=state.phase if state else (row.phase if row else WAITS),
        gpus=sum(demand.gpus for demand in demands) if demands else (row.gpus if row else 0),
        due_at=min(due, default=row.due_at if row and row.running else None),
        overdue=any(demand.overdue for demand in views if demand.state),
        needs_approval=bool(waits) or bool(row and row.running and row.needs_approval and not state),
        approvers=() if lender == SURPLUS else admins,
        demands=views,
        ui=ui_link(door, reclaim),
    )


def _demand(cluster: str, name: str, demand: Demand | None, progress: DemandProgress | None, seen: _Seen) -> DemandView:
    due = demand.due_at if demand else (progress.due_at if progress else None)
    return DemandView(
        demand=name,
        kind=demand.kind if demand else name.split("/")[2] if name.count("/") > 1 else "",
        workload=demand.workload.short if demand and demand.workload else "",
        gpus=demand.gpus if demand else (progress.gpus if progress else 0),
        state=demand.state if demand else "",
        phase=progress.phase if progress else WAITS,
        opened_at=demand.opened_at if demand else None,
        due_at=due,
        overdue=bool(progress and progress.overdue) or bool(demand and datetime.now(UTC) > demand.due_at),
        approved_by=(progress.approved_by or "") if progress else "",
        reason=(progress.reason if progress else "") or (demand.reason if demand else ""),
        victims=tuple(_victim(cluster, victim, seen) for victim in progress.victims) if progress else (),
    )


def _victim(cluster: str, victim: VictimProgress, seen: _Seen) -> VictimView:
    loan = loan_id(cluster, victim.workload.uid)
    row = seen.loans.get(loan)
    return VictimView(
        loan=loan,
        workload=victim.workload.short,
        group=victim.borrower,
        gpus=victim.gpus,
        phase=row.phase if row else "",
        answer=victim.answer or "",
        reason=victim.reason,
    )


async def resolve(door: Door, wanted: str) -> tuple[ReclaimView, str]:
    """Find the one recall that `wanted` means: a workflow id, `pool/lender`, or a lender with one alone."""
    found, missing = await find_reclaims(door)
    fits = [view for view in found if wanted in (view.reclaim, f"{view.pool}/{view.lender}", view.lender)]
    if not fits:
        everything = await find_reclaims(door, ended=True)
        fits = [v for v in everything.views if wanted in (v.reclaim, f"{v.pool}/{v.lender}", v.lender)]
    if len(fits) == 1:
        return fits[0], missing
    if not fits:
        unsure = f" (and not everything could be asked: {missing})" if missing else ""
        raise NotFoundError(f"no recall is called {wanted!r}; `gpubank reclaim list` shows what there is{unsure}")
    names = "".join(f"\n  {view.reclaim}  {view.phase}" for view in fits)
    raise AmbiguousError(f"{wanted!r} may be any of {len(fits)} recalls; name one by its id:{names}")
