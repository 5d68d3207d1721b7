"""How stopped work repays a lender: its own lines, legal swaps of lines, and novation of what goes on running.

    direct     a victim's line of the demanding lender
    swap       a victim's line of another lender exchanges lenders with an equal line of the demanding lender that
               goes on running: the other lender lends on, the demanding one is repaid
    own        what own work of the group makes room with
    novation   somebody with free slack takes over a line of the demanding lender that goes on running; that is no
               help for what is reserved beyond a shrunken pool's nodes

Every limit and guarantee holds after each of them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gpubank.decide.desk import Desk, line_order
from gpubank.decide.lend import has_demand
from gpubank.decide.slack import Source, Till, overhang
from gpubank.decide.use import novated
from gpubank.decide.victims import Candidate, held
from gpubank.domain.demand import Demand, DemandKind
from gpubank.domain.loan import Line, LineState

LENDING_LIMIT: Final = "lending"
"""Last part of the id of a demand that only loans to others can meet."""


@dataclass(frozen=True, slots=True)
class Repayment:
    """What a set of victims repays, in GPUs per line; parts of lines are cut off when it is written."""

    direct: tuple[tuple[Line, int], ...] = ()
    swaps: tuple[tuple[Line, Line, int], ...] = ()
    """Victim's line, running line, GPUs."""

    novations: tuple[tuple[Line, Source], ...] = ()
    own: int = 0
    """GPUs of own work."""

    @property
    def total(self) -> int:
        """GPUs that come back in all."""
        return (
            sum(gpus for _, gpus in self.direct)
            + sum(gpus for *_, gpus in self.swaps)
            + sum(source.gpus for _, source in self.novations)
            + self.own
        )


class Teller:
    """Works out repayments for one demand."""

    def __init__(self, desk: Desk, demand: Demand) -> None:
        self._desk = desk
        self._demand = demand
        self._novated = novated(desk)
        shut = {group for group in desk.groups if has_demand(desk, group)} | {demand.lender}
        self._till = Till(desk, without=frozenset(shut))
        others = demand.kind is not DemandKind.RETURN  # that one's GPUs are wanted, not anybody's
        self._lines = tuple(
            line
            for line in (desk.lines(LineState.GRANTED) if others else ())
            if self.counts(line) and line.demand is None and self._in_use(line)
        )
        """Lines of the demanding lender that run and that nobody has: they may go on for somebody else."""

        stopped = overhang(desk) if demand.kind is DemandKind.SHRUNK else 0
        self._may_go_on = max(demand.gpus - demand.idle - stopped, 0)
        """GPUs of the demand that need not be stopped."""

        self.novatable = min(sum(line.gpus for line in self._lines), self._till.most, self._may_go_on)
        """Most GPUs that novation could repay, whoever is stopped."""

    def counts(self, line: Line) -> bool:
        """Whether the line, once back, helps the demand."""
        if line.is_own and self._demand.kind is not DemandKind.WORKLOAD:
            return False
        only_others = self._demand.kind is DemandKind.LIMIT and self._demand.demand_id.endswith(f"/{LENDING_LIMIT}")
        return line.lender == self._demand.lender and not (only_others and line.is_self_loan)

    def free_of(self, line: Line) -> bool:
        """Whether no other demand has the line."""
        return line.demand in (None, self._demand.demand_id)

    def repay(self, chosen: Iterable[Candidate], gpus: int) -> Repayment:
        """Return how the chosen repay up to `gpus` GPUs, with what need not be stopped at all."""
        mine, chosen = self._demand.demand_id, tuple(chosen)
        victims = sorted(
            (line for candidate in chosen if not candidate.is_own for line in candidate.lines),
            key=lambda line: (line.demand != mine, *line_order(line)),
        )
        uids = {line.workload.uid for line in victims}
        direct = []
        for line in victims:
            if gpus > 0 and self.counts(line) and self.free_of(line) and line.line_id not in self._novated:
                direct.append((line, min(line.gpus, gpus)))
                gpus -= direct[-1][1]
        own = min(sum(held(candidate) for candidate in chosen if candidate.is_own), max(gpus, 0))
        gpus -= own
        if gpus <= 0:
            return Repayment(tuple(direct), own=own)
        running = {line.line_id: line.gpus for line in self._lines if line.workload.uid not in uids}
        till = self._till.copy()
        swaps = self._swaps(victims, running, gpus, till)
        gpus -= sum(part for *_, part in swaps)
        novations = self._novations(running, min(gpus, self._may_go_on), till)
        return Repayment(tuple(direct), tuple(swaps), tuple(novations), own)

    def _in_use(self, line: Line) -> bool:
        workload = self._desk.workload(line.workload.uid)
        return workload is not None and workload.reserved and line.line_id not in self._novated

    def _swaps(
        self, victims: list[Line], running: dict[str, int], gpus: int, till: Till
    ) -> list[tuple[Line, Line, int]]:
        swaps = []
        lender = self._demand.lender
        terms = self._desk.group(lender)
        may_lend = max(terms.lending_limit - self._desk.books.lent_to_others(lender), 0) if terms is not None else 0
        for line in victims:
            foreign = line.state is LineState.GRANTED and line.lender != lender and line.demand is None
            left = line.gpus if foreign and not line.is_self_loan and line.line_id not in self._novated else 0
            for other in self._lines if left > 0 and gpus > 0 else ():
                part = min(left, running.get(other.line_id, 0), gpus)
                if part > 0 and other.is_self_loan:
                    # The lender's own borrow work would go on with a loan of somebody else: within its limits only.
                    part = min(part, till.room(lender), part if line.borrower == lender else may_lend)
                if part <= 0:
                    continue
                if other.is_self_loan:
                    till.use_room(lender, part)
                    may_lend -= 0 if line.borrower == lender else part
                swaps.append((line, other, part))
                running[other.line_id] -= part
                left -= part
                gpus -= part
        return swaps

    def _novations(self, running: dict[str, int], gpus: int, till: Till) -> list[tuple[Line, Source]]:
        novations = []
        for line in self._lines if till.lends else ():
            left = min(running.get(line.line_id, 0), gpus)
            if left <= 0:
                continue
            for source in till.sources(line.borrower, left, room=None if line.is_self_loan else left):
                till.take(source, line.borrower, novates_loan=not line.is_self_loan)
                novations.append((line, source))
                gpus -= source.gpus
        return novations
