"""Two readings of the same objects: one list, one watch."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gpubank.adapters.kubernetes.cache import Cache, Caches
from gpubank.adapters.kubernetes.kinds import POD, Object
from gpubank.domain.errors import BackendError
from tests.unit.adapters.kubernetes.test_cache import FakeServer, pod, settled, whole

Changes = list[tuple[str | None, str | None]]


def name_of(body: Object, before: str | None) -> str | None:
    name: str = body["metadata"]["name"]
    return None if name.startswith("hidden") else f"{name}@{body['metadata']['resourceVersion']}"


@asynccontextmanager
async def watching(*caches: Cache[Any]) -> AsyncIterator[None]:
    running = Caches(*caches)
    running.start()
    try:
        await running.ready()
        yield
    finally:
        await running.stop()


async def test_both_readings_follow_one_list_and_one_watch() -> None:
    server = FakeServer(pod("a", 1), pod("hidden", 2), version=2)
    cache = Cache(server, POD, whole)
    names = cache.beside(name_of)
    heard: Changes = []
    with names.heard_by(lambda before, after: heard.append((before, after))):
        async with watching(cache):
            await names.ready()
            assert [*names] == ["a@1"]
            server.events.put_nowait(("MODIFIED", pod("a", 3)))
            server.events.put_nowait(("ADDED", pod("b", 4)))
            server.events.put_nowait(("DELETED", pod("a", 5)))
            await settled(lambda: [*names] == ["b@4"])
    assert heard == [(None, "a@1"), ("a@1", "a@3"), (None, "b@4"), ("a@3", None)]
    assert {body["metadata"]["name"] for body in cache} == {"hidden", "b"}
    assert (server.lists, server.watched_from) == (1, ["2"])


async def test_what_the_cache_takes_in_of_a_write_is_read_twice_as_well() -> None:
    cache = Cache(FakeServer(pod("a", 1), version=1), POD, whole)
    names = cache.beside(name_of)
    async with watching(cache):
        cache.absorb(pod("a", 9))
        assert [*names] == ["a@9"]


async def test_a_second_reading_that_comes_too_late_is_refused() -> None:
    cache = Cache(FakeServer(), POD, whole)
    async with watching(cache):
        with pytest.raises(RuntimeError, match="has listed"):
            cache.beside(name_of)


@pytest.mark.parametrize("kind", ["ADDED", "DELETED"])
async def test_a_fault_of_the_second_reading_is_its_own_and_is_not_forgotten(kind: str) -> None:
    server = FakeServer(pod("a", 1), version=1)
    cache = Cache(server, POD, whole)
    names = cache.beside(name_of)

    def fail(before: str | None, after: str | None) -> None:
        raise ZeroDivisionError

    async with watching(cache):
        with names.heard_by(fail):
            server.events.put_nowait((kind, pod("a", 5)))
            await settled(lambda: _raises(names.check))
        await cache.ready()  # the first reading goes on
        server.events.put_nowait(("ADDED", pod("c", 6)))
        await settled(lambda: cache.get("c", "team") is not None)
        with pytest.raises(ZeroDivisionError):
            names.check()


async def test_where_the_cache_cannot_answer_the_second_reading_cannot_either() -> None:
    names = Cache(FakeServer(), POD, whole).beside(name_of)
    with pytest.raises(BackendError, match="not listed yet"):
        names.check()


def _raises(check: Callable[[], None]) -> bool:
    try:
        check()
    except ZeroDivisionError:
        return True
    return False
