"""Whom a pod's GPUs are booked to: what the control plane tells a node about its pods, and no more.

    NodeMetadata ── one per node, signed
      ├─ PodMetadata, by pod UID:  org[] (from the namespace's BusinessGroup)  claims{} (what the pod says of itself)
      └─ devices{driver/pool/device: UUID} of the node's ResourceSlices

Only the fields named here ever reach a node or a metric. Node agent and control plane share this module; it needs
nothing but the standard library.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Final

BUSINESS_GROUP: Final = "business_group"
COST_CENTER: Final = "cost_center"

ORG_FIELDS: Final = (BUSINESS_GROUP, COST_CENTER)
"""Fields that come from the BusinessGroup of the pod's namespace; no user can set them."""

CLAIM_FIELDS: Final = ("owner_id", "queue", "workload_type", "workload_uid", "model", "model_version")
"""Fields that a pod says of itself; unverified until admission writes them."""

FIELDS: Final = (*ORG_FIELDS, *CLAIM_FIELDS)
"""Every field, in the order of labels."""

MOST_LENGTHS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "business_group": 63,
        "cost_center": 128,
        "owner_id": 63,
        "queue": 63,
        "workload_type": 16,
        "workload_uid": 63,
        "model": 128,
        "model_version": 63,
    }
)
"""Longest value of each field, in characters."""

_TOKEN: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._:/@+-]*[A-Za-z0-9])?")
_WORKLOAD_TYPES: Final = frozenset({"training", "inference", "notebook", "batch"})
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_UID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}")


@dataclass(frozen=True, slots=True)
class OrgSpan:
    """Where a namespace's work is booked from a moment on."""

    effective_from: datetime
    business_group: str
    cost_center: str = ""


@dataclass(frozen=True, slots=True)
class PodMetadata:
    """What is told about one pod."""

    uid: str
    """UID as the kubelet knows it; of a static pod that is not the UID of its mirror at the API server."""

    namespace: str
    name: str
    org: tuple[OrgSpan, ...] = ()
    """By time, the first in force at the snapshot's own; later ones are changes to come."""

    claims: Mapping[str, str] = field(default_factory=dict)
    """Values of `CLAIM_FIELDS`, those that are said."""

    verified: frozenset[str] = frozenset()
    """Claims that admission wrote or checked."""

    def at(self, now: datetime) -> Mapping[str, str]:
        """Values of all fields at `now`; what is not known is left out."""
        values: dict[str, str] = {}
        span = next((span for span in reversed(self.org) if span.effective_from <= now), None)
        if span is not None:
            values[BUSINESS_GROUP] = span.business_group
            if span.cost_center:
                values[COST_CENTER] = span.cost_center
        values.update((name, self.claims[name]) for name in CLAIM_FIELDS if name in self.claims)
        return values

    @property
    def unverified(self) -> tuple[str, ...]:
        """Claims that nobody checked, in the order of the fields."""
        return tuple(name for name in CLAIM_FIELDS if name in self.claims and name not in self.verified)


@dataclass(frozen=True, slots=True)
class NodeMetadata:
    """What is told about one node's pods, at one moment."""

    node: str
    issued_at: datetime
    """When the control plane last knew this to be so; also of a snapshot in which nothing changed."""

    pods: Mapping[str, PodMetadata] = field(default_factory=dict)
    """By UID."""

    devices: Mapping[str, str] = field(default_factory=dict)
    """`driver/pool/device` of the node's ResourceSlices to the UUID of the GPU or MIG device."""

    def named(self, namespace: str, name: str) -> tuple[PodMetadata, ...]:
        """Pods of this name: none, one, or several of which one replaced the other."""
        return tuple(pod for pod in self.pods.values() if pod.namespace == namespace and pod.name == name)


def permitted(name: str, value: object) -> str | None:
    """Return a field's value if it is one that may be told, else None; nothing is ever cut or replaced.

    A shortened or mended value would look like another owner's.
    """
    longest = MOST_LENGTHS.get(name)
    if longest is None or not isinstance(value, str) or not 0 < len(value) <= longest:
        return None
    if name == "workload_type":
        return value if value in _WORKLOAD_TYPES else None
    if name == COST_CENTER:
        # Written by the platform for its own accounting, in any script; still nothing that is not plain text.
        return value if value.isprintable() and value == value.strip() else None
    return value if _TOKEN.fullmatch(value) else None


def is_object_name(value: object) -> bool:
    """Whether it can be the name of a namespace, pod or node."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def is_uid(value: object) -> bool:
    """Whether it can be the UID of a pod."""
    return isinstance(value, str) and _UID.fullmatch(value) is not None
