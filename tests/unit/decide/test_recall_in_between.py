"""Recalls that are planned while something else is under way."""

from gpubank.decide.desk import Desk
from gpubank.decide.recall import plan_recall
from gpubank.decide.slack import Source, Till
from gpubank.domain.demand import DemandKind
from gpubank.domain.facts import Mark
from gpubank.domain.loan import LineState
from tests.unit.decide.parts import POOL, group_terms
from tests.unit.decide.scene import DEMAND, NOTEBOOK, Scene, victims


def lent(*, nodes: int = 1, **lines: int) -> Scene:
    """A borrows of b, each job as much as is said."""
    scene = Scene(group_terms("a", 0), group_terms("b", 8), nodes={f"n{i}": 8 for i in range(nodes)})
    for uid, gpus in lines.items():
        scene.runs(uid, "a", {"b": gpus})
    return scene


def mark(scene: Scene, number: int, **update: object) -> None:
    scene.lines[number] = scene.lines[number].model_copy(update=update)


def test_nobody_is_stopped_for_a_workload_that_is_gone() -> None:
    scene = lent(x=8)
    scene.wants(8)
    del scene.model.jobs["own"]
    plan = scene.plan()
    assert (plan.victims, plan.need, plan.reason) == ((), 8, "the Workload that waited is gone")


def test_what_is_closing_is_pledged_before_anybody_is_stopped() -> None:
    scene = lent(x=4, y=4)
    mark(scene, 0, state=LineState.CLOSING)
    scene.model.finish("x")
    scene.wants(4)
    plan = scene.plan()
    assert plan.complete
    assert not plan.victims
    assert [(line.state, line.demand) for line in scene.after(plan).lines] == [
        (LineState.CLOSING, DEMAND),
        (LineState.GRANTED, None),
    ]


def test_what_is_closing_for_somebody_else_repays_nobody_else() -> None:
    scene = lent(x=4, y=4)
    mark(scene, 0, state=LineState.CLOSING, demand="another")
    scene.model.finish("x")
    scene.wants(4)
    plan = scene.plan()
    assert victims(plan) == ["y"]
    assert [line.demand for line in scene.after(plan).lines] == ["another", DEMAND]


def test_who_leaves_a_node_for_two_demands_stays_pledged_to_each_of_them() -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 8), group_terms("c", 8), nodes={"n0": 8, "n1": 8})
    leaving = scene.runs("x", "a", {"b": 2, "c": 2}, on=["n0"], size=4)
    scene.runs("y", "a", {"c": 4}, on=["n1"], size=4, priority=9)
    mark(scene, 0, state=LineState.RECALLED, demand=DEMAND)
    mark(scene, 1, state=LineState.RECALLED, demand="another")
    leaving.active = leaving.reserved = False
    leaving.mark = Mark(loan="loan/x", term=1, step="stop")
    scene.wants(1, 8)
    own = scene.model.jobs["own"]
    own.reserved, own.admitted_at = True, scene.model.now
    books = scene.model.books
    scene.model.books = books.model_copy(
        update={"demands": tuple(d.model_copy(update={"kind": DemandKind.PLACEMENT}) for d in books.demands)}
    )
    plan = scene.plan()
    assert victims(plan) == ["x"]
    assert plan.transaction is None, "nothing is pledged anew"


def test_a_loan_to_itself_is_swapped_within_what_the_lender_may_borrow_and_lend() -> None:
    groups = (group_terms("b", 8, borrow_limit=3), group_terms("c", 8), group_terms("d", 0))
    scene = Scene(*groups, nodes={"n0": 8, "n1": 8})
    scene.runs("own-borrow", "b", {"b": 8}, contract=NOTEBOOK)
    scene.runs("cheap", "d", {"c": 8})
    scene.wants(3)
    plan = scene.plan()
    assert victims(plan) == ["cheap"]
    books = scene.after(plan)
    assert {line.lender: line.gpus for line in books.lines_of("own-borrow")} == {"b": 5, "c": 3}
    assert {line.lender: line.gpus for line in books.lines_of("cheap")} == {"b": 3, "c": 5}


def test_a_loan_to_itself_is_not_swapped_beyond_the_lending_limit() -> None:
    groups = (group_terms("b", 8, lending_limit=2), group_terms("c", 8), group_terms("d", 0))
    scene = Scene(*groups, nodes={"n0": 8, "n1": 8})
    scene.runs("own-borrow", "b", {"b": 8}, contract=NOTEBOOK)
    scene.runs("cheap", "d", {"c": 8})
    scene.wants(3)
    assert victims(scene.plan()) == ["own-borrow"], "b lends 2 at most, so d's lines cannot become b's"


def test_only_as_much_is_taken_over_by_others_as_is_needed() -> None:
    scene = lent(x=4, y=4, nodes=2)
    scene.wants(4)
    plan = scene.plan()
    assert plan.complete
    assert not plan.victims
    offered = [line for line in scene.after(plan).lines if line.state is LineState.OFFERED]
    assert [(line.gpus, line.workload.uid) for line in offered] == [(4, "x")]


def test_who_lends_nothing_is_asked_for_nothing_however_much_it_keeps_for_serving() -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 8), group_terms("c", 8), nodes={"n0": 8, "n1": 8},
                  serving_floor=12)  # fmt: skip
    scene.wants(1)
    del scene.model.jobs["own"]
    model = scene.model
    desk = Desk(model.facts(), model.books.model_copy(update={"demands": ()}), model.terms, model.now)
    assert Till(desk).sources("a", 16) == [Source("c", 4)]
    assert Till(desk, without=frozenset({"b"})).sources("a", 16) == [Source("c", 4)]
    assert Till(desk, without=frozenset({"c"})).sources("a", 16) == []


def test_a_lending_limit_is_kept_by_what_is_lent_to_others_and_not_by_a_loan_to_itself() -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 8, lending_limit=2), nodes={"n0": 8})
    scene.runs("itself", "b", {"b": 4}, priority=0)
    scene.runs("x", "a", {"b": 4}, priority=9)
    scene.wants(2)
    books, name = scene.model.books, f"{POOL}/b/Limit/lending"
    (waits,) = books.demands
    limit = waits.model_copy(update={"demand_id": name, "kind": DemandKind.LIMIT, "workload": None})
    model = scene.model
    plan = plan_recall(model.facts(), books.model_copy(update={"demands": (limit,)}), model.terms, name, now=model.now)
    assert victims(plan) == ["x"], "although the other would be stopped first"
    assert plan.complete
