"""Applies one transaction to the books of a pool: rows checked as they were read, invariants checked at the end."""

from collections.abc import Callable, Mapping

from gpubank.domain.bookindex import demand_name, group_name, line_name, merged
from gpubank.domain.books import Applied, Books, Guarantee
from gpubank.domain.demand import LIVE, Demand, DemandState
from gpubank.domain.errors import ConflictError, LedgerError
from gpubank.domain.loan import LENT, SURPLUS, Line, LineState
from gpubank.domain.ownside import chosen, taken, unpledged
from gpubank.domain.transaction import (
    Choose,
    DemandChange,
    DemandOpening,
    GuaranteeChange,
    Move,
    Offer,
    Pledge,
    Reattach,
    Split,
    Swap,
    Take,
    Transaction,
)


def followed(
    books: Books,
    *,
    revision: int,
    capacity: int,
    next_line: int,
    lines: Mapping[str, Line],
    demands: Mapping[str, Demand],
    guarantees: Mapping[str, Guarantee],
) -> Books:
    """Return the books with these rows as they stand now, ended ones left out; the rest is not made anew.

    It checks nothing: the rows are those that a transaction has changed.
    """
    update: dict[str, object] = {"revision": revision, "capacity": capacity, "next_line": next_line}
    if guarantees:
        in_force = books.guarantees if books.guarantee_index.ordered else sorted(books.guarantees, key=group_name)
        update["guarantees"] = merged(in_force, guarantees, group_name)
    if lines:
        open_lines = {name: line if line.is_open else None for name, line in lines.items()}
        before = books.lines if books.line_index.ordered else sorted(books.lines, key=line_name)
        update["lines"] = merged(before, open_lines, line_name)
    if demands:
        live = {name: demand if demand.state in LIVE else None for name, demand in demands.items()}
        known = books.demands if books.demand_index.ordered else sorted(books.demands, key=demand_name)
        update["demands"] = merged(known, live, demand_name)
    after = books.model_copy(update=update)
    after.know(
        books.line_index.followed(after.lines, [(books.line(name), line) for name, line in lines.items()]),
        books.demand_index.followed(after.demands, [(books.demand(name), demand) for name, demand in demands.items()]),
        books.guarantee_index.followed(after.guarantees, guarantees.values()),
    )
    return after


