"""What of all pools, groups and policies is in force: the terms of each pool, and a verdict on every object.

An object that breaks a rule against another is not in force, and nothing of it is applied; the older of two that
contradict each other stands (creation time, then name). Verdicts name field, value, rule and remedy.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from gpubank.decide.lease import agree_leases
from gpubank.decide.verdict import Subject, Verdict, refused
from gpubank.domain import conditions
from gpubank.domain.contract import (
    NODE_FABRIC_LABEL,
    NODE_LIFECYCLE_LABEL,
    NODE_MODEL_LABEL,
    NODE_POOL_LABEL,
    NODE_VENDOR_LABEL,
)
from gpubank.domain.errors import Problem
from gpubank.domain.group import BusinessGroup
from gpubank.domain.layout import GroupLayout, PoolLayout
from gpubank.domain.lease import CapacityLease
from gpubank.domain.policy import GPUQuotaPolicy, GPUQuotaPolicySpec
from gpubank.domain.pool import GPUPool, Share
from gpubank.domain.terms import GroupTerms, PoolTerms


class Agreement(NamedTuple):
    """What is in force, and the verdicts."""

    terms: Mapping[str, PoolTerms]
    """Terms by pool."""

    namespaces: Mapping[str, tuple[str, ...]]
    """Namespaces by group, each in one group only."""

    verdicts: Mapping[Subject, Verdict]

    def layout(self, pool: str, extra_groups: Iterable[str] = ()) -> PoolLayout:
        """Return what the pool needs at its scheduler: its groups, and `extra_groups` that still have open books."""
        terms = self.terms[pool]
        names = sorted({group.group for group in terms.groups} | set(extra_groups))
        return PoolLayout(
            cluster=terms.cluster,
            pool=pool,
            resource_name=terms.resource_name,
            node_labels=terms.node_labels,
            groups=tuple(GroupLayout(group=name, namespaces=self.namespaces.get(name, ())) for name in names),
        )


def agree(
    cluster: str,
    pools: Sequence[GPUPool],
    groups: Sequence[BusinessGroup],
    policies: Sequence[GPUQuotaPolicy],
    leases: Sequence[CapacityLease] = (),
    *,
    now: datetime | None = None,
) -> Agreement:
    """Judge all objects against each other; the order in which they are given makes no difference.

    A policy that is being deleted, or whose pool or group is, is in force no more: what it lends comes back by that.
    Leases are judged as of `now`; without it none has ended yet.
    """
    verdicts: dict[Subject, Verdict] = {}
    namespaces = _share_namespaces(groups, verdicts)
    by_pool = {pool.name: pool for pool in pools}
    shares = {pool.name: {share.business_group: share for share in pool.spec.shares} for pool in pools}
    left = {pool.name: pool.spec.capacity for pool in pools}
    accepted: dict[str, dict[str, GPUQuotaPolicy]] = {pool.name: {} for pool in pools}
    leaving = {pool.key for pool in pools if pool.metadata.deleting}
    departing = {group.key for group in groups if group.metadata.deleting}
    for policy in sorted(policies, key=_age):
        spec = policy.spec
        if policy.metadata.deleting or spec.resource_pool in leaving or spec.business_group in departing:
            verdict = _DELETING
        else:
            verdict = _judge(policy, by_pool, shares, namespaces, accepted, left)
        verdicts["GPUQuotaPolicy", policy.key] = verdict
        if verdict.ready:
            accepted[spec.resource_pool][spec.business_group] = policy
            left[spec.resource_pool] -= spec.guaranteed
    for pool in pools:
        verdicts["GPUPool", pool.key] = Verdict(conditions.APPLIED)
    terms = {pool.name: _terms(cluster, pool, accepted[pool.name], namespaces) for pool in pools}
    limits = {pool.name: pool.spec.limits.max_lease for pool in pools}
    judged = agree_leases(leases, terms, namespaces, limits, now=now)
    for lease, verdict in judged.verdicts:
        verdicts["CapacityLease", lease.key] = verdict
    terms |= {
        name: terms[name].model_copy(update={"leases": leases_there}) for name, leases_there in judged.terms.items()
    }
    return Agreement(terms, namespaces, verdicts)


def _age(resource: GPUQuotaPolicy | BusinessGroup) -> tuple[float, str]:
    """Older first; an object that was never stored comes last, then by key."""
    created = resource.metadata.creation_timestamp
    return (created.timestamp() if created else float("inf"), resource.key)


def _share_namespaces(groups: Sequence[BusinessGroup], verdicts: dict[Subject, Verdict]) -> dict[str, tuple[str, ...]]:
    """Give every namespace to the oldest group that names it."""
    taken: dict[str, str] = {}
    result: dict[str, tuple[str, ...]] = {}
    for group in sorted(groups, key=_age):
        problems = [
            Problem(
                field="spec.namespaces",
                value=namespace,
                rule=f"a namespace belongs to one group, and this one to {taken[namespace]!r}",
                remedy="take it out here or there",
            )
            for namespace in group.spec.namespaces
            if namespace in taken
        ]
        own = tuple(namespace for namespace in group.spec.namespaces if namespace not in taken)
        taken |= dict.fromkeys(own, group.name)
        result[group.name] = own
        reason = conditions.NAMESPACE_TAKEN if problems else conditions.APPLIED
        verdicts["BusinessGroup", group.key] = Verdict(reason, tuple(problems))
    return result


def _judge(
    policy: GPUQuotaPolicy,
    pools: Mapping[str, GPUPool],
    shares: Mapping[str, Mapping[str, Share]],
    namespaces: Mapping[str, tuple[str, ...]],
    accepted: Mapping[str, Mapping[str, GPUQuotaPolicy]],
    left: Mapping[str, int],
) -> Verdict:
    """Judge one policy against its group, its pool, and the older policies that are in force."""
    spec = policy.spec
    group, pool = spec.business_group, pools.get(spec.resource_pool)
    if group not in namespaces:
        return refused(
            conditions.GROUP_NOT_FOUND,
            "spec.businessGroup",
            group,
            "no such BusinessGroup",
            "create it, or mend the name",
        )
    if policy.namespace not in namespaces[group]:
        return refused(
            conditions.FOREIGN_NAMESPACE,
            "metadata.namespace",
            policy.namespace,
            f"the policy of group {group!r} stands in one of its namespaces"
            f" ({', '.join(namespaces[group]) or 'it has none'})",
            "move the policy, or add the namespace to the group",
        )
    if pool is None:
        return refused(
            conditions.POOL_NOT_FOUND,
            "spec.resourcePool",
            spec.resource_pool,
            "no such GPUPool",
            "create it, or mend the name",
        )
    share = shares[pool.name].get(group)
    if share is None:
        return refused(
            conditions.NO_SHARE,
            "spec.businessGroup",
            group,
            f"pool {pool.name!r} gives this group no share",
            "ask the platform team for one",
        )
    if beyond := _beyond(spec, share):
        return Verdict(conditions.BEYOND_SHARE, beyond)
    if (older := accepted[pool.name].get(group)) is not None:
        return refused(
            conditions.DUPLICATE,
            "spec.resourcePool",
            pool.name,
            f"a group has one policy for a pool, and {older.key!r} is older",
            "delete one of the two",
        )
    if spec.guaranteed > left[pool.name]:
        return refused(
            conditions.BEYOND_CAPACITY,
            "spec.guaranteed",
            str(spec.guaranteed),
            f"pool {pool.name!r} has {left[pool.name]} of its {pool.spec.capacity} GPUs left to guarantee",
            "lower it, or ask the platform team for capacity",
        )
    return Verdict(conditions.APPLIED)


_DELETING: Final = refused(
    conditions.DELETING,
    "metadata.deletionTimestamp",
    "set",
    "a policy is in force only while it, its pool and its group stand",
    "create it anew once it is gone",
)


def _beyond(spec: GPUQuotaPolicySpec, share: Share) -> tuple[Problem, ...]:
    """What the policy asks beyond its group's share."""
    asked = (
        ("spec.guaranteed", spec.guaranteed, share.guaranteed),
        ("spec.maxCapacity", spec.effective_max_capacity, share.max_capacity),
        ("spec.borrowLimit", spec.effective_borrow_limit, share.max_borrow),
    )
    return tuple(
        Problem(
            field=field,
            value=str(value),
            rule=f"the group's share of the pool allows at most {limit}",
            remedy=f"write at most {limit}, or ask the platform team for more",
        )
        for field, value, limit in asked
        if limit is not None and value > limit
    )


