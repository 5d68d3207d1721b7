"""Why an offer, or a novation, does not stand any more."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from gpubank.domain.contract import Side
from gpubank.domain.demand import DemandState
from gpubank.domain.facts import Mark
from gpubank.domain.loan import LineState
from gpubank.domain.pool import Freeze
from tests.unit.decide.lent import OWN_DEMAND, end
from tests.unit.decide.model import Model
from tests.unit.decide.parts import group_terms, pool_terms

OWN, BORROW = Side.OWN, Side.BORROW


def offered() -> Model:
    """A's x, one pod of 8 GPUs, is offered 8 GPUs of b, whose fence has passed."""
    model = Model(pool_terms(group_terms("a", 0), group_terms("b", 16), capacity=16), {"n0": 8, "n1": 8})
    model.settle()
    model.submit("x", "a", BORROW, 1, 8)
    model.step()
    model.write()
    model.fence()
    return model


def withdrawn(model: Model) -> set[str]:
    """Why offers were withdrawn by the last step."""
    moves = [move for transaction in model.last.transactions for move in transaction.moves]
    return {move.reason for move in moves if move.to_state is LineState.WITHDRAWN}


def test_an_offer_that_nothing_stands_against_is_granted() -> None:
    model = offered()
    model.step()
    assert [line.state for line in model.books.lines] == [LineState.GRANTED]
    assert not withdrawn(model)


def nodes_taken(model: Model) -> None:
    model.nodes = {f"n{i}": 4 for i in range(4)}


def gone(model: Model) -> None:
    model.finish("x", deleted=True)


def finished(model: Model) -> None:
    model.finish("x")


def switched_off(model: Model) -> None:
    model.jobs["x"].active = False


def shrunk_to_nothing(model: Model) -> None:
    model.jobs["x"].size = 0


def grown(model: Model) -> None:
    model.jobs["x"].pods = 2


@pytest.mark.parametrize(
    ("happens", "reason"),
    [
        (nodes_taken, "its nodes are taken"),
        (gone, "its Workload is gone"),
        (finished, "its Workload is gone"),
        (switched_off, "its Workload was switched off"),
        (shrunk_to_nothing, "its Workload was admitted on other lines"),
        (grown, "its Workload needs 16 GPUs, not 8"),
    ],
)
def test_an_offer_is_withdrawn_when_its_workload_cannot_take_it(happens: Callable[[Model], None], reason: str) -> None:
    model = offered()
    happens(model)
    model.step()
    assert withdrawn(model) == {reason}


def test_who_was_admitted_on_the_lines_of_another_job_needs_no_offer_any_more() -> None:
    model = Model(pool_terms(group_terms("a", 0), group_terms("b", 16), capacity=16), {"n0": 8, "n1": 8})
    model.settle()
    model.submit("y", "a", BORROW, 8)
    for _ in range(2):
        model.step()
        model.write()
        model.fence()
    assert [line.state for line in model.books.lines_of("y")] == [LineState.GRANTED]
    model.submit("x", "a", BORROW, 8, priority=9)
    model.step()
    assert [line.state for line in model.books.lines_of("x")] == [LineState.OFFERED]
    model.admit()
    assert model.jobs["x"].reserved
    model.step()
    assert "its Workload was admitted on other lines" in withdrawn(model)
    assert [line.state for line in model.books.lines_of("x")] == [LineState.GRANTED]


def test_a_gang_that_gathers_keeps_a_whole_offer_while_its_nodes_are_taken() -> None:
    model = Model(pool_terms(group_terms("a", 0), group_terms("b", 16), capacity=16), {"n0": 8, "n1": 8})
    model.settle()
    model.submit("gang", "a", BORROW, 1, 8)
    model.now += timedelta(minutes=11)
    model.step()
    model.write()
    model.fence()
    other = model.submit("own", "b", OWN, 2, 4)
    other.reserved, other.admitted_at, other.nodes = True, model.now, ["n0", "n1"]
    model.step()
    assert [line.state for line in model.books.lines] == [LineState.OFFERED]
    model.finish("own")
    model.step()
    assert [line.state for line in model.books.lines] == [LineState.GRANTED]


def test_who_runs_on_too_few_lines_is_granted_the_rest() -> None:
    model = Model(pool_terms(group_terms("a", 0), group_terms("b", 16), capacity=16), {"n0": 8, "n1": 8})
    model.settle()
    model.submit("x", "a", BORROW, 8)
    model.settle()
    model.jobs["x"].pods = 12
    for _ in range(2):
        model.step()
        model.write()
        model.fence()
    assert [(line.gpus, line.state) for line in model.books.lines_of("x")] == [
        (8, LineState.GRANTED),
        (4, LineState.GRANTED),
    ]


def test_whose_lines_have_not_come_back_yet_is_not_told_to_come_back() -> None:
    model = Model(pool_terms(group_terms("a", 0), group_terms("b", 8), capacity=8), {"n0": 8})
    model.settle()
    job = model.submit("x", "a", BORROW, 8)
    model.settle()
    model._move("recall/x", model._lines("x", LineState.GRANTED), LineState.RECALLED)
    job.active, job.reserved, job.mark = False, False, Mark(loan="loan/x", term=1, step="stop")
    model.step()
    assert [line.state for line in model.books.lines_of("x")] == [LineState.RECALLED]
    assert not model.last.signals


