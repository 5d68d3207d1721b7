"""Leases: which are in force, whom they keep from a recall, and what whoever waits is told."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubank.decide.agreement import agree
from gpubank.decide.desk import Desk
from gpubank.decide.lease import approval_problem, protected, protected_now
from gpubank.decide.step import step
from gpubank.domain import conditions
from gpubank.domain.base import format_instant
from gpubank.domain.demand import DemandKind
from gpubank.domain.group import BusinessGroup
from gpubank.domain.lease import CapacityLease
from gpubank.domain.loan import LineState
from gpubank.domain.policy import GPUQuotaPolicy
from gpubank.domain.pool import GPUPool, OnOverdue
from gpubank.domain.terms import LeaseTerms
from tests.unit.decide.parts import HOOKED, NOW, POOL, RETRYABLE, group_terms
from tests.unit.decide.scene import DEMAND, Scene, victims
from tests.unit.decide.test_victims import many, scenes

HOUR = timedelta(hours=1)


def lease(
    workload: str = "", *, gpus: int = 0, group: str = "a", name: str = "release", until: Any = NOW + HOUR
) -> LeaseTerms:
    return LeaseTerms(
        name=f"team-{group}/{name}",
        group=group,
        namespace=f"team-{group}",
        workload_kind="Workload" if workload else "",
        workload_name=f"job-{workload}" if workload else "",
        gpus=gpus,
        until=until,
    )


def leased(scene: Scene, *leases: LeaseTerms) -> Scene:
    scene.model.terms = scene.model.terms.model_copy(update={"leases": leases})
    return scene


def two_jobs(**terms: object) -> Scene:
    """`x` is the first choice, `y` the second; b's GPUs are all lent."""
    scene = Scene(group_terms("a", 0), group_terms("b", 8), nodes={"n0": 8}, **terms)
    scene.runs("x", "a", {"b": 4}, priority=0)
    scene.runs("y", "a", {"b": 4}, priority=1)
    return scene


def kept(scene: Scene) -> dict[str, str]:
    desk = Desk(scene.model.facts(), scene.model.books, scene.model.terms, scene.model.now)
    return {uid: found.name for uid, found in protected(desk).items()}


# ---- whom a lease keeps


def test_whoever_decides_nothing_else_is_told_the_same_of_leases() -> None:
    scene = leased(two_jobs(), lease("x"))
    scene.wants(4)
    model = scene.model
    found = protected_now(model.facts(), model.books, model.terms, model.now)
    assert {uid: each.name for uid, each in found.items()} == kept(scene) == {"x": "team-a/release"}
    assert protected_now(model.facts(), model.books, leased(scene).model.terms, model.now) == {}


def test_a_leased_workload_is_no_victim_and_the_next_is_taken() -> None:
    scene = leased(two_jobs(), lease("x"))
    scene.wants(4)
    plan = scene.plan()
    assert plan.complete
    assert victims(plan) == ["y"]


def test_a_recall_that_only_a_lease_stands_against_says_whose_and_until_when() -> None:
    scene = leased(two_jobs(), lease("x"))
    scene.wants(8)
    plan = scene.plan()
    assert not plan.complete
    assert not plan.victims
    assert plan.reason == (
        "4 of 8 GPUs cannot be had: job-x of a (4 GPUs) is protected by CapacityLease team-a/release"
        " until 2026-11-02 10:00:00 UTC"
    )
    assert plan.retry_at == NOW + HOUR


def test_those_whom_leases_keep_are_named_in_the_order_of_their_uids() -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 8), nodes={"n0": 8})
    for uid in ("y", "x"):
        scene.runs(uid, "a", {"b": 4})
    leased(scene, lease("y"), lease("x"))
    scene.wants(4)
    assert scene.plan().leased == ("x", "y")


def test_a_lease_that_has_ended_keeps_nobody() -> None:
    scene = leased(two_jobs(), lease("x", until=NOW))
    scene.wants(4)
    assert victims(scene.plan()) == ["x"]


