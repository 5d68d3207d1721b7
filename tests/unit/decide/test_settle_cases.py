"""Settling the books, case by case: what becomes of everything that was in motion when the bank died."""

from datetime import timedelta

import pytest

from gpubank.decide.demand import TRY_AGAIN
from gpubank.decide.settle import return_writes
from gpubank.decide.step import Step, step
from gpubank.domain.contract import Side
from gpubank.domain.demand import DemandKind, DemandState
from gpubank.domain.facts import PoolFacts
from gpubank.domain.loan import SURPLUS, LineState
from gpubank.domain.pool import Freeze
from gpubank.domain.transaction import CapacityChange, DemandChange, GuaranteeChange, Move, Pledge, Split, Transaction
from tests.unit.decide.model import Model
from tests.unit.decide.parts import CLUSTER, POOL, group_terms, pool_terms

OWN, BORROW = Side.OWN, Side.BORROW
MINUTE = timedelta(minutes=1)


@pytest.fixture
def model() -> Model:
    """8 GPUs each for a and b, of which b lends 8 to x of a; 4 that nobody is guaranteed."""
    model = Model(pool_terms(group_terms("a", 8), group_terms("b", 8), capacity=20), {"n1": 20})
    model.submit("own", "a", OWN, 8)
    model.settle()
    model.submit("y", "a", BORROW, 4)
    model.settle()
    model.submit("x", "a", BORROW, 8)
    model.settle()
    assert [(line.workload.uid, line.lender) for line in model.books.lines] == [("y", SURPLUS), ("x", "b")]
    return model


def facts(model: Model, *, epoch: int = 1) -> PoolFacts:
    found = model.facts()
    queues = tuple(queue.model_copy(update={"fail_safe": True}) for queue in found.queues)
    return found.model_copy(update={"queues": queues, "fail_safe_epoch": epoch, "fail_safe_since": model.now - MINUTE})


def settled(model: Model, *, epoch: int = 1) -> Step:
    """Settle once, and return what was decided; twice would change nothing."""
    decided = step(facts(model, epoch=epoch), model.books, model.terms, model.now)
    for transaction in decided.transactions:
        model.commit(transaction)
    return decided


def changed(model: Model, **rows: object) -> None:
    head = {"key": f"test/{model.books.revision}", "cluster": CLUSTER, "pool": POOL, "at": model.now, "actor": "test"}
    model.commit(Transaction.model_validate({**head, **rows}))


def test_where_the_books_are_true_nothing_is_decided(model: Model) -> None:
    assert settled(model).transactions == ()


def test_a_guarantee_that_was_being_given_up_is_kept_for_the_time_being(model: Model) -> None:
    row = model.books.guarantee("a")
    model.finish("own")
    changed(model, guarantees=(GuaranteeChange(group="a", version=row.version, in_force=8, releasing=3),))
    settled(model)
    assert (model.books.guarantee("a").in_force, model.books.guarantee("a").releasing) == (8, 0)


def waiting(model: Model) -> str:
    """Have own work of b wait, and return its demand."""
    model.submit("want", "b", OWN, 8)
    model.step()
    model.now += timedelta(seconds=1)
    model.step()
    (demand,) = model.books.demands
    return demand.demand_id


def test_nothing_is_kept_free_for_whoever_waits_and_its_reclaim_hears_of_it(model: Model) -> None:
    name = waiting(model)
    demand = model.books.demand(name)
    (line,) = model.books.lines_of("x")
    assert demand is not None
    model.finish("x")
    moves = [
        Move(line_id=line.line_id, version=line.version, from_state=before, to_state=after, demand=name)
        for before, after in ((LineState.GRANTED, LineState.CLOSING), (LineState.CLOSING, LineState.RETURNED))
    ]
    changed(model, moves=tuple(moves))
    kept = model.books.demand(name)
    assert kept is not None
    assert kept.idle == 8
    decided = settled(model)
    after = model.books.demand(name)
    assert after is not None
    assert (after.state, after.idle) == (DemandState.OPEN, 0)
    assert [needs.lender for needs in decided.needs] == ["b"]


def test_a_demand_that_ended_partial_is_opened_when_its_restart_is_due_so_that_the_heart_beats(model: Model) -> None:
    name = waiting(model)
    demand = model.books.demand(name)
    assert demand is not None
    changed(model, demands=(DemandChange(demand_id=name, version=demand.version, state=DemandState.PARTIAL),))
    assert settled(model).transactions == ()
    model.now += TRY_AGAIN
    settled(model)
    again = model.books.demand(name)
    assert again is not None
    assert again.state is DemandState.OPEN


