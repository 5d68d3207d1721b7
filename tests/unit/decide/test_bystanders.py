"""Bystanders and policies, at every step of a recall; and what the quotas say."""

from datetime import timedelta

import pytest

from gpubank.decide.compile import nominals, revisions, writes
from gpubank.domain.facts import Mark
from gpubank.domain.loan import LineState
from tests.unit.decide.lent import BORROW, OWN, edit, lent_out
from tests.unit.decide.parts import group_terms


@pytest.mark.parametrize("at", range(14))
def test_others_may_do_what_they_like_at_every_step_of_a_recall(at: int) -> None:
    groups = (group_terms("a", 4), group_terms("b", 12), group_terms("c", 8))
    model = lent_out(*groups, capacity=24, gpus=24)
    model.submit("own", "b", OWN, 12)
    model.now += timedelta(seconds=1)
    for i in range(60):
        if i == at:
            model.submit("bystander", "c", OWN, 8)
            model.submit("greedy", "b", BORROW, 4)
            model.submit("more", "a", BORROW, 4)
            model.submit("later", "b", OWN, 4)
        if not (model.step().transactions or model.write() or model.admit() or model.work() or model.evict()):
            model.fence()
            model.place()
            model.now += timedelta(milliseconds=100)
        model.check()
        if model.jobs["own"].reserved:
            assert not any(model.jobs[uid].reserved for uid in ("greedy", "later") if uid in model.jobs)
    model.settle()
    assert model.jobs["own"].reserved
    assert model.jobs["bystander"].reserved
    assert not model.jobs["later"].reserved, "it is above the guarantee"


@pytest.mark.parametrize("at", range(0, 14, 2))
def test_a_policy_edited_in_the_middle_of_a_recall_ends_with_the_right_quotas(at: int) -> None:
    model = lent_out(group_terms("a", 4), group_terms("b", 12), capacity=16, gpus=16)
    model.submit("own", "b", OWN, 12)
    model.now += timedelta(seconds=1)
    for i in range(40):
        if i == at:
            edit(model, "b", guaranteed=8, lending_limit=4)
            edit(model, "a", guaranteed=8, lending_limit=8)
        if not (model.step().transactions or model.write() or model.admit() or model.work() or model.evict()):
            model.fence()
            model.now += timedelta(milliseconds=100)
        model.check()
    model.settle()
    own = model.reserved("b", OWN)
    assert model.books.guarantee("b").in_force == max(8, own)
    assert model.books.guarantee("a").in_force == min(8, 16 - max(8, own))
    assert {key: queue.nominal for key, queue in model.queues.items()} == nominals(model.books)


def test_two_lenders_of_one_victim_both_get_their_gpus_back() -> None:
    model = lent_out(group_terms("a", 0), group_terms("b", 8), group_terms("c", 8), capacity=16, gpus=16)
    model.submit("own", "b", OWN, 8)
    model.submit("other", "c", OWN, 8)
    model.settle()
    assert model.jobs["own"].reserved
    assert model.jobs["other"].reserved
    assert not model.jobs["x"].active
    model.finish("own")
    model.finish("other")
    model.settle()
    assert model.jobs["x"].reserved
    assert {line.term for line in model.books.lines} == {2}


def test_a_victim_that_refuses_runs_on_and_another_is_taken() -> None:
    model = lent_out(gpus=8)
    model.submit("y", "a", BORROW, 8)
    model.settle()
    model.submit("own", "b", OWN, 8)
    model.now += timedelta(seconds=1)
    while not (recalled := [x for x in model.books.lines if x.state is LineState.RECALLED]):
        model.step()
        model.write()
        model.work()
    first = recalled[0].workload.uid
    assert model.protect(first)
    model.settle()
    assert model.jobs["own"].reserved
    assert model.jobs[first].reserved


def test_a_recall_nobody_needs_any_more_stops_nobody() -> None:
    model = lent_out()
    model.submit("own", "b", OWN, 16)
    model.now += timedelta(seconds=1)
    while not any(x.state is LineState.RECALLED for x in model.books.lines):
        model.step()
        model.write()
        model.work()
    model.finish("own", deleted=True)
    model.settle()
    assert model.jobs["x"].active
    assert [line.state for line in model.books.lines] == [LineState.GRANTED]


def test_quotas_are_lowered_before_any_is_raised_and_bear_the_books_revision() -> None:
    model = lent_out()
    model.queues["a", BORROW].nominal, model.queues["b", OWN].nominal = 7, 9
    asked = writes(model.books, model.facts())
    assert [(w.group, w.kind, w.nominal) for w in asked] == [("b", OWN, 0), ("a", BORROW, 16)]
    assert {w.revision for w in asked} == {model.books.revision}


def test_a_queue_is_stamped_anew_when_a_row_that_concerns_it_is_newer() -> None:
    model = lent_out()
    assert writes(model.books, model.facts()) == ()
    model.queues["b", OWN].stamp = 0
    model.queues["a", OWN].stamp = revisions(model.books).get(("a", OWN), 0)
    assert [(w.group, w.kind) for w in writes(model.books, model.facts())] == [("b", OWN)]


def test_drift_is_repaired_and_a_higher_stamp_is_left_alone() -> None:
    model = lent_out()
    model.queues["b", OWN].nominal = 5
    assert [(w.group, w.kind, w.nominal) for w in writes(model.books, model.facts())] == [("b", OWN, 0)]
    model.queues["b", OWN].stamp = model.books.revision + 1
    assert writes(model.books, model.facts()) == ()


def test_a_queue_that_the_books_do_not_know_gets_nothing() -> None:
    model = lent_out()
    facts = model.facts()
    stranger = facts.queues[0].model_copy(update={"group": "z", "nominal": 3, "stamp": -1})
    asked = writes(model.books, facts.model_copy(update={"queues": (*facts.queues, stranger)}))
    assert [(w.group, w.nominal) for w in asked] == [("z", 0)]


def test_only_a_job_that_the_bank_stopped_is_brought_back() -> None:
    model = lent_out()
    job = model.jobs["x"]
    job.active = False
    model.evict()
    model.evict()
    model.settle()
    assert not model.books.lines
    assert not job.reserved
    job.mark = Mark(loan="loan/x", term=1, step="stop")
    model.settle()
    assert job.reserved
