"""Demands of limits, of a shrunken pool, of a late own job, of work that finds no node; guarantees that move."""

from datetime import timedelta

import pytest

from gpubank.domain.demand import DemandKind, DemandState
from gpubank.domain.loan import SURPLUS, LineState
from tests.unit.decide.lent import BORROW, OWN, demand, edit, lent_out
from tests.unit.decide.model import Model
from tests.unit.decide.parts import POOL, group_terms, pool_terms


def test_a_lowered_lending_limit_demands_what_is_lent_beyond_it() -> None:
    model = lent_out()
    edit(model, "b", lending_limit=10)
    model.step()
    found = demand(model, f"{POOL}/b/Limit/lending")
    assert (found.kind, found.gpus, found.state) == (DemandKind.LIMIT, 6, DemandState.OPEN)
    model.settle()
    assert not model.books.demands
    assert model.books.lent_to_others("b") <= 10
    assert model.queues["b", OWN].nominal == 16 - model.books.lent_to_others("b")


@pytest.mark.parametrize(("borrower", "asked"), [("a", 0), ("b", 2)])
def test_what_is_coming_back_from_others_anyway_is_not_asked_for_and_a_loan_to_itself_does_not_count(
    borrower: str, asked: int
) -> None:
    model = lent_out(gpus=8)
    model.submit("y", borrower, BORROW, 8)
    model.settle()
    model.finish("y")
    model.step()
    assert [line.state for line in model.books.lines_of("y")] == [LineState.CLOSING]
    edit(model, "b", lending_limit=14 if borrower == "a" else 6)
    model.step()
    assert [d.gpus for d in model.books.demands] == [asked] * bool(asked)


def test_a_lowered_limit_withdraws_offers_before_it_demands_anything() -> None:
    model = Model(pool_terms(group_terms("a", 0), group_terms("b", 16), capacity=16), {"n0": 8, "n1": 8})
    model.settle()
    model.submit("x", "a", BORROW, 16)
    model.step()
    edit(model, "b", lending_limit=10)
    model.step()
    assert not model.books.demands
    assert not model.books.lines


def test_a_guarantee_falls_as_soon_as_its_use_allows_behind_its_fence() -> None:
    model = Model(pool_terms(group_terms("b", 16), capacity=16), {"n0": 8, "n1": 8})
    model.settle()
    model.submit("own", "b", OWN, 10)
    model.settle()
    edit(model, "b", guaranteed=4, lending_limit=4)
    model.step()
    guarantee = model.books.guarantee("b")
    assert (guarantee.in_force, guarantee.releasing) == (16, 6)
    assert model.books.surplus == 0, "not free before the own queue is fenced"
    model.write()
    model.step()
    assert model.books.guarantee("b").in_force == 16
    model.fence()
    model.step()
    assert (model.books.guarantee("b").in_force, model.books.surplus) == (10, 6)
    model.finish("own")
    model.settle()
    assert (model.books.guarantee("b").in_force, model.books.surplus) == (4, 12)


def test_an_own_job_that_slips_in_keeps_what_was_being_given_up() -> None:
    model = Model(pool_terms(group_terms("b", 16), capacity=16), {"n0": 8, "n1": 8})
    model.settle()
    edit(model, "b", guaranteed=4, lending_limit=4)
    model.step()
    model.write()
    model.submit("own", "b", OWN, 10)
    model.admit(stale=True)
    model.fence()
    model.step()
    assert (model.books.guarantee("b").in_force, model.books.guarantee("b").releasing) == (16, 6)
    model.settle()
    assert model.books.guarantee("b").in_force == 10


def test_a_guarantee_that_is_asked_for_again_is_not_given_up() -> None:
    model = Model(pool_terms(group_terms("b", 16), capacity=16), {"n0": 8, "n1": 8})
    model.settle()
    edit(model, "b", guaranteed=4, lending_limit=4)
    model.step()
    edit(model, "b", guaranteed=16, lending_limit=16)
    model.step()
    assert (model.books.guarantee("b").in_force, model.books.guarantee("b").releasing) == (16, 0)


def test_guarantees_rise_by_free_surplus_only_in_the_order_of_their_names() -> None:
    model = Model(pool_terms(*(group_terms(g, 4) for g in "abc"), capacity=16), {"n0": 8, "n1": 8})
    model.settle()
    model.submit("x", "a", BORROW, 8)
    model.settle()
    assert model.books.lent(SURPLUS) == 4
    for group in "bc":
        edit(model, group, guaranteed=6)
    model.step()
    assert demand(model, f"{POOL}/pool/Limit/surplus").gpus == 4
    assert model.books.surplus == 0
    model.settle()
    assert [model.books.guarantee(g).in_force for g in "abc"] == [4, 6, 6]
    assert not model.books.demands


