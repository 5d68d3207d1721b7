"""The open books of one pool, and the one door through which they change.

`Books.applied` is the whole of the ledger's logic: pure, total and checked. The SQL store loads the books under a
lock, applies a transaction, and writes the rows that changed; the property tests drive the same function.
"""

from typing import NamedTuple

from pydantic import AwareDatetime

from gpubank.domain.base import GpuCount, Message
from gpubank.domain.bookindex import DemandIndex, GuaranteeIndex, LineIndex
from gpubank.domain.demand import Demand
from gpubank.domain.loan import SURPLUS, Line
from gpubank.domain.transaction import Transaction


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
        found = self.guarantee_index.by_group.get(group)
        return found if found is not None else Guarantee(group=group, in_force=0, version=0)

    def line(self, line_id: str) -> Line | None:
        """Return an open line."""
        return self.line_index.by_id.get(line_id)

    def demand(self, demand_id: str) -> Demand | None:
        """Return a demand that has not ended."""
        return self.demand_index.by_id.get(demand_id)

    def demands_of(self, lender: str) -> tuple[Demand, ...]:
        """Demands of a lender that have not ended, by id."""
        return self.demand_index.by_lender.get(lender, ())

    def lines_of(self, workload_uid: str) -> tuple[Line, ...]:
        """Open lines of one Workload."""
        return self.line_index.by_workload.get(workload_uid, ())

    def lines_for(self, demand_id: str) -> tuple[Line, ...]:
        """Open lines that are pledged to a demand."""
        return tuple(self.line_index.by_id[name] for name in self.line_index.by_demand.get(demand_id, ()))

    def own_lines(self, group: str) -> tuple[Line, ...]:
        """Open lines on the group's own side."""
        return self.line_index.own.get(group, ())

    def stopping(self, group: str) -> int:
        """GPUs of own work that is being stopped for more important work of the group."""
        return self.line_index.stopping[group]

    def lent(self, lender: str) -> int:
        """GPUs that weigh on the lender: its loans, those to itself included, and own work that is being stopped."""
        return self.line_index.lent[lender]

    def on_loan(self, lender: str) -> int:
        """GPUs of the lender that serve borrow queues, its own included."""
        return self.lent(lender) - self.stopping(lender)

    def lent_to_others(self, lender: str) -> int:
        """GPUs that weigh on the lender and serve other groups."""
        return self.line_index.lent_to_others[lender]

    def granted(self, borrower: str) -> int:
        """GPUs in the borrower's queue."""
        return self.line_index.granted[borrower]

    def borrowed(self, borrower: str) -> int:
        """GPUs that the group holds of others, offers included; a novating offer counts only once."""
        return self.line_index.borrowed[borrower]

    def pledged(self, lender: str) -> int:
        """Own idle quota of the lender that is kept for demands."""
        return self.demand_index.pledged[lender]

    @property
    def surplus(self) -> int:
        """GPUs that no group is guaranteed and that are not lent; negative while the pool is oversubscribed."""
        return self.capacity - self.promised

    @property
    def promised(self) -> int:
        """GPUs that groups are guaranteed, and surplus that is lent."""
        return self.guarantee_index.in_force + self.lent(SURPLUS)

    @property
    def groups(self) -> tuple[str, ...]:
        """Groups that have a guarantee or a line here."""
        return tuple(sorted({g.group for g in self.guarantees} | self.line_index.groups))

    def own_nominal(self, group: str) -> int:
        """Quota of the group's own queue: what is in force, less what is lent, stopped, pledged or being given up."""
        guarantee = self.guarantee(group)
        return guarantee.in_force - guarantee.releasing - self.lent(group) - self.pledged(group)

    # An index is kept beside the fields, and a copy of the books takes it along although its rows may be others: it
    # counts only for the very tuple that it was made of.

    @property
    def line_index(self) -> LineIndex:
        """Look-ups and sums over the lines."""
        kept: LineIndex | None = self.__dict__.get("_lines")
        if kept is None or kept.rows is not self.lines:
            kept = self.__dict__["_lines"] = LineIndex(self.lines)
        return kept

    @property
    def demand_index(self) -> DemandIndex:
        """Look-ups and sums over the demands."""
        kept: DemandIndex | None = self.__dict__.get("_demands")
        if kept is None or kept.rows is not self.demands:
            kept = self.__dict__["_demands"] = DemandIndex(self.demands)
        return kept

    @property
    def guarantee_index(self) -> GuaranteeIndex[Guarantee]:
        """Look-ups and sums over the guarantees."""
        kept: GuaranteeIndex[Guarantee] | None = self.__dict__.get("_guarantees")
        if kept is None or kept.rows is not self.guarantees:
            kept = self.__dict__["_guarantees"] = GuaranteeIndex[Guarantee](self.guarantees)
        return kept

    def know(self, lines: LineIndex, demands: DemandIndex, guarantees: GuaranteeIndex[Guarantee]) -> None:
        """Take over indexes of exactly these rows, so that they need not be made."""
        self.__dict__.update(_lines=lines, _demands=demands, _guarantees=guarantees)

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