def test_a_demand_whose_work_was_admitted_is_over(model: Model) -> None:
    waiting(model)
    model.jobs["want"].reserved, model.jobs["want"].admitted_at = True, model.now
    settled(model)
    assert model.books.demands == ()


def close(model: Model, line_id: str) -> None:
    line = model.books.line(line_id)
    assert line is not None
    move = Move(line_id=line_id, version=line.version, from_state=LineState.GRANTED, to_state=LineState.CLOSING)
    changed(model, moves=(move,))


def test_a_closing_line_whose_job_runs_is_granted_again(model: Model) -> None:
    (line,) = model.books.lines_of("x")
    changed(model, splits=(Split(line_id=line.line_id, version=line.version, gpus=3),))
    for part in model.books.lines_of("x"):
        assert part.state is LineState.GRANTED
    name = model.books.lines_of("x")[-1].line_id
    close(model, name)
    settled(model)
    assert {part.state for part in model.books.lines_of("x")} == {LineState.GRANTED}


def test_a_closing_line_of_a_job_that_has_all_it_needs_is_returned(model: Model) -> None:
    (line,) = model.books.lines_of("x")
    changed(model, splits=(Split(line_id=line.line_id, version=line.version, gpus=3),))
    name = next(x.line_id for x in model.books.lines_of("x") if x.gpus == 3)
    close(model, name)
    model.jobs["x"].pods = 5
    settled(model)
    assert model.books.line(name) is None
    assert sum(line.gpus for line in model.books.lines_of("x")) == 5
    assert settled(model).transactions == ()


def test_a_closing_line_of_which_its_job_needs_a_part_is_granted_whole(model: Model) -> None:
    (line,) = model.books.lines_of("x")
    name = line.line_id
    close(model, name)
    model.jobs["x"].pods = 5
    settled(model)
    assert [(line.line_id, line.state) for line in model.books.lines_of("x")] == [(name, LineState.GRANTED)]


def test_a_job_whose_pods_are_still_ending_keeps_its_lines_but_not_for_ever(model: Model) -> None:
    job = model.jobs["x"]
    job.reserved, job.admitted_at, job.waiting_since = False, None, model.now
    decided = settled(model)
    assert len(model.books.lines_of("x")) == 1
    assert decided.wake_at == model.now + model.terms.max_termination
    stopped = model.now
    model.now += model.terms.max_termination
    settled(model)
    assert model.books.lines_of("x") == ()
    assert model.moves[-1] == (LineState.GRANTED, LineState.RETURNED)
    assert stopped < model.now


def test_who_came_before_there_was_quota_for_it_is_billed_from_when_there_was(model: Model) -> None:
    came, left = model.now + MINUTE, model.now + 2 * MINUTE
    model.now += 3 * MINUTE
    next_job = model.submit("next", "b", BORROW, 8)
    next_job.reserved, next_job.admitted_at = True, came
    model.finish("x")
    model.jobs["x"].waiting_since = left
    decided = settled(model)
    assert [transaction.at for transaction in decided.transactions] == [left, left]
    (line,) = model.books.lines_of("next")
    assert (line.lender, line.granted_at) == ("b", left)


def test_what_nobody_has_the_quota_for_is_left_to_the_bank(model: Model) -> None:
    job = model.submit("stray", "b", BORROW, 6)
    job.reserved, job.admitted_at = True, model.now
    settled(model)
    assert model.books.lines_of("stray") == ()


def test_lines_come_of_several_lenders_within_limits_first(model: Model) -> None:
    model.finish("y")
    model.finish("own")
    settled(model)
    model.now += MINUTE
    job = model.submit("big", "b", BORROW, 10)
    job.reserved, job.admitted_at = True, model.now
    settled(model)
    assert sorted((line.lender, line.gpus) for line in model.books.lines_of("big")) == [("a", 6), (SURPLUS, 4)]


def test_a_lender_without_terms_lends_all_the_same_if_it_has_the_quota(model: Model) -> None:
    model.finish("own")
    model.terms = pool_terms(group_terms("b", 8), capacity=20)
    job = model.submit("stray", "b", BORROW, 6)
    job.reserved, job.admitted_at = True, model.now
    settled(model)
    (line,) = model.books.lines_of("stray")
    assert (line.lender, line.reason) == ("a", "beyond a limit: it is recalled")