def _terms(
    cluster: str, pool: GPUPool, policies: Mapping[str, GPUQuotaPolicy], namespaces: Mapping[str, tuple[str, ...]]
) -> PoolTerms:
    limits = pool.spec.limits
    return PoolTerms(
        cluster=cluster,
        pool=pool.name,
        resource_name=pool.spec.resource_name,
        node_labels=_node_labels(pool),
        capacity=pool.spec.capacity,
        groups=tuple(_group_terms(name, policy.spec, namespaces[name]) for name, policy in sorted(policies.items())),
        freeze=pool.spec.freeze,
        max_grace_period=limits.max_grace_period,
        max_termination=limits.max_termination,
        max_time_to_return=limits.max_time_to_return,
        on_overdue=limits.on_overdue,
        resume_after=limits.resume_after,
        min_run_time=limits.min_run_time,
        max_checkpoint_age=limits.max_checkpoint_age,
        fail_safe_after=limits.fail_safe_after,
        allowed_priority_classes=frozenset(limits.allowed_priority_classes),
        serving_floor=limits.serving_floor_gpus,
    )


def _group_terms(name: str, spec: GPUQuotaPolicySpec, namespaces: tuple[str, ...]) -> GroupTerms:
    reclaim = spec.reclaim_policy
    return GroupTerms(
        group=name,
        guaranteed=spec.guaranteed,
        borrow_limit=spec.effective_borrow_limit,
        lending_limit=spec.effective_lending_limit,
        weight=spec.fair_share_weight,
        grace_period=reclaim.grace_period,
        only_preempt=frozenset(reclaim.only_preempt),
        on_checkpoint_failure=reclaim.on_checkpoint_failure,
        approval=reclaim.approval,
        within_group=reclaim.within_group,
        namespaces=namespaces,
    )


def _node_labels(pool: GPUPool) -> dict[str, str]:
    """Labels of the pool's nodes; an empty part of the flavor matches any."""
    flavor = pool.spec.flavor
    labels = {
        NODE_POOL_LABEL: pool.name,
        NODE_VENDOR_LABEL: flavor.vendor,
        NODE_MODEL_LABEL: flavor.model,
        NODE_FABRIC_LABEL: flavor.fabric,
        NODE_LIFECYCLE_LABEL: flavor.lifecycle,
    }
    return {name: value for name, value in labels.items() if value}
