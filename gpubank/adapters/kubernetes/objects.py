"""The bank's API objects on a cluster: reads from watched caches, writes checked by the API server.

`list` costs no call; `get` reads what stands in the store, for whoever is about to write. A refusal of the API server,
be it of the schema, of a CEL rule or of an admission policy, comes back with every field that it names.
"""

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, Self

from gpubank.adapters.kubernetes.cache import Cache, Caches
from gpubank.adapters.kubernetes.connection import Connection
from gpubank.adapters.kubernetes.errors import ApiError, ApiNotFoundError
from gpubank.adapters.kubernetes.events import EventWriter
from gpubank.adapters.kubernetes.kinds import BANK_KINDS, Kind, Object
from gpubank.domain.base import API_VERSION
from gpubank.domain.contract import FINALIZER
from gpubank.domain.errors import ConflictError, InvalidObjectError, Problem

FOLD: Final = 0.03
"""Seconds in which changes that follow each other are told as one."""

_TRIES: Final = 5
_DEFAULT_NAMESPACE: Final = "default"


def _now() -> datetime:
    return datetime.now(UTC)


class KubernetesObjectStore:
    """The object port on an API server; use it as an async context manager, or call `start` and `stop_watching`.

    The connection stays the caller's to close.
    """

    def __init__(self, connection: Connection, *, clock: Callable[[], datetime] = _now) -> None:
        self._connection = connection
        self._events = EventWriter(connection, clock)
        self._by_name: dict[str, Cache[Object]] = {
            name: Cache(connection, kind, _whole) for name, kind in BANK_KINDS.items()
        }
        self._caches = Caches(*self._by_name.values())
        self._in_order: dict[str, tuple[int, list[Object]]] = {}

    def start(self) -> None:
        """Begin to watch; needs a running event loop."""
        self._caches.start()

    async def stop_watching(self) -> None:
        """End every watch."""
        await self._caches.stop()

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop_watching()

    def watched(self, kind: str) -> Cache[Object]:
        """Its watch of one kind, for whoever reads other things off the objects (`Cache.beside`)."""
        return self._by_name[_kind(kind).name]

    @property
    def kept(self) -> "Kept":
        """The same lists without copies, for whoever reads them all the time and changes nothing."""
        return Kept(self)

    async def list_kept(self, kind: str) -> Sequence[Object]:
        """Return what is kept of one kind, by namespace and name: the very objects, which nobody may change."""
        cache = self._by_name[_kind(kind).name]
        await cache.ready()
        edits, found = self._in_order.get(kind, (-1, []))
        if edits != cache.edits:
            found = sorted(cache, key=_place)
            self._in_order[kind] = cache.edits, found
        return found

    # ---- the port

    async def list(self, kind: str) -> Sequence[dict[str, Any]]:
        """Every object of one kind, by namespace and name."""
        return copy.deepcopy(await self.list_kept(kind))

    async def get(self, kind: str, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        """One object as it stands in the store, or None."""
        found = _kind(kind)
        return await self._connection.get(found, name, _namespace(found, namespace))

    async def apply(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create the object, or replace its spec, labels and annotations; `InvalidObjectError` where it is refused."""
        kind, wanted = _kind(str(body.get("kind") or "")), _wanted(body)
        for attempt in range(1, _TRIES + 1):
            try:
                written = await self._write(kind, wanted)
            except ConflictError:
                if attempt == _TRIES:
                    raise
            except ApiError as error:
                if error.is_refusal:
                    raise InvalidObjectError(_subject(wanted), _problems(error)) from error
                raise
            else:
                self._by_name[kind.name].absorb(copy.deepcopy(written))
                return written
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def delete(self, kind: str, name: str, namespace: str | None = None) -> bool:
        """Ask for deletion; False when there was nothing. Finalizers are honoured."""
        found = _kind(kind)
        return await self._connection.delete(found, name, _namespace(found, namespace))

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
        found = _kind(kind)
        metadata = {"name": name, "resourceVersion": seen}
        if place := _namespace(found, namespace):
            metadata["namespace"] = place
        body = {"apiVersion": found.api_version, "kind": found.name, "metadata": metadata, "status": dict(status)}
        try:
            written = await self._connection.replace(found, body, strict=True, subresource="status", dry_run=dry_run)
        except ApiNotFoundError as error:
            raise ConflictError(f"{kind} {name!r} is gone: its status cannot be written; read again") from error
        except ApiError as error:
            if error.is_refusal:
                raise InvalidObjectError(f"status of {kind} {name!r}", _problems(error)) from error
            raise
        if not dry_run:
            self._by_name[found.name].absorb(written)

    async def set_finalizer(self, kind: str, name: str, namespace: str | None, *, held: bool) -> None:
        """Hold or release the bank's finalizer; an object that is gone needs neither."""
        found, place = _kind(kind), _namespace(_kind(kind), namespace)
        body = self._unheld(found, name, place) if held else None
        for attempt in range(1, _TRIES + 1):
            body = body or await self._connection.get(found, name, place)
            if body is None:
                return
            metadata = body["metadata"]
            finalizers = metadata.get("finalizers") or []
            if held == (FINALIZER in finalizers):
                return
            if held and "deletionTimestamp" in metadata:
                raise ConflictError(f"{kind} {name!r} is being deleted: no finalizer can be added; let it go")
            wanted = [*finalizers, FINALIZER] if held else [other for other in finalizers if other != FINALIZER]
            change = {"metadata": {"finalizers": wanted}}
            try:
                written = await self._connection.patch(found, name, place, change, version=metadata["resourceVersion"])
            except ApiNotFoundError:
                return
            except ConflictError:
                if attempt == _TRIES:
                    raise
                body = None
            else:
                if wanted or "deletionTimestamp" not in metadata:
                    self._by_name[found.name].absorb(written)
                return

    def _unheld(self, kind: Kind, name: str, namespace: str | None) -> Object | None:
        """Return what is kept of an object that no finalizer holds: enough for one, for the write is checked."""
        body = self._by_name[kind.name].get(name, namespace or "")
        if (
            body is None
            or "deletionTimestamp" in body["metadata"]
            or FINALIZER in body["metadata"].get("finalizers", ())
        ):
            return None
        return body

    async def event(self, body: Mapping[str, Any], *, reason: str, message: str, warning: bool = False) -> None:
        """Record an Event on an object; the same one again is counted, not repeated."""
        await self._events.record(body, reason=reason, message=message, warning=warning)

    async def changes(self) -> AsyncIterator[None]:
        """Yield whenever any of the bank's objects may have changed, and once at the start."""
        changed = asyncio.Event()
        with ExitStack() as stack:
            for cache in self._by_name.values():
                stack.enter_context(cache.heard_by(lambda before, after: changed.set()))
            yield
            while True:
                await changed.wait()
                await asyncio.sleep(FOLD)
                changed.clear()
                yield

    async def _write(self, kind: Kind, wanted: Object) -> Object:
        metadata = wanted["metadata"]
        found = await self._connection.get(kind, metadata["name"], metadata.get("namespace"))
        if found is None:
            return await self._connection.create(kind, wanted, strict=True)
        kept = {name: value for name, value in found["metadata"].items() if name not in ("labels", "annotations")}
        body = wanted | {"metadata": kept | metadata}
        return await self._connection.replace(kind, body, strict=True)


class Kept:
    """A store's lists as it keeps them: an object that has not changed is the very one of the last list."""

    def __init__(self, store: KubernetesObjectStore) -> None:
        self._store = store

    async def list(self, kind: str) -> Sequence[Object]:
        """Every object of one kind, by namespace and name; not to be changed."""
        return await self._store.list_kept(kind)


def _wanted(body: Mapping[str, Any]) -> Object:
    """Return what of a manifest is the author's: no status, no server-side metadata."""
    kind = _kind(str(body.get("kind") or ""))
    metadata = body.get("metadata") or {}
    if not metadata.get("name"):
        problem = Problem("metadata.name", "", "must be set", "write the object's name")
        raise InvalidObjectError(f"{kind} without a name", (problem,))
    own = {name: metadata[name] for name in ("name", "labels", "annotations") if metadata.get(name)}
    if kind.namespaced:
        own["namespace"] = metadata.get("namespace") or _DEFAULT_NAMESPACE
    elif metadata.get("namespace"):
        rule, remedy = "objects of this kind have no namespace", "remove it"
        problem = Problem("metadata.namespace", json.dumps(metadata["namespace"]), rule, remedy)
        raise InvalidObjectError(f"{kind} {metadata['name']!r}", (problem,))
    rest = {name: value for name, value in body.items() if name not in ("metadata", "status")}
    return copy.deepcopy({"apiVersion": API_VERSION, **rest, "metadata": own})


def _problems(error: ApiError) -> tuple[Problem, ...]:
    found = [
        Problem(str(cause.get("field") or "").removeprefix("."), "", str(cause.get("message") or ""), "change it")
        for cause in error.causes
    ]
    return tuple(found) or (Problem("", "", error.detail or error.reason, "change it"),)


def _subject(body: Object) -> str:
    metadata = body["metadata"]
    place = f"{metadata['namespace']}/" if metadata.get("namespace") else ""
    return f"{body['kind']} '{place}{metadata['name']}'"


def _kind(name: str) -> Kind:
    if name not in BANK_KINDS:
        remedy = f"write one of {', '.join(sorted(BANK_KINDS))}"
        problem = Problem("kind", json.dumps(name), "is no kind of the bank", remedy)
        raise InvalidObjectError(f"object of kind {name!r}", (problem,))
    return BANK_KINDS[name]


def _namespace(kind: Kind, namespace: str | None) -> str | None:
    return (namespace or _DEFAULT_NAMESPACE) if kind.namespaced else None


def _place(body: Object) -> tuple[str, str]:
    return body["metadata"].get("namespace", ""), body["metadata"]["name"]


def _whole(body: Object, before: Object | None) -> Object:
    body["metadata"].pop("managedFields", None)
    return body
