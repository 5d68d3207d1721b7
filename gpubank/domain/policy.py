"""GPUQuotaPolicy: what a group asks of a pool, what it lends, and how its borrowed work is stopped.

    0 ≤ lendingLimit ≤ guaranteed ≤ guaranteed + borrowLimit ≤ maxCapacity

Absent limits have a meaning, which the `effective_*` properties give; nobody else derives it.
"""

from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from gpubank.domain.base import (
    SET,
    ApiModel,
    Duration,
    DurationBounds,
    GpuCount,
    GroupName,
    PoolName,
    Rule,
    broken,
    first_twice,
    rules,
)
from gpubank.domain.meta import ConditionedStatus, Resource


class PreemptClass(StrEnum):
    """A class of work that a policy lets the bank stop."""

    BATCH = "batch"
    """Work labelled retryable: it is rerun from scratch."""

    CHECKPOINTABLE = "checkpointable"
    """Work with a checkpoint hook: it goes on from its verified checkpoint."""

    DEVELOPMENT = "development"
    """Notebooks."""

    UNSAVEABLE = "unsaveable"
    """Everything else; it loses its work, so only a policy that names it allows it."""


DEFAULT_PREEMPT: Final = (PreemptClass.BATCH, PreemptClass.CHECKPOINTABLE, PreemptClass.DEVELOPMENT)


class OnCheckpointFailure(StrEnum):
    """What happens to a victim without a durable checkpoint by its deadline."""

    PROTECT = "protect"
    """It runs on, somebody is told, the next victim is asked."""

    EVICT = "evict"
    """It is stopped, and the GPU-hours it loses are booked."""


class Approval(StrEnum):
    """Whether a recall for this group waits for one of its admins."""

    NEVER = "Never"
    REQUIRED = "Required"


class WithinGroup(StrEnum):
    """Whether the group's own work makes room for more important work of the same group."""

    NEVER = "Never"
    LOWER_PRIORITY = "LowerPriority"


class ReclaimPolicy(ApiModel):
    """How borrowed work of this group is stopped, and how recalls for it are started."""

    grace_period: Annotated[Duration, DurationBounds("0s", "24h")] = timedelta(minutes=10)
    """Longest time that a victim gets to write its checkpoint; the pool's maxGracePeriod caps it."""

    only_preempt: Annotated[tuple[PreemptClass, ...], Field(min_length=1, max_length=4, json_schema_extra=SET)] = (
        DEFAULT_PREEMPT
    )
    """Classes of this group's borrowed work that may be stopped; under withinGroup of its own work, too."""

    on_checkpoint_failure: OnCheckpointFailure = OnCheckpointFailure.PROTECT
    """What happens to a victim of this group without a durable checkpoint by its deadline."""

    approval: Approval = Approval.NEVER
    """Whether recalls for this group, as the lender, wait for an admin of it."""

    within_group: WithinGroup = WithinGroup.NEVER
    """Whether own work of lower priority makes room for own work that waits with a higher one, with notice and
    checkpoint like any recall; only classes that onlyPreempt names, and it comes back when there is room."""

    @model_validator(mode="after")
    def _each_class_once(self) -> Self:
        if twice := first_twice(self.only_preempt):
            raise broken("nothing is listed twice", "list it once", field="onlyPreempt", value=twice)
        return self


