"""Demands of own work: when one begins, what is kept for it, when it ends."""

from datetime import timedelta

import pytest

from gpubank.decide.compile import nominals
from gpubank.domain.demand import DemandState
from gpubank.domain.facts import Wait
from gpubank.domain.pool import Freeze
from tests.unit.decide.lent import BORROW, OWN, OWN_DEMAND, demand, edit, end, lent_out
from tests.unit.decide.model import Model
from tests.unit.decide.parts import group_terms, pool_terms


def test_a_demand_begins_half_a_second_after_its_workload_waits() -> None:
    model = lent_out(gpus=10)
    model.submit("own", "b", OWN, 12)
    model.now += timedelta(milliseconds=499)
    model.step()
    assert not model.books.demands
    assert model.last.wake_at == model.now + timedelta(milliseconds=1)
    model.now += timedelta(milliseconds=1)
    model.step()
    assert (demand(model).gpus, demand(model).idle, demand(model).pods) == (12, 6, 12)
    assert demand(model).due_at == model.now + model.terms.max_time_to_return
    assert [(n.lender, n.demand_ids) for n in model.last.needs] == [("b", (OWN_DEMAND,))]
    assert nominals(model.books)["b", OWN] == 0


def test_a_demand_begins_at_once_where_the_scheduler_has_refused_its_workload(monkeypatch: pytest.MonkeyPatch) -> None:
    model = lent_out(gpus=10)
    model.submit("own", "b", OWN, 12)
    facts = model.facts()
    workloads = tuple(w.model_copy(update={"refused": w.key.uid == "own"}) for w in facts.workloads)
    monkeypatch.setattr(model, "facts", lambda: facts.model_copy(update={"workloads": workloads}))
    model.step()
    assert (demand(model).gpus, demand(model).idle) == (12, 6)


def test_refused_work_that_fits_what_its_queue_has_free_by_now_is_no_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    model = lent_out(gpus=10)
    model.submit("own", "b", OWN, 6)
    facts = model.facts()
    workloads = tuple(w.model_copy(update={"refused": w.key.uid == "own"}) for w in facts.workloads)
    monkeypatch.setattr(model, "facts", lambda: facts.model_copy(update={"workloads": workloads}))
    model.step()
    assert not model.books.demands


def test_work_that_fits_what_its_queue_has_free_is_no_demand() -> None:
    model = lent_out(gpus=10)
    model.submit("own", "b", OWN, 6)
    model.now += timedelta(seconds=5)
    model.step()
    assert not model.books.demands


@pytest.mark.parametrize("wait", [Wait.BACKOFF, Wait.CHECK, Wait.OTHER])
def test_work_that_waits_for_something_else_is_no_demand(wait: Wait, monkeypatch: pytest.MonkeyPatch) -> None:
    model = lent_out()
    model.submit("own", "b", OWN, 8)
    model.now += timedelta(seconds=5)
    facts = model.facts()
    workloads = tuple(w.model_copy(update={"wait": wait}) if w.key.uid == "own" else w for w in facts.workloads)
    monkeypatch.setattr(model, "facts", lambda: facts.model_copy(update={"workloads": workloads}))
    model.step()
    assert not model.books.demands


def test_demands_are_taken_in_the_schedulers_order_within_the_guarantee() -> None:
    model = lent_out()
    model.submit("big", "b", OWN, 12, priority=1)
    model.submit("over", "b", OWN, 5)
    model.submit("small", "b", OWN, 4)
    model.now += timedelta(seconds=1)
    model.step()
    assert {d.workload.uid for d in model.books.demands if d.workload} == {"big", "small"}
    assert [note.reason for note in model.last.waiting] == ["Recalling", "AboveGuarantee", "Recalling"]


def test_freed_quota_goes_to_the_gang_before_smaller_jobs_of_the_same_owner() -> None:
    model = lent_out(gpus=12)
    model.submit("before", "b", OWN, 4)
    model.settle()
    model.submit("own", "b", OWN, 12)
    model.now += timedelta(seconds=1)
    model.step()
    model.write()
    model.finish("before")
    model.submit("later", "b", OWN, 4)
    model.step()
    assert demand(model).idle == 4
    model.write()
    model.admit()
    assert not model.jobs["later"].reserved


