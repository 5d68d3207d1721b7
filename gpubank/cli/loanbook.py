"""Loans as people see them: the lines of one Workload, put together with what Temporal knows of its process.

ledger: open lines ─┐
                    ├──▶ LoanView per Workload ──▶ `loan list`, `loan show`
Temporal: phase ────┘    (a parked loan has no line, an offer has no process yet)
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pydantic import AwareDatetime

from gpubank.domain.base import Message
from gpubank.domain.loan import Line, LineState
from gpubank.domain.recall import LoanPhase, LoanState, TermRecord, loan_id

if TYPE_CHECKING:
    from gpubank.client import LoanRow

OFFERED: Final = "Offered"
"""Phase of a loan that nobody has yet: its lender's queue is being lowered."""


class Share(Message):
    """What one lender lends to one Workload."""

    lender: str
    gpus: int

    def __str__(self) -> str:
        return f"{self.lender}:{self.gpus}"


class Checkpoint(Message):
    """A checkpoint that the bank has verified."""

    step: int
    uri: str
    verified_at: AwareDatetime


class LoanView(Message):
    """One Workload on borrowed GPUs, or parked, or ended."""

    loan: str
    """Workflow id."""

    uid: str
    cluster: str
    pool: str
    workload: str
    """`namespace/job`."""

    group: str
    gpus: int
    """What it holds; of a parked or ended loan, what it held last."""

    lenders: tuple[Share, ...]
    """Who lends to it now; of an ended loan, who lent to it last."""

    term: int
    phase: str
    since: AwareDatetime | None
    """Since when it runs, is wanted back, is parked, or has ended."""

    deadline: AwareDatetime | None = None
    """End of the notice, while it is wanted back."""

    wanted_by: str = ""
    """Group that wants the GPUs back."""

    checkpoint_step: int | None = None
    """Step of the last verified checkpoint; None where there is none, or Temporal was not asked."""

    lines: tuple[str, ...]
    """Ids of its open lines."""

    own: bool = False
    """Whether it is own work that makes room for more important work of its group."""


class TermView(Message):
    """One stay on borrowed GPUs."""

    term: int
    gpus: int
    lenders: tuple[Share, ...]
    started_at: AwareDatetime | None
    ended_at: AwareDatetime | None
    ended_because: str
    checkpoint: Checkpoint | None


def loan_views(
    cluster: str,
    lines: Iterable[Line],
    rows: Iterable["LoanRow"] = (),
    states: Mapping[str, LoanState] | None = None,
) -> list[LoanView]:
    """Put lines and processes together, one view per Workload, by name and uid; `states` are by workflow id."""
    of_uid: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        of_uid[line.workload.uid].append(line)
    processes = {row.loan: row for row in sorted(rows, key=lambda row: (row.running, row.started_at))}
    states = states or {}
    views = []
    for uid, own in of_uid.items():
        loan = loan_id(cluster, uid)
        views.append(_view(loan, own, processes.pop(loan, None), states.get(loan)))
    views += [_without_lines(row, states.get(row.loan)) for row in processes.values()]
    return sorted(views, key=lambda view: (view.workload, view.uid))


def _view(loan: str, lines: Sequence[Line], row: "LoanRow | None", state: LoanState | None) -> LoanView:
    held = [line for line in lines if line.is_open]
    term = max(line.term for line in (held or lines))
    last = held or [line for line in lines if line.term == term]
    parked = row is not None and row.running and not held
    shares = () if parked else _shares(last)
    newest = max(lines, key=lambda line: line.offered_at)
    return LoanView(
        loan=loan,
        uid=newest.workload.uid,
        cluster=newest.cluster,
        pool=newest.pool,
        workload=newest.workload.short,
        group=newest.borrower,
        gpus=(state.gpus if state else row.gpus) if row and parked else sum(share.gpus for share in shares),
        lenders=shares,
        term=term,
        phase=_phase(last, row, state, ended=not held and not parked),
        since=_since(last, state, parked=parked),
        **_wanted(row, state),
        lines=tuple(sorted(line.line_id for line in held)),
        own=any(line.is_own for line in last),
    )


