"""What becomes of offers and of loans: granted, closed, given to somebody else, never lent twice."""

from datetime import timedelta

import pytest

from gpubank.domain.contract import Side
from gpubank.domain.facts import Mark
from gpubank.domain.pool import Freeze
from tests.unit.decide.model import Model
from tests.unit.decide.parts import group_terms, pool_terms

OWN, BORROW = Side.OWN, Side.BORROW


@pytest.fixture
def model() -> Model:
    """A borrows of b; 16 GPUs, all of them b's."""
    model = Model(pool_terms(group_terms("a", 0), group_terms("b", 16), capacity=16), {"n0": 8, "n1": 8})
    model.settle()
    return model


def states(model: Model, uid: str) -> list[tuple[str, int]]:
    return sorted((line.state.value, line.gpus) for line in model.books.lines_of(uid))


def running(model: Model, uid: str, gpus: int) -> None:
    model.submit(uid, "a", BORROW, gpus)
    model.settle()
    assert model.jobs[uid].reserved


def test_an_offer_is_granted_only_behind_its_lenders_fence(model: Model) -> None:
    model.submit("x", "a", BORROW, 8)
    model.step()
    assert model.last.wake_at is not None
    model.step()
    assert states(model, "x") == [("Offered", 8)]
    model.write()
    model.step()
    assert states(model, "x") == [("Offered", 8)]
    assert model.queues["a", BORROW].nominal == 0
    model.fence()
    model.step()
    assert states(model, "x") == [("Granted", 8)]


def test_surplus_has_no_queue_and_needs_no_fence() -> None:
    model = Model(pool_terms(group_terms("a", 0), capacity=8), {"n0": 8})
    model.settle()
    model.submit("x", "a", BORROW, 8)
    model.step()
    model.step()
    assert states(model, "x") == [("Granted", 8)]


def test_an_own_job_that_slips_in_behind_the_acknowledgement_withdraws_the_offer(model: Model) -> None:
    model.submit("x", "a", BORROW, 8)
    model.step()
    model.write()
    model.submit("own", "b", OWN, 12)
    model.admit(stale=True)
    assert model.jobs["own"].reserved
    model.fence()
    model.step()
    assert not model.books.lines
    assert not model.books.demands


def test_of_several_offers_the_newest_goes_first_until_it_fits(model: Model) -> None:
    model.submit("x", "a", BORROW, 6)
    model.step()
    model.submit("y", "a", BORROW, 6)
    model.step()
    model.write()
    model.submit("own", "b", OWN, 8)
    model.admit(stale=True)
    model.step()
    assert states(model, "x") == [("Offered", 6)]
    assert states(model, "y") == []


def test_a_waiting_own_job_takes_back_offers_without_a_demand(model: Model) -> None:
    model.submit("x", "a", BORROW, 16)
    model.step()
    model.submit("own", "b", OWN, 4)
    model.step()
    assert not model.books.lines
    model.settle()
    assert model.jobs["own"].reserved
    assert not any(key.startswith("demand") for key in model.keys)


def test_a_loan_of_several_lenders_is_withdrawn_as_a_whole() -> None:
    model = Model(pool_terms(group_terms("a", 0), *(group_terms(g, 8) for g in "bc"), capacity=16), {"n0": 8, "n1": 8})
    model.settle()
    model.submit("x", "a", BORROW, 16)
    model.step()
    model.submit("own", "c", OWN, 1)
    model.step()
    assert not model.books.lines


@pytest.mark.parametrize("end", ["finished", "deleted", "switched off"])
def test_a_loan_whose_workload_has_ended_closes_at_once(model: Model, end: str) -> None:
    running(model, "x", 8)
    if end == "switched off":
        model.jobs["x"].active = False
        model.evict()
        model.evict()
    else:
        model.finish("x", deleted=end == "deleted")
    model.step()
    assert states(model, "x") == [("Closing", 8)]
    model.write()
    assert model.queues["a", BORROW].nominal == 0
    model.step()
    assert states(model, "x") == [("Closing", 8)], "not before the borrow queue is fenced"
    model.fence()
    model.step()
    assert states(model, "x") == []
    assert model.books.own_nominal("b") == 16


def test_a_granted_line_waits_five_seconds_for_its_workload(model: Model) -> None:
    model.submit("x", "a", BORROW, 8)
    for _ in range(2):
        model.step()
        model.write()
        model.fence()
    assert states(model, "x") == [("Granted", 8)]
    model.now += timedelta(seconds=4.9)
    model.step()
    assert states(model, "x") == [("Granted", 8)]
    assert model.last.wake_at is not None
    model.now = model.last.wake_at
    model.step()
    assert states(model, "x") == [("Closing", 8)]


