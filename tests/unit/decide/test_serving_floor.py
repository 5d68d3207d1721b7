"""The serving floor: what serving holds or finds idle is never lent; and priority classes that a pool allows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubank.decide.overview import overview
from gpubank.domain.contract import WorkloadContract, WorkloadType
from gpubank.domain.demand import DemandKind, DemandState
from gpubank.domain.loan import SURPLUS
from gpubank.domain.terms import GroupTerms
from tests.unit.decide.lent import BORROW, OWN, demand
from tests.unit.decide.model import Model
from tests.unit.decide.parts import POOL, group_terms, pool_terms
from tests.unit.decide.test_victims import many

SERVING = WorkloadContract(workload_type=WorkloadType.INFERENCE)
FLOOR = WorkloadContract(capacity_role="serving-floor", retryable=True)


def a_pool(floor: int, *groups: GroupTerms, capacity: int = 16) -> Model:
    groups = groups or (group_terms("a", 0), group_terms("b", 16))
    model = Model(
        pool_terms(*groups, capacity=capacity, serving_floor=floor), {f"n{i}": 8 for i in range(capacity // 8)}
    )
    model.settle()
    return model


def borrows(model: Model, uid: str, gpus: int, group: str = "a") -> bool:
    model.submit(uid, group, BORROW, gpus)
    model.settle()
    return model.jobs[uid].reserved


def test_idle_gpus_of_the_floor_are_not_lent() -> None:
    model = a_pool(6)
    assert not borrows(model, "big", 11)
    assert borrows(model, "fits", 10)
    assert not borrows(model, "one-more", 1)


@pytest.mark.parametrize("contract", [SERVING, FLOOR], ids=["inference", "capacity-role"])
def test_what_serving_holds_counts_as_the_floor(contract: WorkloadContract) -> None:
    model = a_pool(6)
    model.submit("serve", "b", OWN, 4, contract=contract)
    model.settle()
    assert not borrows(model, "big", 11)
    assert borrows(model, "fits", 10)


def test_serving_that_scales_in_and_out_finds_its_gpus_idle() -> None:
    model = a_pool(6)
    model.submit("serve", "b", OWN, 6, contract=SERVING)
    model.settle()
    assert borrows(model, "train", 10)
    model.finish("serve")
    assert not borrows(model, "greedy", 1)
    model.submit("again", "b", OWN, 6, contract=SERVING)
    model.settle()
    assert model.jobs["again"].reserved
    assert not model.books.demands, "nobody had to give anything back"


def test_work_that_does_not_serve_does_not_count() -> None:
    model = a_pool(6)
    model.submit("own", "b", OWN, 6)
    model.settle()
    assert not borrows(model, "big", 5)
    assert borrows(model, "fits", 4)


def test_the_group_that_serves_keeps_the_floor_and_others_lend_on() -> None:
    groups = (group_terms("a", 0), group_terms("b", 8), group_terms("s", 8))
    model = a_pool(8, *groups)
    model.submit("serve", "s", OWN, 2, contract=SERVING)
    model.settle()
    assert borrows(model, "train", 8)
    assert [(line.lender, line.gpus) for line in model.books.lines] == [("b", 8)]


def test_a_group_s_loan_to_itself_leaves_the_floor_alone_too() -> None:
    model = a_pool(6, group_terms("b", 16))
    assert not borrows(model, "own-borrow", 11, "b")
    assert borrows(model, "fits", 10, "b")


def test_the_surplus_is_lent_as_ever() -> None:
    model = a_pool(8, group_terms("a", 0), group_terms("b", 8))
    assert borrows(model, "train", 8)
    assert [line.lender for line in model.books.lines] == [SURPLUS]


def test_a_floor_that_was_raised_has_what_is_lent_of_it_come_back() -> None:
    model = a_pool(0)
    assert borrows(model, "x", 8)
    assert borrows(model, "y", 8)
    model.terms = model.terms.model_copy(update={"serving_floor": 6})
    model.step()
    found = demand(model, f"{POOL}/b/Limit/serving")
    assert (found.kind, found.gpus, found.state) == (DemandKind.LIMIT, 6, DemandState.OPEN)
    model.settle()
    assert not model.books.demands
    assert model.books.lent("b") == 8
    assert not borrows(model, "greedy", 3)


def test_what_comes_back_for_a_lowered_limit_is_not_asked_for_twice() -> None:
    model = a_pool(0)
    assert borrows(model, "x", 8)
    assert borrows(model, "y", 8)
    groups = tuple(g.model_copy(update={"lending_limit": 10}) if g.group == "b" else g for g in model.terms.groups)
    model.terms = model.terms.model_copy(update={"serving_floor": 6, "groups": groups})
    model.step()
    assert [d.demand_id for d in model.books.demands] == [f"{POOL}/b/Limit/lending"]


@many
@given(
    floor=st.integers(0, 16),
    served=st.integers(0, 8),
    wishes=st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 8)), max_size=6),
)
def test_nothing_is_ever_lent_of_the_floor(floor: int, served: int, wishes: list[tuple[str, int]]) -> None:
    model = a_pool(floor, group_terms("a", 6), group_terms("b", 8))
    if served:
        model.submit("serve", "b", OWN, served, contract=SERVING)
        model.settle()
    for number, (group, gpus) in enumerate(wishes):
        borrows(model, f"w{number}", gpus, group)
    idle = sum(model.queues[group, OWN].nominal - model.reserved(group, OWN) for group in "ab")
    lent = sum(model.books.lent(group) for group in "ab")
    assert lent == 0 or idle + served >= floor


def test_the_overview_shows_as_lendable_what_would_be_lent() -> None:
    model = a_pool(6)
    model.submit("serve", "b", OWN, 2, contract=SERVING)
    model.settle()
    (row,) = [row for row in overview(model.facts(), model.books, model.terms) if row.group == "b"]
    assert (row.in_force, row.used, row.lendable) == (16, 2, 10)


def test_the_overview_tells_what_waits_in_either_queue() -> None:
    model = a_pool(0)
    model.submit("too-much", "b", OWN, 20)
    borrows(model, "w", 40, "a")
    waiting = {
        row.group: (row.pending, row.pending_borrow) for row in overview(model.facts(), model.books, model.terms)
    }
    assert waiting == {"a": (0, 40), "b": (20, 0)}


# ---- priority classes


def test_work_of_a_class_that_the_pool_does_not_allow_is_lent_nothing_and_told_so() -> None:
    model = a_pool(0)
    model.terms = model.terms.model_copy(update={"allowed_priority_classes": frozenset({"high", "low"})})
    job = model.submit("x", "a", BORROW, 4, priority_class="urgent")
    model.settle()
    assert not job.reserved
    (note,) = model.last.waiting
    assert note.reason == "PriorityClassNotAllowed"
    assert "allows high, low" in note.message
    job.priority_class = "low"
    model.settle()
    assert job.reserved
