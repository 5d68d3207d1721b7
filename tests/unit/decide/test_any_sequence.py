"""The invariants over any sequence of submissions, completions, grants, recalls, crashes and policy edits."""

from datetime import timedelta

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gpubank.domain.contract import Side, WorkloadContract
from gpubank.domain.loan import MOVES, LineState
from gpubank.domain.policy import WithinGroup
from gpubank.domain.pool import Freeze
from gpubank.domain.terms import GroupTerms
from tests.unit.decide.model import Model
from tests.unit.decide.parts import HOOKED, RETRYABLE, SERVING, Job, group_terms, pool_terms

# Thousands of steps: half a minute of a processor, and minutes of one that others use too.
pytestmark = pytest.mark.timeout(600)

GROUPS = ("a", "b", "c")
CAPACITY = 24
groups = st.sampled_from(GROUPS)
sizes = st.sampled_from([1, 2, 4, 6, 8, 12])


class Bank(RuleBasedStateMachine):
    """Everybody acts at any time; every act is one effect, so that a crash may lie between any two."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model(pool_terms(capacity=CAPACITY), {})
        self.count = 0

    @initialize(
        guarantees=st.tuples(*[st.integers(0, 8)] * 3),
        lending=st.tuples(*[st.integers(0, 8)] * 3),
        resume=st.integers(0, 20),
    )
    def found(self, guarantees: tuple[int, ...], lending: tuple[int, ...], resume: int) -> None:
        terms = [
            group_terms(name, guaranteed, lending_limit=min(limit, guaranteed))
            for name, guaranteed, limit in zip(GROUPS, guarantees, lending, strict=True)
        ]
        self.model = Model(
            pool_terms(*terms, capacity=CAPACITY, resume_after=timedelta(seconds=resume)),
            {f"node-{i}": 8 for i in range(CAPACITY // 8)},
        )
        self.model.settle()

    # ---- people

    @rule(group=groups, side=st.sampled_from(Side), pods=sizes, priority=st.integers(0, 1), hooked=st.booleans())
    def submit(self, group: str, side: Side, pods: int, priority: int, hooked: bool) -> None:
        self.count += 1
        contract = HOOKED if hooked else RETRYABLE
        self.model.submit(f"job-{self.count}", group, side, pods, priority=priority, contract=contract)

    @rule(data=st.data(), deleted=st.booleans())
    def finish(self, data: st.DataObject, deleted: bool) -> None:
        running = sorted(uid for uid, job in self.model.jobs.items() if job.reserved or deleted)
        if running:
            self.model.finish(data.draw(st.sampled_from(running)), deleted=deleted)

    @rule(group=groups, guaranteed=st.integers(0, 8), lending=st.integers(0, 8), borrow=st.integers(0, 24))
    def edit_policy(self, group: str, guaranteed: int, lending: int, borrow: int) -> None:
        terms = self.model.terms
        edited = [
            group_terms(group, guaranteed, lending_limit=min(lending, guaranteed), borrow_limit=borrow)
            if other.group == group
            else other
            for other in terms.groups
        ]
        self.model.terms = terms.model_copy(update={"groups": tuple(edited)})

    @rule(frozen=st.booleans())
    def freeze(self, frozen: bool) -> None:
        freeze = Freeze(by="ops", reason="upgrade") if frozen else None
        self.model.terms = self.model.terms.model_copy(update={"freeze": freeze})

    @rule(milliseconds=st.sampled_from([100, 600, 2_000, 6_000, 40_000, 400_000]))
    def wait(self, milliseconds: int) -> None:
        self.model.now += timedelta(milliseconds=milliseconds)

    # ---- the scheduler

    @rule(stale=st.booleans())
    def admit(self, stale: bool) -> None:
        self.model.admit(stale=stale)

    @rule()
    def place(self) -> None:
        self.model.place()

    @rule()
    def fence(self) -> None:
        self.model.fence()

    @rule()
    def evict(self) -> None:
        self.model.evict()

    # ---- the bank

    @rule(crash_after=st.one_of(st.none(), st.integers(0, 3)))
    def step(self, crash_after: int | None) -> None:
        self.model.step(crash_after=crash_after)

    @rule(crash_after=st.one_of(st.none(), st.integers(0, 3)))
    def write(self, crash_after: int | None) -> None:
        self.model.write(crash_after=crash_after)

    @rule(times=st.integers(1, 6))
    def work(self, times: int) -> None:
        for _ in range(times):
            self.model.work()

    @rule(data=st.data())
    def protect(self, data: st.DataObject) -> None:
        recalled = sorted({x.workload.uid for x in self.model.books.lines if x.state is LineState.RECALLED})
        if recalled:
            self.model.protect(data.draw(st.sampled_from(recalled)))

    @rule()
    def rounds(self) -> None:
        for _ in range(3):
            self.model.round()
            self.model.now += timedelta(milliseconds=300)

    # ---- what must hold

    @invariant()
    def always(self) -> None:
        self.model.check()

    def teardown(self) -> None:
        model = self.model
        model.terms = model.terms.model_copy(update={"freeze": None})
        model.spared.clear()
        model.notice = False
        assert not model.settle(until=timedelta(hours=2)), f"the bank does not come to rest: {model.settle(rounds=4)}"
        model.check()
        check_rest(model)
        assert all(after in MOVES[before] for before, after in model.moves)
        check_told(model)


class CrowdedBank(Bank):
    """The same with own work that makes room for more important own work of its group, where its policy says so.

    Policies say so and take it back at any time; some of the work serves.
    """

    @rule(
        group=groups,
        pods=sizes,
        priority=st.integers(0, 3),
        contract=st.sampled_from([HOOKED, RETRYABLE, SERVING, WorkloadContract()]),
    )
    def submit_own(self, group: str, pods: int, priority: int, contract: WorkloadContract) -> None:
        self.count += 1
        self.model.submit(f"job-{self.count}", group, Side.OWN, pods, priority=priority, contract=contract)

    @rule(group=groups, less=sizes, more=sizes, rounds=st.integers(0, 4), ends=st.booleans(), notice=st.booleans())
    def crowd(self, group: str, less: int, more: int, rounds: int, ends: bool, notice: bool) -> None:
        self.submit_own(group, less, 0, HOOKED)
        self.rounds()
        self.model.notice = notice
        self.submit_own(group, more, 3, HOOKED)
        for _ in range(rounds):
            self.rounds()
        if ends:
            self.model.finish(f"job-{self.count}")
            self.rounds()

    @rule(runs=st.booleans())
    def notice(self, runs: bool) -> None:
        self.model.notice = runs

    @rule(group=groups, within=st.sampled_from(WithinGroup))
    def edit_within(self, group: str, within: WithinGroup) -> None:
        terms = self.model.terms
        edited = [t.model_copy(update={"within_group": within}) if t.group == group else t for t in terms.groups]
        self.model.terms = terms.model_copy(update={"groups": tuple(edited)})

    @initialize(
        guarantees=st.tuples(*[st.integers(4, 8)] * 3),
        lending=st.tuples(*[st.integers(0, 8)] * 3),
        resume=st.integers(0, 20),
    )
    def found(self, guarantees: tuple[int, ...], lending: tuple[int, ...], resume: int) -> None:
        super().found(guarantees, lending, resume)
        for group in GROUPS:
            self.edit_within(group, WithinGroup.LOWER_PRIORITY)


class ShapedBank(Bank):
    """The same with pods of several sizes, where not everything that fits a quota fits a node.

    Who waits then depends on luck; that nothing is lent twice, and that nobody runs without lines, does not.
    """

    @rule(
        group=groups,
        side=st.sampled_from(Side),
        shape=st.sampled_from([(1, 1), (1, 2), (2, 2), (1, 4), (3, 4), (1, 8), (2, 8)]),
        priority=st.integers(0, 1),
    )
    def submit(self, group: str, side: Side, shape: tuple[int, int], priority: int) -> None:
        self.count += 1
        self.model.submit(f"job-{self.count}", group, side, *shape, priority=priority)

    def teardown(self) -> None:
        self.model.settle(until=timedelta(minutes=20))
        self.model.check()
        assert all(after in MOVES[before] for before, after in self.model.moves)
        if not self.model.terms.frozen(self.model.now):
            check_backed(self.model)


def check_told(model: Model) -> None:
    """Whoever is parked and deleted then is told of, and whoever is there is not."""
    parked = {each.key.uid for each in model.last.parked.there}
    assert parked <= model.jobs.keys() - model.told
    for uid in sorted(parked):
        model.finish(uid, deleted=True)
    assert not parked or not model.settle()
    assert parked <= model.told


def check_backed(model: Model) -> None:
    """Every running borrow job has its lines."""
    for job in model.jobs.values():
        if job.kind is Side.BORROW and job.reserved and job.active:
            assert sum(line.gpus for line in model.books.lines_of(job.uid)) == job.gpus


def makes_room(job: Job, terms: GroupTerms) -> bool:
    """Whether own work may be stopped for more important work of its group."""
    allowed = job.contract.reclaim_class.preempt_class in terms.only_preempt
    return allowed and terms.within_group is WithinGroup.LOWER_PRIORITY


def check_rest(model: Model) -> None:
    """Nothing is under way, everybody who is owed something has it, and every running borrow job has its lines."""
    books = model.books
    gang = {line.workload.uid for line in books.lines if line.state is LineState.OFFERED}
    assert len(gang) <= 1, "one gathers, everybody else has been decided about"
    assert {line.state for line in books.lines} <= {LineState.GRANTED, LineState.OFFERED}
    assert not any(g.releasing for g in books.guarantees)
    assert not books.demands, books.demands
    for terms in model.terms.groups:
        group = terms.group
        own = model.reserved(group, Side.OWN)
        in_force = books.guarantee(group).in_force
        assert books.lent_to_others(group) <= terms.lending_limit
        assert books.lent(group) + own <= in_force
        assert in_force == max(terms.guaranteed, own)
        assert model.queues[group, Side.OWN].nominal == in_force - books.lent(group)
        assert model.queues[group, Side.BORROW].nominal == model.reserved(group, Side.BORROW)
        left = min(in_force, terms.guaranteed) - own
        jobs = [j for j in model.jobs.values() if (j.group, j.kind) == (group, Side.OWN) and not j.finished]
        for job in jobs:
            less = [j.gpus for j in jobs if j.reserved and j.priority < job.priority and makes_room(j, terms)]
            room = left + (sum(less) if job.active else 0)
            assert job.reserved or job.gpus > room, "an owner waits"
    check_backed(model)
    assert all(model.jobs[x.workload.uid].reserved for x in books.lines if x.state is LineState.GRANTED)


quick = settings(max_examples=120, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))
Bank.TestCase.settings = quick
ShapedBank.TestCase.settings = settings(quick, max_examples=60)
TestAnySequence = Bank.TestCase
CrowdedBank.TestCase.settings = quick
TestAnySequenceWithinGroups = CrowdedBank.TestCase
TestAnySequenceOfShapes = ShapedBank.TestCase