def test_a_fall_makes_room_for_a_rise_of_somebody_else() -> None:
    model = Model(pool_terms(group_terms("a", 16), group_terms("b", 0), capacity=16), {"n0": 8, "n1": 8})
    model.settle()
    edit(model, "a", guaranteed=4, lending_limit=4)
    edit(model, "b", guaranteed=12, lending_limit=12)
    model.settle()
    assert [model.books.guarantee(g).in_force for g in "ab"] == [4, 12]
    assert [model.queues[g, OWN].nominal for g in "ab"] == [4, 12]


def test_what_is_lent_of_a_falling_guarantee_comes_back() -> None:
    model = lent_out()
    edit(model, "b", guaranteed=6, lending_limit=6)
    model.step()
    assert {d.demand_id: d.gpus for d in model.books.demands} == {f"{POOL}/b/Limit/lending": 10}
    model.settle()
    assert not model.books.demands
    assert model.books.guarantee("b").in_force == 6


def test_a_shrunken_pool_demands_the_surplus_that_is_missing() -> None:
    model = lent_out(group_terms("a", 0), group_terms("b", 4), capacity=16, gpus=12)
    model.jobs["x"].nodes = []
    model.nodes = {"n0": 8}
    model.step()
    found = demand(model, f"{POOL}/pool/Shrunk/capacity")
    assert (found.lender, found.gpus) == (SURPLUS, 8)


def test_a_pool_of_which_no_node_is_seen_has_not_shrunk() -> None:
    model = lent_out(group_terms("a", 0), group_terms("b", 4), capacity=16, gpus=12)
    model.jobs["x"].nodes, model.nodes = [], {}
    model.step()
    assert not model.books.demands


def test_an_own_job_that_slips_in_after_the_grant_gets_the_loan_back_first() -> None:
    model = lent_out()
    model.submit("own", "b", OWN, 6)
    model.jobs["own"].reserved, model.jobs["own"].admitted_at = True, model.now
    model.step()
    found = demand(model, f"{POOL}/b/Overadmitted/own")
    assert (found.kind, found.gpus) == (DemandKind.OVERADMITTED, 6)
    model.settle()
    assert not model.books.demands
    assert model.books.lent("b") + model.reserved("b", OWN) <= 16


@pytest.mark.parametrize(("gpus", "left"), [(1, 5), (4, 2)])
def test_idle_that_was_kept_goes_to_the_own_job_that_slipped_in(gpus: int, left: int) -> None:
    model = lent_out(gpus=10)
    model.submit("own", "b", OWN, 12)
    model.now += timedelta(seconds=1)
    model.step()
    assert demand(model).idle == 6
    model.write()
    model.submit("quick", "b", OWN, gpus)
    model.admit(stale=True)
    model.step()
    assert demand(model).idle == left
    assert [d.kind for d in model.books.demands] == [DemandKind.WORKLOAD]


def scattered() -> Model:
    """Borrowed work on both nodes; b's pod of 8 is admitted and finds no node."""
    model = Model(pool_terms(group_terms("a", 0), group_terms("b", 16), capacity=16), {"n0": 8, "n1": 8})
    model.settle()
    for uid, node in (("x", "n0"), ("y", "n1")):
        model.submit(uid, "a", BORROW, 1, 4)
        model.settle()
        model.jobs[uid].nodes = [node]
    model.submit("own", "b", OWN, 1, 8)
    model.admit()
    assert model.jobs["own"].reserved
    return model


def test_admitted_work_that_finds_no_node_for_thirty_seconds_demands_nodes() -> None:
    model = scattered()
    name = f"{POOL}/b/Placement/own"
    model.now += timedelta(seconds=29)
    model.step()
    assert model.books.demand(name) is None
    model.now += timedelta(seconds=1)
    model.step()
    assert (demand(model, name).gpus, demand(model, name).pods) == (8, 1)
    assert len(model.plan(name).victims) == 1
    model.settle()
    assert model.jobs["own"].nodes
    assert not model.books.demands


def test_work_that_no_stop_would_place_demands_no_nodes() -> None:
    model = scattered()
    model.nodes = dict.fromkeys(["n0", "n1", "n2", "n3"], 4)
    model.now += timedelta(minutes=1)
    model.step()
    assert not model.books.demands


def test_work_that_has_room_anyway_demands_no_nodes() -> None:
    model = scattered()
    model.nodes["n2"] = 8
    model.now += timedelta(minutes=1)
    model.step()
    assert not model.books.demands
