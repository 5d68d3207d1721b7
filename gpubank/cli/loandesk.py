"""What the loan commands ask the bank: which loans there are, which one is meant, and everything about one.

What Temporal does not tell is left out and said: the ledger alone knows who owes whom, and must be readable while
nothing else answers.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from pydantic import AwareDatetime

from gpubank.cli.context import AmbiguousError, NotFoundError
from gpubank.cli.door import Door, Processes
from gpubank.cli.loanbook import LoanView, TermView, loan_views, matching, term_views
from gpubank.domain.base import Message
from gpubank.domain.errors import BackendError, PolicyError
from gpubank.domain.ledger import AuditEvent
from gpubank.domain.loan import Line
from gpubank.domain.recall import LoanPhase, LoanState, RecallOrder

if TYPE_CHECKING:
    from gpubank.client import LoanRow

MOST: Final = 10_000
"""Lines that one command reads; a pool of tens of thousands of GPUs has fewer open ones."""

_QUERIES: Final = 16
"""Loans that are asked at the same time."""


class Loans(NamedTuple):
    """Loans, and what could not be learned about them."""

    views: list[LoanView]
    missing: str = ""
    """Why something is missing; empty if nothing is."""


class AuditLine(Message):
    """One link of the audit trail, without the rows that it vouches for."""

    sequence: int
    at: AwareDatetime
    actor: str
    subject: str
    action: str
    note: str


class LoanDetail(Message):
    """Everything about one loan."""

    loan: LoanView
    orders: tuple[RecallOrder, ...]
    """Recalls that want an answer."""

    note: str
    """What happened last."""

    terms: tuple[TermView, ...]
    lines: tuple[Line, ...]
    """Every line that it ever had, oldest first."""

    audit: tuple[AuditLine, ...]
    """Its audit trail, oldest first."""

    ui: str
    """Where Temporal's UI shows it; empty where no address is set."""


async def find_loans(
    door: Door,
    *,
    pool: str | None = None,
    group: str | None = None,
    ended: bool = False,
    detailed: bool = False,
) -> Loans:
    """Read loans; `detailed` asks every running one, else only those whose state is not in the list: parked ones."""
    lines = await (await door.ledger()).lines(cluster=door.cluster_name, pool=pool, open_only=not ended, limit=MOST)
    missing = ""
    rows: Sequence[LoanRow] = ()
    states: dict[str, LoanState] = {}
    try:
        processes = await door.processes()
        rows = await processes.loans(cluster=door.cluster_name, pool=pool, running_only=not ended, limit=MOST)
        parked = [row.loan for row in rows if row.running and (detailed or row.phase is LoanPhase.PARKED)]
        states, missing = await _states(processes, parked)
    except BackendError as error:
        missing = str(error)
    views = loan_views(door.cluster_name, lines, rows, states)
    if group is not None:
        views = [view for view in views if group == view.group or any(group == s.lender for s in view.lenders)]
    return Loans(views, missing)


async def _states(processes: Processes, loans: Iterable[str]) -> tuple[dict[str, LoanState], str]:
    """Ask Loans for their states, and stop at the first that does not answer: its worker is down, for all of them."""
    states: dict[str, LoanState] = {}
    missing = ""
    free = asyncio.Semaphore(_QUERIES)

    async def ask(loan: str) -> None:
        nonlocal missing
        async with free:
            if missing:
                return
            try:
                states[loan] = await processes.loan_state(loan)
            except BackendError as error:
                missing = missing or str(error)
            except PolicyError:
                return  # it has ended, and been forgotten, since it was listed

    await asyncio.gather(*(ask(loan) for loan in loans))
    return states, missing


async def resolve(door: Door, wanted: str) -> LoanView:
    """Find the one loan that `wanted` means; `NotFoundError` or `AmbiguousError` if it is not one."""
    running = await find_loans(door)
    found = matching(running.views, wanted)
    if not found:
        found = matching((await find_loans(door, ended=True)).views, wanted)
    if len(found) == 1:
        return found[0]
    if not found:
        unsure = f" (and not everything could be asked: {running.missing})" if running.missing else ""
        raise NotFoundError(f"no loan is called {wanted!r}; `gpubank loan list --all` shows what there is{unsure}")
    names = "".join(f"\n  {view.loan}  {view.workload}  {view.group}  {view.phase}" for view in found)
    raise AmbiguousError(f"{wanted!r} may be any of {len(found)} loans; name one by its id:{names}")


async def describe(door: Door, view: LoanView) -> tuple[LoanDetail, str]:
    """Read everything about one loan, and say what could not be learned."""
    lines = await (await door.ledger()).lines(cluster=view.cluster, workload_uid=view.uid, limit=MOST)
    state, missing = None, ""
    try:
        state = await (await door.processes()).loan_state(view.loan)
    except BackendError as error:
        missing = str(error)
    except PolicyError:
        state = None  # Temporal has forgotten it, or never knew it
    if state is not None and lines:
        closed = state.phase is LoanPhase.CLOSED
        view = view if closed else view.model_copy(update=_now_known(state))
    subjects = (view.loan, view.uid, *(line.line_id for line in lines))
    ledger = await door.ledger()
    events = [event for subject in subjects for event in await ledger.audit(subject=subject, limit=MOST)]
    return LoanDetail(
        loan=view,
        orders=state.orders if state else (),
        note=state.note if state else "",
        terms=tuple(term_views(lines, state.history if state else ())),
        lines=tuple(sorted(lines, key=lambda line: (line.term, line.offered_at, line.line_id))),
        audit=tuple(_audit_line(event) for event in sorted(events, key=lambda event: event.sequence)),
        ui=ui_link(door, view.loan),
    ), missing


def _now_known(state: LoanState) -> dict[str, Any]:
    saved = state.checkpoint
    return {
        "phase": state.phase,
        "deadline": state.deadline if state.orders else None,
        "wanted_by": state.orders[0].lender if state.orders else "",
        "checkpoint_step": saved.step if saved else None,
    }


def _audit_line(event: AuditEvent) -> AuditLine:
    said = {name: value for name, value in event.detail.items() if name not in ("rows", "key", "note")}
    note = str(event.detail.get("note") or "; ".join(f"{name}: {value}" for name, value in said.items()))
    return AuditLine(
        sequence=event.sequence,
        at=event.at,
        actor=event.actor,
        subject=event.subject,
        action=event.action,
        note=note,
    )


def ui_link(door: Door, workflow_id: str) -> str:
    """Where Temporal's UI shows a workflow; empty where no address is set."""
    temporal = door.settings.temporal
    if not temporal.ui_url:
        return ""
    return f"{temporal.ui_url.rstrip('/')}/namespaces/{temporal.namespace}/workflows/{quote(workflow_id, safe='')}"
