"""Slack: what a lender has to spare right now, and from whom a loan would come.

for others   min(lendingLimit − lent to others, guarantee − lent − own reservation − own demand)
for itself   the same without the lendingLimit
surplus      capacity − Σ guarantees − lent, never what a guarantee is still to rise by

All of it is computed anew from books and facts; nothing here remembers.
"""

from collections import Counter
from copy import copy
from typing import NamedTuple

from gpubank.decide.desk import Desk
from gpubank.decide.serving import kept_for_serving
from gpubank.domain.contract import Side
from gpubank.domain.loan import SURPLUS, LineState


class Source(NamedTuple):
    """A part of a loan: who lends how much."""

    lender: str
    gpus: int


def own_slack(desk: Desk, group: str) -> int:
    """GPUs that the group could lend to itself.

    Quota pledged to its demands and quota that its waiting work is owed are the same GPUs as far as they overlap.
    Slack that appeared after a recall must have lasted `resumeAfter`.
    """
    return desk.of_group("own slack", group, lambda: _own_slack(desk, group))


def _own_slack(desk: Desk, group: str) -> int:
    guarantee = desk.books.guarantee(group)
    if guarantee.recalled and (
        guarantee.slack_since is None or not desk.lasted(guarantee.slack_since, desk.terms.resume_after)
    ):
        return 0
    return max(raw_slack(desk, group), 0)


def raw_slack(desk: Desk, group: str) -> int:
    """GPUs of the guarantee that are neither lent nor used nor owed to own work; negative where it is overdrawn."""
    books, guarantee = desk.books, desk.books.guarantee(group)
    wanted = max(books.pledged(group), sum(workload.gpus for workload in desk.owed(group)))
    held = min(guarantee.in_force - guarantee.releasing, desk.target(group))
    return held - books.lent(group) - desk.reserved(group, Side.OWN) - wanted


def lendable(desk: Desk, group: str) -> int:
    """GPUs that the group could lend to others."""
    return desk.of_group("lendable", group, lambda: _lendable(desk, group))


def _lendable(desk: Desk, group: str) -> int:
    terms = desk.group(group)
    if terms is None:
        return 0
    return max(min(terms.lending_limit - desk.books.lent_to_others(group), own_slack(desk, group)), 0)


def surplus_limit(desk: Desk, capacity: int) -> int:
    """Most GPUs that may be lent as surplus if the pool has `capacity`: what no group is or is to be guaranteed."""
    entitled = desk.once("committed", lambda: sum(committed(desk, group) for group in desk.groups))
    return max(capacity - entitled, 0)


def committed(desk: Desk, group: str) -> int:
    """GPUs that the group is entitled to: its target, or what it uses of a guarantee that has yet to fall to it."""
    return desk.of_group("committed", group, lambda: _committed(desk, group))


def _committed(desk: Desk, group: str) -> int:
    held = desk.reserved(group, Side.OWN) + desk.books.stopping(group)
    in_use = min(desk.books.guarantee(group).in_force, held)
    return max(desk.target(group), in_use)


def physical(desk: Desk) -> int:
    """GPUs that the pool's nodes have: all of the ready ones, and what still runs on the others.

    A pool of which no node at all is seen has not shrunk, it is not seen: then the capacity counts.
    """
    if not desk.facts.nodes:
        return desk.terms.capacity
    return desk.fixed("physical", lambda: sum(node.gpus if node.ready else node.used for node in desk.facts.nodes))


def overhang(desk: Desk) -> int:
    """GPUs that are reserved or lent beyond what the pool's nodes have; 0 while they have all of it."""
    return max(-headroom(desk), 0)


def headroom(desk: Desk) -> int:
    """GPUs of the pool's nodes that are neither reserved nor lent; below 0 where missing nodes had some that are.

    Quotas in sum never exceed the capacity, so only where nodes are missing is it less than quotas let anybody have.
    """
    return desk.once("headroom", lambda: _headroom(desk))


def _headroom(desk: Desk) -> int:
    have = physical(desk)
    if have >= desk.terms.capacity:
        return desk.terms.capacity
    lent = sum(
        line.gpus
        for line in desk.books.lines
        if (line.state is not LineState.OFFERED or line.replaces is None) and not line.is_chosen
    )  # a novation is counted once, and so is own work that holds its quota still
    return have - sum(desk.reserved(group, Side.OWN) for group in desk.groups) - lent


def lendable_surplus(desk: Desk) -> int:
    """GPUs of the surplus that could be lent."""
    owed = desk.once("owed guarantees", lambda: sum(_owed_to(desk, group) for group in desk.groups))
    limit = surplus_limit(desk, min(desk.terms.capacity, physical(desk)))
    return max(min(desk.books.surplus - owed, limit - desk.books.lent(SURPLUS)), 0)


def _owed_to(desk: Desk, group: str) -> int:
    """GPUs by which the group's guarantee has yet to rise."""
    rise = desk.target(group) - desk.books.guarantee(group).in_force
    return max(rise, 0)