@pytest.mark.parametrize(
    ("change", "of"),
    [({"group": "c"}, "another group"), ({"workload": "other"}, "another job")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_lease_is_for_nobody_else(change: dict[str, str], of: str) -> None:
    scene = leased(two_jobs(), lease(**{"workload": "x", **change}))  # type: ignore[arg-type]
    scene.wants(4)
    assert victims(scene.plan()) == ["x"], of


def test_a_lease_holds_in_a_pool_that_evicts_what_is_overdue() -> None:
    scene = leased(two_jobs(on_overdue=OnOverdue.EVICT), lease("x"))
    scene.wants(8, due=timedelta(0))
    plan = scene.plan(spared=frozenset({"y"}))
    assert not plan.victims
    assert "CapacityLease team-a/release until" in plan.reason


def test_work_that_is_stopped_already_gives_back_what_it_held() -> None:
    scene = leased(two_jobs(), lease("x"))
    scene.wants(4)
    first = scene.model.jobs["x"]
    first.reserved, first.active, first.nodes = False, False, []
    lines = tuple(
        line.model_copy(update={"state": LineState.RECALLED, "demand": DEMAND}) if line.workload.uid == "x" else line
        for line in scene.model.books.lines
    )
    scene.model.books = scene.model.books.model_copy(update={"lines": lines})
    assert victims(scene.plan()) == ["x"]


def test_a_lease_that_comes_during_the_recall_frees_its_workload_and_another_is_taken() -> None:
    scene = two_jobs()
    scene.wants(4)
    plan = scene.plan()
    assert victims(plan) == ["x"]
    scene.model.books = scene.after(plan)
    lines = tuple(
        line.model_copy(update={"state": LineState.RECALLED}) if line.demand else line
        for line in scene.model.books.lines
    )
    scene.model.books = scene.model.books.model_copy(update={"lines": lines})
    leased(scene, lease("x"))
    plan = scene.plan()
    assert victims(plan) == ["y"]
    assert {line.workload.uid for line in scene.after(plan).lines if line.demand == DEMAND} == {"y"}


def test_a_lease_of_gpus_keeps_whole_workloads_oldest_first_as_far_as_it_reaches() -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 12), nodes={"n0": 12})
    for uid, age in (("young", 5), ("old", 30), ("middle", 20), ("big", 40)):
        scene.runs(uid, "a", {"b": 6 if uid == "big" else 2}, age=timedelta(minutes=age))
    scene.wants(1)
    assert kept(leased(scene, lease(gpus=4))) == {"old": "team-a/release", "middle": "team-a/release"}
    assert set(kept(leased(scene, lease(gpus=6)))) == {"big"}
    assert set(kept(leased(scene, lease(gpus=9)))) == {"big", "old"}
    assert kept(leased(scene, lease(gpus=1))) == {}


def test_leases_of_gpus_add_up_and_none_is_spent_on_work_with_a_lease_of_its_own() -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 12), nodes={"n0": 12})
    for uid, age in (("p", 30), ("q", 20), ("r", 10)):
        scene.runs(uid, "a", {"b": 4}, age=timedelta(minutes=age))
    scene.wants(1)
    late = lease(gpus=4, name="late", until=NOW + 2 * HOUR)
    assert kept(leased(scene, lease(gpus=4), late)) == {"p": "team-a/late", "q": "team-a/release"}
    assert kept(leased(scene, lease("p", name="own"), lease(gpus=4))) == {"p": "team-a/own", "q": "team-a/release"}


def test_work_that_does_not_hold_its_gpus_uses_up_no_lease() -> None:
    scene = two_jobs()
    scene.wants(1)
    scene.model.jobs["x"].reserved = False
    assert kept(leased(scene, lease(gpus=4))) == {"y": "team-a/release"}


def test_a_line_of_a_leased_workload_may_still_be_novated_for_no_job_is_touched() -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 8), group_terms("c", 8), nodes={"n0": 8, "n1": 8})
    scene.runs("x", "a", {"b": 8})
    leased(scene, lease("x"))
    scene.wants(8)
    plan = scene.plan()
    assert plan.complete
    assert not plan.victims


@many
@given(scene=scenes(), data=st.data())
def test_no_plan_ever_names_whom_a_lease_keeps(scene: Scene, data: st.DataObject) -> None:
    uids = sorted(uid for uid, job in scene.model.jobs.items() if job.reserved)
    found = []
    for group in "abc":
        if data.draw(st.booleans()) and uids:
            found.append(lease(data.draw(st.sampled_from(uids)), group=group, name="own"))
        if gpus := data.draw(st.integers(0, 8)):
            found.append(lease(gpus=gpus, group=group, until=NOW + data.draw(st.integers(-1, 2)) * HOUR))
    leased(scene, *found)
    keeps = kept(scene)
    plan = scene.plan()
    assert not set(victims(plan)) & set(keeps)
    for group in "abc":
        held = sum(scene.model.jobs[uid].gpus for uid, name in keeps.items() if name == f"team-{group}/release")
        assert held <= sum(each.gpus for each in found if each.group == group and each.until > NOW)
    without = leased(scene).plan()
    assert without.complete or not plan.complete, "a lease makes nothing possible"


