"""GPUPool: GPUs of one model and fabric, who is guaranteed how many, and the limits of lending them.

    capacity ≥ Σ shares.guaranteed        a share is the most a group's policy may ask

The platform owns pools; a group's policy moves within its share.
"""

from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from gpubank.domain.base import (
    BORROW_SUFFIX,
    LABEL_PATTERN,
    POOL_NAME_MAX_LENGTH,
    SET,
    ApiModel,
    Duration,
    DurationBounds,
    GpuCount,
    GroupName,
    Instant,
    LabelValue,
    Rule,
    ShortText,
    broken,
    check_name,
    first_twice,
    format_duration,
    list_map,
    rules,
)
from gpubank.domain.meta import ConditionedStatus, Resource

DEFAULT_RESOURCE: Final = "nvidia.com/gpu"
"""What a pod asks for to get one GPU, unless the pool says otherwise."""


class Backend(StrEnum):
    """Who admits work against the pool's quotas."""

    KUEUE = "Kueue"
    VOLCANO = "Volcano"


class OnOverdue(StrEnum):
    """What happens to victims without a durable checkpoint once `maxTimeToReturn` has passed."""

    PROTECT = "protect"
    """They run on; the lender waits, and the pool says so."""

    EVICT = "evict"
    """They are stopped; the work they lose is booked."""


class Flavor(ApiModel):
    """What the GPUs are: the node labels `accelerator.aik8s.run/*` of the pool's nodes."""

    vendor: LabelValue = ""
    """Maker, as in `nvidia`; empty matches any."""

    model: LabelValue = ""
    """Model, as in `h100`; empty matches any."""

    fabric: LabelValue = ""
    """Interconnect, as in `rdma`; empty matches any."""

    lifecycle: LabelValue = ""
    """How long the nodes stay, as in `reserved` or `spot`; empty matches any."""


class Share(ApiModel):
    """The most that one group's policy may ask of the pool: the guarantee is the platform's to give."""

    business_group: GroupName
    """Group that the share is for."""

    guaranteed: GpuCount
    """Most GPUs that its policy may have guaranteed."""

    max_capacity: GpuCount | None = None
    """Most GPUs, guaranteed and borrowed, that its policy may ask; unset sets no limit but the next."""

    max_borrow: GpuCount | None = None
    """Most GPUs that its policy may let the group borrow from others; unset sets no limit but the last."""

    @model_validator(mode="after")
    def _capacity_holds_the_guarantee(self) -> Self:
        if self.max_capacity is not None and self.max_capacity < self.guaranteed:
            raise broken(
                f"must be at least the share's guaranteed ({self.guaranteed})",
                "raise maxCapacity or lower guaranteed",
                field="maxCapacity",
                value=self.max_capacity,
            )
        return self

    model_config = rules(
        Rule(
            "!has(self.maxCapacity) || self.maxCapacity >= self.guaranteed",
            "must be at least guaranteed",
            "maxCapacity",
        )
    )


class PoolLimits(ApiModel):
    """What no policy of a group can exceed, and how patient the pool is."""

    max_grace_period: Annotated[Duration, DurationBounds("0s", "24h")] = timedelta(minutes=30)
    """Longest notice a borrower gets; a policy's longer gracePeriod counts as this."""

    max_lease: Annotated[Duration, DurationBounds("0s", "24h")] = timedelta(hours=24)
    """Longest time that one CapacityLease protects."""

    max_termination: Annotated[Duration, DurationBounds("1s", "1h")] = timedelta(seconds=60)
    """Longest terminationGracePeriodSeconds of work that borrows."""

    max_time_to_return: Annotated[Duration, DurationBounds("1m", "24h")] = timedelta(hours=1)
    """From an owner's demand, approval included, until its pods are scheduled; then onOverdue decides."""

    on_overdue: OnOverdue = OnOverdue.PROTECT
    """What happens to victims without a durable checkpoint when maxTimeToReturn has passed."""

    resume_after: Annotated[Duration, DurationBounds("0s", "24h")] = timedelta(seconds=60)
    """How long slack must have lasted after a recall before it is lent again."""

    min_run_time: Annotated[Duration, DurationBounds("0s", "24h")] = timedelta(minutes=10)
    """How long a borrower runs after it was brought back before it can be a victim again."""

    fail_safe_after: Annotated[Duration, DurationBounds("1m", "24h")] = timedelta(minutes=5)
    """How long the bank's heartbeat may be missing before the watchdog hands the pool to Kueue's own borrowing."""

    max_checkpoint_age: Annotated[Duration, DurationBounds("1s", "24h")] = timedelta(seconds=60)
    """Oldest verified checkpoint with which a victim is stopped; an older one is taken once more."""

    allowed_priority_classes: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=253)], ...],
        Field(max_length=64, json_schema_extra=SET),
    ] = ()
    """Priority classes that work in the pool's queues may name; none listed allows any, and naming none is allowed."""

    serving_floor_gpus: GpuCount = 0
    """GPUs of guarantees that serving work holds or finds idle: so many are never lent, by a tide either."""

    @model_validator(mode="after")
    def _victims_can_be_back_in_time(self) -> Self:
        # With less, whoever has just come back is stopped at once: its minRunTime would always be too long to wait for.
        if self.min_run_time + self.max_grace_period + self.max_termination > self.max_time_to_return:
            raise broken(
                f"must be at least minRunTime ({format_duration(self.min_run_time)}) plus maxGracePeriod"
                f" ({format_duration(self.max_grace_period)}) plus maxTermination"
                f" ({format_duration(self.max_termination)}), else no recall can be in time",
                "raise maxTimeToReturn, or lower minRunTime, maxGracePeriod or maxTermination",
                field="maxTimeToReturn",
                value=format_duration(self.max_time_to_return),
            )
        return self

    @model_validator(mode="after")
    def _each_priority_class_once(self) -> Self:
        if twice := first_twice(self.allowed_priority_classes):
            raise broken("is listed twice", "list each once", field="allowedPriorityClasses", value=twice)
        return self

    model_config = rules(
        Rule(
            "duration(self.minRunTime) + duration(self.maxGracePeriod) + duration(self.maxTermination)"
            " <= duration(self.maxTimeToReturn)",
            "must be at least minRunTime + maxGracePeriod + maxTermination",
            "maxTimeToReturn",
        )
    )


