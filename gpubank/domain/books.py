"""The open books of one pool, and the one door through which they change.

`Books.applied` is the whole of the ledger's logic: pure, total and checked. The SQL store loads the books under a
lock, applies a transaction, and writes the rows that changed; the property tests drive the same function.
"""

from typing import NamedTuple

from pydantic import AwareDatetime

from gpubank.domain.base import GpuCount, Message
from gpubank.domain.demand import Demand
from gpubank.domain.loan import SURPLUS, Line, LineState
from gpubank.domain.transaction import (
    Transaction,
)


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
        found = next((g for g in self.guarantees if g.group == group), None)
        return found if found is not None else Guarantee(group=group, in_force=0, version=0)

    def line(self, line_id: str) -> Line | None:
        """Return an open line."""
        return next((line for line in self.lines if line.line_id == line_id), None)

    def demand(self, demand_id: str) -> Demand | None:
        """Return a demand that has not ended."""
        return next((demand for demand in self.demands if demand.demand_id == demand_id), None)

    def lines_of(self, workload_uid: str) -> tuple[Line, ...]:
        """Open lines of one Workload."""
        return tuple(line for line in self.lines if line.workload.uid == workload_uid)

    def lent(self, lender: str) -> int:
        """GPUs that weigh on the lender, its loans to itself included."""
        return sum(line.gpus for line in self.lines if line.lender == lender)

    def lent_to_others(self, lender: str) -> int:
        """GPUs that weigh on the lender and serve other groups."""
        return sum(line.gpus for line in self.lines if line.lender == lender and not line.is_self_loan)

    def granted(self, borrower: str) -> int:
        """GPUs in the borrower's queue."""
        return sum(line.gpus for line in self.lines if line.borrower == borrower and line.state is LineState.GRANTED)

    def borrowed(self, borrower: str) -> int:
        """GPUs that the group holds of others, offers included; a novating offer counts only once."""
        return sum(
            line.gpus
            for line in self.lines
            if line.borrower == borrower and not line.is_self_loan and line.replaces is None
        )

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
        names = {g.group for g in self.guarantees} | {line.borrower for line in self.lines}
        return tuple(sorted(names | ({line.lender for line in self.lines} - {SURPLUS})))

    def own_nominal(self, group: str) -> int:
        """Quota of the group's own queue: what is in force, less what is lent, pledged or being given up."""
        guarantee = self.guarantee(group)
        return guarantee.in_force - guarantee.releasing - self.lent(group) - self.pledged(group)

    # ---- how they change

    def applied(self, transaction: Transaction) -> "Applied":
        """Return the books after `transaction`, and the rows that it changed.

        Raises `ConflictError` where a row is not as the transaction read it (re-read and decide anew), and
        `LedgerError` where the result would break an invariant: that is a bug of who decided.
        """
        from gpubank.domain.bookkeeper import Bookkeeper  # it is made of books, and books only call it

        return Bookkeeper(self, transaction).run()


class Applied(NamedTuple):
    """Result of one transaction."""

    books: Books
    lines: tuple[Line, ...]
    """Rows that were begun, changed or ended."""

    demands: tuple[Demand, ...]
    guarantees: tuple[Guarantee, ...]
