"""Builders of books for tests."""

from datetime import UTC, datetime, timedelta
from typing import Any

from gpubank.domain.books import Books
from gpubank.domain.demand import DemandKind
from gpubank.domain.loan import Line, LineState, WorkloadKey
from gpubank.domain.transaction import (
    CapacityChange,
    DemandOpening,
    GuaranteeChange,
    Move,
    Offer,
    Transaction,
)

TEN = datetime(2026, 3, 1, 10, tzinfo=UTC)
EMPTY = Books(cluster="local", pool="h100")
G, O, R, C = LineState.GRANTED, LineState.OFFERED, LineState.RECALLED, LineState.CLOSING  # noqa: E741


def job(number: int = 1) -> WorkloadKey:
    return WorkloadKey(uid=f"u-{number}", namespace="n", name=f"job-{number}")


def tx(after_ten: int = 0, **writes: Any) -> Transaction:
    at = TEN + timedelta(minutes=after_ten)
    return Transaction(key="k", cluster="local", pool="h100", at=at, actor="controller", **writes)


def founded(capacity: int = 24, **guarantees: int) -> Books:
    """Books of 24 GPUs of which a and b are guaranteed 8 each, where nothing else is said."""
    changes = tuple(
        GuaranteeChange(group=group, version=0, in_force=gpus)
        for group, gpus in (guarantees or {"a": 8, "b": 8}).items()
    )
    return EMPTY.applied(tx(capacity=CapacityChange(capacity=capacity), guarantees=changes)).books


def offer(gpus: int = 4, *, lender: str = "b", borrower: str = "a", number: int = 1, **fields: Any) -> Offer:
    return Offer(lender=lender, borrower=borrower, gpus=gpus, workload=job(number), term=1, **fields)


def move(line: Line, state: LineState, **fields: Any) -> Move:
    return Move(line_id=line.line_id, version=line.version, from_state=line.state, to_state=state, **fields)


def opening(demand_id: str = "d", *, lender: str = "b", gpus: int = 4, idle: int = 0) -> DemandOpening:
    due = TEN + timedelta(hours=1)
    return DemandOpening(demand_id=demand_id, lender=lender, kind=DemandKind.LIMIT, gpus=gpus, idle=idle, due_at=due)


def standing(*states: LineState, **guarantees: int) -> Books:
    """Founded books with one line of b to a, 4 GPUs each, in every given state."""
    books = founded(**guarantees)
    for number, state in enumerate(states, 1):
        books = books.applied(tx(offers=(offer(number=number),))).books
        path = {O: (), G: (G,), R: (G, R), C: (G, C)}[state]
        for step in path:
            books = books.applied(tx(moves=(move(books.lines[-1], step),))).books
    return books


def line_of(books: Books, line_id: str = "h100-1") -> Line:
    line = books.line(line_id)
    assert line is not None
    return line