class GPUQuotaPolicySpec(ApiModel):
    """What a group asks of a pool, what it lends, and how its borrowed work is stopped."""

    business_group: GroupName
    """Group that the policy is for; the policy stands in one of its namespaces."""

    resource_pool: PoolName
    """Pool that the policy is about; a group has one policy for a pool."""

    guaranteed: GpuCount
    """GPUs that are the group's whenever it wants them, at most its share's guaranteed."""

    borrow_limit: GpuCount | None = None
    """Most GPUs that the group borrows from others; unset: maxCapacity − guaranteed, or 0 without maxCapacity."""

    lending_limit: GpuCount | None = None
    """Most GPUs of its guarantee that the group lends to others; unset: all of it."""

    max_capacity: GpuCount | None = None
    """Most GPUs of the pool that the group holds, guaranteed and borrowed; unset: guaranteed + borrowLimit."""

    fair_share_weight: Annotated[int, Field(ge=1, le=1000)] = 1
    """Weight among groups that want to borrow: a group of weight 2 gets twice the loans of one of weight 1."""

    reclaim_policy: ReclaimPolicy = ReclaimPolicy()
    """How borrowed work of this group is stopped, and how recalls for it are started."""

    @property
    def effective_borrow_limit(self) -> int:
        """Most GPUs that the group borrows from others."""
        if self.borrow_limit is not None:
            return self.borrow_limit
        return self.max_capacity - self.guaranteed if self.max_capacity is not None else 0

    @property
    def effective_lending_limit(self) -> int:
        """Most GPUs of its guarantee that the group lends to others."""
        return self.guaranteed if self.lending_limit is None else self.lending_limit

    @property
    def effective_max_capacity(self) -> int:
        """Most GPUs of the pool that the group holds, guaranteed and borrowed."""
        return self.guaranteed + self.effective_borrow_limit if self.max_capacity is None else self.max_capacity

    @model_validator(mode="after")
    def _lends_only_what_it_has(self) -> Self:
        if self.lending_limit is not None and self.lending_limit > self.guaranteed:
            raise broken(
                f"must not exceed guaranteed ({self.guaranteed}): a group lends only what it is guaranteed",
                f"write at most {self.guaranteed}",
                field="lendingLimit",
                value=self.lending_limit,
            )
        return self

    @model_validator(mode="after")
    def _guarantee_and_loans_fit(self) -> Self:
        if self.max_capacity is None:
            return self
        if self.guaranteed > self.max_capacity:
            raise broken(
                f"must be at least guaranteed ({self.guaranteed})",
                "raise maxCapacity or lower guaranteed",
                field="maxCapacity",
                value=self.max_capacity,
            )
        if self.borrow_limit is not None and self.guaranteed + self.borrow_limit > self.max_capacity:
            raise broken(
                f"guaranteed ({self.guaranteed}) + borrowLimit must not exceed maxCapacity ({self.max_capacity})",
                f"write at most {self.max_capacity - self.guaranteed}, or raise maxCapacity",
                field="borrowLimit",
                value=self.borrow_limit,
            )
        return self

    model_config = rules(
        Rule(
            "!has(self.lendingLimit) || self.lendingLimit <= self.guaranteed",
            "must not exceed guaranteed",
            "lendingLimit",
        ),
        Rule(
            "!has(self.maxCapacity) || self.guaranteed <= self.maxCapacity",
            "must be at least guaranteed",
            "maxCapacity",
        ),
        Rule(
            "!has(self.maxCapacity) || !has(self.borrowLimit)"
            " || self.guaranteed + self.borrowLimit <= self.maxCapacity",
            "guaranteed + borrowLimit must not exceed maxCapacity",
            "borrowLimit",
        ),
    )


class GPUQuotaPolicyStatus(ConditionedStatus):
    """What of the policy is in force, and what the group holds, as last seen."""

    guaranteed: GpuCount = 0
    """GPUs of the guarantee that are in force."""

    used: GpuCount = 0
    """GPUs of the guarantee that own work holds."""

    borrowed: GpuCount = 0
    """GPUs on loan from others."""

    lent: GpuCount = 0
    """GPUs on loan to others."""

    pending: GpuCount = 0
    """GPUs that waiting own work asks for."""


class GPUQuotaPolicy(Resource[GPUQuotaPolicySpec, GPUQuotaPolicyStatus]):
    """What a group asks of a pool, what it lends, and how its borrowed work is stopped."""

    kind: Literal["GPUQuotaPolicy"] = "GPUQuotaPolicy"
    spec: GPUQuotaPolicySpec
    status: GPUQuotaPolicyStatus = GPUQuotaPolicyStatus()
