"""What every object has: metadata, conditions, and the frame around spec and status."""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, Literal, TypeVar

from pydantic import Field

from gpubank.domain.base import ApiModel, Instant, ObjectName, StatusModel

SpecT = TypeVar("SpecT", bound=ApiModel)
StatusT = TypeVar("StatusT", bound="ConditionedStatus")


class ConditionStatus(StrEnum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(StatusModel):
    """One aspect of an object's state, in Kubernetes' form."""

    type: str = Field(min_length=1, max_length=316)
    """Aspect, as in `Ready`."""

    status: ConditionStatus
    """Whether it holds."""

    reason: str = Field(min_length=1, max_length=1024)
    """Why, as one CamelCase word for machines."""

    message: str = Field(default="", max_length=32768)
    """Why, and what to do, for people."""

    observed_generation: int = Field(default=0, ge=0)
    """Generation of the spec that this was judged by."""

    last_transition_time: Instant | None = None
    """When the status last changed; `with_condition` keeps it."""


def with_condition(conditions: Sequence[Condition], condition: Condition, now: datetime) -> tuple[Condition, ...]:
    """Return `conditions` with `condition` in place of the one of its type, or at the end.

    The transition time is kept while the status stays the same and is `now` otherwise, whatever `condition`
    carries.
    """
    before = find_condition(conditions, condition.type)
    since = before.last_transition_time if before and before.status == condition.status else None
    new = condition.model_copy(update={"last_transition_time": since or now})
    if before is None:
        return (*conditions, new)
    return tuple(new if old.type == condition.type else old for old in conditions)


def find_condition(conditions: Sequence[Condition], condition_type: str) -> Condition | None:
    """Return the condition of this type, or None."""
    return next((condition for condition in conditions if condition.type == condition_type), None)


def is_true(conditions: Sequence[Condition], condition_type: str) -> bool:
    """Whether the condition of this type is there and holds."""
    condition = find_condition(conditions, condition_type)
    return condition is not None and condition.status is ConditionStatus.TRUE


class OwnerReference(ApiModel):
    """Which object owns this one; Kubernetes deletes it with its owner."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(ApiModel):
    """Kubernetes' metadata, as far as a user writes it or the bank reads it."""

    name: ObjectName
    """Name, unique for the kind, within the namespace if it has one."""

    namespace: str = ""
    """Namespace; empty for a cluster-scoped object, and in a file that leaves it to the command line."""

    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()
    generate_name: str = ""
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: Instant | None = None
    deletion_timestamp: Instant | None = None
    deletion_grace_period_seconds: int | None = None
    self_link: str = ""
    managed_fields: tuple[dict[str, Any], ...] = Field(default=(), exclude=True, repr=False)

    @property
    def deleting(self) -> bool:
        """Whether somebody asked to delete the object; finalizers may still hold it."""
        return self.deletion_timestamp is not None


class ConditionedStatus(StatusModel):
    """What the status of every kind has."""

    observed_generation: int = Field(default=0, ge=0)
    """Generation of the spec that this status was judged by."""

    conditions: tuple[Condition, ...] = Field(
        default=(),
        max_length=32,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    """Aspects of the state, one of each type."""

    def condition(self, condition_type: str) -> Condition | None:
        """Return the condition of this type, or None."""
        return find_condition(self.conditions, condition_type)

    def is_true(self, condition_type: str) -> bool:
        """Whether the condition of this type is there and holds."""
        return is_true(self.conditions, condition_type)


class Resource(ApiModel, Generic[SpecT, StatusT]):
    """Frame of every kind: apiVersion, kind, metadata, spec, status."""

    api_version: Literal["platform.aik8s.run/v1alpha1"] = "platform.aik8s.run/v1alpha1"
    """Group and version."""

    kind: str
    metadata: ObjectMeta
    spec: SpecT
    status: StatusT

    @property
    def name(self) -> str:
        """The object's name."""
        return self.metadata.name

    @property
    def namespace(self) -> str:
        """The object's namespace; empty for a cluster-scoped kind."""
        return self.metadata.namespace

    @property
    def key(self) -> str:
        """`namespace/name`, or the name alone for a cluster-scoped kind; unique within the kind."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    def to_wire(self) -> dict[str, Any]:
        """Write it as a manifest: no empty metadata, the status only if it says something."""
        body: dict[str, Any] = {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "metadata": self.metadata.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True),
            "spec": self.spec.to_wire(),
        }
        status = self.status.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)
        return {**body, "status": status} if status else body
