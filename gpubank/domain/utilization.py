"""LowUtilizationPolicy: which GPUs count as idle, whom the bank tells, and when it escalates.

    startupGracePeriod ─▶ under a threshold for the whole window ─▶ notify first ─▶ after ─▶ escalateTo
                                                                         └── again every repeatInterval

A policy in the platform's own namespace is for every group, one elsewhere for the group of its namespace.
"""

from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from gpubank.domain.base import (
    ApiModel,
    Duration,
    DurationBounds,
    GroupName,
    LabelKey,
    LabelValue,
    Percent,
    PoolName,
    Rule,
    broken,
    format_duration,
    rules,
)
from gpubank.domain.contract import WorkloadType
from gpubank.domain.meta import ConditionedStatus, Resource


class Recipient(StrEnum):
    """Whom the bank tells."""

    OWNER = "owner"
    """Who submitted the workload."""

    BUSINESS_GROUP_ADMIN = "business-group-admin"
    """The admins of the workload's group."""

    PLATFORM = "platform"
    """The platform's own people."""


class Match(ApiModel):
    """Which workloads are judged; what is unset matches any."""

    workload_type: WorkloadType | None = None
    """Label `platform.aik8s.run/workload-type`."""

    business_group: GroupName | None = None
    """Group that the workload belongs to."""

    resource_pool: PoolName | None = None
    """Pool that it runs in."""

    match_labels: Annotated[dict[LabelKey, LabelValue], Field(max_length=16)] = Field(default_factory=dict)
    """Labels that it carries."""


class Thresholds(ApiModel):
    """What counts as idle: under every threshold that is set, on average over the window."""

    average_gpu_utilization: Percent | None = None
    """Use of the GPU's engines in percent, below which it counts as idle; unset does not look at it."""

    average_memory_utilization: Percent | None = None
    """Use of the GPU's memory in percent, below which it counts as idle; unset does not look at it."""

    @model_validator(mode="after")
    def _looks_at_something(self) -> Self:
        if self.average_gpu_utilization is None and self.average_memory_utilization is None:
            raise broken(
                "needs a threshold, else everything is idle", "set averageGpuUtilization or averageMemoryUtilization"
            )
        return self

    model_config = rules(
        Rule(
            "has(self.averageGpuUtilization) || has(self.averageMemoryUtilization)",
            "needs averageGpuUtilization or averageMemoryUtilization",
        )
    )


class Notify(ApiModel):
    """Whom the bank tells, and when."""

    first: Recipient = Recipient.OWNER
    """Told as soon as the workload counts as idle."""

    after: Annotated[Duration, DurationBounds("0s", "168h")] = timedelta(hours=2)
    """How long after that it escalates, if nothing changes."""

    escalate_to: Recipient = Recipient.BUSINESS_GROUP_ADMIN
    """Told then."""

    repeat_interval: Annotated[Duration, DurationBounds("10m", "168h")] = timedelta(hours=6)
    """How long until the same notice is sent again."""


class Exclusion(ApiModel):
    """A mark that takes a workload out: a label or an annotation."""

    label: LabelKey | None = None
    """Key of a label; instead of annotation."""

    annotation: LabelKey | None = None
    """Key of an annotation; instead of label."""

    value: Annotated[str, Field(max_length=256)] | None = None
    """Value that it must have; unset means any. A time in `keep-running-until` counts only while it lies ahead."""

    @model_validator(mode="after")
    def _names_one_mark(self) -> Self:
        if (self.label is None) == (self.annotation is None):
            raise broken("names one mark", "set either label or annotation")
        return self

    model_config = rules(Rule("has(self.label) != has(self.annotation)", "exactly one of label and annotation"))


class LowUtilizationPolicySpec(ApiModel):
    """Which GPUs count as idle, whom the bank tells, and when it escalates."""

    match: Match = Match()
    """Which workloads are judged."""

    window: Annotated[Duration, DurationBounds("5m", "168h")] = timedelta(hours=1)
    """How long a workload must have been idle without a break; far above the interval at which GPUs are measured."""

    thresholds: Thresholds
    """What counts as idle."""

    startup_grace_period: Annotated[Duration, DurationBounds("0s", "24h")] = timedelta(minutes=30)
    """How long after its start nothing is judged: images are pulled and models loaded."""

    checkpoint_grace_period: Annotated[Duration, DurationBounds("0s", "24h")] = timedelta(minutes=20)
    """How long after a checkpoint began nothing is judged: GPUs wait for storage."""

    notify: Notify = Notify()
    """Whom the bank tells, and when."""

    exclude_when: Annotated[tuple[Exclusion, ...], Field(max_length=32)] = ()
    """Marks, any of which takes a workload out."""

    @model_validator(mode="after")
    def _repeats_no_faster_than_it_looks(self) -> Self:
        if self.notify.repeat_interval < self.window:
            raise broken(
                f"must be at least window ({format_duration(self.window)}), for nothing new is known earlier",
                f"write at least {format_duration(self.window)}",
                field="notify.repeatInterval",
                value=format_duration(self.notify.repeat_interval),
            )
        return self

    model_config = rules(
        Rule(
            "duration(self.notify.repeatInterval) >= duration(self.window)",
            "must be at least window",
            "notify.repeatInterval",
        )
    )


class LowUtilizationPolicyStatus(ConditionedStatus):
    """What the policy found, as last seen."""

    open_cases: int = Field(default=0, ge=0)
    """Workloads that are idle now and whose case is open."""


class LowUtilizationPolicy(Resource[LowUtilizationPolicySpec, LowUtilizationPolicyStatus]):
    """Which GPUs count as idle, whom the bank tells, and when it escalates."""

    kind: Literal["LowUtilizationPolicy"] = "LowUtilizationPolicy"
    spec: LowUtilizationPolicySpec
    status: LowUtilizationPolicyStatus = LowUtilizationPolicyStatus()
