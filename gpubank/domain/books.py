"""The open books of one pool, and the one door through which they change.

`Books.applied` is the whole of the ledger's logic: pure, total and checked. The SQL store loads the books under a
lock, applies a transaction, and writes the rows that changed; the property tests drive the same function.
"""

from collections import Counter
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar

from pydantic import AwareDatetime

from gpubank.domain.base import GpuCount, Message
from gpubank.domain.demand import Demand
from gpubank.domain.loan import SURPLUS, Line, LineState
from gpubank.domain.transaction import Transaction

Row = TypeVar("Row")


class Guarantee(Message):
    """A group's guarantee as it is in force, which follows its policy as use allows."""

    group: str
    in_force: GpuCount
    releasing: GpuCount = 0
    """Part that is being given up: out of the queue, not yet free for others."""

    recalled: bool = False
    """Whether it was given back a recalled loan since it last lent: its slack must last before it is lent again."""

    slack_since: AwareDatetime | None = None
    """Since when there is slack, while `recalled`."""

    version: int = 1
    revision: int = 0


class Books(Message):
    """Open lines, demands and guarantees of one pool at one revision."""

    cluster: str
    pool: str
    revision: int = 0
    """Grows by one with every transaction; stamped on every queue whose quota is written."""

    capacity: GpuCount = 0
    next_line: int = 1
    guarantees: tuple[Guarantee, ...] = ()
    lines: tuple[Line, ...] = ()
    """Open lines only, by line id."""

    demands: tuple[Demand, ...] = ()
    """Demands that have not ended, by id."""

    # ---- what stands in them

    def guarantee(self, group: str) -> Guarantee:
        """Return the group's guarantee; nothing where it has no row."""
        found = _guarantees(_Same(self.guarantees)).get(group)
        return found if found is not None else Guarantee(group=group, in_force=0, version=0)

    def line(self, line_id: str) -> Line | None:
        """Return an open line."""
        return self._index.by_id.get(line_id)

    def demand(self, demand_id: str) -> Demand | None:
        """Return a demand that has not ended."""
        return next((demand for demand in self.demands if demand.demand_id == demand_id), None)

    def lines_of(self, workload_uid: str) -> tuple[Line, ...]:
        """Open lines of one Workload."""
        return self._index.by_workload.get(workload_uid, ())

    def lent(self, lender: str) -> int:
        """GPUs that weigh on the lender, its loans to itself included."""
        return self._index.lent[lender]

    def lent_to_others(self, lender: str) -> int:
        """GPUs that weigh on the lender and serve other groups."""
        return self._index.lent_to_others[lender]

    def granted(self, borrower: str) -> int:
        """GPUs in the borrower's queue."""
        return self._index.granted[borrower]

    def borrowed(self, borrower: str) -> int:
        """GPUs that the group holds of others, offers included; a novating offer counts only once."""
        return self._index.borrowed[borrower]

    def pledged(self, lender: str) -> int:
        """Own idle quota of the lender that is kept for demands."""
        return sum(demand.idle for demand in self.demands if demand.lender == lender and demand.is_open)

    @property
    def surplus(self) -> int:
        """GPUs that no group is guaranteed and that are not lent; negative while the pool is oversubscribed."""
        return self.capacity - self.promised

    @property
    def promised(self) -> int:
        """GPUs that groups are guaranteed, and surplus that is lent."""
        return sum(g.in_force for g in self.guarantees) + self.lent(SURPLUS)

    @property
    def groups(self) -> tuple[str, ...]:
        """Groups that have a guarantee or a line here."""
        return tuple(sorted({g.group for g in self.guarantees} | self._index.groups))

    def own_nominal(self, group: str) -> int:
        """Quota of the group's own queue: what is in force, less what is lent, pledged or being given up."""
        guarantee = self.guarantee(group)
        return guarantee.in_force - guarantee.releasing - self.lent(group) - self.pledged(group)

    @property
    def _index(self) -> "_Index":
        return _index(_Same(self.lines))

    # ---- how they change

    def applied(self, transaction: Transaction) -> "Applied":
        """Return the books after `transaction`, and the rows that it changed.

        Raises `ConflictError` where a row is not as the transaction read it (re-read and decide anew), and
        `LedgerError` where the result would break an invariant: that is a bug of who decided.
        """
        from gpubank.domain.bookkeeper import Bookkeeper  # it is made of books, and books only call it

        return Bookkeeper(self, transaction).run()


class _Index:
    """Sums and look-ups over the lines of one moment: a step asks thousands of times."""

    def __init__(self, lines: tuple[Line, ...]) -> None:
        self.by_id = {line.line_id: line for line in lines}
        self.lent, self.lent_to_others = Counter[str](), Counter[str]()
        self.granted, self.borrowed = Counter[str](), Counter[str]()
        self.groups: set[str] = set()
        by_workload: dict[str, list[Line]] = {}
        for line in lines:
            by_workload.setdefault(line.workload.uid, []).append(line)
            self.groups |= {line.borrower, line.lender}
            self.lent[line.lender] += line.gpus
            if line.state is LineState.GRANTED:
                self.granted[line.borrower] += line.gpus
            if not line.is_self_loan:
                self.lent_to_others[line.lender] += line.gpus
                self.borrowed[line.borrower] += 0 if line.replaces is not None else line.gpus
        self.groups.discard(SURPLUS)
        self.by_workload = {uid: tuple(found) for uid, found in by_workload.items()}


class _Same(Generic[Row]):
    """Rows that are told apart by being the same tuple, which never changes: comparing them would cost more."""

    __slots__ = ("rows",)

    def __init__(self, rows: tuple[Row, ...]) -> None:
        self.rows = rows

    def __hash__(self) -> int:
        return id(self.rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.rows is other.rows


@lru_cache(maxsize=4)
def _index(same: _Same[Line]) -> _Index:
    return _Index(same.rows)


@lru_cache(maxsize=4)
def _guarantees(same: _Same[Guarantee]) -> dict[str, Guarantee]:
    return {guarantee.group: guarantee for guarantee in same.rows}


class Applied(NamedTuple):
    """Result of one transaction."""

    books: Books
    lines: tuple[Line, ...]
    """Rows that were begun, changed or ended."""

    demands: tuple[Demand, ...]
    guarantees: tuple[Guarantee, ...]
