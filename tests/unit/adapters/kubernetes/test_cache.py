import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import pytest

from gpubank.adapters.kubernetes import cache as caches
from gpubank.adapters.kubernetes.cache import Cache, Caches
from gpubank.adapters.kubernetes.errors import WatchExpiredError
from gpubank.adapters.kubernetes.kinds import POD, Kind, Object
from gpubank.domain.errors import BackendError


def pod(name: str, version: int, **labels: str) -> Object:
    metadata = {"name": name, "namespace": "team", "resourceVersion": str(version), "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}


class FakeServer:
    """Lists what it holds, and tells watches what a test puts into `events`; an exception in it is raised there."""

    def __init__(self, *pods: Object, version: int = 10, pages: int = 1) -> None:
        self.pods = list(pods)
        self.version = version
        self.pages = pages
        self.events: asyncio.Queue[tuple[str, Object] | Exception | None] = asyncio.Queue()
        self.lists = 0
        self.watched_from: list[str] = []
        self.list_errors: list[Exception] = []

    async def page(self, kind: Kind, *, selectors: Mapping[str, str], token: str = "") -> tuple[list[Object], str, str]:
        self.lists += not token
        if self.list_errors:
            raise self.list_errors.pop(0)
        number = int(token or 0)
        size = -(-len(self.pods) // self.pages) or 1
        part = self.pods[number * size : (number + 1) * size]
        last = number + 1 >= self.pages
        return part, str(self.version), "" if last else str(number + 1)

    async def watch(
        self, kind: Kind, *, version: str, selectors: Mapping[str, str]
    ) -> AsyncGenerator[tuple[str, Object], None]:
        self.watched_from.append(version)
        while (event := await self.events.get()) is not None:
            if isinstance(event, Exception):
                raise event
            yield event


def whole(body: Object, before: Object | None) -> Object | None:
    return None if body["metadata"]["labels"].get("boring") else body


Running = Callable[[FakeServer], Awaitable[Cache[Object]]]


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    started: list[Caches] = []

    async def run(server: FakeServer) -> Cache[Object]:
        cache = Cache(server, POD, whole)
        started.append(Caches(cache))
        started[-1].start()
        await started[-1].ready()
        return cache

    yield run
    for each in started:
        await each.stop()


async def settled(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def names(cache: Cache[Object]) -> set[str]:
    return {body["metadata"]["name"] for body in cache}


async def test_a_list_of_many_pages_is_read_whole_and_its_items_say_what_they_are(running: Running) -> None:
    cache = await running(FakeServer(pod("a", 1), pod("b", 2), pod("c", 3), pages=3))
    assert names(cache) == {"a", "b", "c"}
    found = cache.get("b", "team")
    assert found is not None
    assert (found["kind"], found["apiVersion"]) == ("Pod", "v1")


async def test_events_are_followed_without_listing_again(running: Running) -> None:
    server = FakeServer(pod("a", 1), pod("b", 2))
    cache = await running(server)
    for event in (("ADDED", pod("c", 11)), ("MODIFIED", pod("a", 12, x="1")), ("DELETED", pod("b", 13))):
        server.events.put_nowait(event)
    await settled(lambda: names(cache) == {"a", "c"})
    changed = cache.get("a", "team")
    assert changed is not None
    assert changed["metadata"]["labels"] == {"x": "1"}
    assert (server.lists, cache.lists) == (1, 1)


async def test_a_watch_that_ends_is_taken_up_where_the_last_bookmark_was(running: Running) -> None:
    server = FakeServer(pod("a", 1))
    cache = await running(server)
    server.events.put_nowait(("BOOKMARK", pod("", 57)))
    server.events.put_nowait(None)
    await settled(lambda: len(server.watched_from) == 2)
    assert server.watched_from == ["10", "57"]
    assert names(cache) == {"a"}
    assert server.lists == 1


async def test_a_broken_connection_does_not_list_again(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "_FIRST_PAUSE", 0.001)
    server = FakeServer(pod("a", 1))
    cache = await running(server)
    server.events.put_nowait(("ADDED", pod("b", 11)))
    server.events.put_nowait(BackendError("reset by peer"))
    await settled(lambda: len(server.watched_from) == 2)
    server.events.put_nowait(("DELETED", pod("b", 12)))
    await settled(lambda: names(cache) == {"a"})
    assert (server.watched_from, server.lists) == (["10", "11"], 1)


async def test_a_version_that_is_no_longer_served_lists_again_and_drops_what_is_gone(running: Running) -> None:
    server = FakeServer(pod("a", 1), pod("b", 2))
    cache = await running(server)
    heard: list[tuple[str, str]] = []

    def hear(before: Object | None, after: Object | None) -> None:
        old, new = (str(each["metadata"]["name"]) if each else "" for each in (before, after))
        heard.append((old, new))

    with cache.heard_by(hear):
        server.pods, server.version = [pod("a", 1), pod("c", 90)], 95
        server.events.put_nowait(WatchExpiredError("too old"))
        await settled(lambda: names(cache) == {"a", "c"})
    assert sorted(heard) == [("", "c"), ("b", "")]
    await settled(lambda: server.watched_from == ["10", "95"])
    assert cache.lists == 2


async def test_what_the_bank_wrote_is_there_at_once_and_an_older_event_does_not_undo_it(running: Running) -> None:
    server = FakeServer(pod("a", 1))
    cache = await running(server)
    cache.absorb(pod("a", 20, written="yes"))
    server.events.put_nowait(("MODIFIED", pod("a", 15, written="no")))
    server.events.put_nowait(("ADDED", pod("later", 16)))
    await settled(lambda: "later" in names(cache))
    found = cache.get("a", "team")
    assert found is not None
    assert found["metadata"]["labels"] == {"written": "yes"}


async def test_an_answer_that_the_watch_has_overtaken_raises_nobody_from_the_dead(running: Running) -> None:
    server = FakeServer(pod("a", 1))
    cache = await running(server)
    server.events.put_nowait(("DELETED", pod("a", 30)))
    await settled(lambda: not names(cache))
    cache.absorb(pod("a", 20))
    assert not names(cache)


async def test_what_is_of_no_interest_is_not_told_to_anybody(running: Running) -> None:
    server = FakeServer(pod("dull", 1, boring="yes"))
    cache = await running(server)
    heard: list[object] = []
    with cache.heard_by(lambda before, after: heard.append((before, after))):
        server.events.put_nowait(("MODIFIED", pod("dull", 11, boring="yes")))
        server.events.put_nowait(("DELETED", pod("dull", 12, boring="yes")))
        server.events.put_nowait(("ADDED", pod("a", 13)))
        await settled(lambda: names(cache) == {"a"})
    assert len(heard) == 1
    assert len(cache) == 1


async def test_a_failed_list_is_tried_again(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "_FIRST_PAUSE", 0.001)
    server = FakeServer(pod("a", 1))
    server.list_errors = [BackendError("refused"), BackendError("refused")]
    assert names(await running(server)) == {"a"}


async def test_without_a_list_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "FIRST_LIST", 0.05)
    server = FakeServer()
    server.list_errors = [BackendError("no such host")] * 99
    cache = Cache(server, POD, whole)
    group = Caches(cache)
    group.start()
    try:
        with pytest.raises(BackendError, match="Pod objects cannot be read: no such host"):
            await group.ready()
    finally:
        await group.stop()


async def test_a_copy_that_nothing_proves_fresh_gives_no_answer(running: Running) -> None:
    cache = await running(FakeServer(pod("a", 1)))
    cache.check(limit=60)
    with pytest.raises(BackendError, match="last seen"):
        cache.check(limit=-1)


async def test_a_fault_in_a_reader_does_not_look_like_an_empty_cluster() -> None:
    def broken(body: Object, before: Object | None) -> Object | None:
        raise KeyError("no such field")

    cache = Cache(FakeServer(pod("a", 1)), POD, broken)
    group = Caches(cache)
    group.start()
    try:
        with pytest.raises(KeyError, match="no such field"):
            await group.ready()
    finally:
        await group.stop()


async def test_waiting_for_an_entry_ends_with_the_change_or_with_the_time(running: Running) -> None:
    server = FakeServer()
    cache = await running(server)
    waiting = asyncio.create_task(cache.until(lambda: "a" in names(cache), 5))
    await asyncio.sleep(0)
    server.events.put_nowait(("ADDED", pod("a", 11)))
    assert await waiting
    assert not await cache.until(lambda: "b" in names(cache), 0.01)
