"""BusinessGroup: who a group is, where its work runs, who answers for it."""

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from gpubank.domain.base import (
    LABEL_PATTERN,
    SET,
    ApiModel,
    NamespaceName,
    ObjectName,
    Rule,
    ShortText,
    broken,
    check_name,
    first_twice,
    list_map,
    rules,
)
from gpubank.domain.meta import ConditionedStatus, Resource


class SubjectKind(StrEnum):
    """What kind of identity a subject is."""

    USER = "User"
    GROUP = "Group"
    SERVICE_ACCOUNT = "ServiceAccount"


class Subject(ApiModel):
    """An identity that belongs to the group."""

    kind: SubjectKind
    """Kind of identity, as in RBAC."""

    name: ShortText
    """Its name as Kubernetes knows it; a service account's is `system:serviceaccount:<namespace>:<name>`."""


class ChannelType(StrEnum):
    """How a notice reaches people."""

    WEBHOOK = "webhook"
    SLACK = "slack"
    EMAIL = "email"
    FEISHU = "feishu"
    DINGTALK = "dingtalk"
    WECOM = "wecom"
    TEAMS = "teams"
    PAGERDUTY = "pagerduty"


class SecretRef(ApiModel):
    """Where a secret stands; the secret itself is never in the API."""

    namespace: NamespaceName
    """Namespace of the Secret."""

    name: ObjectName
    """Name of the Secret."""

    key: Annotated[str, Field(pattern=r"^[-._a-zA-Z0-9]+$", min_length=1, max_length=253)] = "url"
    """Entry of the Secret that holds the address."""


class Channel(ApiModel):
    """One way to notify the group."""

    type: ChannelType
    """Kind of channel."""

    secret_ref: SecretRef
    """Where its address stands, which is a secret."""


class BusinessGroupSpec(ApiModel):
    """Who a group is, where its work runs, who answers for it."""

    subjects: Annotated[tuple[Subject, ...], Field(max_length=256, json_schema_extra=list_map("kind", "name"))] = ()
    """Identities that belong to the group."""

    namespaces: Annotated[tuple[NamespaceName, ...], Field(max_length=256, json_schema_extra=SET)] = ()
    """Namespaces in which its work runs; a namespace belongs to one group."""

    cost_center: Annotated[str, Field(max_length=128)] = ""
    """Where its GPU-hours are booked."""

    owner: ShortText
    """Who answers for the group; told of everything, not asked."""

    admins: Annotated[tuple[ShortText, ...], Field(max_length=64, json_schema_extra=SET)] = ()
    """Who approves recalls for the group; leases are approved by the platform, never by the group."""

    channels: Annotated[tuple[Channel, ...], Field(max_length=16)] = ()
    """How the group is notified."""

    @model_validator(mode="after")
    def _nothing_is_listed_twice(self) -> Self:
        subjects = (f"{subject.kind} {subject.name}" for subject in self.subjects)
        for field, names in (("namespaces", self.namespaces), ("admins", self.admins), ("subjects", subjects)):
            if twice := first_twice(names):
                raise broken("nothing is listed twice", "list it once", field=field, value=twice)
        return self


class BusinessGroupStatus(ConditionedStatus):
    """What the bank found about the group."""


class BusinessGroup(Resource[BusinessGroupSpec, BusinessGroupStatus]):
    """Who a group is, where its work runs, who answers for it."""

    kind: Literal["BusinessGroup"] = "BusinessGroup"
    spec: BusinessGroupSpec
    status: BusinessGroupStatus = BusinessGroupStatus()

    @model_validator(mode="after")
    def _name_makes_queue_names(self) -> Self:
        check_name(self.metadata.name)
        return self

    model_config = rules(
        Rule(
            f"self.metadata.name.size() <= 63 && self.metadata.name.matches('{LABEL_PATTERN}')",
            "a group's name is a DNS label without dots of at most 63 characters",
        )
    )