def borrowed(desk: Desk, group: str) -> int:
    """GPUs that the group holds of others, counting loans to itself that are about to be novated to others."""

    def novated_of_itself() -> Counter[str]:
        offers = desk.lines(LineState.OFFERED)
        replaced = (desk.books.line(line.replaces) for line in offers if line.replaces is not None)
        found = Counter[str]()
        for old in replaced:
            if old is not None and old.is_self_loan:
                found[old.borrower] += old.gpus
        return found

    return desk.books.borrowed(group) + desk.once("novated of itself", novated_of_itself)[group]


def borrow_room(desk: Desk, group: str) -> int:
    """GPUs that the group may still borrow of others."""
    return desk.of_group("borrow room", group, lambda: _borrow_room(desk, group))


def _borrow_room(desk: Desk, group: str) -> int:
    terms = desk.group(group)
    return max(terms.borrow_limit - borrowed(desk, group), 0) if terms is not None else 0


class Till:
    """What every lender has to spare and every borrower may still take, counted down while a plan is made."""

    def __init__(self, desk: Desk, *, without: frozenset[str] = frozenset()) -> None:
        """Count once; lenders in `without` lend nothing."""
        self._own = {group: own_slack(desk, group) for group in desk.groups if group not in without}
        self._others = {group: lendable(desk, group) for group in desk.groups if group not in without}
        if SURPLUS not in without:
            self._others[SURPLUS] = lendable_surplus(desk)
        self._keep_for_serving(desk)
        self._room = {group: borrow_room(desk, group) for group in desk.groups}
        self._turns: tuple[str, ...] | None = None
        self._spare = sum(spare for spare in self._others.values() if spare > 0)

    def _keep_for_serving(self, desk: Desk) -> None:
        for group, gpus in kept_for_serving(desk, {group: own_slack(desk, group) for group in desk.groups}).items():
            if group in self._own:
                self._own[group] -= gpus
                self._others[group] = min(self._others[group], self._own[group])

    @classmethod
    def of(cls, desk: Desk) -> "Till":
        """Return a till of everybody, which is counted once between two writes."""
        return desk.once("till", lambda: cls(desk)).copy()

    def copy(self) -> "Till":
        """Return the same till, to be tried out."""
        other = copy(self)
        other._own, other._others, other._room = dict(self._own), dict(self._others), dict(self._room)
        return other

    @property
    def lends(self) -> bool:
        """Whether anybody has anything to spare."""
        return self._spare > 0 or any(spare > 0 for spare in self._own.values())

    @property
    def most(self) -> int:
        """GPUs that all sources together could come to at most."""
        return self._spare + sum(spare for spare in self._own.values() if spare > 0)

    def room(self, borrower: str) -> int:
        """GPUs that the group may still borrow of others."""
        return self._room.get(borrower, 0)

    def use_room(self, borrower: str, gpus: int) -> None:
        """Count down what the group may borrow."""
        self._room[borrower] = self.room(borrower) - gpus

    def sources(self, borrower: str, gpus: int, *, room: int | None = None) -> list[Source]:
        """Return who would lend the borrower up to `gpus` GPUs: as much as there is, in this order.

        1. the borrower itself;
        2. the surplus;
        3. other groups, most slack first, then by name.

        What comes of others stays within `room`, by default the borrower's borrowLimit.
        """
        found: list[Source] = []
        room = self.room(borrower) if room is None else room
        if (own := min(self._own.get(borrower, 0), gpus)) > 0:
            found.append(Source(borrower, own))
            gpus -= own
        for lender in self._lenders():
            if gpus <= 0 or room <= 0:
                break
            if lender != borrower:
                part = min(self._others[lender], gpus, room)
                found.append(Source(lender, part))
                gpus -= part
                room -= part
        return found

    def available(self, borrower: str, gpus: int, *, room: int | None = None) -> int:
        """Return how many of `gpus` GPUs the sources would come to."""
        room = self.room(borrower) if room is None else room
        own = max(min(self._own.get(borrower, 0), gpus), 0)
        others = self._spare - max(self._others.get(borrower, 0), 0)
        return own + max(min(others, gpus - own, room), 0)

    def _lenders(self) -> tuple[str, ...]:
        """Return who has anything to spare for others, in turn."""
        if self._turns is None:
            others = (name for name, spare in self._others.items() if spare > 0)
            self._turns = tuple(sorted(others, key=lambda name: (name != SURPLUS, -self._others[name], name)))
        return self._turns

    def take(self, source: Source, borrower: str, *, novates_loan: bool = False) -> None:
        """Count down a part that was promised; what novates a loan of others takes no more of the borrowLimit."""
        lender, gpus = source
        before = max(self._others.get(lender, 0), 0)
        if lender in self._own:
            self._own[lender] -= gpus
        if lender != borrower:
            self._others[lender] -= gpus
            if not novates_loan:
                self.use_room(borrower, gpus)
        else:
            self._others[lender] = min(self._others[lender], self._own[lender])
        self._spare += max(self._others.get(lender, 0), 0) - before
        self._turns = None
