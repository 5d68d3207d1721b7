"""Which policies are refused, and what their owners read."""

from datetime import UTC, datetime
from typing import Any

import pytest

from gpubank.decide.agreement import agree
from gpubank.decide.verdict import Verdict
from gpubank.domain import conditions
from gpubank.domain.group import BusinessGroup
from gpubank.domain.policy import GPUQuotaPolicy
from gpubank.domain.pool import GPUPool

SHARES = [
    {"businessGroup": "vision", "guaranteed": 12, "maxCapacity": 14, "maxBorrow": 4},
    {"businessGroup": "speech", "guaranteed": 12},
]


def body(kind: str, name: str, spec: dict[str, Any], *, hour: int = 0, namespace: str | None = None) -> dict[str, Any]:
    created = datetime(2026, 3, 1, hour, tzinfo=UTC).isoformat().replace("+00:00", "Z")
    metadata = {"name": name, "creationTimestamp": created} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": "platform.aik8s.run/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


def policy(
    group: str = "vision", *, name: str = "p", hour: int = 1, namespace: str = "", **spec: Any
) -> GPUQuotaPolicy:
    """A policy for 8 GPUs of the pool in its group's namespace, where nothing else is said."""
    spec = {"businessGroup": group, "resourcePool": "h100", "guaranteed": 8} | spec
    return GPUQuotaPolicy.from_wire(
        body("GPUQuotaPolicy", name, spec, hour=hour, namespace=namespace or f"team-{spec['businessGroup']}")
    )


def judged(*policies: GPUQuotaPolicy) -> list[Verdict]:
    """The verdicts on policies of a pool of 16 GPUs, three groups, of which one has no share and one no namespace."""
    pool = GPUPool.from_wire(body("GPUPool", "h100", {"capacity": 16, "shares": SHARES}))
    groups = [
        BusinessGroup.from_wire(
            body("BusinessGroup", name, {"owner": "lin@example.com", "namespaces": [namespace]}, hour=hour)
        )
        for hour, (name, namespace) in enumerate(
            [("vision", "team-vision"), ("speech", "team-speech"), ("robots", "team-robots"), ("late", "team-vision")]
        )
    ]
    verdicts = agree("local", [pool], groups, policies).verdicts
    return [verdicts["GPUQuotaPolicy", each.key] for each in policies]


@pytest.mark.parametrize(
    ("asked", "reason", "field", "rule"),
    [
        (policy("nobody"), conditions.GROUP_NOT_FOUND, "spec.businessGroup", "no such BusinessGroup"),
        (
            policy(namespace="elsewhere"),
            conditions.FOREIGN_NAMESPACE,
            "metadata.namespace",
            "the policy of group 'vision' stands in one of its namespaces (team-vision)",
        ),
        (
            policy("late", namespace="team-vision"),
            conditions.FOREIGN_NAMESPACE,
            "metadata.namespace",
            "the policy of group 'late' stands in one of its namespaces (it has none)",
        ),
        (policy(resourcePool="a100"), conditions.POOL_NOT_FOUND, "spec.resourcePool", "no such GPUPool"),
        (policy("robots"), conditions.NO_SHARE, "spec.businessGroup", "pool 'h100' gives this group no share"),
    ],
)
def test_a_policy_that_names_what_is_not_its_own_is_refused(
    asked: GPUQuotaPolicy, reason: str, field: str, rule: str
) -> None:
    (verdict,) = judged(asked)
    assert (verdict.ready, verdict.reason) == (False, reason)
    assert [(problem.field, problem.rule) for problem in verdict.problems] == [(field, rule)]


def test_every_limit_beyond_the_share_is_told_at_once_and_the_share_itself_is_not_beyond() -> None:
    (verdict,) = judged(policy(guaranteed=13, maxCapacity=18, borrowLimit=5))
    assert verdict.reason == conditions.BEYOND_SHARE
    assert [(problem.field, problem.value) for problem in verdict.problems] == [
        ("spec.guaranteed", "13"),
        ("spec.maxCapacity", "18"),
        ("spec.borrowLimit", "5"),
    ]
    (verdict,) = judged(policy(guaranteed=12, maxCapacity=14, borrowLimit=2))
    assert verdict.ready


def test_of_two_policies_of_one_group_the_older_stands() -> None:
    newer, older = policy(name="newer", hour=5), policy(name="older", hour=2)
    refused, stands = judged(newer, older)
    assert stands.ready
    assert refused.reason == conditions.DUPLICATE
    assert "'team-vision/older' is older" in refused.problems[0].rule


def test_guarantees_add_up_to_the_capacity_and_not_to_more() -> None:
    first, second = judged(policy(hour=1), policy("speech", hour=2))
    assert (first.ready, second.ready) == (True, True)
    first, second = judged(policy(hour=1), policy("speech", hour=2, guaranteed=9))
    assert (first.ready, second.reason) == (True, conditions.BEYOND_CAPACITY)
    assert second.problems[0].rule == "pool 'h100' has 8 of its 16 GPUs left to guarantee"
