"""A watched copy of one kind of object: listed once, then kept by a watch.

    list (pages) ──▶ watch from that version ──▶ ends or breaks ──▶ watch from the last version seen
          ▲                                                             │ too old (410)
          └─────────────────────────────────────────────────────────────┘

In steady state nothing is listed: bookmarks keep the version young even where nothing changes. Each object is read
into a small entry once per change, so that a cluster's pods cost their facts and not their manifests.

What a cache says may be late, never invented. How late is bounded: a watch that fails is noticed at once, one that
falls silent after `SILENCE` seconds, and `check` refuses to answer once nothing has proved the copy fresh for longer
than its limit. What the bank itself wrote is put in at once (`absorb`), so it never reads back less than it wrote.
"""

import asyncio
import logging
import random
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from gpubank.adapters.kubernetes.connection import SILENCE
from gpubank.adapters.kubernetes.errors import WatchExpiredError
from gpubank.adapters.kubernetes.kinds import Kind, Object
from gpubank.domain.errors import BackendError

T = TypeVar("T")
U = TypeVar("U")

FIRST_LIST: Final = 30.0
"""Seconds that a reader waits for the first list."""

STALE: Final = SILENCE + 45.0
"""Seconds without proof of freshness after which a cache gives no answer; longer than it takes to notice silence."""

_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 10.0

_log = logging.getLogger(__name__)


class Key(NamedTuple):
    """Names one object of a kind."""

    namespace: str
    name: str


class Source(Protocol):
    """The part of a connection that a cache needs."""

    async def page(
        self, kind: Kind, *, selectors: Mapping[str, str], token: str = ""
    ) -> tuple[list[Object], str, str]: ...

    def watch(
        self, kind: Kind, *, version: str, selectors: Mapping[str, str]
    ) -> AsyncGenerator[tuple[str, Object], None]: ...


class _Kept(Generic[T]):
    """One object: the version it was read at, and what was read (None for what is of no interest)."""

    __slots__ = ("entry", "version")

    def __init__(self, version: int, entry: T | None) -> None:
        self.version = version
        self.entry = entry


class _Entries(Generic[T]):
    """Entries whose changes are told."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[T | None, T | None], None]] = []
        self.edits = 0
        """Grows with every change of an entry."""

    @contextmanager
    def heard_by(self, listener: Callable[[T | None, T | None], None]) -> Iterator[None]:
        """Call `listener(before, after)` on every change of an entry, while the context lasts."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    def _tell(self, old: T | None, new: T | None) -> None:
        if old is None and new is None:
            return
        self.edits += 1
        for listener in tuple(self._listeners):
            listener(old, new)


