"""The own side of the book of loans: lines of own work that makes room for more important work of its group."""

from datetime import datetime
from typing import Any

from gpubank.domain.books import Books
from gpubank.domain.contract import Side
from gpubank.domain.demand import Demand
from gpubank.domain.errors import ConflictError
from gpubank.domain.loan import Line, LineState
from gpubank.domain.transaction import Choose


def chosen(books: Books, choice: Choose, demand: Demand, *, line_id: str, revision: int, at: datetime) -> Line:
    """Return the line of own work that is to make room; raise `ConflictError` where it is not as it was read."""
    if not demand.is_open or demand.lender != choice.group:
        raise ConflictError(f"demand {choice.demand!r} of {demand.lender!r} is {demand.state}; re-read the books")
    if any(line.workload.uid == choice.workload.uid for line in books.own_lines(choice.group)):
        raise ConflictError(f"workload {choice.workload.uid!r} makes room already; re-read the books")
    return Line(
        line_id=line_id,
        cluster=books.cluster,
        pool=books.pool,
        lender=choice.group,
        borrower=choice.group,
        side=Side.OWN,
        gpus=choice.gpus,
        workload=choice.workload,
        term=choice.term,
        state=LineState.RECALLED,
        revision=revision,
        demand=choice.demand,
        offered_at=at,
        moved_at=at,
    )


def taken(books: Books, line: Line, at: datetime) -> dict[str, Any]:
    """Return what changes in a chosen line that is taken; raise `ConflictError` where it cannot be."""
    if not line.is_chosen:
        raise ConflictError(f"line {line.line_id!r} is not one that is only chosen; re-read the books")
    if books.own_nominal(line.lender) < line.gpus:
        # Its Workload has lost its quota meanwhile, and what it held is kept for a demand already.
        raise ConflictError(f"{line.gpus} GPUs of line {line.line_id!r} are not in the queue; re-read the cluster")
    return {"granted_at": at, "moved_at": at}


def unpledged(line: Line, at: datetime) -> dict[str, Any]:
    """Return what changes in a line that no demand has any more: one that is only chosen is nothing else, and ends."""
    ended = {"state": LineState.RETURNED, "moved_at": at, "ended_at": at} if line.is_chosen else {}
    return {"demand": None, **ended}
