"""What is in force of objects that are being deleted."""

from datetime import UTC, datetime
from typing import Any

import pytest

from gpubank.decide.agreement import agree
from gpubank.domain import conditions
from gpubank.domain.group import BusinessGroup
from gpubank.domain.policy import GPUQuotaPolicy, WithinGroup
from gpubank.domain.pool import GPUPool

KINDS = ("GPUPool", "BusinessGroup", "GPUQuotaPolicy")


def objects(deleting: str) -> tuple[list[GPUPool], list[BusinessGroup], list[GPUQuotaPolicy]]:
    """Return a pool, a group and its policy, of which the one of kind `deleting` is being deleted."""

    def body(kind: str, name: str, spec: dict[str, Any], **metadata: str) -> dict[str, Any]:
        if kind == deleting:
            metadata["deletionTimestamp"] = datetime(2026, 3, 1, tzinfo=UTC).isoformat().replace("+00:00", "Z")
        return {
            "apiVersion": "platform.aik8s.run/v1alpha1",
            "kind": kind,
            "metadata": {"name": name, **metadata},
            "spec": spec,
        }

    shares = [{"businessGroup": "vision", "guaranteed": 8}]
    pool = body("GPUPool", "h100", {"capacity": 8, "shares": shares})
    group = body("BusinessGroup", "vision", {"owner": "lin@example.com", "namespaces": ["vision"]})
    spec = {"businessGroup": "vision", "resourcePool": "h100", "guaranteed": 8}
    policy = body("GPUQuotaPolicy", "policy", spec, namespace="vision")
    return [GPUPool.from_wire(pool)], [BusinessGroup.from_wire(group)], [GPUQuotaPolicy.from_wire(policy)]


def test_a_policy_is_in_force_while_it_its_pool_and_its_group_stand() -> None:
    agreement = agree("local", *objects(deleting="nothing"))
    assert agreement.terms["h100"].group("vision") is not None
    assert agreement.verdicts["GPUQuotaPolicy", "vision/policy"].ready


def test_a_policy_that_lets_own_work_make_room_is_in_force() -> None:
    pools, groups, (policy,) = objects(deleting="nothing")
    reclaim = policy.spec.reclaim_policy.model_copy(update={"within_group": WithinGroup.LOWER_PRIORITY})
    asks = policy.model_copy(update={"spec": policy.spec.model_copy(update={"reclaim_policy": reclaim})})
    agreed = agree("local", pools, groups, [asks])
    verdict = agreed.verdicts["GPUQuotaPolicy", "vision/policy"]
    assert verdict.ready
    assert verdict.message == "what the spec says is in force"
    (pool,) = agreed.terms.values()
    assert {group.within_group for group in pool.groups} == {WithinGroup.LOWER_PRIORITY}


@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_is_in_force_no_more_when_one_of_them_is_being_deleted(kind: str) -> None:
    agreement = agree("local", *objects(deleting=kind))
    assert agreement.terms["h100"].groups == ()
    verdict = agreement.verdicts["GPUQuotaPolicy", "vision/policy"]
    assert (verdict.ready, verdict.reason) == (False, conditions.DELETING)
