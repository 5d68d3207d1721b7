"""Victims: in which order, where they stand, and how few."""

from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpubank.decide.recall import plan_recall
from gpubank.decide.victims import SHORT, runs
from gpubank.domain.contract import WorkloadContract
from gpubank.domain.facts import Mark, PodFacts
from gpubank.domain.loan import SURPLUS, LineState
from tests.unit.decide.parts import HOOKED, NOW, RETRYABLE, group_terms
from tests.unit.decide.scene import ALL, DEMAND, LONG, NOTEBOOK, OWN, Scene, victims


def crowd(**options: object) -> Scene:
    """Six jobs of one size, one of each class, all of b's GPUs; by their uids they would go the other way round."""
    scene = Scene(group_terms("a", 0, only_preempt=ALL), group_terms("b", 12), nodes={"n0": 12}, **options)
    scene.runs("u-unsaveable", "a", {"b": 2}, contract=WorkloadContract())
    scene.runs("v-notebook", "a", {"b": 2}, contract=NOTEBOOK)
    scene.runs("w-long", "a", {"b": 2}, contract=LONG)
    scene.runs("x-hooked", "a", {"b": 2}, contract=HOOKED)
    scene.runs("y-short", "a", {"b": 2}, contract=RETRYABLE)
    scene.runs("z-starting", "a", {"b": 2}, contract=WorkloadContract(), on=[])
    return scene


@pytest.mark.parametrize(
    ("need", "chosen"),
    [
        (2, ["z-starting"]),
        (4, ["z-starting", "y-short"]),
        (6, ["z-starting", "y-short", "x-hooked"]),
        (8, ["z-starting", "y-short", "x-hooked", "w-long"]),
        (10, ["z-starting", "y-short", "x-hooked", "w-long", "v-notebook"]),
        (12, ["z-starting", "y-short", "x-hooked", "w-long", "v-notebook", "u-unsaveable"]),
    ],
)
def test_classes_are_taken_from_what_costs_least(need: int, chosen: list[str]) -> None:
    scene = crowd()
    scene.wants(need)
    assert victims(scene.plan()) == chosen


def test_only_work_with_a_hook_that_runs_needs_a_checkpoint() -> None:
    scene = crowd()
    scene.wants(12)
    needs = {victim.workload.uid: victim.needs_checkpoint for victim in scene.plan().victims}
    assert [uid for uid, needed in needs.items() if needed] == ["x-hooked"]


@pytest.mark.parametrize(
    ("first", "second", "chosen"),
    [
        pytest.param({"priority": 1}, {"priority": 0}, "y", id="lower priority"),
        pytest.param({"age": timedelta(minutes=9)}, {"age": timedelta(minutes=3)}, "y", id="newest"),
        pytest.param({}, {}, "x", id="uid"),
        pytest.param({"age": timedelta(minutes=1), "priority": 1}, {"priority": 0}, "y", id="priority before age"),
    ],
)
def test_within_a_class_priority_then_age_then_uid_decide(
    first: dict[str, object], second: dict[str, object], chosen: str
) -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 8), nodes={"n0": 8})
    scene.runs("x", "a", {"b": 4}, **first)  # type: ignore[arg-type]
    scene.runs("y", "a", {"b": 4}, **second)  # type: ignore[arg-type]
    scene.wants(4)
    assert victims(scene.plan()) == [chosen]


def test_time_makes_more_possible_when_the_first_of_those_who_came_back_has_had_its_time() -> None:
    scene = Scene(
        group_terms("a", 0), group_terms("b", 8), nodes={"n0": 8},
        min_run_time=timedelta(minutes=20), max_grace_period=timedelta(minutes=5),
    )  # fmt: skip
    for uid, ago in (("x", timedelta(minutes=5)), ("y", timedelta(minutes=9))):
        scene.runs(uid, "a", {"b": 4}, age=ago, mark=Mark(loan=f"loan/{uid}", term=2, step="resume"))
    scene.wants(4)
    assert scene.plan().retry_at == NOW + timedelta(minutes=11)