def test_an_offer_is_as_old_as_its_newest_line_and_who_lets_it_lapse_is_named() -> None:
    model = offered()
    (line,) = model.books.lines
    older, newer = (line.model_copy(update={"line_id": f"{line.line_id}{i}", "gpus": 4}) for i in range(2))
    newer = newer.model_copy(update={"offered_at": line.offered_at + timedelta(seconds=20)})
    model.books = model.books.model_copy(update={"lines": (older, newer)})
    model.jobs["x"].active, model.jobs["x"].mark = False, Mark(loan="loan/x", term=1, step="stop")
    model.now = line.offered_at + timedelta(seconds=49)
    model.step()
    assert (withdrawn(model), model.last.lapsed) == (set(), ())
    model.now += timedelta(seconds=1)
    model.step()
    assert (withdrawn(model), model.last.lapsed) == ({"nobody took it in time"}, ("x",))


# ---- what own work takes back


def of_two_lenders(*, waited: timedelta = timedelta(0)) -> Model:
    """A's x is offered 8 GPUs of b and 8 of c."""
    groups = (group_terms("a", 0), group_terms("b", 8), group_terms("c", 8))
    model = Model(pool_terms(*groups, capacity=16), {"n0": 8, "n1": 8})
    model.settle()
    model.submit("x", "a", BORROW, 16)
    model.now += waited
    model.step()
    assert [line.lender for line in model.books.lines] == ["b", "c"]
    model.submit("own", "c", OWN, 8)
    return model


def test_own_work_that_takes_back_a_part_of_an_offer_ends_all_of_it_at_once() -> None:
    model = of_two_lenders()
    model.step()
    assert not model.books.lines
    assert withdrawn(model) == {"own work of c needs it (job-own)"}


def test_own_work_takes_from_a_gang_that_gathers_no_more_than_its_lender_s_own_line() -> None:
    model = of_two_lenders(waited=timedelta(minutes=10))
    kept = model.books.lines[0]
    model.step()
    assert model.books.lines == (kept,)


@pytest.mark.parametrize(("own", "kept"), [(0, 2), (1, 1), (8, 1), (9, 0)])
def test_no_more_offers_are_withdrawn_than_own_work_needs(own: int, kept: int) -> None:
    model = Model(pool_terms(group_terms("a", 0), group_terms("b", 16), capacity=16), {"n0": 8, "n1": 8})
    model.settle()
    for uid in ("x", "y"):
        model.submit(uid, "a", BORROW, 8)
        model.step()
    before = model.books.lines
    if own:
        model.submit("own", "b", OWN, own)
    model.step()
    assert model.books.lines[:kept] == before[:kept], "the oldest stand as they did"
    assert len([line for line in before if model.books.line(line.line_id) is not None]) == kept


# ---- novations


def novating() -> Model:
    """C is about to take over what b lends to a's x, so that b's own work runs."""
    groups = (group_terms("a", 0), group_terms("b", 8), group_terms("c", 8))
    model = Model(pool_terms(*groups, capacity=16), {"n0": 8, "n1": 8})
    model.settle()
    model.submit("busy", "c", OWN, 8)
    model.settle()
    model.submit("x", "a", BORROW, 8)
    model.settle()
    model.finish("busy")
    model.submit("own", "b", OWN, 8)
    model.now += timedelta(seconds=1)
    model.step()
    model.work()
    assert [line.lender for line in model.books.lines if line.replaces] == ["c"]
    return model


def frozen(model: Model) -> None:
    model.terms = model.terms.model_copy(update={"freeze": Freeze(by="ops", reason="upgrade")})


def demand_over(model: Model) -> None:
    end(model, DemandState.CANCELLED, OWN_DEMAND)
    model.finish("own")


def fence_too_late(model: Model) -> None:
    model.now += timedelta(seconds=30)


def borrower_shrinks(model: Model) -> None:
    job = model.jobs["x"]
    job.pods, job.nodes = 7, job.nodes[:7]


@pytest.mark.parametrize(
    ("happens", "reason"),
    [
        (frozen, "the pool is frozen"),
        (demand_over, "nobody needs it any more"),
        (fence_too_late, "it could not be fenced in time"),
        (borrower_shrinks, "its Workload does not use the line that it would replace"),
    ],
)
def test_a_novation_is_withdrawn_when_it_serves_nobody_and_the_old_line_stands(
    happens: Callable[[Model], None], reason: str
) -> None:
    model = novating()
    happens(model)
    model.step()
    assert reason in withdrawn(model)
    lines = model.books.lines_of("x")
    assert sum(line.gpus for line in lines if line.lender == "b" and line.state is not LineState.OFFERED) == 8


def test_a_novation_of_a_line_that_is_recalled_meanwhile_is_withdrawn() -> None:
    model = novating()
    lines = tuple(
        line if line.replaces else line.model_copy(update={"state": LineState.RECALLED}) for line in model.books.lines
    )
    model.books = model.books.model_copy(update={"lines": lines})
    model.step()
    assert "the line that it would replace has changed" in withdrawn(model)
    assert [(line.state, line.demand) for line in model.books.lines_of("x")] == [(LineState.RECALLED, OWN_DEMAND)]


def test_a_novation_of_a_line_that_has_ended_meanwhile_is_withdrawn() -> None:
    model = novating()
    model.books = model.books.model_copy(update={"lines": tuple(line for line in model.books.lines if line.replaces)})
    model.step()
    assert "the line that it would replace has changed" in withdrawn(model)