def test_what_is_beyond_a_borrow_limit_is_wanted_back_only_when_the_epoch_is_over(model: Model) -> None:
    model.terms = pool_terms(group_terms("a", 8, borrow_limit=4), group_terms("b", 8), capacity=20)
    assert settled(model).transactions == ()
    settled(model, epoch=0)
    (demand,) = model.books.demands
    assert (demand.kind, demand.lender, demand.gpus) == (DemandKind.RETURN, "b", 8), "the newest work"
    assert demand.workload is not None
    assert demand.workload.uid == "x"
    assert settled(model, epoch=0).transactions == (), "once"


def test_what_comes_back_for_somebody_anyway_counts_as_wanted_back(model: Model) -> None:
    name = waiting(model)
    (line,) = model.books.lines_of("x")
    changed(model, pledges=(Pledge(line_id=line.line_id, version=line.version, demand=name),))
    model.terms = pool_terms(group_terms("a", 8, borrow_limit=0), group_terms("b", 8), capacity=20)
    settled(model, epoch=0)
    assert [(d.kind, d.lender, d.gpus) for d in model.books.demands if d.demand_id != name] == [
        (DemandKind.RETURN, SURPLUS, 4)
    ]


def test_a_job_that_is_gone_is_billed_until_the_switch(model: Model) -> None:
    model.now += timedelta(hours=1)
    model.finish("x", deleted=True)
    (transaction,) = settled(model).transactions
    assert transaction.at == model.now - MINUTE
    assert model.books.lines_of("x") == ()


def test_in_a_frozen_pool_nothing_is_wanted_back(model: Model) -> None:
    model.terms = pool_terms(group_terms("a", 8, borrow_limit=0), group_terms("b", 8), capacity=20)
    model.terms = model.terms.model_copy(update={"freeze": Freeze(by="ops", reason="an incident")})
    assert settled(model, epoch=0).transactions == ()


def test_of_what_is_beyond_a_borrow_limit_only_as_much_as_that_is_wanted_back(model: Model) -> None:
    model.terms = pool_terms(group_terms("a", 8, borrow_limit=0), group_terms("b", 8), capacity=20)
    settled(model, epoch=0)
    assert sorted(demand.gpus for demand in model.books.demands) == [4, 8]


def test_a_loan_to_itself_is_beyond_no_limit(model: Model) -> None:
    for uid in ("x", "y", "own"):
        model.finish(uid)
    settled(model)
    job = model.submit("self", "a", BORROW, 8)
    job.reserved, job.admitted_at = True, model.now
    model.terms = pool_terms(group_terms("a", 8, borrow_limit=0), group_terms("b", 8), capacity=20)
    settled(model, epoch=0)
    assert [(line.lender, line.gpus) for line in model.books.lines] == [("a", 8)]
    assert model.books.demands == ()


def test_borrow_queues_wait_for_the_fence_of_the_own_queues(model: Model) -> None:
    found = facts(model, epoch=0)
    assert {write.kind for write in return_writes(model.books, found)} == {OWN}

    def out(queue_fenced: bool) -> PoolFacts:
        stamp = model.books.revision
        queues = tuple(
            queue.model_copy(
                update={
                    "fail_safe": queue.kind is BORROW,
                    "stamp": stamp,
                    "fenced": stamp if queue_fenced else stamp - 1,
                }
            )
            for queue in found.queues
        )
        return found.model_copy(update={"queues": queues})

    assert return_writes(model.books, out(queue_fenced=False)) == ()
    assert {write.kind for write in return_writes(model.books, out(queue_fenced=True))} == {BORROW}
    back = tuple(queue.model_copy(update={"fail_safe": False}) for queue in out(queue_fenced=True).queues)
    assert return_writes(model.books, found.model_copy(update={"queues": back})) == ()


def test_before_the_first_agreement_there_is_nothing_to_settle() -> None:
    model = Model(pool_terms(group_terms("a", 8), capacity=8), {"n1": 8})
    changed(model, capacity=CapacityChange(capacity=8))
    job = model.submit("stray", "a", BORROW, 4)
    job.reserved, job.admitted_at = True, model.now
    settled(model)
    assert [line.lender for line in model.books.lines] == [SURPLUS]
