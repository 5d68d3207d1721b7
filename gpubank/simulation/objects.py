"""The bank's API objects in memory, with what an API server does for them.

    apply ──▶ checked by the model ──▶ spec changed: generation + 1 ──▶ anything changed: resourceVersion
    delete ──▶ finalizers: deletionTimestamp, then gone when the last is released

What is handed in and out is copied: nobody changes an object but through these calls.
"""

import copy
import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final

from gpubank.domain.base import API_VERSION, format_instant
from gpubank.domain.contract import FINALIZER
from gpubank.domain.errors import ConflictError, InvalidObjectError, Problem
from gpubank.domain.group import BusinessGroup
from gpubank.domain.inference import InferenceScalingPolicy
from gpubank.domain.lease import CapacityLease
from gpubank.domain.meta import Resource
from gpubank.domain.policy import GPUQuotaPolicy
from gpubank.domain.pool import GPUPool
from gpubank.domain.refusal import read, shown, subject_of
from gpubank.domain.tidal import TidalPolicy
from gpubank.domain.utilization import LowUtilizationPolicy
from gpubank.simulation.clock import Clock
from gpubank.simulation.events import EventLog
from gpubank.simulation.manifests import DEFAULT_NAMESPACE
from gpubank.simulation.pulse import Pulse

KINDS: Final[Mapping[str, type[Resource[Any, Any]]]] = {
    "GPUPool": GPUPool,
    "BusinessGroup": BusinessGroup,
    "GPUQuotaPolicy": GPUQuotaPolicy,
    "InferenceScalingPolicy": InferenceScalingPolicy,
    "TidalPolicy": TidalPolicy,
    "CapacityLease": CapacityLease,
    "LowUtilizationPolicy": LowUtilizationPolicy,
}

CLUSTER_SCOPED: Final = frozenset({"GPUPool", "BusinessGroup"})

_Key = tuple[str, str, str]


