"""Work that holds several lines, of which some are used and some are not; lenders that are asked in turn."""

from datetime import timedelta

import pytest

from gpubank.decide.desk import Desk
from gpubank.decide.lend import could_ever_run, gathering
from gpubank.decide.slack import Source, Till, borrowed
from gpubank.domain.contract import Side
from gpubank.domain.facts import Mark
from gpubank.domain.loan import LineState
from tests.unit.decide.model import Model
from tests.unit.decide.parts import group_terms, pool_terms

OWN, BORROW = Side.OWN, Side.BORROW


def pool() -> Model:
    """A borrows of b and c, which have 8 GPUs each."""
    model = Model(pool_terms(group_terms("a", 0), *(group_terms(g, 8) for g in "bc"), capacity=16), {"n0": 8, "n1": 8})
    model.settle()
    return model


def desk(model: Model) -> Desk:
    return Desk(model.facts(), model.books, model.terms, model.now)


def held(model: Model, uid: str) -> list[tuple[str, str, int]]:
    return sorted((line.state.value, line.lender, line.gpus) for line in model.books.lines_of(uid))


def granted(model: Model, uid: str, gpus: int) -> None:
    """Lend to a job that the scheduler has not admitted yet."""
    model.submit(uid, "a", BORROW, gpus)
    for _ in range(2):
        model.step()
        model.write()
        model.fence()
    assert {state for state, *_ in held(model, uid)} == {"Granted"}


def test_who_took_the_quota_of_a_loan_of_two_lenders_gets_as_many_of_its_lines_as_it_needs() -> None:
    model = pool()
    granted(model, "x", 16)
    model.submit("y", "a", BORROW, 12, priority=9)
    model.admit()
    assert model.jobs["y"].reserved
    model.step()
    assert sum(gpus for _, _, gpus in held(model, "y")) == 12
    assert {lender for _, lender, _ in held(model, "y")} == {"b", "c"}
    assert sum(gpus for _, _, gpus in held(model, "x")) == 4


def test_two_jobs_that_run_give_each_other_nothing() -> None:
    model = pool()
    for uid in ("x", "y"):
        model.submit(uid, "a", BORROW, 8)
        model.settle()
    model.jobs["x"].pods = 9
    before = held(model, "y")
    model.step()
    assert held(model, "y") == before
    assert sum(gpus for _, _, gpus in held(model, "x")) == 8, "nobody has a ninth to lend"


def test_a_workload_that_shrinks_keeps_its_oldest_lines_whole() -> None:
    model = pool()
    model.submit("x", "a", BORROW, 16)
    model.settle()
    job = model.jobs["x"]
    job.pods, job.nodes = 8, job.nodes[:8]
    model.step()
    assert held(model, "x") == [("Closing", "c", 8), ("Granted", "b", 8)]


@pytest.mark.parametrize(("gpus", "closing"), [(8, [("Closing", "c", 8)]), (9, [("Closing", "c", 7)]), (16, [])])
def test_only_as_many_closing_lines_as_are_in_use_are_granted_again(
    gpus: int, closing: list[tuple[str, str, int]]
) -> None:
    model = pool()
    granted(model, "x", 16)
    model.now += timedelta(seconds=5)
    model.step()
    assert held(model, "x") == [("Closing", "b", 8), ("Closing", "c", 8)]
    before = model.books.lines
    model.submit("y", "a", BORROW, gpus, priority=9)
    model.admit()
    model.step()
    assert sum(line.gpus for line in model.books.lines_of("y")) == gpus
    assert held(model, "x") == closing
    assert (before[1] in model.books.lines) is (gpus == 8), "the newer one is left as it is where the older is enough"


def test_a_line_that_closed_for_a_demand_and_is_in_use_after_all_is_pledged_to_nobody() -> None:
    model = pool()
    granted(model, "x", 8)
    model.submit("own", "b", OWN, 8)
    model.now += timedelta(seconds=1)
    model.step()
    assert model.work().startswith("plan")
    assert [(line.state, line.demand is None) for line in model.books.lines_of("x")] == [(LineState.CLOSING, False)]
    model.admit()
    model.step()
    assert [(line.state, line.demand) for line in model.books.lines_of("x")] == [(LineState.GRANTED, None)]


