"""Events on a cluster's objects: what `kubectl describe` shows to whoever owns the work.

An Event's name is made of what it says, or of the key that it is told for, so that telling it twice is one Event. An
API server forgets Events, after an hour by default: a key that is told again later is told anew.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from gpubank.adapters.kubernetes.connection import Connection
from gpubank.adapters.kubernetes.errors import ApiNotFoundError
from gpubank.adapters.kubernetes.kinds import EVENT, JOB, KUEUE_GROUP, KUEUE_VERSION, POD, WORKLOAD, Object
from gpubank.domain.base import format_instant
from gpubank.domain.contract import MANAGED_BY, MANAGED_BY_LABEL
from gpubank.domain.errors import ConflictError
from gpubank.domain.loan import WorkloadKey

MESSAGE_LENGTH: Final = 1024
"""Longest message that the API server takes."""

REASON_LENGTH: Final = 128
"""Longest reason that the API server takes."""

COUNT_EVERY: Final = 60.0
"""Seconds in which the same Event is written once, however often a loop records it."""

_REMEMBERED: Final = 1024
"""Events whose time is remembered."""

_CLUSTER_WIDE: Final = "default"
"""Namespace of Events on objects that have none."""

_API_VERSIONS: Final = {kind.name: kind.api_version for kind in (JOB, POD)}


def _now() -> datetime:
    return datetime.now(UTC)


class EventWriter:
    """Writes Events."""

    def __init__(self, connection: Connection, clock: Callable[[], datetime] = _now) -> None:
        self._connection = connection
        self._clock = clock
        self._written: dict[str, float] = {}

    async def record(self, body: Mapping[str, Any], *, reason: str, message: str, warning: bool = False) -> None:
        """Record that something happened to an object; the same words again grow the Event's count."""
        about = reference(body)
        name = _name(about["name"], about.get("uid", ""), reason, message)
        if not self._is_due(name):
            return
        event = self._event(name, about, reason, message, warning)
        try:
            await self._connection.create(EVENT, event)
        except ConflictError:
            await self._count(name, event["metadata"]["namespace"])

    async def tell(self, key: str, about: Object, *, reason: str, message: str) -> None:
        """Record an Event once per key and object."""
        name = _name("gpubank", key, about["kind"], about["name"])
        try:
            await self._connection.create(EVENT, self._event(name, about, reason, message, warning=False))
        except ConflictError:
            return

    def _is_due(self, name: str) -> bool:
        now = time.monotonic()
        if now - self._written.get(name, -COUNT_EVERY) < COUNT_EVERY:
            return False
        self._written.pop(name, None)
        self._written[name] = now
        while len(self._written) > _REMEMBERED:
            del self._written[next(iter(self._written))]
        return True

    async def _count(self, name: str, namespace: str) -> None:
        found = await self._connection.get(EVENT, name, namespace)
        if found is None:
            return  # it has just been forgotten; whoever tells it next writes it anew
        change = {"count": int(found.get("count") or 1) + 1, "lastTimestamp": format_instant(self._clock())}
        try:
            version = found["metadata"]["resourceVersion"]
            await self._connection.patch(EVENT, name, namespace, change, version=version)
        except (ApiNotFoundError, ConflictError):
            return  # a count lost between two writers is not worth a second try

    def _event(self, name: str, about: Object, reason: str, message: str, warning: bool) -> Object:
        at = format_instant(self._clock())
        return {
            "apiVersion": EVENT.api_version,
            "kind": EVENT.name,
            "metadata": {
                "name": name,
                "namespace": about.get("namespace") or _CLUSTER_WIDE,
                "labels": {MANAGED_BY_LABEL: MANAGED_BY},
            },
            "involvedObject": about,
            "reason": reason[:REASON_LENGTH],
            "message": _shortened(message),
            "type": "Warning" if warning else "Normal",
            "source": {"component": MANAGED_BY},
            "reportingComponent": MANAGED_BY,
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
        }


class KubernetesNotifier:
    """Tells the owner of a Workload by Events on the Workload and on what owns it; implements `Notifier`."""

    def __init__(self, connection: Connection, *, clock: Callable[[], datetime] = _now) -> None:
        self._connection = connection
        self._events = EventWriter(connection, clock)

    async def notify(self, *, key: str, pool: str, workload: WorkloadKey, reason: str, message: str) -> None:
        """Tell once per key; a Workload that is gone leaves its job to be told."""
        body = await self._connection.get(WORKLOAD, workload.name, workload.namespace)
        listeners = [_workload(workload)]
        if body is not None and body["metadata"]["uid"] == workload.uid:
            listeners += [_owner(each, workload.namespace) for each in body["metadata"].get("ownerReferences") or ()]
        elif (owner := _named(workload)) is not None:
            listeners.append(owner)
        text = f"{message} (pool {pool})"
        await asyncio.gather(*(self._events.tell(key, each, reason=reason, message=text) for each in listeners))


def reference(body: Mapping[str, Any]) -> Object:
    """Return what names an object in an Event."""
    metadata = body.get("metadata") or {}
    named = {"apiVersion": body.get("apiVersion", ""), "kind": body.get("kind", ""), "name": metadata.get("name", "")}
    rest = {name: metadata[name] for name in ("namespace", "uid", "resourceVersion") if metadata.get(name)}
    return named | rest


def _workload(workload: WorkloadKey) -> Object:
    return {
        "apiVersion": f"{KUEUE_GROUP}/{KUEUE_VERSION}",
        "kind": WORKLOAD.name,
        "namespace": workload.namespace,
        "name": workload.name,
        "uid": workload.uid,
    }


def _owner(owner: Mapping[str, Any], namespace: str) -> Object:
    return {name: owner[name] for name in ("apiVersion", "kind", "name", "uid")} | {"namespace": namespace}


def _named(workload: WorkloadKey) -> Object | None:
    kind, _, name = workload.job.partition("/")
    if not name:
        return None
    return {"apiVersion": _API_VERSIONS.get(kind, ""), "kind": kind, "namespace": workload.namespace, "name": name}


def _name(prefix: str, *words: str) -> str:
    """Return a name of at most 253 characters that differs where the words differ."""
    digest = hashlib.sha256("\0".join((prefix, *words)).encode()).hexdigest()[:20]
    return f"{prefix[:200].rstrip('.-')}.{digest}"


def _shortened(message: str) -> str:
    return message if len(message) <= MESSAGE_LENGTH else f"{message[: MESSAGE_LENGTH - 1]}…"
