"""Parked work that is deleted or finishes: its Loan is told, once it is sure."""

from datetime import timedelta

import pytest

from gpubank.decide.parked import MISSING_FOR, NOBODY, TOLD_FOR
from gpubank.decide.step import LoanSignal, SignalKind, step
from gpubank.domain.contract import Side
from gpubank.domain.facts import Mark
from tests.unit.decide.crowd import taken
from tests.unit.decide.model import Model
from tests.unit.decide.parts import Job, group_terms, pool_terms

MOMENT = timedelta(milliseconds=1)


@pytest.fixture
def model() -> Model:
    """A pool whose guarantees are in use, so that whoever is parked stays so."""
    model = Model(pool_terms(group_terms("a", 8), group_terms("b", 8), capacity=16), {"n0": 8, "n1": 8})
    model.settle()
    for group in "ab":
        model.submit(f"busy-{group}", group, Side.OWN, 8)
    model.settle()
    return model


def park(model: Model, side: Side, *, term: int = 1) -> Job:
    job = model.submit("x", "a", side, 8)
    job.active, job.mark = False, Mark(loan="loan/x", term=term, step="stop")
    model.step()
    assert [each.key.uid for each in model.last.parked.there] == ["x"]
    return job


def told(model: Model) -> list[LoanSignal]:
    return [signal for signal in model.step().signals if signal.workload.uid == "x"]


@pytest.mark.parametrize("side", Side)
def test_a_parked_workload_that_is_gone_has_ended(model: Model, side: Side) -> None:
    park(model, side, term=3)
    model.finish("x", deleted=True)
    assert told(model) == []
    assert model.last.wake_at == model.now + MISSING_FOR
    model.now += MISSING_FOR - MOMENT
    assert told(model) == []
    model.now += MOMENT
    (signal,) = told(model)
    assert (signal.kind, signal.borrower, signal.own) == (SignalKind.ENDED, "a", side is Side.OWN)
    assert (signal.term, signal.lenders) == (4, ()), "without lenders it starts no Loan"
    model.now += MISSING_FOR
    assert told(model) == [signal], "a signal is the same as long as nothing changes"


def test_it_is_told_for_a_while_and_then_forgotten(model: Model) -> None:
    park(model, Side.BORROW)
    model.finish("x", deleted=True)
    model.step()
    model.now += TOLD_FOR - MOMENT
    assert len(told(model)) == 1
    model.now += MOMENT
    assert len(told(model)) == 1
    assert model.last.parked == NOBODY
    assert told(model) == []


def test_it_is_told_at_least_once_however_long_the_bank_has_not_looked(model: Model) -> None:
    park(model, Side.BORROW)
    model.finish("x", deleted=True)
    model.step()
    model.now += timedelta(hours=1)
    assert len(told(model)) == 1
    assert told(model) == []


def test_one_that_nobody_saw_for_a_moment_has_not_ended(model: Model) -> None:
    job = park(model, Side.BORROW)
    del model.jobs["x"]
    assert told(model) == []
    model.jobs["x"] = job
    model.now += MISSING_FOR
    assert told(model) == []
    assert model.last.parked.missing == ()
    del model.jobs["x"]
    assert told(model) == [], "it is missed from now on"


@pytest.mark.parametrize("side", Side)
def test_a_parked_workload_that_finishes_has_ended(model: Model, side: Side) -> None:
    park(model, side)
    model.finish("x")
    assert [signal.kind for signal in told(model)] == [SignalKind.ENDED]


def test_own_work_that_was_resumed_before_it_finished_has_no_loan_to_be_told(model: Model) -> None:
    job = park(model, Side.OWN)
    job.active, job.mark = True, Mark(loan="loan/x", term=2, step="resume")
    model.finish("x")
    assert told(model) == []
    model.finish("x", deleted=True)
    model.step()
    model.now += MISSING_FOR
    assert told(model) == []


def test_one_whose_offer_is_withdrawn_because_it_is_gone_is_told_of_like_any_other(model: Model) -> None:
    park(model, Side.BORROW)
    model.finish("busy-b")
    model.step()
    assert [line.workload.uid for line in model.books.lines] == ["x"]
    model.finish("x", deleted=True)
    assert told(model) == []
    assert not model.books.lines
    model.now += MISSING_FOR
    assert len(told(model)) == 1


def test_one_that_is_still_being_stopped_is_told_of_by_its_lines_alone() -> None:
    model = taken()
    model.step()
    assert [each.key.uid for each in model.last.parked.there] == ["low"]
    model.finish("low", deleted=True)
    model.step()
    assert [(signal.workload.uid, signal.lenders) for signal in model.last.signals] == [("low", ("a",))]
    assert model.last.parked == NOBODY


def test_under_the_fail_safe_it_is_told_all_the_same(model: Model) -> None:
    park(model, Side.BORROW)
    model.finish("x", deleted=True)
    before, now = model.last.parked, model.now
    for _ in range(2):
        facts = model.facts().model_copy(update={"fail_safe_epoch": 1})
        said = step(facts, model.books, model.terms, now, before=before)
        before, now = said.parked, now + MISSING_FOR
    assert [(signal.workload.uid, signal.kind) for signal in said.signals] == [("x", SignalKind.ENDED)]
