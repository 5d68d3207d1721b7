"""Look-ups and sums over the rows of one moment's books, carried on from moment to moment.

A step asks thousands of times, and a transaction touches a handful of the rows. So an index is made once of all rows
and then follows each transaction by what changed; a property test holds it to one that is made anew.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Generic, Protocol, TypeVar

from gpubank.domain.demand import LIVE, Demand
from gpubank.domain.loan import SURPLUS, Line, LineState

Row = TypeVar("Row")


class GuaranteeRow(Protocol):
    """The part of a guarantee that is summed up."""

    @property
    def group(self) -> str: ...

    @property
    def in_force(self) -> int: ...


GuaranteeT = TypeVar("GuaranteeT", bound=GuaranteeRow)


def merged(rows: Sequence[Row], changed: Mapping[str, Row | None], name: Callable[[Row], str]) -> tuple[Row, ...]:
    """Return `rows`, which are in the order of their names, with the changed ones put in; None takes one out."""
    found = list(rows)
    for key, row in changed.items():
        at = bisect_left(found, key, key=name)
        there = at < len(found) and name(found[at]) == key
        if row is None:
            del found[at : at + there]
        else:
            found[at : at + there] = [row]
    return tuple(found)


def is_ordered(names: Iterable[str]) -> bool:
    """Whether names grow, none standing twice."""
    return all(one < following for one, following in pairwise(names))


def line_name(line: Line) -> str:
    """Name of a line among those of its pool."""
    return line.line_id


def demand_name(demand: Demand) -> str:
    """Name of a demand among those of its pool."""
    return demand.demand_id


def group_name(guarantee: GuaranteeRow) -> str:
    """Name of a guarantee among those of its pool."""
    return guarantee.group


class LineIndex:
    """Of open lines."""

    def __init__(self, rows: tuple[Line, ...]) -> None:
        self.rows = rows
        self.ordered = is_ordered(map(line_name, rows))
        self.by_id = {line.line_id: line for line in rows}
        self.lent, self.lent_to_others = Counter[str](), Counter[str]()
        self.granted, self.borrowed = Counter[str](), Counter[str]()
        self.stopping = Counter[str]()
        """GPUs of lines on the own side that are taken."""

        self.own: dict[str, tuple[Line, ...]] = {}
        """Lines on the own side, by group."""

        self._parties = Counter[str]()
        self.moving: dict[str, Line] = {}
        """Lines that are not simply granted: few of many."""

        self.by_workload: dict[str, tuple[Line, ...]] = {}
        self.by_demand: dict[str, tuple[str, ...]] = {}
        workloads: dict[str, list[Line]] = {}
        for line in rows:
            workloads.setdefault(line.workload.uid, []).append(line)
            if line.demand is not None:
                self.by_demand[line.demand] = (*self.by_demand.get(line.demand, ()), line.line_id)
            self._count(line, 1)
        self.by_workload = {uid: tuple(lines) for uid, lines in workloads.items()}

    @property
    def groups(self) -> set[str]:
        """Groups that lend or borrow."""
        return {name for name, count in self._parties.items() if count} - {SURPLUS}

    def followed(self, rows: tuple[Line, ...], changed: Iterable[tuple[Line | None, Line]]) -> "LineIndex":
        """Return the index of `rows`, which differ from those of this one by what changed: before and after."""
        index = LineIndex(())
        index.rows = rows
        index.by_id, index.by_workload = dict(self.by_id), dict(self.by_workload)
        index.by_demand, index.moving = dict(self.by_demand), dict(self.moving)
        index.lent, index.lent_to_others = self.lent.copy(), self.lent_to_others.copy()
        index.granted, index.borrowed = self.granted.copy(), self.borrowed.copy()
        index.stopping, index.own = self.stopping.copy(), dict(self.own)
        index._parties = self._parties.copy()
        for before, after in changed:
            if before is not None:
                index._leave(before)
            if after.is_open:
                index._enter(after)
        return index

    def _enter(self, line: Line) -> None:
        uid, demand = line.workload.uid, line.demand
        self.by_id[line.line_id] = line
        self.by_workload[uid] = tuple(sorted((*self.by_workload.get(uid, ()), line), key=line_name))
        if demand is not None:
            self.by_demand[demand] = tuple(sorted((*self.by_demand.get(demand, ()), line.line_id)))
        self._count(line, 1)

    def _leave(self, line: Line) -> None:
        del self.by_id[line.line_id]
        self.moving.pop(line.line_id, None)
        _drop(self.by_workload, line.workload.uid, line.line_id, line_name)
        if line.demand is not None:
            _drop(self.by_demand, line.demand, line.line_id, str)
        if line.is_own:
            _drop(self.own, line.lender, line.line_id, line_name)
        self._count(line, -1)

    def _count(self, line: Line, sign: int) -> None:
        gpus = sign * line.gpus
        self._parties[line.lender] += sign
        self._parties[line.borrower] += sign
        if line.is_own:
            self._count_own(line, sign)
            return
        self.lent[line.lender] += gpus
        if line.state is LineState.GRANTED:
            self.granted[line.borrower] += gpus
        elif sign > 0:
            self.moving[line.line_id] = line
        if not line.is_self_loan:
            self.lent_to_others[line.lender] += gpus
            self.borrowed[line.borrower] += 0 if line.replaces is not None else gpus

    def _count_own(self, line: Line, sign: int) -> None:
        """Count a line on the own side: one that is only chosen weighs nothing."""
        if not line.is_chosen:
            self.lent[line.lender] += sign * line.gpus
            self.stopping[line.lender] += sign * line.gpus
        if sign > 0:
            self.moving[line.line_id] = line
            mine = (*self.own.get(line.lender, ()), line)
            self.own[line.lender] = tuple(sorted(mine, key=line_name))


def _drop(rows: dict[str, tuple[Row, ...]], key: str, name: str, name_of: Callable[[Row], str]) -> None:
    left = tuple(row for row in rows[key] if name_of(row) != name)
    if left:
        rows[key] = left
    else:
        del rows[key]


class DemandIndex:
    """Of live demands."""

    def __init__(self, rows: tuple[Demand, ...]) -> None:
        self.rows = rows
        self.ordered = is_ordered(map(demand_name, rows))
        self.by_id = {demand.demand_id: demand for demand in rows}
        self.pledged = Counter[str]()
        self.by_lender: dict[str, tuple[Demand, ...]] = {}
        for demand in rows:
            self._enter(demand)

    def followed(self, rows: tuple[Demand, ...], changed: Iterable[tuple[Demand | None, Demand]]) -> "DemandIndex":
        """Return the index of `rows`, which differ from those of this one by what changed: before and after."""
        index = DemandIndex(())
        index.rows = rows
        index.by_id, index.by_lender, index.pledged = dict(self.by_id), dict(self.by_lender), self.pledged.copy()
        for before, after in changed:
            if before is not None:
                del index.by_id[before.demand_id]
                _drop(index.by_lender, before.lender, before.demand_id, demand_name)
                index.pledged[before.lender] -= before.idle if before.is_open else 0
            if after.state in LIVE:
                index.by_id[after.demand_id] = after
                index._enter(after)
        return index

    def _enter(self, demand: Demand) -> None:
        mine = (*self.by_lender.get(demand.lender, ()), demand)
        self.by_lender[demand.lender] = tuple(sorted(mine, key=demand_name))
        self.pledged[demand.lender] += demand.idle if demand.is_open else 0


class GuaranteeIndex(Generic[GuaranteeT]):
    """Of guarantees in force."""

    def __init__(self, rows: tuple[GuaranteeT, ...]) -> None:
        self.rows = rows
        self.ordered = is_ordered(map(group_name, rows))
        self.by_group = {guarantee.group: guarantee for guarantee in rows}
        self.in_force = sum(guarantee.in_force for guarantee in rows)

    def followed(self, rows: tuple[GuaranteeT, ...], changed: Iterable[GuaranteeT]) -> "GuaranteeIndex[GuaranteeT]":
        """Return the index of `rows`, which differ from those of this one by the changed ones."""
        index = GuaranteeIndex[GuaranteeT](())
        index.rows, index.by_group, index.in_force = rows, dict(self.by_group), self.in_force
        for guarantee in changed:
            before = index.by_group.get(guarantee.group)
            index.in_force += guarantee.in_force - (before.in_force if before is not None else 0)
            index.by_group[guarantee.group] = guarantee
        return index