class Cache(_Entries[T]):
    """All objects of a kind that `selectors` choose, as entries that `read` makes of them."""

    def __init__(
        self,
        source: Source,
        kind: Kind,
        read: Callable[[Object, T | None], T | None],
        *,
        selectors: Mapping[str, str] | None = None,
    ) -> None:
        """`read(object, entry before)` returns the new entry, or None for an object of no interest."""
        super().__init__()
        self._kind = kind
        self._source = source
        self._read = read
        self._selectors = dict(selectors or {})
        self._kept: dict[Key, _Kept[T]] = {}
        self._version = 0
        self._listed = asyncio.Event()
        self._fresh_at = time.monotonic()
        self._failure = ""
        self._fault: Exception | None = None
        self._besides: list[Beside[Any]] = []
        self.lists = 0
        """How often it has listed; stays at 1 as long as the server serves the versions in between."""

    @property
    def kind(self) -> Kind:
        """What it holds."""
        return self._kind

    # ---- answers

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[T]:
        return (kept.entry for kept in self._kept.values() if kept.entry is not None)

    def get(self, name: str, namespace: str = "") -> T | None:
        """Return the entry of one object, or None."""
        kept = self._kept.get(Key(namespace, name))
        return kept.entry if kept else None

    async def ready(self) -> None:
        """Wait for the first list, then `check`."""
        try:
            async with asyncio.timeout(FIRST_LIST):
                await self._listed.wait()
        except TimeoutError:
            fact = self._failure or f"no list within {FIRST_LIST:.0f} s"
            raise BackendError(f"{self._kind} objects cannot be read: {fact}") from None
        self.check()

    def check(self, limit: float = STALE) -> None:
        """Raise `BackendError` unless the copy was proved fresh within `limit` seconds; a bug in `read` as it is."""
        if self._fault is not None:
            raise self._fault  # must not look like an empty cluster
        if not self._listed.is_set():
            raise BackendError(f"{self._kind} objects cannot be read: {self._failure or 'not listed yet'}")
        if self.age > limit:
            fact = self._failure or "the watch is silent"
            raise BackendError(f"{self._kind} objects were last seen {self.age:.0f} s ago: {fact}; wait, or look at it")

    @property
    def age(self) -> float:
        """Seconds since the server last proved this copy fresh by an event, a bookmark or a list."""
        return time.monotonic() - self._fresh_at

    def beside(self, read: Callable[[Object, U | None], U | None]) -> "Beside[U]":
        """Read the same objects into other entries as well; before this cache begins to watch.

        Whoever needs other parts of the same objects shares list and watch, and pays the API server nothing.
        """
        if self._listed.is_set():
            raise RuntimeError(f"the cache of {self._kind} has listed: what it read is gone")
        found = Beside(self, read)
        self._besides.append(found)
        return found

    async def until(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Wait until `holds()`, looking at every change of an entry; False when it does not within `seconds`."""
        changed = asyncio.Event()
        with self.heard_by(lambda before, after: changed.set()):
            try:
                async with asyncio.timeout(seconds):
                    while not holds():
                        changed.clear()
                        await changed.wait()
            except TimeoutError:
                return False
        return True

    # ---- upkeep

    async def run(self) -> None:
        """Keep the copy until cancelled; failures are waited out with a growing pause."""
        try:
            await self._run()
        except Exception as error:
            self._fault = error
            self._listed.set()
            raise

    async def _run(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                if not self._listed.is_set() or not self._version:
                    await self._list()
                watch = self._source.watch(self._kind, version=str(self._version), selectors=self._selectors)
                async with aclosing(watch) as events:
                    async for change, body in events:
                        pause, self._failure = _FIRST_PAUSE, ""
                        self._take(change, body)
                self._proved()
            except WatchExpiredError:
                self._version = 0
            except BackendError as error:
                self._failure = str(error)
                _log.debug("cache of %s pauses for %.1f s: %s", self._kind, pause, error)
                # Jitter, so that the caches of a fleet do not come back in step after an outage.
                await asyncio.sleep(pause * random.uniform(0.7, 1.3))
                pause = min(pause * 2, _LONGEST_PAUSE)

    def absorb(self, body: Object) -> None:
        """Put in what the server answered to a write, unless the watch knows as much or more already."""
        if _version(body) > self._version:
            self._put(body)

    async def _list(self) -> None:
        token, version, found = "", "", set[Key]()
        while True:
            try:
                items, version, token = await self._source.page(self._kind, selectors=self._selectors, token=token)
            except WatchExpiredError:
                token = ""
                found.clear()
                continue
            for item in items:
                found.add(_key(item))
                # Items of a list do not say what they are. Each is read at once: a cluster's manifests are large.
                self._put(item | self._type_meta())
            if not token:
                break
        self.lists += 1
        for key in self._kept.keys() - found:
            self._drop(key)
        self._version = int(version)
        self._failure = ""
        self._proved()
        self._listed.set()

    def _take(self, change: str, body: Object) -> None:
        if change == "DELETED":
            kept = self._kept.get(_key(body))
            if kept is not None and kept.version <= _version(body):
                self._drop(_key(body))
        elif change != "BOOKMARK":
            self._put(body)
        self._version = max(self._version, _version(body))
        self._proved()

    def _put(self, body: Object) -> None:
        key, version = _key(body), _version(body)
        before = self._kept.get(key)
        if before is not None and before.version >= version:
            return
        old = before.entry if before else None
        for beside in self._besides:
            beside.put(key, body)
        new = self._read(body, old)
        self._kept[key] = _Kept(version, new)
        self._tell(old, new)

    def _drop(self, key: Key) -> None:
        for beside in self._besides:
            beside.drop(key)
        self._tell(self._kept.pop(key).entry, None)

    def _proved(self) -> None:
        self._fresh_at = time.monotonic()

    def _type_meta(self) -> Object:
        return {"apiVersion": self._kind.api_version, "kind": self._kind.name}


class Beside(_Entries[U]):
    """Other entries of a cache's objects; as late, and as fresh, as the cache."""

    def __init__(self, cache: Cache[Any], read: Callable[[Object, U | None], U | None]) -> None:
        super().__init__()
        self._cache, self._read = cache, read
        self._entries: dict[Key, U] = {}
        self._fault: Exception | None = None

    def __iter__(self) -> Iterator[U]:
        return iter(self._entries.values())

    async def ready(self) -> None:
        """Wait for the first list, then `check`."""
        await self._cache.ready()
        self.check()

    def check(self, limit: float = STALE) -> None:
        """Raise as the cache does; and what went wrong in `read`, which harms nobody but who asks here."""
        if self._fault is not None:
            raise self._fault
        self._cache.check(limit)

    def put(self, key: Key, body: Object) -> None:
        """Take in an object; the cache calls this."""
        try:
            old = self._entries.get(key)
            new = self._read(body, old)
            if new is None:
                self._entries.pop(key, None)
            else:
                self._entries[key] = new
            self._tell(old, new)
        except Exception as error:
            self._fault = self._fault or error

    def drop(self, key: Key) -> None:
        """Forget an object; the cache calls this."""
        try:
            self._tell(self._entries.pop(key, None), None)
        except Exception as error:
            self._fault = self._fault or error


def _key(body: Object) -> Key:
    metadata = body["metadata"]
    return Key(metadata.get("namespace", ""), metadata["name"])


def _version(body: Object) -> int:
    """Return an object's version; versions of one kind grow (Kubernetes promises that they compare as integers)."""
    return int(body["metadata"].get("resourceVersion") or 0)


class Watched(Protocol):
    """A cache, whatever its entries are."""

    @property
    def kind(self) -> Kind: ...

    async def run(self) -> None: ...

    async def ready(self) -> None: ...


class Caches:
    """Runs several caches together."""

    def __init__(self, *caches: Watched) -> None:
        self._caches = caches
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to watch; repeated calls change nothing."""
        if not self._tasks:
            self._tasks = [asyncio.create_task(cache.run(), name=f"cache of {cache.kind}") for cache in self._caches]

    async def ready(self) -> None:
        """Wait until every cache has listed; raise `BackendError` where one cannot, or has gone stale."""
        await asyncio.gather(*(cache.ready() for cache in self._caches))

    async def stop(self) -> None:
        """End every watch."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