def _without_lines(row: "LoanRow", state: LoanState | None) -> LoanView:
    """A Loan that has no line in what was read: it is parked, as a rule."""
    return LoanView(
        loan=row.loan,
        uid=row.loan.rpartition("/")[2],
        cluster=row.cluster,
        pool=row.pool,
        workload=row.workload,
        group=row.borrower,
        gpus=state.gpus if state else row.gpus,
        lenders=(),
        term=state.term if state else 1,
        phase=state.phase if state else row.phase,
        since=_end_of_last_term(state),
        **_wanted(row, state),
        lines=(),
        own=state.own if state else False,
    )


def _phase(lines: Sequence[Line], row: "LoanRow | None", state: LoanState | None, *, ended: bool) -> str:
    if ended:
        withdrawn = all(line.state is LineState.WITHDRAWN for line in lines)
        return LineState.WITHDRAWN if withdrawn else LoanPhase.CLOSED
    if state is not None:
        return state.phase
    if row is not None:
        return row.phase
    states = {line.state for line in lines}
    if states == {LineState.OFFERED}:
        return OFFERED
    return LoanPhase.RECALLED if LineState.RECALLED in states else LoanPhase.ACTIVE


def _since(lines: Sequence[Line], state: LoanState | None, *, parked: bool) -> AwareDatetime | None:
    ended = [line.ended_at for line in lines if line.ended_at is not None]
    if parked or len(ended) == len(lines):
        return _end_of_last_term(state) or max(ended, default=None)
    if recalled := [line.moved_at for line in lines if line.state is LineState.RECALLED]:
        return max(recalled)
    return min(line.granted_at or line.offered_at for line in lines)


def _end_of_last_term(state: LoanState | None) -> AwareDatetime | None:
    return state.history[-1].ended_at if state and state.history else None


def _wanted(row: "LoanRow | None", state: LoanState | None) -> dict[str, Any]:
    if state is not None:
        order, saved = state.order, state.checkpoint
        return {
            "deadline": state.deadline if order else None,
            "wanted_by": order.lender if order else "",
            "checkpoint_step": saved.step if saved else None,
        }
    return {"deadline": row.due_at if row else None, "wanted_by": row.wanted_by if row else ""}


def _shares(lines: Iterable[Line]) -> tuple[Share, ...]:
    """Sum what each lender lends; an offer that is to replace a line counts only once it has."""
    gpus: dict[str, int] = defaultdict(int)
    for line in lines:
        if line.replaces is None or line.state is not LineState.OFFERED:
            gpus[line.lender] += line.gpus
    return tuple(Share(lender=lender, gpus=gpus[lender]) for lender in sorted(gpus))


def term_views(lines: Iterable[Line], history: Iterable[TermRecord] = ()) -> list[TermView]:
    """Every term, oldest first: who lent is from the ledger, why it ended from Temporal, where it still knows."""
    of_term: dict[int, list[Line]] = defaultdict(list)
    for line in lines:
        if line.state is not LineState.WITHDRAWN:
            of_term[line.term].append(line)
    records = {record.term: record for record in history}
    return [_term(term, of_term.get(term, []), records.get(term)) for term in sorted({*of_term, *records})]


def _term(term: int, lines: Sequence[Line], record: TermRecord | None) -> TermView:
    granted = [line.granted_at for line in lines if line.granted_at is not None]
    ends = [line.ended_at for line in lines if line.ended_at is not None]
    # A line that was novated within the term ended before it; whoever lent at the end is what counts.
    last = max(ends, default=None)
    final = [line for line in lines if line.is_open or line.ended_at == last]
    shares = _shares(final)
    running = any(line.is_open for line in lines)
    saved = record.checkpoint if record else None
    reasons = [line.reason for line in final if line.reason]
    ended = record.ended_at if record and record.ended_at else (None if running else last)
    because = record.ended_because if record and record.ended_because else (reasons[0] if reasons and ended else "")
    return TermView(
        term=term,
        gpus=sum(share.gpus for share in shares) if shares else (record.gpus if record else 0),
        lenders=shares,
        started_at=record.started_at if record else min(granted, default=None),
        ended_at=ended,
        ended_because=because,
        checkpoint=Checkpoint(step=saved.step, uri=saved.uri, verified_at=saved.verified_at) if saved else None,
    )


def matching(views: Iterable[LoanView], wanted: str) -> list[LoanView]:
    """Return the loans that `wanted` may mean: a workflow id, a uid, `namespace/job`, or a job's name."""
    return [view for view in views if wanted in (view.loan, view.uid, view.workload, view.workload.partition("/")[2])]