# ---- which are in force


def body(kind: str, name: str, spec: dict[str, Any], namespace: str = "", **rest: Any) -> dict[str, Any]:
    metadata = {"name": name, "generation": 3, "creationTimestamp": format_instant(NOW)}
    metadata |= {"namespace": namespace} if namespace else {}
    return {
        "apiVersion": "platform.aik8s.run/v1alpha1",
        "kind": kind,
        "metadata": metadata | rest.pop("metadata", {}),
        "spec": spec,
        **rest,
    }


SAID = {"type": "Approved", "status": "True", "reason": "Approved", "observedGeneration": 3}
APPROVED = {"approvedBy": "pia", "conditions": [SAID]}
POOLS = [
    GPUPool.from_wire(
        body(
            "GPUPool",
            POOL,
            {
                "capacity": 16,
                "shares": [{"businessGroup": "a", "guaranteed": 8}],
                "limits": {"maxLease": "2h"},
            },
        )
    )
]
GROUPS = [
    BusinessGroup.from_wire(
        body(
            "BusinessGroup",
            "a",
            {
                "owner": "oda",
                "admins": ["ada"],
                "namespaces": ["team-a"],
                "subjects": [{"kind": "User", "name": "uli"}],
            },
        )
    )
]
POLICIES = [
    GPUQuotaPolicy.from_wire(
        body(
            "GPUQuotaPolicy",
            "policy",
            {"businessGroup": "a", "resourcePool": POOL, "guaranteed": 4, "borrowLimit": 8},
            "team-a",
        )
    )
]
JOB = {"workloadRef": {"apiVersion": "batch/v1", "kind": "Job", "name": "train"}}


def wish(spec: dict[str, Any], *, name: str = "release", namespace: str = "team-a", **rest: Any) -> CapacityLease:
    end = format_instant(NOW + timedelta(hours=1))
    rest.setdefault("status", APPROVED)
    return CapacityLease.from_wire(
        body("CapacityLease", name, {"until": end, "reason": "release week", **spec}, namespace, **rest)
    )


def judged(*leases: CapacityLease, now: Any = NOW) -> tuple[list[str], list[str]]:
    """Reasons of the verdicts, and names of the leases in force."""
    agreement = agree("local", POOLS, GROUPS, POLICIES, leases, now=now)
    reasons = [agreement.verdicts["CapacityLease", each.key].reason for each in leases]
    return reasons, [terms.name for terms in agreement.terms[POOL].leases]


def test_an_approved_lease_of_a_job_or_of_gpus_is_in_force() -> None:
    reasons, names = judged(wish(JOB), wish({"pool": POOL, "gpus": 8}, name="wide"))
    assert reasons == [conditions.APPLIED, conditions.APPLIED]
    assert names == ["team-a/release", "team-a/wide"]


