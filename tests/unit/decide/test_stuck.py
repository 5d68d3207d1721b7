"""Victims that were stopped and do not go: on a dead node, or held by a finalizer."""

from datetime import timedelta

from gpubank.decide.recall import RecallPlan, plan_recall
from gpubank.decide.victims import LATE
from gpubank.domain.facts import Mark, PoolFacts
from gpubank.domain.loan import LineState
from tests.unit.decide.parts import NOW, group_terms
from tests.unit.decide.scene import DEMAND, Scene, victims

GRACE = timedelta(seconds=30)
A, B = group_terms("a", 0), group_terms("b", 16)


def stopping(*, others: bool = True, dead: bool = False) -> "Stopping":
    """B wants 8 GPUs back; x was stopped for it a moment ago, y runs on."""
    nodes = {"n0": 8, "n1": 8} if others else {"n0": 8}
    scene = Scene(A, group_terms("b", sum(nodes.values())), nodes=nodes)
    scene.runs("x", "a", {"b": 8}, on=["n0"], size=8, age=timedelta(minutes=1))
    if others:
        scene.runs("y", "a", {"b": 8}, on=["n1"], size=8)
    scene.wants(1, 8)
    plan = scene.plan()
    assert victims(plan) == ["x"]
    assert plan.transaction is not None
    model = scene.model
    model.commit(plan.transaction)
    model._move("recall/x", model._lines("x", LineState.GRANTED), LineState.RECALLED)
    job = model.jobs["x"]
    job.active, job.reserved, job.mark = False, False, Mark(loan="loan/x", term=1, step="stop")
    return Stopping(scene, dead)


class Stopping:
    """The pool while x is stopping."""

    def __init__(self, scene: Scene, dead: bool) -> None:
        self.scene, self.dead = scene, dead

    def facts(self) -> PoolFacts:
        """What is seen: x's pod is told to end since now, and its node may be dead."""
        facts = self.scene.model.facts()
        workloads = [
            each.model_copy(
                update={
                    "pod_facts": tuple(
                        pod.model_copy(update={"terminating": True, "ends_by": NOW + GRACE}) for pod in each.pod_facts
                    )
                }
            )
            if each.key.uid == "x"
            else each
            for each in facts.workloads
        ]
        nodes = [node.model_copy(update={"ready": node.name != "n0" or not self.dead}) for node in facts.nodes]
        return facts.model_copy(update={"workloads": tuple(workloads), "nodes": tuple(nodes)})

    def plan(self, after: timedelta) -> RecallPlan:
        """Plan at a moment, and see that planning again changes nothing."""
        model = self.scene.model
        plan = plan_recall(self.facts(), model.books, model.terms, DEMAND, now=NOW + after)
        if plan.transaction is not None:
            books = model.books.applied(plan.transaction).books
            again = plan_recall(self.facts(), books, model.terms, DEMAND, now=NOW + after)
            assert (again.transaction, again.victims) == (None, plan.victims)
        return plan


def test_a_victim_that_has_its_grace_is_waited_for() -> None:
    assert victims(stopping().plan(GRACE + LATE - timedelta(seconds=1))) == ["x"]


def test_a_victim_that_does_not_go_is_passed_over_for_the_next_and_its_lines_are_pledged_to_nobody() -> None:
    case = stopping()
    plan = case.plan(GRACE + LATE)
    assert plan.complete
    assert victims(plan) == ["y"]
    (stuck,) = case.scene.after(plan).lines_of("x")
    assert (stuck.state, stuck.demand) == (LineState.RECALLED, None)
    (taken,) = case.scene.after(plan).lines_of("y")
    assert taken.demand == DEMAND


def test_where_nobody_else_can_be_had_it_is_waited_for_as_long_as_it_takes() -> None:
    plan = stopping(others=False).plan(timedelta(hours=1))
    assert plan.complete
    assert victims(plan) == ["x"]


def test_what_stands_on_a_dead_node_makes_no_room_when_it_is_stopped() -> None:
    scene = Scene(A, B, nodes={"n0": 8, "n1": 8})
    scene.runs("x", "a", {"b": 8}, on=["n0"], size=8, age=timedelta(minutes=1))
    scene.runs("y", "a", {"b": 8}, on=["n1"], size=8)
    scene.wants(1, 8)
    model = scene.model
    facts = model.facts()
    nodes = tuple(node.model_copy(update={"ready": node.name != "n0"}) for node in facts.nodes)
    facts = facts.model_copy(update={"nodes": nodes})
    plan = plan_recall(facts, model.books, model.terms, DEMAND, now=NOW)
    assert plan.complete
    assert victims(plan) == ["y"]


def test_a_victim_on_a_dead_node_is_not_enough_and_the_next_is_taken_beside_it_at_once() -> None:
    plan = stopping(dead=True).plan(timedelta(seconds=1))
    assert plan.complete
    assert victims(plan) == ["x", "y"]
