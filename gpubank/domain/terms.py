"""Terms: what the platform and the groups agreed for one pool, after everything that is not valid was left out."""

from datetime import datetime, timedelta

from pydantic import AwareDatetime, Field

from gpubank.domain.base import Duration, GpuCount, Message
from gpubank.domain.policy import Approval, OnCheckpointFailure, PreemptClass, WithinGroup
from gpubank.domain.pool import Freeze, OnOverdue


class GroupTerms(Message):
    """One group's terms in one pool."""

    group: str
    guaranteed: GpuCount
    """What the policy asks and its share allows; the target of the guarantee in force."""

    borrow_limit: GpuCount
    """Most that it may hold of others, in GPUs."""

    lending_limit: GpuCount
    """Most that it lends to others, in GPUs."""

    weight: int = 1
    grace_period: Duration = timedelta(minutes=10)
    only_preempt: frozenset[PreemptClass] = frozenset(
        {PreemptClass.BATCH, PreemptClass.CHECKPOINTABLE, PreemptClass.DEVELOPMENT}
    )
    on_checkpoint_failure: OnCheckpointFailure = OnCheckpointFailure.PROTECT
    approval: Approval = Approval.NEVER
    within_group: WithinGroup = WithinGroup.NEVER
    namespaces: tuple[str, ...] = ()


class LeaseTerms(Message):
    """One approved CapacityLease, as far as it concerns one pool; it protects until `until`."""

    name: str
    """`<namespace>/<name>` of the CapacityLease."""

    group: str
    """Whose borrowed work it protects."""

    namespace: str
    workload_kind: str = ""
    """Kind of the one workload that it is for; empty where it is for GPUs of the pool."""

    workload_name: str = ""
    gpus: GpuCount = 0
    """Most GPUs that it protects, where it is for GPUs of the pool."""

    until: AwareDatetime
    """When it ends; the end itself is over."""


class PoolTerms(Message):
    """The terms of one pool."""

    cluster: str
    pool: str
    resource_name: str
    """Kubernetes resource of its GPUs, such as `nvidia.com/gpu`."""

    node_labels: dict[str, str] = Field(default_factory=dict)
    capacity: GpuCount
    groups: tuple[GroupTerms, ...] = ()
    freeze: Freeze | None = None
    max_grace_period: Duration
    max_termination: Duration
    max_time_to_return: Duration
    on_overdue: OnOverdue = OnOverdue.PROTECT
    resume_after: Duration
    min_run_time: Duration
    max_checkpoint_age: Duration = timedelta(seconds=60)
    fail_safe_after: Duration
    leases: tuple[LeaseTerms, ...] = ()
    """Approved leases, older first; whoever reads them looks at the time."""

    allowed_priority_classes: frozenset[str] = frozenset()
    """Priority classes that work of the pool may name; none allows any."""

    serving_floor: GpuCount = 0
    """GPUs that serving work holds or finds idle: so many are not lent."""

    def group(self, name: str) -> GroupTerms | None:
        """Return the group's terms, or None where it has none in this pool."""
        return next((terms for terms in self.groups if terms.group == name), None)

    def on_checkpoint_failure(self, group: str) -> OnCheckpointFailure:
        """What the group's policy has done to its work that cannot be saved; without a policy it is protected."""
        terms = self.group(group)
        return terms.on_checkpoint_failure if terms is not None else OnCheckpointFailure.PROTECT

    def allows_class(self, priority_class: str) -> bool:
        """Whether work of the pool may name the priority class; naming none is always allowed."""
        allowed = self.allowed_priority_classes
        return not priority_class or not allowed or priority_class in allowed

    def frozen(self, now: datetime) -> bool:
        """Whether a freeze is in force."""
        return self.freeze is not None and (self.freeze.until is None or now < self.freeze.until)
