"""A node's metadata as bytes: one JSON object, the same bytes for the same facts, read with every bound checked."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from gpubank.domain.attribution import (
    BUSINESS_GROUP,
    CLAIM_FIELDS,
    COST_CENTER,
    NodeMetadata,
    OrgSpan,
    PodMetadata,
    is_object_name,
    is_uid,
    permitted,
)
from gpubank.domain.errors import PolicyError

VERSION: Final = 1
LARGEST: Final = 4 * 1024 * 1024
"""Bytes of the largest body that is read; a node with a thousand pods has some 400 KiB."""

_NEVER: Final = datetime.fromtimestamp(0, UTC)
_MOST_PODS: Final = 4096
_MOST_DEVICES: Final = 4096
_MOST_SPANS: Final = 64


class MetadataFormatError(PolicyError):
    """The bytes are no node metadata, or not this node's; nothing of them is used."""


def encode(metadata: NodeMetadata) -> bytes:
    """Write it; equal metadata gives equal bytes."""
    body = {
        "version": VERSION,
        "node": metadata.node,
        "issuedAt": _instant(metadata.issued_at),
        "pods": [_pod(metadata.pods[uid]) for uid in sorted(metadata.pods)],
        "devices": dict(sorted(metadata.devices.items())),
    }
    return json.dumps(body, separators=(",", ":"), ensure_ascii=True).encode()


def content(metadata: NodeMetadata) -> bytes:
    """Write what it says, without when: two snapshots with equal content differ only in their age."""
    return encode(NodeMetadata(metadata.node, _NEVER, metadata.pods, metadata.devices))


def issued(said: bytes, at: datetime) -> bytes:
    """Say the time in what `content` wrote: the same bytes as `encode`, without writing every pod again."""
    return said.replace(_issued_at(_NEVER), _issued_at(at), 1)  # the first: a node's name has no quotes


def _issued_at(at: datetime) -> bytes:
    return f'"issuedAt":"{_instant(at)}"'.encode()


def decode(raw: bytes) -> NodeMetadata:
    """Read it, believing nothing. Raises MetadataFormatError."""
    if len(raw) > LARGEST:
        raise MetadataFormatError(f"node metadata has {len(raw)} bytes; the most is {LARGEST}")
    try:
        body = json.loads(raw)
        if not isinstance(body, dict) or body.get("version") != VERSION:
            raise MetadataFormatError(f"node metadata is not of version {VERSION}; let node and control plane agree")
        if not is_object_name(body["node"]):
            raise MetadataFormatError("node metadata names no node")
        pods, devices = body["pods"], body["devices"]
        if len(pods) > _MOST_PODS or len(devices) > _MOST_DEVICES:
            raise MetadataFormatError(
                f"node metadata has {len(pods)} pods and {len(devices)} devices, which no node has"
            )
        read = [_read_pod(pod) for pod in pods]
        return NodeMetadata(
            node=body["node"],
            issued_at=_read_instant(body["issuedAt"]),
            pods={pod.uid: pod for pod in read},
            devices={key: uuid for key, uuid in devices.items() if isinstance(uuid, str) and len(uuid) <= 128},
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise MetadataFormatError(f"node metadata cannot be read: {type(error).__name__} {str(error)[:200]}") from error


def _pod(pod: PodMetadata) -> dict[str, Any]:
    body: dict[str, Any] = {"uid": pod.uid, "namespace": pod.namespace, "name": pod.name}
    if pod.org:
        body["org"] = [
            {"from": _instant(span.effective_from), BUSINESS_GROUP: span.business_group, COST_CENTER: span.cost_center}
            for span in pod.org
        ]
    if pod.claims:
        body["claims"] = {name: pod.claims[name] for name in CLAIM_FIELDS if name in pod.claims}
    if pod.verified:
        body["verified"] = sorted(pod.verified)
    return body


def _read_pod(body: Mapping[str, Any]) -> PodMetadata:
    uid, namespace, name = body["uid"], body["namespace"], body["name"]
    if not is_uid(uid) or not is_object_name(namespace) or not is_object_name(name):
        raise MetadataFormatError("node metadata names a pod that cannot be one")
    claims = {field: permitted(field, body.get("claims", {}).get(field)) for field in CLAIM_FIELDS}
    spans = [_read_span(span) for span in body.get("org", ())[:_MOST_SPANS]]
    return PodMetadata(
        uid=uid,
        namespace=namespace,
        name=name,
        org=tuple(sorted((span for span in spans if span), key=lambda span: span.effective_from)),
        claims={field: value for field, value in claims.items() if value is not None},
        verified=frozenset(field for field in body.get("verified", ()) if field in CLAIM_FIELDS),
    )


def _read_span(body: Mapping[str, Any]) -> OrgSpan | None:
    group = permitted(BUSINESS_GROUP, body[BUSINESS_GROUP])
    if group is None:
        return None
    return OrgSpan(_read_instant(body["from"]), group, permitted(COST_CENTER, body.get(COST_CENTER, "")) or "")


def _instant(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _read_instant(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise MetadataFormatError("node metadata has a time without an offset")
    return moment.astimezone(UTC)
