"""Settling the books by what ran while the scheduler was in charge, and the queues' way back: any sequence."""

from datetime import datetime, timedelta

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpubank.decide.compile import nominals, writes
from gpubank.decide.settle import return_writes
from gpubank.decide.step import step
from gpubank.domain.books import Books
from gpubank.domain.contract import Side
from gpubank.domain.facts import PoolFacts
from gpubank.domain.loan import SURPLUS, Line, LineState
from gpubank.domain.transaction import Transaction
from tests.unit.decide.model import Model
from tests.unit.decide.parts import Job, group_terms, pool_terms

OWN, BORROW = Side.OWN, Side.BORROW
CAPACITY = 24
GROUPS = {"a": 8, "b": 8, "c": 4}


class Scheduler:
    """Borrows and takes back by itself, as the fail-safe has it do, and the books that are settled by what it did."""

    def __init__(self, draw: st.DataObject) -> None:
        limits = {name: draw.draw(st.integers(0, 12), label=f"limit of {name}") for name in GROUPS}
        lending = {name: draw.draw(st.integers(0, gpus), label=f"lending of {name}") for name, gpus in GROUPS.items()}
        groups = [
            group_terms(name, gpus, borrow_limit=limits[name], lending_limit=lending[name])
            for name, gpus in GROUPS.items()
        ]
        self.model = Model(pool_terms(*groups, capacity=CAPACITY), {"n1": 12, "n2": 12})
        self.draw = draw
        self.began: datetime | None = None
        self.returned: set[tuple[str, Side]] = set()
        """Queues that have left the Cohort."""

        self.epoch = 0
        self.rows: dict[str, Line] = {}

    def live(self) -> None:
        """Let the bank lend and recall for a while, and die in the middle of something."""
        model = self.model
        model.settle()  # guarantees are in force
        for number in range(self.draw.draw(st.integers(1, 6), label="jobs")):
            side = self.draw.draw(st.sampled_from([OWN, BORROW]))
            group = self.draw.draw(st.sampled_from(sorted(GROUPS)))
            model.submit(f"j{number}", group, side, self.draw.draw(st.integers(1, 8)))
            for _ in range(self.draw.draw(st.integers(0, 4), label="rounds")):
                model.round()
                model.now += timedelta(milliseconds=300)
        model.step(crash_after=self.draw.draw(st.integers(0, 3)))
        model.write(crash_after=self.draw.draw(st.integers(0, 2)))
        self.rows = {line.line_id: line for line in model.books.lines}

    def dead(self) -> None:
        """Let the scheduler be in charge, and much happen."""
        self.epoch, self.began = 1, self.model.now
        for _ in range(self.draw.draw(st.integers(0, 8), label="things that happen")):
            self.model.now += timedelta(seconds=self.draw.draw(st.integers(1, 900)))
            self._happens()
        for job in self.model.jobs.values():
            job.nodes = job.nodes if job.reserved else []  # pods that were ending have ended

    def _happens(self) -> None:
        model = self.model
        uid = self.draw.draw(st.sampled_from(sorted(model.jobs)))
        job = model.jobs[uid]
        what = self.draw.draw(st.sampled_from(["finish", "delete", "preempt", "admit"]))
        if what == "finish" and job.reserved:
            model.finish(uid)
            job.waiting_since = model.now
        elif what == "delete" and len(model.jobs) > 1:
            model.finish(uid, deleted=True)
        elif what == "preempt" and job.reserved and job.kind is BORROW:
            self._preempt(job)
        elif what == "admit" and job.active and not job.reserved and not job.finished:
            self._admit(job)

    def _preempt(self, job: Job) -> None:
        job.reserved, job.admitted_at, job.nodes, job.waiting_since = False, None, [], self.model.now

    def _admit(self, job: Job) -> None:
        """Admit within the Cohort; an owner within its guarantee takes back from borrowers, whoever lent to them."""
        model = self.model
        if job.kind is OWN and model.reserved(job.group, OWN) + job.gpus > GROUPS[job.group]:
            return
        borrowers = [j for j in model.jobs.values() if j.kind is BORROW and j.reserved]
        while self._free() < job.gpus and job.kind is OWN and borrowers:
            self._preempt(borrowers.pop())
        if self._free() >= job.gpus:
            job.reserved, job.admitted_at = True, model.now

    def _free(self) -> int:
        return CAPACITY - sum(job.gpus for job in self.model.jobs.values() if job.reserved)

    def facts(self) -> PoolFacts:
        facts = self.model.facts()
        queues = tuple(q.model_copy(update={"fail_safe": (q.group, q.kind) not in self.returned}) for q in facts.queues)
        return facts.model_copy(update={"queues": queues, "fail_safe_epoch": self.epoch, "fail_safe_since": self.began})

    def commit(self, transaction: Transaction) -> None:
        applied = self.model.books.applied(transaction)
        self.model.books = applied.books
        self.rows |= {line.line_id: line for line in applied.lines}

    def settle(self) -> None:
        """Settle until nothing is left, dying in between."""
        for _ in range(200):
            found = step(self.facts(), self.model.books, self.model.terms, self.model.now).transactions
            if not found:
                return
            for transaction in found[: self.draw.draw(st.integers(1, len(found)), label="commits before it dies")]:
                self.commit(transaction)
        raise AssertionError("it never comes to an end")

    # ---- what must hold

    def check(self) -> None:
        model, books = self.model, self.model.books
        for job in model.jobs.values():
            if job.kind is BORROW:
                lines = books.lines_of(job.uid)
                running = sum(x.gpus for x in lines if x.state in (LineState.GRANTED, LineState.RECALLED))
                assert running == (job.gpus if job.reserved else 0), f"{job.uid}: {lines}"
        gone = {line.workload.uid for line in books.lines} - model.jobs.keys()
        assert not gone, "what is gone has no lines"
        assert not [line for line in books.lines if line.state in (LineState.OFFERED, LineState.CLOSING)]

    def check_times(self, kept: set[str]) -> None:
        """No lender is credited for more than it has at any moment, by what was settled; as for a demand of its own,
        what its own work took while it lent is for the bank to cure."""
        for lender in (*GROUPS, SURPLUS):
            has = GROUPS.get(lender, CAPACITY - sum(GROUPS.values()))
            lines = [x for x in self.rows.values() if x.lender == lender and x.granted_at is not None]
            for line in (x for x in lines if x.line_id not in kept):
                at = line.granted_at
                assert at is not None
                lent = sum(
                    x.gpus
                    for x in lines
                    if x.granted_at is not None and x.granted_at <= at and (x.ended_at is None or x.ended_at > at)
                )
                assert lent <= has, f"{lender} is billed for {lent} of {has} GPUs at {at}"
        for line in self.rows.values():
            if line.ended_at is not None and line.granted_at is not None:
                assert line.granted_at <= line.ended_at <= self.model.now


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None, max_examples=60)
@given(st.data())
def test_whatever_the_scheduler_did_the_books_say_what_runs_and_nothing_is_billed_twice(data: st.DataObject) -> None:
    scheduler = Scheduler(data)
    scheduler.live()
    kept = set(scheduler.rows)
    scheduler.dead()
    scheduler.settle()
    scheduler.check()
    scheduler.check_times(kept)


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None, max_examples=60)
@given(st.data())
def test_queues_come_back_lowered_first_and_never_promise_more_than_the_pool_has(data: st.DataObject) -> None:
    scheduler = Scheduler(data)
    scheduler.live()
    scheduler.dead()
    model = scheduler.model
    for name, gpus in GROUPS.items():  # as the watchdog has left them
        model.queues[name, OWN].nominal, model.queues[name, BORROW].nominal = gpus, 0
    assert return_writes(model.books, scheduler.facts()) == (), "not while the epoch stands"
    assert writes(model.books, scheduler.facts()) == ()
    scheduler.epoch = 0
    for _ in range(data.draw(st.integers(0, 12), label="runs that die")):
        if not scheduler.facts().in_fail_safe:
            break
        scheduler.settle()
        found = return_writes(model.books, scheduler.facts())
        for write in found[: data.draw(st.integers(0, len(found)), label="writes before it dies")]:
            if write.kind is BORROW:
                assert all((name, OWN) in scheduler.returned for name in GROUPS), "own queues first"
            queue = model.queues[write.group, write.kind]
            queue.nominal, queue.stamp = write.nominal, write.revision
            scheduler.returned.add((write.group, write.kind))
            if any(kind is BORROW for _, kind in scheduler.returned):
                assert sum(queue.nominal for queue in model.queues.values()) <= CAPACITY
        if data.draw(st.booleans(), label="a borrower is admitted before its queue is out"):
            _slip_in(scheduler)
        if data.draw(st.booleans(), label="fences pass") or not found:
            model.fence()
    for _ in range(5):  # one that lives
        model.fence()
        if not scheduler.facts().in_fail_safe:
            break  # the bank decides as ever
        scheduler.settle()
        for write in return_writes(model.books, scheduler.facts()):
            model.queues[write.group, write.kind].nominal = write.nominal
            model.queues[write.group, write.kind].stamp = write.revision
            scheduler.returned.add((write.group, write.kind))
    assert not scheduler.facts().in_fail_safe
    assert {key: queue.nominal for key, queue in model.queues.items()} == _wanted(model.books)
    scheduler.check()


def _wanted(books: Books) -> dict[tuple[str, Side], int]:
    quotas = nominals(books)
    return {(name, side): quotas.get((name, side), 0) for name in GROUPS for side in Side}


def _slip_in(scheduler: Scheduler) -> None:
    """Let a borrow job be admitted while its queue and some lender's are still in the Cohort."""
    model = scheduler.model
    inside = [g for g in GROUPS if (g, OWN) not in scheduler.returned]
    for job in model.jobs.values():
        waits = job.kind is BORROW and job.active and not job.reserved and not job.finished
        if waits and (job.group, BORROW) not in scheduler.returned and inside:
            scheduler._admit(job)
            return