@pytest.mark.parametrize("said", [True, False], ids=["as its author expects", "as it has run"])
@pytest.mark.parametrize(("length", "chosen"), [(SHORT, "x"), (SHORT + timedelta(seconds=1), "y")])
def test_retryable_work_goes_before_work_with_a_hook_while_it_is_short(
    said: bool, length: timedelta, chosen: str
) -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 8), nodes={"n0": 8})
    contract = WorkloadContract(retryable=True, expected_duration=length if said else None)
    scene.runs("x", "a", {"b": 4}, age=timedelta(hours=9) if said else length, contract=contract, priority=1)
    scene.runs("y", "a", {"b": 4}, contract=HOOKED)
    scene.wants(4)
    assert victims(scene.plan()) == [chosen]


@pytest.mark.parametrize(
    ("pods", "does"),
    [
        ([], False),
        ([(False, False)], False),
        ([(True, True)], False),
        ([(False, True)], False),
        ([(True, False)], True),
        ([(True, True), (True, False)], True),
    ],
)
def test_work_runs_while_a_pod_of_it_runs_that_was_not_told_to_end(pods: list[tuple[bool, bool]], does: bool) -> None:
    facts = [PodFacts(uid="p", name="p", gpus=1, running=running, terminating=ends) for running, ends in pods]
    scene = Scene(group_terms("b", 8), nodes={"n0": 8})
    scene.wants(8)
    workload = scene.model.facts().workload("own")
    assert workload is not None
    assert runs(workload.model_copy(update={"pod_facts": tuple(facts)})) is does


def test_whoever_proves_unnecessary_is_spared() -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 8), nodes={"n0": 8})
    scene.runs("a-small", "a", {"b": 2})
    scene.runs("b-big", "a", {"b": 6})
    scene.wants(6)
    assert victims(scene.plan()) == ["b-big"]


# ---- where it fits


def test_victims_are_chosen_where_the_owners_pods_fit() -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 16), nodes={"n0": 8, "n1": 8})
    scene.runs("a-first", "a", {"b": 4}, on=["n0"], size=4)
    scene.runs("b-second", "a", {"b": 4}, on=["n1"], size=4)
    scene.runs("c-third", "a", {"b": 4}, on=["n1"], size=4)
    scene.runs("d-fourth", "a", {"b": 4}, on=["n0"], size=4, priority=5)
    scene.wants(1, 8)
    assert victims(scene.plan()) == ["b-second", "c-third"]


def test_work_in_the_way_is_stopped_even_if_the_quota_would_be_there_without_it() -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 16), nodes={"n0": 8, "n1": 8})
    scene.runs("x", "a", {"b": 4}, on=["n0"], size=4)
    scene.runs("y", "a", {"b": 4}, on=["n1"], size=4)
    scene.wants(1, 8)
    plan = scene.plan()
    assert victims(plan) == ["x"]
    assert plan.complete


@pytest.mark.parametrize(
    ("reserved", "demanded", "placed", "chosen"),
    [
        (False, False, False, []),
        (True, False, False, ["x"]),
        (False, True, False, ["x"]),
        (True, False, True, ["x"]),
    ],
)
def test_room_that_own_work_of_others_is_about_to_take_is_not_counted(
    reserved: bool, demanded: bool, placed: bool, chosen: list[str]
) -> None:
    scene = Scene(
        group_terms("a", 0), group_terms("b", 16), group_terms("c", 8), nodes=dict.fromkeys(["n0", "n1", "n2"], 8)
    )
    scene.runs("x", "a", {"b": 8}, on=["n1", "n2"], size=4)
    other = scene.model.submit("other", "c", OWN, 1, 8)
    other.reserved, other.nodes = reserved, ["n0"] * placed
    scene.wants(1, 8)
    books = scene.model.books
    (mine,) = books.demands
    assert mine.workload is not None
    theirs = mine.model_copy(
        update={"demand_id": "another", "lender": "c", "workload": mine.workload.model_copy(update={"uid": "other"})}
    )
    if demanded:
        scene.model.books = books.model_copy(update={"demands": (mine, theirs)})
    plan = scene.plan()
    assert (victims(plan), plan.complete) == (chosen, True)