class Bookkeeper:
    """Applies one transaction to a copy of the books."""

    def __init__(self, books: Books, transaction: Transaction) -> None:
        self._books = books
        self._tx = transaction
        self._revision = books.revision + 1
        self._capacity = books.capacity
        self._next_line = books.next_line
        self._changed_lines: dict[str, Line] = {}
        self._changed_demands: dict[str, Demand] = {}
        self._changed_guarantees: dict[str, Guarantee] = {}

    def run(self) -> Applied:
        tx = self._tx
        if tx.capacity is not None:
            self._capacity = tx.capacity.capacity
        # A novation's new line is granted before its old one is returned.
        moves = tuple(sorted(tx.moves, key=lambda move: move.to_state is not LineState.GRANTED))
        steps: tuple[tuple[tuple[object, ...], Callable[..., None]], ...] = (
            (tx.guarantees, self._set_guarantee),
            (tx.openings, self._open_demand),
            (tx.splits, self._split),
            (tx.swaps, self._swap),
            (tx.pledges, self._pledge),
            (tx.reattachments, self._reattach),
            (tx.offers, self._offer),
            (tx.choices, self._choose),
            (tx.takes, self._take),
            (moves, self._move),
            (tx.demands, self._change_demand),
        )
        for items, step in steps:
            for item in items:
                step(item)
        after = followed(
            self._books,
            revision=self._revision,
            capacity=self._capacity,
            next_line=self._next_line,
            lines=self._changed_lines,
            demands=self._changed_demands,
            guarantees=self._changed_guarantees,
        )
        self._check(after)
        return Applied(
            after,
            tuple(self._changed_lines.values()),
            tuple(self._changed_demands.values()),
            tuple(self._changed_guarantees.values()),
        )

    def _touched(self) -> set[str]:
        """Groups whose own queue may have another quota than before."""
        lines = self._changed_lines.values()
        before = (self._books.line(line.line_id) for line in lines)
        lenders = {line.lender for line in (*lines, *before) if line is not None}
        return {*lenders, *self._changed_guarantees, *(d.lender for d in self._changed_demands.values())} - {SURPLUS}

    def _check(self, after: Books) -> None:
        """Refuse what would make any quota negative, or lend or promise what the pool does not have."""
        # Of what the transaction does not touch, nothing is negative: the books before would not have been there.
        for group in sorted(self._touched()):
            if (nominal := after.own_nominal(group)) < 0:
                raise LedgerError(
                    f"transaction {self._tx.key!r} would leave queue {group}.{after.pool}.own with {nominal} GPUs;"
                    " lend or pledge less"
                )
        for line in self._changed_lines.values():
            before = self._books.line(line.line_id)
            if before is None or before.replaces is None or line.state is not LineState.GRANTED:
                continue
            if after.line(before.replaces) is not None:
                raise LedgerError(
                    f"line {line.line_id!r} is granted beside {before.replaces!r}, which it replaces;"
                    " return the old line in the same transaction"
                )
        if after.surplus < 0 and after.promised > self._books.promised:
            raise LedgerError(
                f"transaction {self._tx.key!r} would promise {-after.surplus} GPUs more than pool"
                f" {after.pool!r} has ({after.capacity}); lend or guarantee less"
            )

    # ---- rows

    def _line(self, line_id: str, version: int) -> Line:
        line = self._known_line(line_id)
        if line is None:
            raise ConflictError(f"line {line_id!r} is not open any more; re-read the books")
        before = self._books.line(line_id)
        seen = before.version if before is not None else line.version
        if seen != version:
            raise ConflictError(f"line {line_id!r} is at version {seen}, not {version}; re-read the books")
        return line

    def _known_line(self, line_id: str) -> Line | None:
        return self._changed_lines.get(line_id) or self._books.line(line_id)

    def _known_demand(self, demand_id: str) -> Demand | None:
        return self._changed_demands.get(demand_id) or self._books.demand(demand_id)

    def _put_line(self, line: Line, **update: object) -> Line:
        """Store the row; its version grows once per transaction, whatever else happens to it."""
        before = self._books.line(line.line_id)
        version = before.version + 1 if before is not None else 1
        row = line.model_copy(update={**update, "version": version, "revision": self._revision})
        self._changed_lines[row.line_id] = row
        return row

    def _new_id(self) -> str:
        line_id = f"{self._books.pool}-{self._next_line}"
        self._next_line += 1
        return line_id

    def _demand(self, demand_id: str) -> Demand:
        demand = self._known_demand(demand_id)
        if demand is None:
            raise ConflictError(f"demand {demand_id!r} is not open; re-read the books")
        return demand

    def _put_demand(self, demand: Demand, **update: object) -> None:
        before = self._books.demand(demand.demand_id)
        # A demand that ended and is opened again must not bear a version that somebody may still hold.
        version = before.version + 1 if before is not None else self._revision
        row = demand.model_copy(update={**update, "version": version, "revision": self._revision})
        self._changed_demands[row.demand_id] = row

    # ---- steps, in the order in which a transaction applies them

    def _set_guarantee(self, change: GuaranteeChange) -> None:
        before = self._books.guarantee(change.group)
        if before.version != change.version:
            raise ConflictError(
                f"guarantee of {change.group!r} is at version {before.version}, not {change.version}; re-read the books"
            )
        if change.releasing > change.in_force:
            raise LedgerError(f"guarantee of {change.group!r}: releasing {change.releasing} of {change.in_force} GPUs")
        update: dict[str, object] = {"in_force": change.in_force, "releasing": change.releasing}
        if change.recalled is not None:
            update |= {"recalled": change.recalled, "slack_since": change.slack_since if change.recalled else None}
        self._put_guarantee(before, **update)

    def _put_guarantee(self, guarantee: Guarantee, **update: object) -> None:
        before = self._books.guarantee(guarantee.group)
        row = guarantee.model_copy(update={**update, "version": before.version + 1, "revision": self._revision})
        self._changed_guarantees[row.group] = row

    def _open_demand(self, opening: DemandOpening) -> None:
        before = self._known_demand(opening.demand_id)
        if before is not None and before.state is not DemandState.PARTIAL:
            raise ConflictError(f"demand {opening.demand_id!r} is open already; re-read the books")
        self._put_demand(
            Demand(
                demand_id=opening.demand_id,
                cluster=self._books.cluster,
                pool=self._books.pool,
                lender=opening.lender,
                kind=opening.kind,
                workload=opening.workload,
                gpus=opening.gpus,
                pods=opening.pods,
                idle=opening.idle,
                reason=opening.reason,
                opened_at=self._tx.at,
                moved_at=self._tx.at,
                due_at=opening.due_at,
            )
        )

    def _split(self, split: Split) -> None:
        line = self._line(split.line_id, split.version)
        if not split.gpus < line.gpus:
            raise LedgerError(f"line {line.line_id!r} has {line.gpus} GPUs: {split.gpus} cannot be cut off")
        self._put_line(line, gpus=line.gpus - split.gpus)
        self._put_line(line.model_copy(update={"line_id": self._new_id(), "gpus": split.gpus}))

    def _swap(self, swap: Swap) -> None:
        one, other = self._line(swap.line_id, swap.version), self._line(swap.other_id, swap.other_version)
        if one.gpus != other.gpus or not {one.state, other.state} <= {LineState.GRANTED}:
            raise LedgerError(f"lines {one.line_id!r} and {other.line_id!r} cannot swap lenders: size or state differ")
        for line in (one, other):
            # It would repay another lender than the one whose demand it is pledged to.
            if line.demand is not None:
                raise LedgerError(f"line {line.line_id!r} is pledged to {line.demand!r}: it cannot change its lender")
        self._put_line(one, lender=other.lender)
        self._put_line(other, lender=one.lender)

    def _pledge(self, pledge: Pledge) -> None:
        line = self._line(pledge.line_id, pledge.version)
        if pledge.demand is not None:
            self._demand(pledge.demand)
            if line.demand not in (None, pledge.demand):
                raise ConflictError(f"line {line.line_id!r} is pledged to {line.demand!r}; re-read the books")
        self._put_line(line, **({"demand": pledge.demand} if pledge.demand else unpledged(line, self._tx.at)))

    def _reattach(self, change: Reattach) -> None:
        line = self._line(change.line_id, change.version)
        if line.state is not LineState.GRANTED or change.gpus > line.gpus:
            raise LedgerError(f"line {line.line_id!r} ({line.state}, {line.gpus} GPUs) cannot give {change.gpus}")
        if change.gpus == line.gpus:
            # Whoever pledged it meant another Workload's GPUs.
            self._put_line(line, workload=change.workload, term=change.term, demand=None)
            return
        self._put_line(line, gpus=line.gpus - change.gpus)
        self._put_line(
            line.model_copy(
                update={
                    "line_id": self._new_id(),
                    "gpus": change.gpus,
                    "workload": change.workload,
                    "term": change.term,
                    "demand": None,
                }
            )
        )

    def _offer(self, offer: Offer) -> None:
        at = self._tx.at
        old = None if offer.replaces is None else self._known_line(offer.replaces)
        if offer.replaces is not None and (old is None or old.state is not LineState.GRANTED):
            raise ConflictError(
                f"line {offer.replaces!r} does not run any more: it cannot be novated; re-read the books"
            )
        if old is not None and (old.workload.uid, old.borrower) != (offer.workload.uid, offer.borrower):
            raise LedgerError(f"line {offer.replaces!r} serves another Workload than the offer that replaces it")
        self._put_line(
            Line(
                line_id=self._new_id(),
                cluster=self._books.cluster,
                pool=self._books.pool,
                lender=offer.lender,
                borrower=offer.borrower,
                gpus=offer.gpus,
                workload=offer.workload,
                term=offer.term,
                state=LineState.OFFERED,
                revision=self._revision,
                replaces=offer.replaces,
                offered_at=at,
                moved_at=at,
            )
        )

    def _choose(self, choice: Choose) -> None:
        demand, line_id = self._demand(choice.demand), self._new_id()
        line = chosen(self._books, choice, demand, line_id=line_id, revision=self._revision, at=self._tx.at)
        self._put_line(line)

    def _take(self, take: Take) -> None:
        line = self._line(take.line_id, take.version)
        self._put_line(line, **taken(self._books, line, self._tx.at))

    def _move(self, move: Move) -> None:
        line = self._line(move.line_id, move.version)
        if line.state is not move.from_state:
            raise ConflictError(f"line {line.line_id!r} is {line.state}, not {move.from_state}; re-read the books")
        line.check_move(move.to_state)
        if line.state is LineState.GRANTED and move.to_state is LineState.RETURNED:
            self._check_novated(line)
        update: dict[str, object] = {"state": move.to_state, "moved_at": self._tx.at, "reason": move.reason}
        if move.to_state is LineState.GRANTED:
            update |= {"granted_at": line.granted_at or self._tx.at, "replaces": None}
        if move.to_state not in LENT:
            update["ended_at"] = self._tx.at
        demand_id = None if move.release else move.demand or line.demand
        if demand_id is not None and not move.release and move.to_state in LENT:
            self._demand(demand_id)
        update["demand"] = demand_id
        self._put_line(line, **update)
        if move.to_state is LineState.RETURNED and demand_id is not None and not line.is_chosen:
            self._keep_for(demand_id, line)
        if move.to_state is LineState.RETURNED and line.state is LineState.RECALLED and not line.is_own:
            self._rest(line.lender)

    def _check_novated(self, line: Line) -> None:
        """A running line may end at once only when as many GPUs take its place here, for the same Workload."""
        successors = sum(
            other.gpus
            for other in self._changed_lines.values()
            if other.state is LineState.GRANTED
            and (before := self._books.line(other.line_id)) is not None
            and before.replaces == line.line_id
            and (other.workload.uid, other.borrower) == (line.workload.uid, line.borrower)
        )
        if successors != line.gpus:
            raise LedgerError(
                f"line {line.line_id!r} ({line.gpus} GPUs) cannot be returned while it runs:"
                f" {successors} GPUs take its place"
            )

    def _keep_for(self, demand_id: str, line: Line) -> None:
        """What comes back for a demand stays pledged until the demand's whole set is raised at once."""
        demand = self._known_demand(demand_id)
        if demand is not None and demand.is_open and demand.lender == line.lender:
            self._put_demand(demand, idle=demand.idle + line.gpus)

    def _rest(self, lender: str) -> None:
        """Who got a recalled loan back does not lend again at once."""
        guarantee = self._changed_guarantees.get(lender) or self._books.guarantee_index.by_group.get(lender)
        if guarantee is not None:
            self._put_guarantee(guarantee, recalled=True, slack_since=None)

    def _change_demand(self, change: DemandChange) -> None:
        before = self._books.demand(change.demand_id)
        demand = self._demand(change.demand_id)
        if before is not None and before.version != change.version:
            raise ConflictError(
                f"demand {demand.demand_id!r} is at version {before.version}, not {change.version}; re-read the books"
            )
        demand.check_move(change.state)
        update: dict[str, object] = {"state": change.state, "reason": change.reason or demand.reason}
        if change.state is not demand.state:
            update["moved_at"] = self._tx.at
        if change.gpus is not None:
            update["gpus"] = change.gpus
        if change.idle is not None:
            update["idle"] = change.idle
        if change.due_at is not None:
            update["due_at"] = change.due_at
        if change.state is not DemandState.OPEN:
            update["idle"] = 0
        if change.state not in (DemandState.OPEN, DemandState.RAISED):
            self._release_lines(demand.demand_id)
        update["ended_at"] = self._tx.at if change.state in (DemandState.MET, DemandState.CANCELLED) else None
        self._put_demand(demand, **update)

    def _release_lines(self, demand_id: str) -> None:
        """An ended demand holds no pledge, on what runs and on what is already on its way back."""
        known = {line.line_id for line in self._books.lines_for(demand_id)}
        known |= {name for name in self._changed_lines if self._books.line(name) is not None}
        begun = [name for name in self._changed_lines if self._books.line(name) is None]
        for name in (*sorted(known), *begun):
            line = self._known_line(name)
            if line is not None and line.is_open and line.demand == demand_id:
                self._put_line(line, **unpledged(line, self._tx.at))