class Freeze(ApiModel):
    """An order to leave everything as it is: no new loan, no new recall, no running job touched."""

    by: ShortText
    """Who ordered it."""

    reason: ShortText
    """Why; waiting owners are told."""

    until: Instant | None = None
    """When it ends by itself; unset lasts until it is removed."""


class GPUPoolSpec(ApiModel):
    """GPUs of one model and fabric, and how they are shared."""

    resource_name: Annotated[
        str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$", max_length=317)
    ] = DEFAULT_RESOURCE
    """Extended resource that a pod asks for to get one GPU."""

    flavor: Flavor = Flavor()
    """Node labels of the pool's nodes, beside the label `accelerator.aik8s.run/pool`, which is the pool's name."""

    backend: Backend = Backend.KUEUE
    """Who admits work against the pool's quotas; a pool has one owner."""

    capacity: GpuCount
    """GPUs that the platform vouches for; guarantees and loans never exceed it."""

    shares: Annotated[
        tuple[Share, ...],
        Field(
            max_length=4096,
            json_schema_extra=list_map("businessGroup"),
        ),
    ] = ()
    """Most that each group's policy may ask; a group without a share gets nothing here."""

    limits: PoolLimits = PoolLimits()
    """What no policy of a group can exceed."""

    freeze: Freeze | None = None
    """Set it to leave everything as it is."""

    @property
    def guaranteed_by_shares(self) -> int:
        """GPUs that the shares may have guaranteed in all; more than `capacity` cannot all be in force."""
        return sum(share.guaranteed for share in self.shares)

    @model_validator(mode="after")
    def _one_share_for_a_group(self) -> Self:
        if twice := first_twice(share.business_group for share in self.shares):
            raise broken("a group has one share of a pool", "merge its shares", field="shares", value=twice)
        return self

    @model_validator(mode="after")
    def _floor_fits(self) -> Self:
        if self.limits.serving_floor_gpus > self.capacity:
            raise broken(
                f"must not exceed capacity ({self.capacity})",
                "lower servingFloorGpus",
                field="limits.servingFloorGpus",
                value=self.limits.serving_floor_gpus,
            )
        return self

    model_config = rules(
        Rule(
            "self.limits.servingFloorGpus <= self.capacity",
            "servingFloorGpus must not exceed capacity",
            "limits.servingFloorGpus",
        )
    )


class GPUPoolStatus(ConditionedStatus):
    """What the pool has and where it is, as last seen."""

    allocatable: GpuCount = 0
    """GPUs that the pool's ready nodes offer."""

    reserved: GpuCount = 0
    """GPUs that admitted work holds."""

    borrowed: GpuCount = 0
    """GPUs on loan, from other groups and from the surplus."""


class GPUPool(Resource[GPUPoolSpec, GPUPoolStatus]):
    """GPUs of one model and fabric, who is guaranteed how many, and the limits of lending them."""

    kind: Literal["GPUPool"] = "GPUPool"
    spec: GPUPoolSpec
    status: GPUPoolStatus = GPUPoolStatus()

    @model_validator(mode="after")
    def _name_makes_queue_names(self) -> Self:
        check_name(self.metadata.name, max_length=POOL_NAME_MAX_LENGTH)
        return self

    model_config = rules(
        Rule(
            f"self.metadata.name.size() <= {POOL_NAME_MAX_LENGTH} && self.metadata.name.matches('{LABEL_PATTERN}')",
            f"a pool's name is a DNS label without dots of at most {POOL_NAME_MAX_LENGTH} characters",
        ),
        Rule(f"!self.metadata.name.endsWith('{BORROW_SUFFIX}')", f"no pool's name ends in {BORROW_SUFFIX}"),
    )
