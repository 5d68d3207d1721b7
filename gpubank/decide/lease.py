"""Leases: which are in force, and which borrowed work they keep from every recall.

    asked for ──▶ approved by the platform, for this very spec ──▶ protects ──▶ ended, revoked, edited, deleted

    workloadRef    that Workload, whole
    pool, gpus     the group's borrowed Workloads in the pool, oldest first (admission, then uid), each whole, as long
                   as they fit into what the group's leases there add up to

Nothing is remembered: a lease that ends, or is taken back, protects nobody in the next decision. It holds against every
demand, in a pool that evicts what is overdue too: it is the platform's word, and whoever waits is told until when.
Only a person's own order to return a loan is stronger, and the scheduler itself under the fail-safe.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import accumulate
from typing import NamedTuple

from gpubank.decide.desk import Desk
from gpubank.decide.verdict import Verdict, refused
from gpubank.domain import conditions
from gpubank.domain.base import format_instant
from gpubank.domain.books import Books
from gpubank.domain.contract import Side
from gpubank.domain.errors import Problem
from gpubank.domain.facts import PoolFacts, WorkloadFacts
from gpubank.domain.group import BusinessGroup
from gpubank.domain.lease import CapacityLease, term_problem
from gpubank.domain.loan import LineState, WorkloadKey
from gpubank.domain.terms import LeaseTerms, PoolTerms

# ---- which leases are in force


class AgreedLeases(NamedTuple):
    """The approved leases by pool, and a verdict on every lease."""

    terms: Mapping[str, tuple[LeaseTerms, ...]]
    verdicts: tuple[tuple[CapacityLease, Verdict], ...]


def agree_leases(
    leases: Sequence[CapacityLease],
    pools: Mapping[str, PoolTerms],
    namespaces: Mapping[str, tuple[str, ...]],
    max_lease: Mapping[str, timedelta],
    *,
    now: datetime | None,
) -> AgreedLeases:
    """Judge every lease, the older first; one of a workload counts in every pool where its group has a policy."""
    owner = {namespace: group for group, names in namespaces.items() for namespace in names}
    found: dict[str, list[LeaseTerms]] = {}
    verdicts = []
    for lease in sorted(leases, key=_age):
        verdict, there = _judge(lease, owner.get(lease.namespace, ""), pools, max_lease, found, now)
        verdicts.append((lease, verdict))
        for pool, terms in there.items():
            found.setdefault(pool, []).append(terms)
    return AgreedLeases({pool: tuple(terms) for pool, terms in found.items()}, tuple(verdicts))


def _age(lease: CapacityLease) -> tuple[float, str]:
    created = lease.metadata.creation_timestamp
    return (created.timestamp() if created else float("inf"), lease.key)


def _judge(
    lease: CapacityLease,
    group: str,
    pools: Mapping[str, PoolTerms],
    max_lease: Mapping[str, timedelta],
    found: Mapping[str, Sequence[LeaseTerms]],
    now: datetime | None,
) -> tuple[Verdict, Mapping[str, LeaseTerms]]:
    """Judge one lease, and say what it is in each pool that it concerns."""
    made = lease.metadata.creation_timestamp or now
    if lease.metadata.deleting:
        return refused(
            conditions.DELETING, "metadata.deletionTimestamp", "set", "is being deleted", "make a new one"
        ), {}
    if now is not None and now >= lease.spec.until:
        rule = "the lease has ended; what it protected may be recalled"
        return refused(conditions.EXPIRED, "spec.until", format_instant(lease.spec.until), rule, "make a new one"), {}
    if not group:
        rule = "the namespace belongs to no BusinessGroup, and a lease is of the group whose namespace it stands in"
        return refused(conditions.FOREIGN_NAMESPACE, "metadata.namespace", lease.namespace, rule, "move it"), {}
    place = _place(lease, group, pools, found)
    if place.problem is not None:
        return Verdict(place.reason, (place.problem,)), {}
    fitting = [
        pool
        for pool in place.pools
        if made is None or term_problem(lease, now=made, max_lease=max_lease[pool.pool]) is None
    ]
    if made is not None and not fitting:
        longest = max(max_lease[pool.pool] for pool in place.pools)
        problem = term_problem(lease, now=made, max_lease=longest)
        return Verdict(conditions.TOO_LONG, (problem,) if problem else ()), {}
    if not lease.approved:
        return _unapproved(lease), {}
    return _in_force(lease, group, fitting)


class _Place(NamedTuple):
    """Pools that a lease concerns, or why there is none."""

    pools: tuple[PoolTerms, ...] = ()
    reason: str = ""
    problem: Problem | None = None


def _place(
    lease: CapacityLease, group: str, pools: Mapping[str, PoolTerms], found: Mapping[str, Sequence[LeaseTerms]]
) -> _Place:
    if lease.spec.pool is None:
        there = tuple(terms for _, terms in sorted(pools.items()) if terms.group(group) is not None)
        if there:
            return _Place(there)
        problem = Problem("metadata.namespace", lease.namespace, _no_policy(group, "any pool"), "write one first")
        return _Place(reason=conditions.NO_POLICY, problem=problem)
    name, gpus = lease.spec.pool, lease.spec.gpus or 0
    pool = pools.get(name)
    if pool is None:
        problem = Problem("spec.pool", name, "no such GPUPool", "mend the name")
        return _Place(reason=conditions.POOL_NOT_FOUND, problem=problem)
    terms = pool.group(group)
    if terms is None:
        problem = Problem("spec.pool", name, _no_policy(group, f"pool {name!r}"), "write one first")
        return _Place(reason=conditions.NO_POLICY, problem=problem)
    left = terms.borrow_limit - sum(other.gpus for other in found.get(name, ()) if other.group == group)
    if gpus > left:
        rule = (
            f"group {group!r} borrows at most {terms.borrow_limit} GPUs in pool {name!r}, and its older leases leave"
            f" {max(left, 0)} of them"
        )
        problem = Problem("spec.gpus", str(gpus), rule, "ask for fewer, or delete a lease")
        return _Place(reason=conditions.BEYOND_LIMIT, problem=problem)
    return _Place((pool,))


def _no_policy(group: str, where: str) -> str:
    return f"group {group!r} has no GPUQuotaPolicy in force in {where}"


def _unapproved(lease: CapacityLease) -> Verdict:
    status, condition = lease.status, lease.status.condition(conditions.APPROVED)
    if condition is not None and condition.observed_generation == lease.metadata.generation:
        rule = f"its approval was taken back by {status.revoked_by or 'somebody'}: {condition.message or 'no reason'}"
        return refused(conditions.REVOKED, "status", "", rule, "ask the platform team")
    edited = "it was edited since it was approved, and " if condition is not None else ""
    rule = f"{edited}nobody of the platform has agreed to it as it stands; it protects nothing until then"
    return refused(
        conditions.AWAITING_APPROVAL, "status", "", rule, f"gpubank lease approve {lease.name} -n {lease.namespace}"
    )


def _in_force(lease: CapacityLease, group: str, pools: Iterable[PoolTerms]) -> tuple[Verdict, Mapping[str, LeaseTerms]]:
    ref = lease.spec.workload_ref
    terms = LeaseTerms(
        name=lease.key,
        group=group,
        namespace=lease.namespace,
        workload_kind=ref.kind if ref is not None else "",
        workload_name=ref.name if ref is not None else "",
        gpus=lease.spec.gpus or 0,
        until=lease.spec.until,
    )
    condition = lease.status.condition(conditions.APPROVED)
    agreed = f"; {condition.message}" if condition is not None and condition.message else ""
    says = f"no recall takes {lease.subject} of {group} before {format_instant(lease.spec.until)}{agreed}"
    return Verdict(conditions.APPLIED, says=says), {pool.pool: terms for pool in pools}


# ---- whom they protect


def protected(desk: Desk) -> Mapping[str, LeaseTerms]:
    """Return the lease that keeps each protected borrow Workload, by uid; of two the one that lasts longer."""
    return desk.once("leased", lambda: _protected(desk))


def protected_now(facts: PoolFacts, books: Books, terms: PoolTerms, now: datetime) -> Mapping[str, LeaseTerms]:
    """Return what `protected` does, for whoever decides nothing else."""
    return protected(Desk(facts, books, terms, now)) if terms.leases else {}


def _protected(desk: Desk) -> dict[str, LeaseTerms]:
    leases = [lease for lease in desk.terms.leases if desk.now < lease.until]
    for lease in leases:
        desk.wake(lease.until)
    if not leases:
        return {}
    found: dict[str, LeaseTerms] = {}
    borrowers = [workload for workload in desk.of_side(Side.BORROW) if _borrows(desk, workload)]
    for workload in borrowers:
        own = [lease for lease in leases if lease.workload_name and names(lease, workload.key, workload.group)]
        if own:
            found[workload.key.uid] = max(own, key=lambda lease: (lease.until, lease.name))
    for group in sorted({lease.group for lease in leases if lease.gpus}):
        rest = [w for w in borrowers if w.group == group and w.key.uid not in found]
        found |= _oldest(desk, rest, [lease for lease in leases if lease.gpus and lease.group == group])
    return found


def names(lease: LeaseTerms, key: WorkloadKey, group: str) -> bool:
    """Whether a lease of one workload is for this one: by the job that people know, or by the Workload itself."""
    if lease.group != group or lease.namespace != key.namespace:
        return False
    itself = lease.workload_kind == "Workload" and lease.workload_name == key.name
    return itself or key.job == f"{lease.workload_kind}/{lease.workload_name}"


def _borrows(desk: Desk, workload: WorkloadFacts) -> bool:
    """Whether it holds quota that somebody could want back; what waits or is parked has nothing to protect."""
    lines = desk.books.lines_of(workload.key.uid)
    return workload.reserved and any(line.state in (LineState.GRANTED, LineState.RECALLED) for line in lines)


def _oldest(desk: Desk, workloads: Iterable[WorkloadFacts], leases: Sequence[LeaseTerms]) -> dict[str, LeaseTerms]:
    """Protect whole Workloads in the order of their admission, as far as the leases together reach.

    One that does not fit is passed over. Each is protected for as long as its GPUs are leased: the lease that is named
    is the one that ends first among those that it needs, the longest of them counting first.
    """
    longest = sorted(leases, key=lambda lease: (-lease.until.timestamp(), lease.name))
    total, used = sum(lease.gpus for lease in leases), 0
    found: dict[str, LeaseTerms] = {}
    for workload in sorted(workloads, key=lambda w: (w.admitted_at or desk.now, w.key.uid)):
        if workload.gpus <= 0 or used + workload.gpus > total:
            continue
        used += workload.gpus
        found[workload.key.uid] = _covering(longest, used)
    return found


def _covering(leases: Sequence[LeaseTerms], gpus: int) -> LeaseTerms:
    """Return the first lease with which they reach so far; together they do."""
    reach = accumulate(lease.gpus for lease in leases)
    return next(lease for lease, gpus_so_far in zip(leases, reach, strict=True) if gpus_so_far >= gpus)


# ---- who may agree


def approval_problem(
    lease: CapacityLease, verdict: Verdict, groups: Iterable[BusinessGroup], who: str
) -> Problem | None:
    """Say why `who` may not approve the lease as it stands, or None.

    Four eyes: nobody of the group whose namespace it stands in agrees to its own. On a cluster an admission policy says
    the same, by the identity that the API server has confirmed, groups of users included.
    """
    for group in sorted(groups, key=lambda each: each.name):
        if lease.namespace in group.spec.namespaces and who in members(group):
            rule = f"{who!r} is of group {group.name!r}, and no group approves its own lease"
            return Problem("status.approvedBy", who, rule, "ask somebody of the platform team")
    if verdict.reason not in (conditions.AWAITING_APPROVAL, conditions.REVOKED, conditions.APPLIED):
        return verdict.problems[0]
    return None


def members(group: BusinessGroup) -> frozenset[str]:
    """Names of the people and accounts that are of the group."""
    spec = group.spec
    return frozenset((spec.owner, *spec.admins, *(subject.name for subject in spec.subjects)))
