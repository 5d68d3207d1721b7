"""The scale proof's arithmetic: a pool that adds up, demands that are told apart, calls that are counted once."""

import json
import os
from collections import Counter
from datetime import UTC, datetime
from math import inf
from typing import Any

import pytest

from benchmarks.scale_meters import ACCOUNTS, counted, used
from benchmarks.scale_pool import HEADROOM, NODE, POOL, SLOT, Plan, Role, agreements, job, standing_work
from benchmarks.scale_traffic import Ledgered, Mix, Sent, Sight, Sighting, Span, Traffic, outcome
from gpubank.domain.contract import Side
from gpubank.domain.group import BusinessGroup
from gpubank.domain.policy import GPUQuotaPolicy
from gpubank.domain.pool import GPUPool


def nothing() -> Any:
    """Stand in for a connection or a ledger that is not asked."""
    return None


@pytest.mark.parametrize("plan", [Plan(4, 0, 1), Plan(50, 500, 25), Plan(1000, 10_000, 500)])
def test_a_pool_guarantees_all_that_it_has_and_holds_what_stands(plan: Plan) -> None:
    bodies = list(agreements(plan))
    pool = GPUPool.from_wire(bodies[0])
    groups = [BusinessGroup.from_wire(body) for body in bodies if body["kind"] == "BusinessGroup"]
    policies = [GPUQuotaPolicy.from_wire(body) for body in bodies if body["kind"] == "GPUQuotaPolicy"]
    assert len(groups) == len(policies) == len(pool.spec.shares) == plan.groups
    guaranteed = sum(policy.spec.guaranteed for policy in policies)
    assert guaranteed == pool.spec.guaranteed_by_shares == pool.spec.capacity
    lent = sum(policy.spec.lending_limit or 0 for policy in policies)
    assert lent == plan.loans * SLOT
    assert plan.own_jobs + plan.standing_loans == max(plan.standing, plan.standing_loans)
    bodies = list(standing_work(plan, [f"n{number}" for number in range(plan.nodes)]))
    assert sum(body["kind"] == "Workload" for body in bodies) == plan.own_jobs
    on_nodes = Counter(body["spec"]["nodeName"] for body in bodies if body["kind"] == "Pod")
    assert (on_nodes.total(), max(on_nodes.values(), default=0)) == (plan.own_jobs, min(plan.own_jobs, NODE))
    assert guaranteed - plan.own_jobs == lent + HEADROOM * len(plan.of_role(Role.BUSY))


def test_a_loan_is_work_that_may_be_stopped_and_ends_when_it_is_told_to() -> None:
    body = job("g0001", "loan-1", Side.BORROW, SLOT, seconds=2.5)
    assert body["metadata"]["labels"] == {
        "kueue.x-k8s.io/queue-name": f"{POOL}-borrow",
        "platform.aik8s.run/retryable": "true",
    }
    assert body["spec"]["template"]["metadata"]["annotations"] == {"lab.gpubank.dev/complete-after": "2500ms"}
    assert job("g0001", "own-1", Side.OWN, 1)["spec"]["template"]["metadata"]["annotations"] == {}


async def test_work_without_a_job_is_known_by_its_own_name() -> None:
    sight = Sight(nothing())
    sight.take("ADDED", {"metadata": {"uid": "u", "name": "own-1-2"}})
    assert list(sight.by_job) == ["own-1-2"]


def test_as_many_loans_end_as_are_asked_for() -> None:
    plan = Plan(1000, 10_000, 500)
    life = Traffic(nothing(), plan, Ledgered(nothing())).life(Mix(rate=20, loans=0.25, recalls=0.1))
    assert plan.churning / (life + 3) == 5


def test_a_demand_is_one_with_the_first_reclaim_of_its_lender_that_began_after_it() -> None:
    sight, books = Sight(nothing()), Ledgered(nothing())
    sight.by_job = {
        "met": Sighting("u1", created=100.0, word=100.1, reserved=103.0),
        "came-in": Sighting("u2", created=100.0, word=100.1, reserved=100.1),
        "forgotten": Sighting("u3", created=100.0, word=100.1, reserved=None),
        "late": Sighting("u4", created=100.0, word=100.1, reserved=130.0),
        "joined": Sighting("u5", created=100.0, word=100.1, reserved=130.0),
        "unheard": Sighting("u6", created=100.0),
    }
    books.opened = {uid: datetime.fromtimestamp(100.5, UTC) for uid in ("u1", "u3", "u4", "u5")}
    lenders = {"met": "a", "came-in": "b", "forgotten": "c", "late": "d", "unseen": "e", "joined": "f", "unheard": "g"}
    ran = {
        "a": [Span(140.0, 150.0), Span(100.75, 110.0), Span(90.0, 99.0)],
        "d": [Span(99.0, 100.4)],
        "f": [Span(99.0, inf)],
    }
    found = outcome(Sent(demands=lenders), sight, books, ran)
    assert (found.spared, found.joined, found.unheard, found.forgotten) == (1, 1, 2, 2)
    (met,) = found.met
    assert (met.word, met.opened, met.started, met.admitted) == pytest.approx((0.1, 0.5, 0.75, 3.0))


def test_kueues_first_word_is_the_first_condition_whatever_it_says() -> None:
    sight = Sight(nothing())
    body = {"metadata": {"uid": "u", "ownerReferences": [{"name": "demand-1"}]}}
    sight.take("ADDED", body)
    assert sight.by_job["demand-1"].word is None
    waits = {"status": {"conditions": [{"type": "QuotaReserved", "status": "False"}]}}
    sight.take("MODIFIED", body | waits)
    first = sight.by_job["demand-1"]
    assert (first.word is not None, first.reserved, sight.holding["demand"]) == (True, None, 0)
    holds = {"status": {"conditions": [{"type": "QuotaReserved", "status": "True"}]}}
    word = first.word
    sight.take("MODIFIED", body | holds)
    assert (first.word, first.reserved is not None, sight.holding["demand"]) == (word, True, 1)
    sight.take("DELETED", body | holds)
    assert sight.holding["demand"] == 0


def event(user: str, verb: str, stage: str, query: str = "", **more: str) -> bytes:
    about = {"resource": "workloads", **more}
    head = {"user": {"username": user}, "verb": verb, "stage": stage, "requestURI": f"/apis/x/workloads?{query}"}
    return json.dumps(head | {"objectRef": about}).encode()


def test_a_call_is_counted_when_it_is_answered_and_a_watch_when_it_begins() -> None:
    worker = f"{ACCOUNTS}worker"
    lines = [
        event(worker, "patch", "ResponseComplete"),
        event(worker, "patch", "ResponseComplete", subresource="status"),
        event(worker, "watch", "ResponseStarted"),
        event(worker, "watch", "ResponseComplete"),
        event("system:serviceaccount:other:thing", "list", "ResponseComplete"),
        event(worker, "list", "ResponseComplete", "limit=500"),
        event(worker, "list", "ResponseComplete", "limit=1"),
    ]
    assert dict(counted(lines)) == {
        ("worker", "patch", "workloads"): 1,
        ("worker", "patch", "workloads/status"): 1,
        ("worker", "watch", "workloads"): 1,
        ("worker", "list", "workloads"): 1,
        ("worker", "probe", "workloads"): 1,
    }


def test_this_process_uses_time_and_memory() -> None:
    found = used(os.getpid())
    assert found.seconds > 0
    assert found.mib > 1
