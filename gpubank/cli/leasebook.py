"""What the lease commands ask the bank: which leases there are, what they protect, and who may agree to one."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from gpubank.agreements import LEASE, Objects, agreement, read_objects
from gpubank.cli.context import AmbiguousError, NotFoundError
from gpubank.decide.lease import approval_problem, protected_now
from gpubank.domain import conditions
from gpubank.domain.base import Instant, Message
from gpubank.domain.errors import BackendError, PolicyError
from gpubank.domain.lease import CapacityLease, CapacityLeaseStatus
from gpubank.domain.meta import Condition, ConditionStatus, with_condition

if TYPE_CHECKING:
    from gpubank.cli.door import Door
    from gpubank.cli.identity import Identity
    from gpubank.decide.agreement import Agreement


class ProtectedWorkload(Message):
    """A borrow Workload that a lease keeps from recalls now."""

    pool: str
    workload: str
    """`<namespace>/<job>`."""

    uid: str
    gpus: int


class LeaseView(Message):
    """One lease as it stands now."""

    namespace: str
    name: str
    group: str
    """Group whose namespace it stands in; empty where it is none's."""

    workload: str
    """`<kind>/<name>`; empty where it is for GPUs of a pool."""

    pool: str
    gpus: int
    until: Instant
    reason: str
    state: str
    """`Protecting`, or why it does not: AwaitingApproval, Revoked, Expired, TooLong ..."""

    message: str
    approved_by: str
    approved_at: Instant | None
    revoked_by: str
    protects: tuple[ProtectedWorkload, ...] = ()


class Leases(NamedTuple):
    """The leases that there are, and what they were judged by."""

    views: Sequence[LeaseView]
    objects: Objects
    agreement: "Agreement"


async def find_leases(door: "Door", *, namespace: str | None = None, pool: str | None = None) -> Leases:
    """Read and judge every lease, as of now."""
    objects = await read_objects(door.cluster)
    agreed = agreement(door.cluster_name, objects, now=datetime.now(UTC))
    views = [
        _view(lease, agreed)
        for lease in sorted(objects.leases, key=lambda each: each.key)
        if namespace in (None, lease.namespace) and pool in (None, lease.spec.pool)
    ]
    return Leases(views, objects, agreed)


def _view(lease: CapacityLease, agreed: "Agreement") -> LeaseView:
    verdict, ref = agreed.verdicts[LEASE, lease.key], lease.spec.workload_ref
    group = next((group for group, names in agreed.namespaces.items() if lease.namespace in names), "")
    return LeaseView(
        namespace=lease.namespace,
        name=lease.name,
        group=group,
        workload=f"{ref.kind}/{ref.name}" if ref is not None else "",
        pool=lease.spec.pool or "",
        gpus=lease.spec.gpus or 0,
        until=lease.spec.until,
        reason=lease.spec.reason,
        state="Protecting" if verdict.ready else verdict.reason,
        message=verdict.message,
        approved_by=lease.status.approved_by,
        approved_at=lease.status.approved_at,
        revoked_by=lease.status.revoked_by,
    )


async def with_protected(door: "Door", view: LeaseView, agreed: "Agreement") -> tuple[LeaseView, str]:
    """Add whom the lease protects now, and say what could not be learned."""
    key = f"{view.namespace}/{view.name}"
    found: list[ProtectedWorkload] = []
    missing = ""
    for pool, terms in sorted(agreed.terms.items()):
        if all(lease.name != key for lease in terms.leases):
            continue
        try:
            facts = await door.cluster.observe(pool)
        except BackendError as error:
            missing = str(error)
            continue
        books = await (await door.ledger()).books(door.cluster_name, pool)
        for uid, lease in protected_now(facts, books, terms, datetime.now(UTC)).items():
            workload = facts.workload(uid)
            if lease.name == key and workload is not None:
                found.append(ProtectedWorkload(pool=pool, workload=workload.key.short, uid=uid, gpus=workload.gpus))
    return view.model_copy(update={"protects": tuple(sorted(found, key=lambda each: (each.pool, each.uid)))}), missing


def pick(leases: Leases, name: str) -> tuple[CapacityLease, LeaseView]:
    """Find the one lease of this name; `NotFoundError` or `AmbiguousError` if it is not one."""
    found = [view for view in leases.views if view.name == name]
    if not found:
        raise NotFoundError(f"no CapacityLease is called {name!r}; `gpubank lease list` shows what there is")
    if len(found) > 1:
        where = ", ".join(view.namespace for view in found)
        raise AmbiguousError(f"{name!r} stands in {len(found)} namespaces ({where}); say which with --namespace")
    (view,) = found
    key = f"{view.namespace}/{view.name}"
    return next(lease for lease in leases.objects.leases if lease.key == key), view


def check_approval(lease: CapacityLease, leases: Leases, who: "Identity") -> None:
    """Raise `PolicyError` where `who` may not approve the lease as it stands, or it is approved already."""
    if lease.approved:
        raise PolicyError(f"CapacityLease {lease.key!r} is approved already, by {lease.status.approved_by}")
    problem = approval_problem(lease, leases.agreement.verdicts[LEASE, lease.key], leases.objects.groups, who.name)
    if problem is not None:
        raise PolicyError(f"CapacityLease {lease.key!r} cannot be approved: {problem}")


def approved(lease: CapacityLease, who: "Identity", reason: str, now: datetime) -> CapacityLeaseStatus:
    """Return the status of the lease once `who` has agreed to it."""
    changes = {"approved_by": who.name, "approved_at": now, "revoked_by": "", "revoked_at": None}
    return _decided(lease, changes, ConditionStatus.TRUE, conditions.LEASE_APPROVED, f"approved by {who}", reason, now)


def revoked(lease: CapacityLease, who: "Identity", reason: str, now: datetime) -> CapacityLeaseStatus:
    """Return the status of the lease once `who` has taken its approval back."""
    changes = {"revoked_by": who.name, "revoked_at": now}
    return _decided(lease, changes, ConditionStatus.FALSE, conditions.REVOKED, f"revoked by {who}", reason, now)


def _decided(
    lease: CapacityLease,
    changes: Mapping[str, Any],
    holds: ConditionStatus,
    word: str,
    message: str,
    reason: str,
    now: datetime,
) -> CapacityLeaseStatus:
    condition = Condition(
        type=conditions.APPROVED,
        status=holds,
        reason=word,
        message=f"{message}: {reason}" if reason else message,
        observed_generation=lease.metadata.generation,
    )
    update = {**changes, "conditions": with_condition(lease.status.conditions, condition, now)}
    return lease.status.model_copy(update=update)


async def write_status(
    door: "Door", lease: CapacityLease, status: CapacityLeaseStatus, *, dry_run: bool = False
) -> None:
    """Write the status against the version that was read; `ConflictError` if the lease moved on since.

    With `dry_run` whoever guards the status is asked, and nothing is written.
    """
    body = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    seen = lease.metadata.resource_version
    await door.cluster.patch_status(LEASE, lease.name, lease.namespace, body, seen=seen, dry_run=dry_run)


def names_of(items: Iterable[ProtectedWorkload]) -> list[str]:
    """Name protected work for people."""
    return [f"{item.workload} ({item.gpus} GPUs in {item.pool})" for item in items]