def test_a_closing_line_is_granted_again_to_whoever_was_admitted_on_it(model: Model) -> None:
    model.submit("x", "a", BORROW, 8)
    for _ in range(2):
        model.step()
        model.write()
        model.fence()
    model.now += timedelta(seconds=5)
    model.step()
    model.write()
    model.admit(stale=True)
    assert model.jobs["x"].reserved
    model.fence()
    model.step()
    assert states(model, "x") == [("Granted", 8)]


def test_a_closing_line_does_not_return_while_an_evicted_workloads_pods_end(model: Model) -> None:
    running(model, "x", 8)
    model.jobs["x"].active = False
    model.evict()
    model.step()
    model.write()
    model.fence()
    model.step()
    assert states(model, "x") == [("Closing", 8)]
    model.evict()
    model.step()
    assert states(model, "x") == []


def test_a_closing_line_does_not_return_while_the_queue_shows_more_reserved_than_its_quota(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    running(model, "x", 8)
    model.finish("x")
    model.step()
    model.write()
    model.fence()
    facts = model.facts()
    late = tuple(
        q.model_copy(update={"reserved": 8}) if (q.group, q.kind) == ("a", BORROW) else q for q in facts.queues
    )
    with monkeypatch.context() as patch:
        patch.setattr(model, "facts", lambda: facts.model_copy(update={"queues": late}))
        model.step()
    assert states(model, "x") == [("Closing", 8)]
    model.step()
    assert states(model, "x") == []


def test_a_line_goes_to_the_workload_of_the_group_that_took_its_quota(model: Model) -> None:
    model.submit("x", "a", BORROW, 8)
    for _ in range(2):
        model.step()
        model.write()
        model.fence()
    model.submit("y", "a", BORROW, 8, priority=9)
    model.admit()
    assert model.jobs["y"].reserved
    model.step()
    assert states(model, "y") == [("Granted", 8)]
    assert states(model, "x") == [("Offered", 8)], "and the one that was meant gets another"


def test_a_line_splits_where_only_a_part_of_it_was_taken(model: Model) -> None:
    model.submit("x", "a", BORROW, 12)
    for _ in range(2):
        model.step()
        model.write()
        model.fence()
    model.submit("y", "a", BORROW, 4, priority=9)
    model.admit()
    model.step()
    assert states(model, "y") == [("Granted", 4)]
    assert states(model, "x") == [("Granted", 8)]
    model.now += timedelta(seconds=5)
    model.settle()
    assert model.jobs["x"].reserved
    assert states(model, "x") == [("Granted", 12)]


def test_a_workload_that_shrinks_gives_the_rest_back(model: Model) -> None:
    running(model, "x", 12)
    model.jobs["x"].pods, model.jobs["x"].nodes = 5, model.jobs["x"].nodes[:5]
    model.settle()
    assert states(model, "x") == [("Granted", 5)]
    assert model.queues["b", OWN].nominal == 11


def test_what_runs_goes_on_in_a_freeze_and_what_nobody_uses_closes(model: Model) -> None:
    running(model, "x", 8)
    model.submit("y", "a", BORROW, 8)
    for _ in range(2):
        model.step()
        model.write()
        model.fence()
    model.terms = model.terms.model_copy(update={"freeze": Freeze(by="ops", reason="upgrade")})
    model.step()
    model.write()
    assert states(model, "x") == [("Granted", 8)]
    assert states(model, "y") == [("Closing", 8)]
    assert model.queues["a", BORROW].nominal == model.reserved("a", BORROW) == 8


def test_signals_say_what_a_loan_has_to_know(model: Model) -> None:
    model.submit("x", "a", BORROW, 8)
    model.settle()
    granted = model.last.signals
    assert [(s.workload.uid, s.borrower, s.kind, s.term, s.gpus, s.lenders) for s in granted] == [
        ("x", "a", "granted", 1, 8, ("b",))
    ]
    assert granted[0].at == model.jobs["x"].admitted_at
    assert model.step().signals == granted, "a signal is the same as long as nothing changes"
    model.finish("x")
    model.step()
    assert [(s.workload.uid, s.kind) for s in model.last.signals] == [("x", "ended")]


def test_a_workload_that_is_gone_has_ended_as_long_as_it_has_lines(model: Model) -> None:
    running(model, "x", 8)
    model.finish("x", deleted=True)
    model.step()
    assert [(s.workload.uid, s.kind) for s in model.last.signals] == [("x", "ended")]


def test_a_second_term_is_counted_from_the_stop_mark(model: Model) -> None:
    job = model.submit("x", "a", BORROW, 8)
    job.active, job.mark = False, Mark(loan="loan/x", term=4, step="stop")
    model.settle()
    assert {line.term for line in model.books.lines} == {5}


def test_under_the_fail_safe_nothing_is_decided(model: Model) -> None:
    from gpubank.decide.compile import writes
    from gpubank.decide.step import Step, step

    model.submit("x", "a", BORROW, 8)
    facts = model.facts().model_copy(update={"fail_safe_epoch": 3})
    assert step(facts, model.books, model.terms, model.now) == Step()
    model.step()
    assert writes(model.books, facts) == ()


def test_every_decision_has_a_key_of_its_own(model: Model) -> None:
    committed = 0
    for i in range(3):
        model.submit(f"x{i}", "a", BORROW, 8)
        committed += len(model.step().transactions)
        model.settle()
        model.finish(f"x{i}", deleted=True)
        model.settle()
    assert committed > 0
    assert model.books.revision == len(model.keys)


def test_a_step_on_the_same_facts_decides_the_same(model: Model) -> None:
    from gpubank.decide.step import step

    model.submit("x", "a", BORROW, 8)
    model.submit("own", "b", OWN, 12)
    facts = model.facts()
    shuffled = facts.model_copy(
        update={"workloads": facts.workloads[::-1], "nodes": facts.nodes[::-1], "queues": facts.queues[::-1]}
    )
    assert step(facts, model.books, model.terms, model.now) == step(shuffled, model.books, model.terms, model.now)


def test_a_loan_of_several_lenders_waits_for_every_fence() -> None:
    model = Model(pool_terms(group_terms("a", 0), *(group_terms(g, 8) for g in "bc"), capacity=16), {"n0": 8, "n1": 8})
    model.settle()
    model.submit("x", "a", BORROW, 16)
    model.step()
    model.write()
    model.queues["b", OWN].fenced = model.queues["b", OWN].stamp
    model.step()
    assert states(model, "x") == [("Offered", 8), ("Offered", 8)]
    model.fence()
    model.step()
    assert states(model, "x") == [("Granted", 8), ("Granted", 8)]


def test_a_novation_waits_for_the_new_lenders_fence_and_touches_no_job() -> None:
    groups = (group_terms("a", 0), group_terms("b", 8), group_terms("c", 8))
    model = Model(pool_terms(*groups, capacity=16), {"n0": 8, "n1": 8})
    model.settle()
    model.submit("busy", "c", OWN, 8)
    model.settle()
    running(model, "x", 8)
    model.finish("busy")
    model.submit("own", "b", OWN, 8)
    model.now += timedelta(seconds=1)
    model.step()
    assert model.work().startswith("plan")
    before = (model.jobs["x"].admitted_at, list(model.jobs["x"].nodes), model.queues["a", BORROW].nominal)
    model.step()
    assert [(line.lender, line.state.value) for line in model.books.lines] == [("b", "Granted"), ("c", "Offered")]
    model.write()
    model.step()
    assert [(line.lender, line.state.value) for line in model.books.lines] == [("b", "Granted"), ("c", "Offered")]
    model.fence()
    model.step()
    assert [(line.lender, line.state.value) for line in model.books.lines] == [("c", "Granted")]
    assert model.books.lines[0].granted_at == model.now
    model.settle()
    assert model.jobs["own"].reserved
    assert before == (model.jobs["x"].admitted_at, model.jobs["x"].nodes, model.queues["a", BORROW].nominal)


def test_a_novation_is_withdrawn_when_the_new_lenders_own_job_comes_first() -> None:
    groups = (group_terms("a", 0), group_terms("b", 8), group_terms("c", 8))
    model = Model(pool_terms(*groups, capacity=16), {"n0": 8, "n1": 8})
    model.settle()
    model.submit("busy", "c", OWN, 8)
    model.settle()
    running(model, "x", 8)
    model.finish("busy")
    model.submit("own", "b", OWN, 8)
    model.now += timedelta(seconds=1)
    model.step()
    model.work()
    model.write()
    model.submit("back", "c", OWN, 8)
    model.admit(stale=True)
    model.step()
    assert [(line.lender, line.state.value, line.demand) for line in model.books.lines] == [("b", "Granted", None)]
    model.settle()
    assert model.jobs["own"].reserved
    assert model.jobs["back"].reserved
    assert not model.jobs["x"].active
