"""Loans to a group whose policy is deleted, or not in force any more."""

from datetime import timedelta

from gpubank.domain.contract import Side
from gpubank.domain.demand import DemandKind, DemandState
from gpubank.domain.loan import SURPLUS, LineState
from tests.unit.decide.model import Model
from tests.unit.decide.parts import POOL, group_terms, pool_terms

BORROW = Side.BORROW


def lent(**guarantees: int) -> Model:
    """A and c borrow 8 GPUs each; a's policy goes."""
    groups = tuple(group_terms(name, gpus) for name, gpus in {"a": 0, "c": 0, **guarantees}.items())
    model = Model(pool_terms(*groups, capacity=16), {"n0": 8, "n1": 8})
    model.settle()
    for uid, group in (("x", "a"), ("y", "c")):
        model.submit(uid, group, BORROW, 8)
        model.settle()
    return model


def without(model: Model, group: str) -> None:
    """Take a group's policy out of force."""
    model.terms = model.terms.model_copy(update={"groups": tuple(g for g in model.terms.groups if g.group != group)})


def demand_of(lender: str, uid: str) -> str:
    return f"{POOL}/{lender}/{DemandKind.RETURN}/{uid}"


def test_what_is_lent_to_it_comes_back_and_nobody_else_is_stopped() -> None:
    model = lent(b=16)
    without(model, "a")
    model.step()
    demand = model.books.demand(demand_of("b", "x"))
    assert demand is not None
    assert (demand.gpus, demand.reason) == (8, "a has no policy in force any more")
    plan = model.plan(demand.demand_id)
    assert [victim.workload.uid for victim in plan.victims] == ["x"]
    model.settle()
    assert not model.jobs["x"].active
    assert not model.books.lines_of("x")
    assert model.jobs["y"].reserved
    assert model.books.demand(demand.demand_id) is None


def test_slack_of_others_does_not_take_its_loan_over() -> None:
    model = lent(b=8, d=8)
    model.finish("y")
    model.settle()
    without(model, "a")
    model.step()
    (line,) = model.books.lines_of("x")
    plan = model.plan(demand_of(line.lender, "x"))
    assert [victim.workload.uid for victim in plan.victims] == ["x"]
    model.settle()
    assert not model.books.lines_of("x")


def test_surplus_comes_back_too() -> None:
    model = lent(b=0)
    assert {line.lender for line in model.books.lines} == {SURPLUS}
    without(model, "a")
    model.settle()
    assert [line.workload.uid for line in model.books.lines] == ["y"]


def test_a_policy_that_is_mended_in_time_lets_its_work_go_on() -> None:
    model = lent(b=16)
    terms = model.terms
    without(model, "a")
    model.step()
    demand = demand_of("b", "x")
    plan = model.plan(demand)
    assert plan.transaction is not None
    model.commit(plan.transaction)
    model._move("recall/x", model._lines("x", LineState.GRANTED), LineState.RECALLED)
    model.terms = terms
    model.settle()
    assert model.jobs["x"].reserved
    assert [(line.state, line.demand) for line in model.books.lines_of("x")] == [(LineState.GRANTED, None)]
    assert model.books.demand(demand) is None


def test_work_that_could_not_be_saved_is_asked_again_after_a_while() -> None:
    model = lent(b=16)
    without(model, "a")
    model.step()
    name = demand_of("b", "x")
    model.spared[name] = {"x"}
    plan = model.plan(name)
    assert (plan.victims, plan.complete) == ((), False)
    model._change(name, DemandState.PARTIAL, plan.reason)
    model.step()
    demand = model.books.demand(name)
    assert demand is not None
    assert demand.state is DemandState.PARTIAL
    model.now += timedelta(minutes=5)
    model.step()
    demand = model.books.demand(name)
    assert demand is not None
    assert demand.state is DemandState.OPEN