@pytest.mark.parametrize(
    ("lease", "reason"),
    [
        (wish(JOB, status={}), conditions.AWAITING_APPROVAL),
        (wish(JOB, metadata={"generation": 4}), conditions.AWAITING_APPROVAL),
        (wish(JOB, status={"conditions": [{**SAID, "status": "False"}], "revokedBy": "pia"}), conditions.REVOKED),
        (wish({**JOB, "until": format_instant(NOW - HOUR)}), conditions.EXPIRED),
        (wish({**JOB, "until": format_instant(NOW + 3 * HOUR)}), conditions.TOO_LONG),
        (wish({"pool": POOL, "gpus": 1, "until": format_instant(NOW + 3 * HOUR)}), conditions.TOO_LONG),
        (wish(JOB, namespace="elsewhere"), conditions.FOREIGN_NAMESPACE),
        (wish({"pool": "h200", "gpus": 1}), conditions.POOL_NOT_FOUND),
        (wish({"pool": POOL, "gpus": 9}), conditions.BEYOND_LIMIT),
        (wish(JOB, metadata={"deletionTimestamp": format_instant(NOW)}), conditions.DELETING),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_lease_that_is_not_in_force_says_why(lease: CapacityLease, reason: str) -> None:
    assert judged(lease) == ([reason], [])


def test_a_lease_that_is_too_long_says_when_it_may_end() -> None:
    for made in (format_instant(NOW), None):
        wanted = wish({**JOB, "until": format_instant(NOW + 3 * HOUR)}, metadata={"creationTimestamp": made})
        verdict = agree("local", POOLS, GROUPS, POLICIES, [wanted], now=NOW).verdicts["CapacityLease", wanted.key]
        assert [problem.remedy for problem in verdict.problems] == [f"write at most {format_instant(NOW + 2 * HOUR)}"]


def test_leases_of_gpus_together_stay_within_what_the_group_may_borrow() -> None:
    older = wish({"pool": POOL, "gpus": 5}, name="z-older", metadata={"creationTimestamp": format_instant(NOW - HOUR)})
    older = older.model_copy(update={"spec": older.spec.model_copy(update={"until": NOW + timedelta(minutes=30)})})
    newer = wish({"pool": POOL, "gpus": 4}, name="a-newer")
    assert judged(newer, older) == ([conditions.BEYOND_LIMIT, conditions.APPLIED], ["team-a/z-older"])
    assert judged(newer, older, now=NOW + timedelta(minutes=40))[1] == ["team-a/a-newer"], (
        "what has ended counts no more"
    )


def test_a_lease_of_a_group_without_a_policy_is_not_in_force() -> None:
    for spec in (JOB, {"pool": POOL, "gpus": 1}):
        wanted = wish(spec)
        agreement = agree("local", POOLS, GROUPS, [], [wanted], now=NOW)
        assert agreement.verdicts["CapacityLease", wanted.key].reason == conditions.NO_POLICY


# ---- who may agree


@pytest.mark.parametrize(("who", "may"), [("pia", True), ("oda", False), ("ada", False), ("uli", False)])
def test_nobody_of_the_group_approves_its_lease(who: str, may: bool) -> None:
    wanted = wish(JOB, status={})
    verdict = agree("local", POOLS, GROUPS, POLICIES, [wanted], now=NOW).verdicts["CapacityLease", wanted.key]
    problem = approval_problem(wanted, verdict, GROUPS, who)
    assert (problem is None) is may
    assert may or "no group approves its own lease" in str(problem)


def test_what_would_protect_nobody_cannot_be_approved() -> None:
    wanted = wish({"pool": POOL, "gpus": 9}, status={})
    verdict = agree("local", POOLS, GROUPS, POLICIES, [wanted], now=NOW).verdicts["CapacityLease", wanted.key]
    assert "borrows at most 8 GPUs" in str(approval_problem(wanted, verdict, GROUPS, "pia"))


def test_a_person_who_returns_a_leased_loan_is_heard() -> None:
    scene = leased(two_jobs(), lease("x"))
    scene.wants(4)
    (demand,) = scene.model.books.demands
    asked = demand.model_copy(update={"kind": DemandKind.RETURN, "workload": scene.lines[0].workload})
    scene.model.books = scene.model.books.model_copy(update={"demands": (asked,)})
    assert victims(scene.plan()) == ["x"]


def test_leases_do_not_depend_on_what_kind_of_work_it_is() -> None:
    scene = Scene(group_terms("a", 0), group_terms("b", 8), nodes={"n0": 8})
    scene.runs("x", "a", {"b": 4}, contract=HOOKED)
    scene.runs("y", "a", {"b": 4}, contract=RETRYABLE)
    scene.wants(8)
    assert set(kept(leased(scene, lease("x"), lease("y", name="other")))) == {"x", "y"}


def test_whoever_waits_is_told_of_the_leases_on_what_its_group_has_lent() -> None:
    scene = two_jobs()
    scene.wants(8)
    leases = (lease("x"), lease("y", name="later", until=NOW + 2 * HOUR), lease("x", group="b", name="of-others"))
    leased(scene, *leases)
    (note,) = step(scene.model.facts(), scene.model.books, scene.model.terms, NOW).waiting
    assert note.reason == "Recalling"
    assert note.message.endswith(
        "of what it lent, CapacityLease team-a/later, team-a/release keeps a part until 2026-11-02 11:00:00 UTC"
    )
    leased(scene)
    (note,) = step(scene.model.facts(), scene.model.books, scene.model.terms, NOW).waiting
    assert "CapacityLease" not in note.message
