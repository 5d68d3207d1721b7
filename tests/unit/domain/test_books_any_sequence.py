"""The books: what any sequence of transactions keeps true."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gpubank.decide.compile import nominals
from gpubank.domain.books import Applied, Books
from gpubank.domain.demand import LIVE, Demand, DemandState
from gpubank.domain.demand import MOVES as DEMAND_MOVES
from gpubank.domain.errors import BankError
from gpubank.domain.loan import LENT, MOVES, SURPLUS, Line, LineState
from gpubank.domain.transaction import (
    CapacityChange,
    Choose,
    DemandChange,
    GuaranteeChange,
    Offer,
    Reattach,
    Split,
    Swap,
    Take,
)
from tests.unit.domain.bookkeeping import EMPTY, G, job, move, offer, opening, tx


class AnySequence(RuleBasedStateMachine):
    """Whatever is asked for, in any order and with any staleness, the books stay sound or stay as they were."""

    books: Books
    ever: dict[str, Line]
    demanded: dict[str, Demand]
    shrunk = False

    @initialize(capacity=st.integers(10, 40))
    def found(self, capacity: int) -> None:
        self.books = EMPTY
        self.ever, self.demanded = {}, {}
        self._apply(
            capacity=CapacityChange(capacity=capacity),
            guarantees=tuple(GuaranteeChange(group=group, version=0, in_force=3) for group in "abc"),
        )

    def _apply(self, **writes: Any) -> None:
        before = self.books
        try:
            applied = before.applied(tx(before.revision, **writes))
        except BankError:
            assert self.books is before
            return
        self._judge(before, applied)
        self.books = applied.books

    def _judge(self, before: Books, applied: Applied) -> None:
        assert applied.books.revision == before.revision + 1
        for line in applied.lines:
            old = self.ever.get(line.line_id)
            assert line.version == (old.version + 1 if old and before.line(line.line_id) else 1)
            assert old is None or old.is_open, "a line that ended is never touched again"
            if old is not None and old.state is not line.state:
                assert line.state in MOVES[old.state]
            assert line.revision == applied.books.revision
            assert line.is_open == (line.ended_at is None) == (line.state in LENT)
            self.ever[line.line_id] = line
        for demand in applied.demands:
            last = self.demanded.get(demand.demand_id)
            assert last is None or demand.version > last.version
            if last is not None and last.state is not demand.state:
                assert demand.state in DEMAND_MOVES[last.state]
            self.demanded[demand.demand_id] = demand
        grown = applied.books.promised > before.promised
        assert not (grown and applied.books.surplus < 0), "nothing is promised that is not there"

    def _line(self, data: st.DataObject) -> Line | None:
        return data.draw(st.sampled_from(self.books.lines)) if self.books.lines else None

    @rule(capacity=st.integers(0, 40))
    def change_capacity(self, capacity: int) -> None:
        self._apply(capacity=CapacityChange(capacity=capacity))

    @rule(group=st.sampled_from("abc"), gpus=st.integers(0, 15), releasing=st.integers(0, 4), stale=st.booleans())
    def change_guarantee(self, group: str, gpus: int, releasing: int, stale: bool) -> None:
        version = self.books.guarantee(group).version - stale
        change = GuaranteeChange(group=group, version=max(version, 0), in_force=gpus, releasing=releasing)
        self._apply(guarantees=(change,))

    @rule(
        lender=st.sampled_from(["a", "b", "c", SURPLUS]),
        borrower=st.sampled_from("abc"),
        gpus=st.integers(1, 6),
        number=st.integers(1, 4),
    )
    def lend(self, lender: str, borrower: str, gpus: int, number: int) -> None:
        self._apply(offers=(offer(gpus, lender=lender, borrower=borrower, number=number),))

    @rule(data=st.data(), lender=st.sampled_from(["a", "b", "c", SURPLUS]))
    def novate(self, data: st.DataObject, lender: str) -> None:
        if line := self._line(data):
            new = Offer(
                lender=lender,
                borrower=line.borrower,
                gpus=line.gpus,
                workload=line.workload,
                term=line.term,
                replaces=line.line_id,
            )
            self._apply(offers=(new,))

    @rule(data=st.data())
    def settle_novation(self, data: st.DataObject) -> None:
        if (new := self._line(data)) and new.replaces and (old := self.books.line(new.replaces)):
            self._apply(moves=(move(old, LineState.RETURNED), move(new, G)))

    @rule(data=st.data(), state=st.sampled_from(LineState), release=st.booleans(), pledge=st.booleans())
    def move_line(self, data: st.DataObject, state: LineState, release: bool, pledge: bool) -> None:
        if line := self._line(data):
            demand = self.books.demands[0].demand_id if pledge and self.books.demands else None
            self._apply(moves=(move(line, state, release=release, demand=demand),))

    @rule(data=st.data(), gpus=st.integers(1, 6))
    def split(self, data: st.DataObject, gpus: int) -> None:
        if line := self._line(data):
            self._apply(splits=(Split(line_id=line.line_id, version=line.version, gpus=gpus),))

    @rule(data=st.data())
    def swap(self, data: st.DataObject) -> None:
        if (one := self._line(data)) and (other := self._line(data)):
            swap = Swap(line_id=one.line_id, version=one.version, other_id=other.line_id, other_version=other.version)
            self._apply(swaps=(swap,))

    @rule(data=st.data(), gpus=st.integers(1, 6), number=st.integers(1, 4))
    def reattach(self, data: st.DataObject, gpus: int, number: int) -> None:
        if line := self._line(data):
            change = Reattach(line_id=line.line_id, version=line.version, gpus=gpus, workload=job(number), term=2)
            self._apply(reattachments=(change,))

    @rule(name=st.sampled_from("de"), lender=st.sampled_from(["a", "b", SURPLUS, "x"]), idle=st.integers(0, 3))
    def open_demand(self, name: str, lender: str, idle: int) -> None:
        self._apply(openings=(opening(name, lender=lender, idle=idle),))

    @rule(data=st.data(), state=st.sampled_from(DemandState), idle=st.none() | st.integers(0, 6))
    def change_demand(self, data: st.DataObject, state: DemandState, idle: int | None) -> None:
        if self.books.demands:
            demand = data.draw(st.sampled_from(self.books.demands))
            change = DemandChange(demand_id=demand.demand_id, version=demand.version, state=state, idle=idle)
            self._apply(demands=(change,))

    @rule(data=st.data(), group=st.sampled_from("abx"), gpus=st.integers(1, 6), number=st.integers(1, 4))
    def choose(self, data: st.DataObject, group: str, gpus: int, number: int) -> None:
        if self.books.demands:
            demand = data.draw(st.sampled_from(self.books.demands)).demand_id
            self._apply(choices=(Choose(group=group, gpus=gpus, workload=job(number), term=1, demand=demand),))

    @rule(data=st.data(), gone=st.booleans())
    def take(self, data: st.DataObject, gone: bool) -> None:
        """Take a line; with `gone` its Workload has left in the same breath."""
        if line := self._line(data):
            moves = (move(line, LineState.RETURNED),) if gone else ()
            self._apply(takes=(Take(line_id=line.line_id, version=line.version),), moves=moves)

    @invariant()
    def no_quota_is_negative_and_all_of_them_fit(self) -> None:
        books, quotas = self.books, nominals(self.books)
        assert all(quota >= 0 for quota in quotas.values())
        assert all(books.own_nominal(demand.lender) >= 0 for demand in books.demands if demand.lender != SURPLUS)
        weighing = [line for line in books.lines if not line.is_chosen]
        waiting = sum(line.gpus for line in weighing if line.lender != SURPLUS and line.state is not G)
        surplus = sum(line.gpus for line in books.lines if line.lender == SURPLUS and line.state is G)
        kept = sum(books.pledged(group) for group in books.groups)
        kept += sum(guarantee.releasing for guarantee in books.guarantees)
        in_force = sum(guarantee.in_force for guarantee in books.guarantees)
        assert sum(quotas.values()) == in_force - kept - waiting + surplus
        assert sum(quotas.values()) <= max(books.capacity, books.promised)

    @invariant()
    def lent_is_borrowed(self) -> None:
        books = self.books
        lenders = {line.lender for line in books.lines}
        replacing = sum(line.gpus for line in books.lines if line.replaces and not line.is_self_loan)
        lent = sum(books.lent_to_others(lender) for lender in lenders)
        assert lent == sum(books.borrowed(group) for group in books.groups) + replacing

    @invariant()
    def only_what_lives_is_open_and_pledged(self) -> None:
        books = self.books
        assert {line.line_id for line in books.lines} == {key for key, line in self.ever.items() if line.is_open}
        assert all(demand.state in LIVE for demand in books.demands)
        assert all(line.demand is not None for line in books.lines if line.is_chosen)
        assert {line.demand for line in books.lines} <= {None, *(demand.demand_id for demand in books.demands)}
        assert books.next_line == len(self.ever) + 1


TestAnySequence = AnySequence.TestCase
TestAnySequence.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