@pytest.mark.parametrize("how", ["deleted", "finished", "switched off", "admitted"])
def test_a_demand_ends_when_nobody_waits_any_more(how: str) -> None:
    model = lent_out()
    model.submit("own", "b", OWN, 8)
    model.now += timedelta(seconds=1)
    model.step()
    assert demand(model).is_open
    job = model.jobs["own"]
    if how == "switched off":
        job.active = False
    elif how == "admitted":
        job.reserved, job.admitted_at = True, model.now
    else:
        model.finish("own", deleted=how == "deleted")
    model.step()
    assert model.books.demand(OWN_DEMAND) is None
    assert not [need for need in model.last.needs if OWN_DEMAND in need.demand_ids]


def test_a_demand_that_the_guarantee_has_no_room_for_any_more_ends() -> None:
    model = lent_out()
    model.submit("own", "b", OWN, 12)
    model.now += timedelta(seconds=1)
    model.step()
    edit(model, "b", guaranteed=8, lending_limit=8)
    model.step()
    assert model.books.demand(OWN_DEMAND) is None


def test_a_raised_demand_whose_room_was_taken_opens_again_behind_the_fence() -> None:
    model = lent_out()
    model.submit("own", "b", OWN, 12)
    model.now += timedelta(seconds=1)
    while not any(d.state is DemandState.RAISED for d in model.books.demands):
        model.step()
        model.write()
        model.fence()
        model.work()
        model.evict()
    model.submit("thief", "b", OWN, 8, priority=9)
    model.write()
    model.admit()
    assert model.jobs["thief"].reserved
    model.step()
    assert demand(model).state is DemandState.RAISED, "not before the raise is fenced"
    model.fence()
    model.step()
    assert demand(model).state is DemandState.OPEN
    model.step()
    assert model.books.demand(OWN_DEMAND) is None, "the guarantee has no room for it any more"
    model.finish("thief")
    model.settle()
    assert model.jobs["own"].reserved


def test_a_partial_demand_is_tried_again_after_five_minutes() -> None:
    model = lent_out()
    model.submit("own", "b", OWN, 16)
    model.now += timedelta(seconds=1)
    model.step()
    end(model, DemandState.PARTIAL)
    model.now += timedelta(minutes=5) - timedelta(seconds=1)
    model.step()
    assert demand(model).state is DemandState.PARTIAL
    assert not model.last.needs
    assert [note.reason for note in model.last.waiting] == ["RecallIncomplete"]
    model.now += timedelta(seconds=1)
    model.step()
    assert demand(model).state is DemandState.OPEN


def test_a_partial_demand_is_tried_at_once_when_nobody_needs_to_be_stopped_for_it() -> None:
    model = Model(pool_terms(group_terms("a", 0), group_terms("b", 16), group_terms("c", 8), capacity=24),
                  {f"n{i}": 8 for i in range(3)})  # fmt: skip
    model.settle()
    model.submit("busy", "c", OWN, 8)
    model.settle()
    model.submit("x", "a", BORROW, 8)
    model.settle()
    model.submit("own", "b", OWN, 16)
    model.now += timedelta(seconds=1)
    model.step()
    end(model, DemandState.PARTIAL)
    model.step()
    assert demand(model).state is DemandState.PARTIAL
    model.finish("busy")
    model.step()
    assert demand(model).state is DemandState.OPEN
    model.settle()
    assert model.jobs["own"].reserved
    assert model.jobs["x"].reserved, "c took the loan over"


def test_a_frozen_pool_opens_no_demand_and_tells_the_owner_why() -> None:
    model = lent_out()
    model.terms = model.terms.model_copy(update={"freeze": Freeze(by="ops", reason="upgrade")})
    model.submit("own", "b", OWN, 8)
    model.now += timedelta(seconds=5)
    model.step()
    assert not model.books.demands
    assert [(n.workload.uid, n.reason) for n in model.last.waiting] == [("own", "Frozen")]