def test_nobody_is_stopped_where_no_node_could_ever_hold_the_owners_pod() -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 16), nodes={"n0": 8, "n1": 8})
    scene.runs("x", "a", {"b": 16})
    scene.wants(1, 16)
    plan = scene.plan()
    assert not plan.victims
    assert "room on no nodes" in plan.reason


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    scene = Scene(
        group_terms("a", 4, borrow_limit=draw(st.integers(0, 20))),
        group_terms("b", 12, lending_limit=12),
        group_terms("c", 8, lending_limit=draw(st.integers(0, 8))),
        nodes={f"n{i}": 8 for i in range(4)},
    )
    free = {"a": 4, "b": 12, "c": 8, SURPLUS: 8}
    for i in range(draw(st.integers(0, 6))):
        borrower = draw(st.sampled_from("abc"))
        loans = {}
        for lender in draw(st.lists(st.sampled_from(sorted(free)), min_size=1, max_size=2, unique=True)):
            part = draw(st.integers(0, min(free[lender], 6)))
            if part:
                loans[lender] = part
                free[lender] -= part
        if loans:
            contract = draw(st.sampled_from([RETRYABLE, HOOKED, NOTEBOOK, WorkloadContract()]))
            scene.runs(f"job-{i}", borrower, loans, priority=draw(st.integers(0, 2)), contract=contract)
    scene.wants(draw(st.integers(1, 12)))
    return scene


many = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@many
@given(scene=scenes())
def test_a_plan_is_legal_and_planning_again_changes_nothing(scene: Scene) -> None:
    plan = scene.plan()
    if plan.transaction is None:
        return
    before, after = scene.model.books, scene.after(plan)
    offered = [line for line in after.lines if line.state is LineState.OFFERED]
    assert sum(line.gpus for line in after.lines if line not in offered) == sum(line.gpus for line in before.lines)
    for terms in scene.model.terms.groups:
        assert after.lent_to_others(terms.group) <= max(terms.lending_limit, before.lent_to_others(terms.group))
        assert after.borrowed(terms.group) <= max(terms.borrow_limit, before.borrowed(terms.group))
        own = scene.model.reserved(terms.group, OWN)
        assert after.lent(terms.group) + own <= after.guarantee(terms.group).in_force
    assert after.surplus >= 0
    pledged = sum(line.gpus for line in after.lines if line.demand == DEMAND and line.lender == "b")
    demand = after.demand(DEMAND)
    assert demand is not None
    assert demand.idle + pledged <= demand.gpus
    assert not plan.complete or demand.idle + pledged == demand.gpus


@many
@given(scene=scenes())
def test_no_victim_can_be_left_out(scene: Scene) -> None:
    plan = scene.plan()
    for victim in plan.victims:
        others = frozenset(victims(plan)) - {victim.workload.uid}
        rest = frozenset(uid for uid in scene.model.jobs if uid not in others)
        assert not scene.plan(spared=rest).complete, f"{victim.workload.uid} was not needed"


@many
@given(scene=scenes(), data=st.data())
def test_a_plan_does_not_depend_on_the_order_of_its_facts(scene: Scene, data: st.DataObject) -> None:
    facts = scene.model.facts()
    shuffled = facts.model_copy(
        update={
            "workloads": tuple(data.draw(st.permutations(facts.workloads))),
            "nodes": tuple(data.draw(st.permutations(facts.nodes))),
            "queues": tuple(data.draw(st.permutations(facts.queues))),
        }
    )
    books, terms = scene.model.books, scene.model.terms
    assert plan_recall(shuffled, books, terms, DEMAND, now=NOW) == plan_recall(facts, books, terms, DEMAND, now=NOW)