class ObjectBook:
    """Keeps the bank's objects; implements `ObjectStore`."""

    def __init__(self, clock: Clock, events: EventLog, new_uid: Callable[[], str]) -> None:
        self._clock = clock
        self._new_uid = new_uid
        self._events = events
        self._pulse = Pulse()
        self._versions = itertools.count(1)
        self._objects: dict[_Key, dict[str, Any]] = {}

    async def list(self, kind: str) -> Sequence[dict[str, Any]]:
        """Every object of one kind, by namespace and name."""
        _model(kind)
        return [copy.deepcopy(body) for key, body in sorted(self._objects.items()) if key[0] == kind]

    async def get(self, kind: str, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        """One object, or None."""
        return self.peek(kind, name, namespace)

    def peek(self, kind: str, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        """As `get`, without waiting."""
        return copy.deepcopy(self._objects.get(_key(kind, name, namespace)))

    async def apply(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create the object, or replace its spec, labels and annotations; `InvalidObjectError` where it is refused."""
        kind, metadata = str(body.get("kind") or ""), body.get("metadata") or {}
        model = _model(kind)
        wanted = {
            "apiVersion": body.get("apiVersion", API_VERSION),
            "kind": kind,
            "metadata": {
                name: metadata[name] for name in ("name", "namespace", "labels", "annotations") if metadata.get(name)
            },
            **{name: value for name, value in body.items() if name not in ("apiVersion", "kind", "metadata", "status")},
        }
        wanted = copy.deepcopy(wanted)
        read(model, wanted)
        _check_scope(kind, wanted)
        key = _key(kind, wanted["metadata"]["name"], wanted["metadata"].get("namespace"))
        if key[1]:
            wanted["metadata"]["namespace"] = key[1]
        before = self._objects.get(key)
        return copy.deepcopy(self._created(key, wanted) if before is None else self._replaced(before, wanted))

    async def delete(self, kind: str, name: str, namespace: str | None = None) -> bool:
        """Ask for deletion; False when there was nothing. Finalizers are honoured."""
        key = _key(kind, name, namespace)
        body = self._objects.get(key)
        if body is None:
            return False
        metadata = body["metadata"]
        if not metadata.get("finalizers"):
            self._drop(key)
        elif "deletionTimestamp" not in metadata:
            metadata["deletionTimestamp"] = format_instant(self._clock.now())
            metadata["generation"] += 1
            self._touch(body)
        return True

    async def patch_status(
        self,
        kind: str,
        name: str,
        namespace: str | None,
        status: Mapping[str, Any],
        *,
        seen: str,
        dry_run: bool = False,
    ) -> None:
        """Replace the status; `ConflictError` if the object moved on since version `seen`, or is gone."""
        body = self._objects.get(_key(kind, name, namespace))
        if body is None:
            raise ConflictError(f"{kind} {name!r} is gone: its status cannot be written; read again")
        if body["metadata"]["resourceVersion"] != seen:
            raise ConflictError(f"{kind} {name!r} has moved on since version {seen!r}: read again, decide again")
        new = copy.deepcopy(dict(status))
        frame = {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}}
        read(_model(kind), {**frame, **_spec(body), "status": new})
        if not dry_run and body.get("status") != new:
            body["status"] = new
            self._touch(body)

    async def set_finalizer(self, kind: str, name: str, namespace: str | None, *, held: bool) -> None:
        """Hold or release the bank's finalizer; an object whose deletion waits for nothing else goes with it."""
        key = _key(kind, name, namespace)
        body = self._objects.get(key)
        if body is None:
            return
        finalizers = body["metadata"].get("finalizers", [])
        if held == (FINALIZER in finalizers):
            return
        if held and "deletionTimestamp" in body["metadata"]:
            raise ConflictError(f"{kind} {name!r} is being deleted: no finalizer can be added; let it go")
        body["metadata"]["finalizers"] = (
            [*finalizers, FINALIZER] if held else [other for other in finalizers if other != FINALIZER]
        )
        if "deletionTimestamp" in body["metadata"] and not body["metadata"]["finalizers"]:
            self._drop(key)
        else:
            self._touch(body)

    async def event(self, body: Mapping[str, Any], *, reason: str, message: str, warning: bool = False) -> None:
        """Record an Event on an object."""
        metadata = body.get("metadata", {})
        self._events.record(
            str(body.get("kind", "")),
            metadata.get("namespace", ""),
            metadata.get("name", ""),
            reason=reason,
            message=message,
            warning=warning,
        )

    async def changes(self) -> AsyncIterator[None]:
        """Yield whenever an object may have changed, and once at the start."""
        async for _ in self._pulse.follow():
            yield

    def _created(self, key: _Key, body: dict[str, Any]) -> dict[str, Any]:
        body["metadata"] |= {
            "uid": self._new_uid(),
            "generation": 1,
            "creationTimestamp": format_instant(self._clock.now()),
        }
        self._objects[key] = body
        self._touch(body)
        return body

    def _replaced(self, body: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
        before = copy.deepcopy(body)
        if _spec(body) != _spec(wanted):
            body["metadata"]["generation"] += 1
        body["spec"] = wanted.get("spec", {})
        for name in ("labels", "annotations"):
            if name in wanted["metadata"]:
                body["metadata"][name] = wanted["metadata"][name]
            else:
                body["metadata"].pop(name, None)
        if body != before:
            self._touch(body)
        return body

    def _touch(self, body: dict[str, Any]) -> None:
        body["metadata"]["resourceVersion"] = str(next(self._versions))
        self._pulse.beat()

    def _drop(self, key: _Key) -> None:
        del self._objects[key]
        self._pulse.beat()


def _model(kind: str) -> type[Resource[Any, Any]]:
    if kind not in KINDS:
        problem = Problem("kind", shown(kind), "is no kind of the bank", f"write one of {', '.join(sorted(KINDS))}")
        raise InvalidObjectError(f"object of kind {kind!r}", (problem,))
    return KINDS[kind]


def _key(kind: str, name: str, namespace: str | None) -> _Key:
    return kind, "" if kind in CLUSTER_SCOPED else namespace or DEFAULT_NAMESPACE, name


def _spec(body: Mapping[str, Any]) -> dict[str, Any]:
    return {"spec": body.get("spec", {})}


def _check_scope(kind: str, body: Mapping[str, Any]) -> None:
    namespace = body["metadata"].get("namespace")
    if namespace and kind in CLUSTER_SCOPED:
        problem = Problem("metadata.namespace", shown(namespace), "objects of this kind have no namespace", "remove it")
        raise InvalidObjectError(subject_of(body), (problem,))
