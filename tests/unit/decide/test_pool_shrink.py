"""A pool that loses nodes: nothing more is lent, loans come back as far as nodes are missing, own work stays."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpubank.decide.desk import Desk
from gpubank.decide.slack import overhang
from gpubank.domain.demand import DemandKind
from gpubank.domain.loan import SURPLUS
from tests.unit.decide.lent import BORROW, OWN, demand, edit, lent_out
from tests.unit.decide.model import Model
from tests.unit.decide.parts import POOL, group_terms, pool_terms


def lose(model: Model, *names: str) -> None:
    """Delete nodes with the pods on them; their jobs keep their quota and wait for other nodes."""
    model.nodes = {name: gpus for name, gpus in model.nodes.items() if name not in names}
    for job in model.jobs.values():
        job.nodes = [node for node in job.nodes if node in model.nodes]


def beyond(model: Model) -> int:
    return overhang(Desk(model.facts(), model.books, model.terms, model.now))


def both_busy() -> Model:
    """A's own job on one node, a's borrowed job x, lent by b, on the other."""
    model = Model(pool_terms(group_terms("a", 8), group_terms("b", 8), capacity=16), {"n0": 8, "n1": 8})
    model.settle()
    model.submit("mine", "a", OWN, 1, 8)
    model.settle()
    model.submit("x", "a", BORROW, 1, 8)
    model.settle()
    assert model.jobs["x"].nodes != model.jobs["mine"].nodes != []
    return model


@pytest.mark.parametrize("whose", ["mine", "x"])
def test_a_loan_comes_back_whoevers_node_is_lost_and_own_work_has_the_other(whose: str) -> None:
    model = both_busy()
    (lost,) = model.jobs[whose].nodes
    lose(model, lost)
    model.step()
    found = demand(model, f"{POOL}/b/Shrunk/capacity")
    assert (found.kind, found.lender, found.gpus) == (DemandKind.SHRUNK, "b", 8)
    assert found.reason == "the pool's nodes have 8 GPUs only"
    model.settle()
    assert not model.books.lines
    assert not model.books.demands
    assert (model.jobs["mine"].active, len(model.jobs["mine"].nodes)) == (True, 1)
    assert not model.jobs["x"].active
    model.nodes[lost] = 8
    model.settle()
    assert model.jobs["x"].nodes == [lost] if whose == "x" else len(model.jobs["x"].nodes) == 1
    assert model.books.lent("b") == 8


def test_what_room_is_left_is_lent_to_nobody_while_more_is_reserved_than_nodes_have() -> None:
    """A pod of 8 has lost its node and fits nowhere; 4 GPUs of a smaller node are free, and no more is promised."""
    groups = group_terms("a", 8), group_terms("b", 8), group_terms("c", 0)
    model = Model(pool_terms(*groups, capacity=20), {"n0": 8, "n1": 8, "n2": 4})
    model.settle()
    model.submit("mine", "a", OWN, 1, 8)
    model.submit("hers", "b", OWN, 1, 8)
    model.settle()
    (lost,) = model.jobs["mine"].nodes
    lose(model, lost)
    model.submit("y", "c", BORROW, 1, 4)
    model.settle()
    assert beyond(model) == 4
    assert (model.jobs["y"].reserved, model.books.lines, model.books.demands) == (False, (), ())
    assert model.jobs["mine"].reserved
    model.nodes[lost] = 8
    model.settle()
    assert model.jobs["y"].nodes == ["n2"]


def test_the_surplus_comes_back_before_what_groups_have_lent() -> None:
    model = lent_out(group_terms("a", 0), group_terms("b", 8), group_terms("c", 8), capacity=24, gpus=8)
    model.submit("y", "a", BORROW, 1, 8)
    model.submit("z", "a", BORROW, 1, 8)
    model.settle()
    assert [model.books.lent(who) for who in (SURPLUS, "b", "c")] == [8, 8, 8]
    lose(model, "n0")
    model.step()
    assert {each.demand_id: each.gpus for each in model.books.demands} == {f"{POOL}/pool/Shrunk/capacity": 8}
    lose(model, "n1")
    model.step()
    assert {each.lender: each.gpus for each in model.books.demands} == {SURPLUS: 8, "b": 8}
    model.settle()
    assert sum(line.gpus for line in model.books.lines) == 8


def test_what_comes_back_for_another_reason_is_not_asked_for_twice() -> None:
    model = both_busy()
    edit(model, "b", lending_limit=0)
    lose(model, *model.jobs["x"].nodes)
    model.step()
    assert [each.demand_id for each in model.books.demands] == [f"{POOL}/b/Limit/lending"]


def test_nodes_that_come_back_in_time_end_the_demand_and_the_job_runs_on() -> None:
    model = both_busy()
    (lost,) = model.jobs["x"].nodes
    lose(model, lost)
    model.step()
    assert demand(model, f"{POOL}/b/Shrunk/capacity").gpus == 8
    model.nodes[lost] = 8
    model.step()
    assert not model.books.demands
    model.settle()
    assert (model.jobs["x"].active, model.jobs["x"].nodes) == (True, [lost])


def test_a_loan_for_which_the_nodes_that_are_left_have_no_gpus_is_not_offered_again_and_again() -> None:
    """A pod of 7 has lost its node and fits nowhere: 7 GPUs of two nodes are free, and they are its own."""
    groups = group_terms("a", 8), group_terms("b", 8), group_terms("c", 8)
    model = Model(pool_terms(*groups, capacity=40), {f"n{number}": 8 for number in range(5)})
    model.settle()
    for name, gpus in (("a", 1), ("b", 2), ("c", 7)):
        model.submit(f"own-{name}", name, OWN, 1, gpus)
    model.settle()
    model.submit("x", "a", BORROW, 1, 1)
    model.submit("y", "a", BORROW, 1, 6)
    model.settle()
    lose(model, "n0", "n1", "n3")
    assert model.settle() == [], "it comes to rest"
    assert [(line.workload.uid, line.gpus) for line in model.books.lines] == [("y", 6)]
    assert model.jobs["own-c"].reserved


@settings(max_examples=25, deadline=None)
@given(
    own=st.lists(st.integers(1, 8), min_size=3, max_size=3),
    borrowed=st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 8)), max_size=4),
    lost=st.sets(st.integers(0, 4), min_size=1, max_size=4),
)
def test_whatever_nodes_are_lost_own_work_keeps_its_quota_and_loans_fit_what_is_left(
    own: list[int], borrowed: list[tuple[str, int]], lost: set[int]
) -> None:
    groups = [group_terms(name, 8) for name in "abc"]
    model = Model(pool_terms(*groups, capacity=40), {f"n{number}": 8 for number in range(5)})
    model.settle()
    for name, gpus in zip("abc", own, strict=True):
        model.submit(f"own-{name}", name, OWN, 1, gpus)
    model.settle()
    for number, (name, gpus) in enumerate(borrowed):
        model.submit(f"x{number}", name, BORROW, 1, gpus)
    model.settle()
    before = {uid for uid, job in model.jobs.items() if job.kind is OWN and job.reserved}
    assert before == {"own-a", "own-b", "own-c"}
    lose(model, *(f"n{number}" for number in lost))
    model.settle()
    assert all(model.jobs[uid].active and model.jobs[uid].reserved for uid in before)
    have, mine = sum(model.nodes.values()), sum(own)
    assert sum(line.gpus for line in model.books.lines) <= max(have - mine, 0)
    for number in lost:
        model.nodes[f"n{number}"] = 8
    model.settle()
    assert not model.books.demands
    assert all(len(model.jobs[uid].nodes) == 1 for uid in before)
