"""Which pod's GPUs are booked to whom: pods, groups and organisation in, one snapshot per node out.

    BusinessGroups ─▶ agree: namespace belongs to one group ─┐
    OrgUnits of the ledger ─▶ spans of time per group ───────┴▶ bookings ─┐
    pods ─▶ what they say, field by field allowed ───────────────────────┴▶ NodeMetadata

`business_group` and `cost_center` follow from the pod's namespace alone; a label that claims either is not even read.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from gpubank.decide.agreement import agree
from gpubank.domain.attribution import (
    CLAIM_FIELDS,
    NodeMetadata,
    OrgSpan,
    PodMetadata,
    is_object_name,
    is_uid,
    permitted,
)
from gpubank.domain.contract import (
    MODEL_NAME,
    MODEL_VERSION,
    OWNER_ID_LABEL,
    QUEUE_LABEL,
    WORKLOAD_TYPE_LABEL,
)
from gpubank.domain.group import BusinessGroup
from gpubank.domain.ledger import OrgUnit

_BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)

_SOURCES: Final[Mapping[str, str]] = {
    "owner_id": OWNER_ID_LABEL,
    "queue": QUEUE_LABEL,
    "workload_type": WORKLOAD_TYPE_LABEL,
    "model": MODEL_NAME,
    "model_version": MODEL_VERSION,
}
"""Label, or else annotation, that says each claim; `workload_uid` is the pod's controller instead."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one node is told at most."""

    pods: int = 1024
    """Pods of one node; the rest, by UID, is left out and counted."""

    devices: int = 1024
    """Devices of one node's ResourceSlices."""

    ahead: timedelta = timedelta(days=31)
    """Changes of the organisation that are further away than this are not told yet."""

    spans: int = 8
    """Changes to come per pod."""


@dataclass(frozen=True, slots=True)
class PodSeen:
    """What of a pod matters here."""

    uid: str
    namespace: str
    name: str
    node: str
    claims: Mapping[str, str] = field(default_factory=dict)
    """As `claims_of` reads them."""

    verified: frozenset[str] = frozenset()
    static_uid: str = ""
    """Of the mirror of a static pod, as its annotation says: the UID by which the kubelet knows the pod."""


def claims_of(labels: Mapping[str, str], annotations: Mapping[str, str], controller_uid: str = "") -> dict[str, str]:
    """Read what a pod says of itself; what is not permitted counts as unsaid."""
    said = {name: labels.get(source, annotations.get(source)) for name, source in _SOURCES.items()}
    said["workload_uid"] = controller_uid
    allowed = {name: permitted(name, said.get(name)) for name in CLAIM_FIELDS}
    return {name: value for name, value in allowed.items() if value is not None}


def bookings(
    groups: Sequence[BusinessGroup], org: Iterable[OrgUnit], *, now: datetime, limits: Limits | None = None
) -> dict[str, tuple[OrgSpan, ...]]:
    """Say for every namespace of a group where its work is booked, from now on.

    A namespace that several groups name belongs to the oldest, as everywhere. Where the ledger's organisation says
    nothing about a group at some time, the group's own costCenter counts.
    """
    limits = limits or Limits()
    rows: defaultdict[str, list[OrgUnit]] = defaultdict(list)
    for unit in org:
        rows[unit.business_group].append(unit)
    by_name = {group.name: group for group in groups}
    found: dict[str, tuple[OrgSpan, ...]] = {}
    for name, namespaces in agree("", (), groups, ()).namespaces.items():
        spans = _spans(by_name[name], rows[name], now, limits)
        found.update(dict.fromkeys(namespaces, spans))
    return found


def node_metadata(
    node: str,
    pods: Iterable[PodSeen],
    booked: Mapping[str, tuple[OrgSpan, ...]],
    devices: Mapping[str, str] | None = None,
    *,
    issued_at: datetime,
    limits: Limits | None = None,
) -> NodeMetadata:
    """Say what one node is told; pods of other nodes, and pods that cannot be named, are left out.

    Anybody can write a static pod's annotation, so it never takes a UID that a real pod has.
    """
    limits = limits or Limits()
    told: dict[str, PodMetadata] = {}
    for pod in sorted(pods, key=lambda pod: (bool(pod.static_uid), pod.uid)):
        uid = pod.static_uid or pod.uid
        named = is_uid(uid) and is_object_name(pod.namespace) and is_object_name(pod.name)
        if named and pod.node == node and uid not in told:
            org = booked.get(pod.namespace, ())
            told[uid] = PodMetadata(uid, pod.namespace, pod.name, org, pod.claims, pod.verified)
    return NodeMetadata(
        node=node,
        issued_at=issued_at,
        pods=dict(sorted(told.items())[: limits.pods]),
        devices=dict(sorted((devices or {}).items())[: limits.devices]),
    )


def snapshots(
    pods: Iterable[PodSeen],
    groups: Sequence[BusinessGroup],
    org: Iterable[OrgUnit] = (),
    devices: Mapping[str, Mapping[str, str]] | None = None,
    *,
    issued_at: datetime,
    limits: Limits | None = None,
) -> dict[str, NodeMetadata]:
    """One snapshot for every node that has pods or devices."""
    booked = bookings(groups, org, now=issued_at, limits=limits)
    by_node: defaultdict[str, list[PodSeen]] = defaultdict(list)
    for pod in pods:
        if pod.node:
            by_node[pod.node].append(pod)
    known = devices or {}
    return {
        node: node_metadata(node, by_node.get(node, ()), booked, known.get(node), issued_at=issued_at, limits=limits)
        for node in sorted(by_node.keys() | known.keys())
    }


def _spans(group: BusinessGroup, rows: Sequence[OrgUnit], now: datetime, limits: Limits) -> tuple[OrgSpan, ...]:
    """Follow the organisation from `now` on: one span for every change, none for what stays the same."""
    until = now + limits.ahead
    moments = {moment for row in rows for moment in (row.valid_from, row.valid_to) if moment and now < moment <= until}
    spans: list[OrgSpan] = []
    for moment in [now, *sorted(moments)]:
        row = _row_at(rows, moment)
        cost_center = permitted("cost_center", row.cost_center if row else group.spec.cost_center) or ""
        if spans and spans[-1].cost_center == cost_center:
            continue
        # The span in force has begun at some time that no node needs to know; a clock that is behind must see it too.
        effective = _BEGINNING if moment == now else moment
        spans.append(OrgSpan(effective, group.name, cost_center))
    return tuple(spans[: limits.spans + 1])


def _row_at(rows: Sequence[OrgUnit], moment: datetime) -> OrgUnit | None:
    """Return what the organisation says about a moment: of overlapping rows the one that was recorded last."""
    valid = [row for row in rows if row.valid_from <= moment and (row.valid_to is None or moment < row.valid_to)]
    return max(valid, key=lambda row: row.recorded_at, default=None)