@pytest.mark.parametrize("stopped", [False, True])
def test_a_closing_line_returns_beside_recalled_work_that_runs_and_waits_while_the_queue_counts_what_is_gone(
    stopped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = pool()
    for uid in "xy":
        model.submit(uid, "a", BORROW, 8)
        model.settle()
    model._move("recall/x", model._lines("x", LineState.GRANTED), LineState.RECALLED)
    model.finish("y")
    model.step()
    model.write()
    model.fence()
    queues = model.facts().queues
    if stopped:
        job = model.jobs["x"]
        job.active, job.reserved, job.mark = False, False, Mark(loan="loan/x", term=1, step="stop")
    facts = model.facts().model_copy(update={"queues": queues})
    monkeypatch.setattr(model, "facts", lambda: facts)
    model.step()
    assert held(model, "y") == ([("Closing", "c", 8)] if stopped else [])


def test_recalled_lines_are_in_use_before_granted_ones() -> None:
    model = pool()
    model.submit("x", "a", BORROW, 16)
    model.settle()
    lines = model.books.lines
    recalled = lines[0].model_copy(update={"state": LineState.RECALLED})
    model.books = model.books.model_copy(update={"lines": (recalled, *lines[1:])})
    job = model.jobs["x"]
    job.pods, job.nodes = 12, job.nodes[:12]
    model.step()
    assert held(model, "x") == [("Closing", "c", 4), ("Granted", "c", 4), ("Recalled", "b", 8)]


# ---- who lends


def test_a_group_without_a_policy_could_never_run_anything() -> None:
    model = pool()
    model.submit("x", "a", BORROW, 8)
    workload = model.facts().workload("x")
    assert workload is not None
    assert could_ever_run(desk(model), workload, set())
    model.terms = model.terms.model_copy(update={"groups": tuple(g for g in model.terms.groups if g.group != "a")})
    assert not could_ever_run(desk(model), workload, set())


def test_asking_what_there_is_promises_nothing_and_taking_it_does() -> None:
    till = Till.of(desk(pool()))
    assert till.sources("a", 12) == till.sources("a", 12) == [Source("b", 8), Source("c", 4)]
    till.take(Source("b", 8), "a")
    assert till.sources("a", 12) == [Source("c", 8)]
    assert (till.available("a", 12), till.most) == (8, 16)


@pytest.mark.parametrize(
    ("gpus", "room", "sources"),
    [
        (0, 9, []),
        (8, 9, [Source("b", 8)]),
        (9, 9, [Source("b", 8), Source("c", 1)]),
        (16, 9, [Source("b", 8), Source("c", 1)]),
        (16, 8, [Source("b", 8)]),
        (16, 1, [Source("b", 1)]),
        (16, 0, []),
    ],
)
def test_lenders_are_asked_until_it_is_enough_or_the_borrower_has_all_that_it_may(
    gpus: int, room: int, sources: list[Source]
) -> None:
    till = Till.of(desk(pool()))
    assert till.sources("a", gpus, room=room) == sources
    assert till.available("a", gpus, room=room) == sum(source.gpus for source in sources)


def test_what_a_group_lends_to_itself_it_lends_to_nobody_else() -> None:
    till = Till.of(desk(pool()))
    till.take(Source("b", 6), "b")
    assert till.sources("a", 16) == [Source("c", 8), Source("b", 2)]
    assert till.room("b") == 1000, "a loan to itself is no borrowing"


def test_a_loan_to_itself_that_others_are_about_to_take_over_counts_as_borrowed() -> None:
    model = Model(pool_terms(*(group_terms(g, 8) for g in "bc"), capacity=16), {"n0": 8, "n1": 8})
    model.settle()
    model.submit("busy", "c", OWN, 8)
    model.settle()
    model.submit("x", "b", BORROW, 8)
    model.settle()
    assert [(line.lender, line.borrower) for line in model.books.lines] == [("b", "b")]
    assert borrowed(desk(model), "b") == 0
    model.finish("busy")
    model.submit("own", "b", OWN, 8)
    model.now += timedelta(seconds=1)
    model.step()
    model.work()
    assert [line.lender for line in model.books.lines if line.replaces] == ["c"]
    assert borrowed(desk(model), "b") == 8


def test_what_is_offered_to_one_is_offered_to_nobody_else_however_many_nodes_there_are() -> None:
    model = pool()
    model.nodes = dict.fromkeys(["n0", "n1", "n2"], 8)
    for uid, gpus in (("x", 10), ("y", 8), ("z", 6)):
        model.submit(uid, "a", BORROW, gpus)
    model.step()
    assert [sum(line.gpus for line in model.books.lines_of(uid)) for uid in "xyz"] == [10, 0, 6]


def test_what_a_gang_leaves_is_offered_to_others() -> None:
    model = pool()
    model.submit("gang", "a", BORROW, 12)
    model.now += timedelta(minutes=10)
    model.submit("small", "a", BORROW, 4)
    model.step()
    assert [sum(line.gpus for line in model.books.lines_of(uid)) for uid in ("gang", "small")] == [12, 4]


def test_two_loans_are_not_offered_onto_the_same_node() -> None:
    model = Model(
        pool_terms(group_terms("a", 0), group_terms("b", 16), capacity=16), {"n0": 8, **{f"s{i}": 4 for i in range(2)}}
    )
    model.settle()
    for uid in ("x", "y"):
        model.submit(uid, "a", BORROW, 1, 8)
    model.step()
    assert held(model, "x") == [("Offered", "b", 8)]
    assert held(model, "y") == [], "there is quota for it, and no second node"


def test_what_a_gang_is_offered_already_is_not_counted_against_what_it_could_still_borrow() -> None:
    model = Model(
        pool_terms(group_terms("a", 0, borrow_limit=8), group_terms("b", 16), capacity=16), {"n0": 8, "n1": 8}
    )
    model.settle()
    model.submit("x", "a", BORROW, 8)
    model.step()
    assert held(model, "x") == [("Offered", "b", 8)]
    for uid, able in (("x", True), ("y", False)):
        model.submit("y", "a", BORROW, 8)
        workload = model.facts().workload(uid)
        assert workload is not None
        assert could_ever_run(desk(model), workload, set()) is able


@pytest.mark.parametrize(
    ("minutes", "gathers", "looked_at_again"),
    [(10, True, 20), (19, True, 20), (20, False, 70), (69, False, 70), (70, True, 80)],
)
def test_a_gang_gathers_ten_minutes_of_every_hour_and_is_looked_at_when_that_begins_and_ends(
    minutes: int, gathers: bool, looked_at_again: int
) -> None:
    model = pool()
    gang = model.submit("gang", "a", BORROW, 16)
    model.now = gang.waiting_since + timedelta(minutes=minutes)
    at = desk(model)
    found = gathering(at)
    assert (found is not None) is gathers
    assert gang.waiting_since + timedelta(minutes=looked_at_again) in at.wakes
