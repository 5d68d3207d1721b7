"""CapacityLease: for a while, one workload is no victim, or so many borrowed GPUs of a group are not recalled.

exactly one of   workloadRef{apiVersion, kind, name}   or   pool + gpus        until, reason
at most 24 h, and at most the pool's maxLease          protects only while the condition Approved is True

A group asks by making the object; somebody of the platform who is none of the group agrees. What was agreed to is the
spec as it stood then: `Approved` counts only for the generation that it was said of.
"""

from datetime import datetime, timedelta
from typing import Final, Literal, Self

from pydantic import model_validator

from gpubank.domain.base import (
    ApiModel,
    ApiVersion,
    Instant,
    KindName,
    ObjectName,
    PoolName,
    PositiveGpuCount,
    Rule,
    ShortText,
    broken,
    format_duration,
    format_instant,
    rules,
)
from gpubank.domain.conditions import APPROVED
from gpubank.domain.errors import Problem
from gpubank.domain.meta import ConditionedStatus, Resource

MAX_LEASE: Final = timedelta(hours=24)
"""Longest lease that any pool can allow."""


class LeasedWorkload(ApiModel):
    """The workload that is no victim, in the lease's namespace."""

    api_version: ApiVersion
    """Group and version, as in `batch/v1`."""

    kind: KindName
    """Kind, as in `Job`."""

    name: ObjectName
    """Name."""


class CapacityLeaseSpec(ApiModel):
    """For a while, one workload is no victim, or so many borrowed GPUs of a group are not recalled."""

    workload_ref: LeasedWorkload | None = None
    """Workload that is no victim; instead of pool and gpus."""

    pool: PoolName | None = None
    """Pool whose borrowed GPUs are not recalled; instead of workloadRef, and together with gpus."""

    gpus: PositiveGpuCount | None = None
    """Most borrowed GPUs of the group that are not recalled, in whole workloads, the oldest first; with pool."""

    until: Instant
    """When the lease ends: at most 24 h after it was made, and at most the pool's maxLease."""

    reason: ShortText
    """Why; whoever approves it, and whoever waits for it, reads this."""

    @model_validator(mode="after")
    def _leases_one_thing(self) -> Self:
        if self.workload_ref is not None and (self.pool is not None or self.gpus is not None):
            raise broken(
                "a lease is for a workload or for GPUs of a pool, not for both",
                "remove workloadRef, or pool and gpus",
                field="workloadRef",
                value=self.workload_ref.name,
            )
        if self.workload_ref is None and (self.pool is None or self.gpus is None):
            raise broken("a lease is for a workload, or for GPUs of a pool", "set workloadRef, or both pool and gpus")
        return self

    model_config = rules(
        Rule(
            "has(self.workloadRef) ? !has(self.pool) && !has(self.gpus) : has(self.pool) && has(self.gpus)",
            "exactly one of workloadRef, or pool together with gpus",
        )
    )


class CapacityLeaseStatus(ConditionedStatus):
    """Who agreed, and when."""

    approved_by: str = ""
    """Who of the platform agreed last."""

    approved_at: Instant | None = None
    """When."""

    revoked_by: str = ""
    """Who took the approval back; empty while it stands."""

    revoked_at: Instant | None = None
    """When."""


class CapacityLease(Resource[CapacityLeaseSpec, CapacityLeaseStatus]):
    """For a while, one workload is no victim, or so many borrowed GPUs of a group are not recalled."""

    kind: Literal["CapacityLease"] = "CapacityLease"
    spec: CapacityLeaseSpec
    status: CapacityLeaseStatus = CapacityLeaseStatus()

    @property
    def approved(self) -> bool:
        """Whether somebody has agreed to it in the form that it has now."""
        condition = self.status.condition(APPROVED)
        return (
            self.status.is_true(APPROVED)
            and condition is not None
            and condition.observed_generation == self.metadata.generation
        )

    @property
    def subject(self) -> str:
        """What it is for, in words."""
        if (ref := self.spec.workload_ref) is not None:
            return f"{ref.kind}/{ref.name}"
        return f"{self.spec.gpus} GPUs in pool {self.spec.pool}"


def term_problem(lease: CapacityLease, *, now: datetime, max_lease: timedelta = MAX_LEASE) -> Problem | None:
    """Say what is wrong with the lease's end, or None.

    It counts from the lease's creation, or from `now` if it is not created yet, and from there ends within the
    shorter of 24 h and the pool's `max_lease`.
    """
    made = lease.metadata.creation_timestamp or now
    limit = min(max_lease, MAX_LEASE)
    value = format_instant(lease.spec.until)
    if lease.spec.until <= made:
        return Problem("spec.until", value, f"must be after {format_instant(made)}", "write a later time")
    if lease.spec.until > made + limit:
        latest = format_instant(made + limit)
        rule = f"a lease lasts at most {format_duration(limit)}"
        return Problem("spec.until", value, rule, f"write at most {latest}")
    return None
