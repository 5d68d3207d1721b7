"""Leases end to end, on whatever cluster: what no recall may take, and what is taken once nothing stands against it.

Used beside `BankSuite`, with the same fixture `bank`.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from gpubank.cli.identity import Identity
from gpubank.cli.leasebook import approved, revoked
from gpubank.domain import conditions
from gpubank.domain.base import API_VERSION, format_instant
from gpubank.domain.errors import ConflictError
from gpubank.domain.lease import CapacityLease, CapacityLeaseStatus
from gpubank.domain.recall import LoanPhase
from gpubank.lab.access import ADMIN
from tests.contract.bank_suite import touches
from tests.support.bank import Bank

KIND = "CapacityLease"
APPROVER = Identity(ADMIN, verified=True)
"""Who approves: on a cluster the name that the API server knows the tests by, for an approval is signed."""

Decide = Callable[[CapacityLease, Identity, str, datetime], CapacityLeaseStatus]


class LeaseSuite:
    """Scenarios; every one ends with `bank.settled()`."""

    async def test_a_lease_keeps_its_job_until_it_ends_and_whoever_waits_is_told(self, bank: Bank) -> None:
        await bank.agree((8,), vision=8, search=0)
        before = await bank.borrow("search", "train")
        await asked(bank, "search", "release", seconds=12, **job("train"))
        await decided(bank, "search", "release", approved)
        await state_is(bank, "search", "release", conditions.APPLIED)
        async with bank.forbidden(touches(before), "a leased job was touched"):
            await bank.own("vision", "serve")

            async def told() -> bool:
                demands = (await bank.reclaim("vision")).demands
                return any("is protected by CapacityLease" in demand.reason for demand in demands)

            await bank.until(told, "the recall says that a lease stands against it")
            assert not (await bank.workload("serve")).reserved
        await bank.placed("serve")
        await bank.loan_in("train", LoanPhase.PARKED)
        await bank.demand_met("vision")
        await state_is(bank, "search", "release", conditions.EXPIRED)
        actions = [event.action for event in await bank.ledger.audit(subject=f"lease/{key(bank, 'search', 'release')}")]
        assert {"lease AwaitingApproval", "lease Applied", "lease Expired"} <= set(actions)
        await gone(bank, "search", "release")
        await bank.settled()

    async def test_a_lease_that_comes_during_a_recall_is_heard_before_the_stop_and_one_that_goes_lets_it_on(
        self, bank: Bank
    ) -> None:
        await bank.agree((8,), vision=8, search=0)
        gate = bank.gate()
        before = await bank.borrow("search", "train", trains=gate)
        await asked(bank, "search", "release", seconds=600, pool=bank.world.pool, gpus=8)
        await bank.own("vision", "serve")
        await bank.loan_in("train", LoanPhase.CHECKPOINTING)
        async with bank.forbidden(touches(before), "a leased job was stopped"):
            await decided(bank, "search", "release", approved)
            await state_is(bank, "search", "release", conditions.APPLIED)
            gate.touch()
            await bank.loan_in("train", LoanPhase.ACTIVE)
        await decided(bank, "search", "release", revoked)
        await bank.placed("serve")
        await bank.loan_in("train", LoanPhase.PARKED)
        await bank.demand_met("vision")
        await gone(bank, "search", "release")
        await bank.settled()


def job(name: str) -> dict[str, Any]:
    """Name a job as a lease does."""
    return {"workloadRef": {"apiVersion": "batch/v1", "kind": "Job", "name": name}}


def key(bank: Bank, group: str, name: str) -> str:
    """`namespace/name` of a group's lease."""
    return f"{bank.world.namespace(bank.name(group))}/{name}"


async def asked(bank: Bank, group: str, name: str, *, seconds: float, **spec: Any) -> None:
    """Ask for a lease, as the group does."""
    end = (datetime.now(UTC) + timedelta(seconds=seconds)).replace(microsecond=0)
    body = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "namespace": bank.world.namespace(bank.name(group))},
        "spec": {"until": format_instant(end), "reason": "release week", **spec},
    }
    await bank.world.objects.apply(body)
    await state_is(bank, group, name, conditions.AWAITING_APPROVAL)


async def decided(bank: Bank, group: str, name: str, decide: Decide) -> None:
    """Approve or revoke it, as somebody of the platform does; the controller may write its status meanwhile."""
    namespace = bank.world.namespace(bank.name(group))

    async def written() -> bool:
        lease = await read(bank, group, name)
        status = decide(lease, APPROVER, "", datetime.now(UTC).replace(microsecond=0))
        body = status.model_dump(mode="json", by_alias=True, exclude_none=True)
        try:
            seen = lease.metadata.resource_version
            await bank.world.objects.patch_status(KIND, name, namespace, body, seen=seen)
        except ConflictError:
            return False
        return True

    await bank.until(written, f"the word on lease {name} is written")


async def read(bank: Bank, group: str, name: str) -> CapacityLease:
    """Return a lease as it stands."""
    body = await bank.world.objects.get(KIND, name, bank.world.namespace(bank.name(group)))
    assert body is not None
    return CapacityLease.from_wire(body)


async def state_is(bank: Bank, group: str, name: str, reason: str) -> None:
    """See what the bank says of a lease."""

    async def look() -> bool:
        condition = (await read(bank, group, name)).status.condition(conditions.READY)
        return condition is not None and condition.reason == reason

    await bank.until(look, f"lease {name} is {reason}")


async def gone(bank: Bank, group: str, name: str) -> None:
    """Delete a lease."""
    assert await bank.world.objects.delete(KIND, name, bank.world.namespace(bank.name(group)))


__all__ = ["LeaseSuite"]
