"""What a pool looks like at its scheduler: flavor, queues, and who may submit to them."""

from pydantic import Field

from gpubank.domain.base import Message


class GroupLayout(Message):
    """One group's queues in the pool."""

    group: str
    namespaces: tuple[str, ...]
    """Namespaces that get the two LocalQueues."""


class PoolLayout(Message):
    """Everything that a scheduler must have for one pool; quotas come from the books."""

    cluster: str
    pool: str
    resource_name: str
    node_labels: dict[str, str] = Field(default_factory=dict)
    groups: tuple[GroupLayout, ...] = ()


class LayoutProblem(Message):
    """Something at the scheduler that the bank will not or cannot change by itself."""

    reason: str
    """CamelCase, for a condition."""

    message: str
    """Subject, fact, remedy."""


class LayoutReport(Message):
    """What came of laying out a pool."""

    changed: tuple[str, ...] = ()
    """`Kind/name` of every object that was created, repaired or removed."""

    problems: tuple[LayoutProblem, ...] = ()
