"""What the bank writes back on its objects: status, conditions and finalizers. Pure: facts in, writes out."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from gpubank.agreements import GROUP, LEASE, POLICY, POOL, Model, Objects
from gpubank.decide.agreement import Agreement
from gpubank.decide.verdict import Verdict
from gpubank.domain import conditions
from gpubank.domain.base import bounded
from gpubank.domain.books import Books
from gpubank.domain.contract import FINALIZER, Side
from gpubank.domain.facts import PoolFacts
from gpubank.domain.group import BusinessGroup
from gpubank.domain.layout import LayoutReport
from gpubank.domain.lease import CapacityLease
from gpubank.domain.meta import Condition, ConditionStatus, with_condition
from gpubank.domain.policy import GPUQuotaPolicy
from gpubank.domain.pool import GPUPool

COUNTS_PAUSE: Final = timedelta(milliseconds=30)
"""How long counts of a pool and of its policies may be old, for each of its shares: to write a status the API server
reads, judges and keeps the whole object. With 1,000 shares a pool's took 4 s on a busy server; with 200, where twenty
Workloads came a second, policies' were 12 writes a second, the most frequent of the controller's requests."""

POLICY_PAUSE: Final = timedelta(seconds=5)
"""How old counts of a policy may be at most; its group looks at them."""

MOST_NAMED: Final = 3
"""Jobs that a condition names."""

Held = GPUPool | BusinessGroup | GPUQuotaPolicy
"""What loans depend on, and what is held as long as they do."""


class PoolView(NamedTuple):
    """What is known of one pool at this turn."""

    books: Books
    facts: PoolFacts | None
    report: LayoutReport
    problem: str = ""
    """Why the scheduler could not be asked, where it could not."""


class StatusWrite(NamedTuple):
    """One status to be replaced."""

    kind: str
    name: str
    namespace: str | None
    status: Mapping[str, Any]
    seen: str
    events: tuple[tuple[str, str, bool], ...] = ()
    """(reason, message, warning) of every condition whose status or reason changed."""

    note: "Note | None" = None
    """What the audit trail says of it."""

    pause: timedelta = timedelta()
    """How long after the last one it may wait: nothing but counts has changed, and writing them is dear."""


class Note(NamedTuple):
    """One audit event, once per key."""

    key: str
    at: datetime
    actor: str
    subject: str
    action: str
    detail: Mapping[str, str | int | float | None]


class FinalizerWrite(NamedTuple):
    """One finalizer to be held or released."""

    kind: str
    name: str
    namespace: str | None
    held: bool
    remove_pool: bool = False
    """Whether what the bank made at the scheduler goes first."""


def statuses(
    objects: Objects, agreement: Agreement, views: Mapping[str, PoolView], now: datetime
) -> tuple[StatusWrite, ...]:
    """Return a write for every object whose status is not what it should be."""
    shares = {pool.name: len(pool.spec.shares) for pool in objects.pools}
    writes = [_pool_write(pool, agreement, views.get(pool.name), now) for pool in objects.pools]
    for group in objects.groups:
        verdict = agreement.verdicts[GROUP, group.key]
        writes.append(_write(GROUP, group, {}, (_ready(verdict, group, views),), now))
    for policy in objects.policies:
        verdict = agreement.verdicts[POLICY, policy.key]
        view = views.get(policy.spec.resource_pool)
        fields = _policy_fields(policy, view) if verdict.ready else {}
        ready = (_ready(verdict, policy, views),)
        write = _write(POLICY, policy, fields, ready, now)
        if fields.get("guaranteed") == policy.status.guaranteed:
            pause = min(COUNTS_PAUSE * shares.get(policy.spec.resource_pool, 0), POLICY_PAUSE)
            write = _unhurried(write, policy, ready, pause, now)
        writes.append(write)
    writes += [_lease_write(lease, agreement, now) for lease in objects.leases]
    return tuple(write for write in writes if write is not None)


def _pool_write(pool: GPUPool, agreement: Agreement, view: PoolView | None, now: datetime) -> StatusWrite | None:
    news = _pool_conditions(pool, agreement, view, now)
    write = _write(POOL, pool, _pool_fields(view), news, now)
    return _unhurried(write, pool, news, COUNTS_PAUSE * len(pool.spec.shares), now)


def _unhurried(
    write: StatusWrite | None,
    resource: GPUPool | GPUQuotaPolicy,
    news: Sequence[Condition],
    pause: timedelta,
    now: datetime,
) -> StatusWrite | None:
    """Let a write wait that says nothing new but counts."""
    status = resource.status
    if write is None or status.observed_generation != resource.metadata.generation:
        return write
    as_before = all(with_condition(status.conditions, new, now) == status.conditions for new in news)
    return write._replace(pause=pause) if as_before else write


def _lease_write(lease: CapacityLease, agreement: Agreement, now: datetime) -> StatusWrite | None:
    """Say whether the lease protects; every change of that is audited, and for an approval who gave it."""
    verdict = agreement.verdicts[LEASE, lease.key]
    ready = _condition(lease, conditions.READY, verdict.ready, verdict.reason, verdict.message)
    write = _write(LEASE, lease, {}, (ready,), now)
    if write is None or _same(lease.status.condition(conditions.READY), ready):
        return write
    status, approval = lease.status, lease.status.condition(conditions.APPROVED)
    actor = {conditions.APPLIED: status.approved_by, conditions.REVOKED: status.revoked_by}.get(verdict.reason, "")
    return write._replace(
        note=Note(
            # The version is the one that was judged: written again after a failure it is the same event.
            key=f"lease/{lease.metadata.uid}/{lease.metadata.resource_version}/{verdict.reason}",
            at=now,
            actor=actor or "controller",
            subject=f"lease/{lease.key}",
            action=f"lease {verdict.reason}",
            detail={
                "for": lease.subject,
                "until": lease.spec.until.isoformat(),
                "reason": lease.spec.reason,
                "generation": lease.metadata.generation,
                "verdict": verdict.message,
                # Who decided, whether anybody has confirmed that name, and why, in the words of the command.
                "approval": approval.message if approval is not None else None,
            },
        )
    )


def _same(before: Condition | None, ready: Condition) -> bool:
    """Whether nothing was decided since: neither was the lease edited, nor another approval given."""
    if before is None or (before.status, before.reason) != (ready.status, ready.reason):
        return False
    said = before.message == ready.message or ready.reason != conditions.APPLIED
    return said and before.observed_generation == ready.observed_generation


def finalizers(objects: Objects, views: Mapping[str, PoolView]) -> tuple[FinalizerWrite, ...]:
    """Hold every object while loans may depend on it; let a deleted one go when none is open."""
    writes = []
    for kind, resource in _with_kinds(objects):
        held = FINALIZER in resource.metadata.finalizers
        namespace = resource.namespace or None
        if not resource.metadata.deleting:
            if not held:
                writes.append(FinalizerWrite(kind, resource.name, namespace, held=True))
        elif held and not _open_loans(resource, views) and not _own_work(resource, views):
            writes.append(FinalizerWrite(kind, resource.name, namespace, held=False, remove_pool=kind == POOL))
    return tuple(writes)


def _with_kinds(objects: Objects) -> Sequence[tuple[str, Held]]:
    return [
        *((POOL, pool) for pool in objects.pools),
        *((GROUP, group) for group in objects.groups),
        *((POLICY, policy) for policy in objects.policies),
    ]


def _open_loans(resource: Held, views: Mapping[str, PoolView]) -> str:
    """Say which open loans keep the object from going; empty if none do."""
    if isinstance(resource, GPUPool):
        view = views.get(resource.name)
        count, what = (len(view.books.lines), "of the pool") if view else (0, "")
    else:
        group = resource.spec.business_group if isinstance(resource, GPUQuotaPolicy) else resource.name
        pools = [resource.spec.resource_pool] if isinstance(resource, GPUQuotaPolicy) else list(views)
        lines = [line for pool in pools if pool in views for line in views[pool].books.lines]
        count = sum(group in (line.lender, line.borrower) for line in lines)
        what = f"of group {group!r}"
    return f"{count} open loan lines {what}" if count else ""


def _own_work(resource: Held, views: Mapping[str, PoolView]) -> int:
    """GPUs of a pool that are in force for groups: own work holds them, or their queues are about to be lowered."""
    view = views.get(resource.name) if isinstance(resource, GPUPool) else None
    return view.books.promised if view is not None else 0


def _ready(verdict: Verdict, resource: Held, views: Mapping[str, PoolView]) -> Condition:
    if resource.metadata.deleting and (loans := _open_loans(resource, views)):
        message = f"deletion waits for {loans}: what is lent and what is borrowed is recalled"
        return _condition(resource, conditions.READY, False, conditions.LOANS_OPEN, message)
    if resource.metadata.deleting and (gpus := _own_work(resource, views)):
        message = f"deletion waits for own work that holds {gpus} GPUs; end it, or wait for its end"
        return _condition(resource, conditions.READY, False, conditions.QUEUE_IN_USE, message)
    return _condition(resource, conditions.READY, verdict.ready, verdict.reason, verdict.message)


def _pool_conditions(
    pool: GPUPool, agreement: Agreement, view: PoolView | None, now: datetime
) -> tuple[Condition, ...]:
    verdict = agreement.verdicts[POOL, pool.key]
    ready = _ready(verdict, pool, {pool.name: view} if view else {})
    if ready.status is ConditionStatus.TRUE and view is not None:
        if view.problem:
            ready = _condition(pool, conditions.READY, False, conditions.BACKEND_UNREACHABLE, view.problem)
        elif view.report.problems:
            first = view.report.problems[0]
            more = len(view.report.problems) - 1
            message = first.message + (f" (and {more} more)" if more else "")
            ready = _condition(pool, conditions.READY, False, first.reason, message)
    promised = pool.spec.guaranteed_by_shares
    oversubscribed = promised > pool.spec.capacity
    offered = _allocatable(view)
    shrunk = view is not None and view.facts is not None and offered < pool.spec.capacity
    frozen = agreement.terms[pool.name].frozen(now)
    freeze = pool.spec.freeze
    unlisted = _unlisted(pool, view)
    fail_safe = bool(view and view.facts and view.facts.in_fail_safe)
    return (
        ready,
        _condition(
            pool,
            conditions.OVERSUBSCRIBED,
            oversubscribed,
            conditions.SHARES_EXCEED_CAPACITY if oversubscribed else conditions.WITHIN_CAPACITY,
            f"shares promise {promised} of {pool.spec.capacity} GPUs",
        ),
        _condition(
            pool,
            conditions.SHRUNK,
            shrunk,
            conditions.NODES_MISSING if shrunk else conditions.WITHIN_CAPACITY,
            f"ready nodes offer {offered} of {pool.spec.capacity} GPUs",
        ),
        _condition(
            pool,
            conditions.FROZEN,
            frozen,
            conditions.FREEZE_ORDERED if frozen else conditions.NOT_ORDERED,
            f"by {freeze.by}: {freeze.reason}" if frozen and freeze else "loans and recalls go on",
        ),
        _condition(
            pool,
            conditions.PRIORITY_UNLISTED,
            bool(unlisted),
            conditions.CLASS_NOT_ALLOWED if unlisted else conditions.CLASSES_ALLOWED,
            f"allowedPriorityClasses does not list what they name: {unlisted}; it was made before, or past admission"
            if unlisted
            else "work in the pool's queues names allowed priority classes, or none",
        ),
        _condition(
            pool,
            conditions.FAIL_SAFE,
            fail_safe,
            conditions.WATCHDOG_ACTED if fail_safe else conditions.NOT_ORDERED,
            "Kueue borrows by itself until the bank is back" if fail_safe else "the bank is in charge",
        ),
    )


def _unlisted(pool: GPUPool, view: PoolView | None) -> str:
    """Name work whose priority class the pool does not allow; of much the first few."""
    allowed = pool.spec.limits.allowed_priority_classes
    if not allowed or view is None or view.facts is None:
        return ""
    named = sorted(
        f"{w.key.short} ({w.priority_class})"
        for w in view.facts.workloads
        if not w.finished and w.priority_class and w.priority_class not in allowed
    )
    more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
    return ", ".join(named[:MOST_NAMED]) + more


def _allocatable(view: PoolView | None) -> int:
    if view is None or view.facts is None:
        return 0
    return sum(node.gpus for node in view.facts.nodes if node.ready)


def _pool_fields(view: PoolView | None) -> dict[str, Any]:
    if view is None or view.facts is None:
        return {}
    lent = sum(line.gpus for line in view.books.lines if not line.is_self_loan)
    return {
        "allocatable": _allocatable(view),
        "reserved": bounded(sum(queue.reserved for queue in view.facts.queues)),
        "borrowed": lent,
    }


def _policy_fields(policy: GPUQuotaPolicy, view: PoolView | None) -> dict[str, Any]:
    group = policy.spec.business_group
    if view is None or view.facts is None:
        return {}
    own = view.facts.queue(group, Side.OWN)
    return {
        "guaranteed": view.books.guarantee(group).in_force,
        "used": own.reserved if own else 0,
        "borrowed": view.books.borrowed(group),
        "lent": view.books.lent_to_others(group),
        "pending": bounded(view.facts.pending(group)),
    }


def _condition(resource: Model, kind: str, holds: bool, reason: str, message: str) -> Condition:
    return Condition(
        type=kind,
        status=ConditionStatus.TRUE if holds else ConditionStatus.FALSE,
        reason=reason,
        message=message,
        observed_generation=resource.metadata.generation,
    )


def _write(
    kind: str, resource: Model, fields: Mapping[str, Any], news: Sequence[Condition], now: datetime
) -> StatusWrite | None:
    """Return the write that brings the status up to date, or None if it says this already."""
    before = resource.status
    after_conditions = before.conditions
    events: list[tuple[str, str, bool]] = []
    for new in news:
        old = before.condition(new.type)
        if old is None or (old.status, old.reason) != (new.status, new.reason):
            good = (new.status is ConditionStatus.TRUE) == (new.type == conditions.READY)
            if old is not None or not good:
                events.append((new.reason, new.message, not good))
            elif new.type == conditions.READY:
                events.append((new.reason, new.message, False))
        after_conditions = with_condition(after_conditions, new, now)
    after = before.model_copy(
        update={**fields, "conditions": after_conditions, "observed_generation": resource.metadata.generation}
    )
    if after == before:
        return None
    return StatusWrite(
        kind,
        resource.name,
        resource.namespace or None,
        after.model_dump(mode="json", by_alias=True, exclude_none=True),
        resource.metadata.resource_version,
        tuple(events),
    )
