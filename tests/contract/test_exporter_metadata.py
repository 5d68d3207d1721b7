"""Metadata on its whole way: watched objects, gRPC with mutual TLS, the copy on the node."""

import asyncio
import contextlib
import datetime as dt
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gpubank.adapters.kubernetes.kinds import Kind, Object
from gpubank.controller.metadata import MetadataSync, serving_metadata
from gpubank.domain.errors import BackendError
from gpubank.metadata import channel
from gpubank.metadata.seal import Opener, Sealer
from gpubank.metadata.service import MetadataService
from nodeagent.attribution.store import SnapshotStore
from nodeagent.attribution.sync import MetadataClient
from tests.fakes.certificates import Certificates
from tests.unit.nodeagent_attribution.worlds import KEY, a_snapshot, told

NODE = "gpu-0"


class Cluster:
    """An API server for caches: lists what there is, then tells what changes."""

    def __init__(self) -> None:
        self._objects: dict[str, dict[str, Object]] = {}
        self._queues: list[tuple[str, asyncio.Queue[tuple[str, Object]]]] = []
        self._version = 1
        self.calls = 0

    def put(self, kind: str, body: Object) -> None:
        self._version += 1
        body["metadata"]["resourceVersion"] = str(self._version)
        known = self._objects.setdefault(kind, {})
        change = "MODIFIED" if body["metadata"]["name"] in known else "ADDED"
        known[body["metadata"]["name"]] = body
        self._tell(kind, change, body)

    def delete(self, kind: str, name: str) -> None:
        self._version += 1
        body = self._objects[kind].pop(name)
        body = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self._version)}}
        self._tell(kind, "DELETED", body)

    async def page(self, kind: Kind, *, selectors: Mapping[str, str], token: str = "") -> tuple[list[Object], str, str]:
        self.calls += 1
        return [*self._objects.get(kind.name, {}).values()], str(self._version), ""

    async def watch(
        self, kind: Kind, *, version: str, selectors: Mapping[str, str]
    ) -> AsyncGenerator[tuple[str, Object], None]:
        self.calls += 1
        queue: asyncio.Queue[tuple[str, Object]] = asyncio.Queue()
        self._queues.append((kind.name, queue))
        while True:
            yield await queue.get()

    def _tell(self, kind: str, change: str, body: Object) -> None:
        for name, queue in self._queues:
            if name == kind:
                queue.put_nowait((change, body))


def a_pod(uid: str, name: str, namespace: str = "team-a", node: str = NODE) -> Object:
    limits = {"accelerator.aik8s.run/h100-80gb": "1"}
    return {
        "metadata": {"uid": uid, "name": name, "namespace": namespace, "labels": {"platform.aik8s.run/model": "llama"}},
        "spec": {"nodeName": node, "containers": [{"resources": {"limits": limits}}]},
        "status": {"phase": "Running"},
    }


def a_group(cost_center: str = "CC-1") -> Object:
    return {
        "apiVersion": "platform.aik8s.run/v1alpha1",
        "kind": "BusinessGroup",
        "metadata": {"name": "search", "uid": "g"},
        "spec": {"namespaces": ["team-a"], "costCenter": cost_center, "owner": "somebody"},
    }


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


@dataclass
class World:
    """A control plane that serves, and what a node needs to listen."""

    cluster: Cluster
    port: int
    certificates: Certificates
    folder: Path

    def store(self, node: str = NODE) -> SnapshotStore:
        return SnapshotStore(self.folder / f"{node}.snapshot", Opener(node, [KEY.public_key()]))

    def client(
        self, store: SnapshotStore, common_name: str = f"system:node:{NODE}", node: str = NODE
    ) -> MetadataClient:
        tls = self.certificates.issue(common_name)
        return MetadataClient(f"127.0.0.1:{self.port}", node, tls, store, server_name="localhost")


@contextlib.asynccontextmanager
async def listening(client: MetadataClient) -> AsyncIterator[None]:
    client.start()
    try:
        yield
    finally:
        await asyncio.to_thread(client.stop)


async def until(holds: Callable[[], bool], seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110  # what is waited for happens in another thread
            await asyncio.sleep(0.02)


@pytest.fixture
async def world(tmp_path: Path, certificates: Certificates) -> AsyncIterator[World]:
    cluster = Cluster()
    cluster.put("BusinessGroup", a_group())
    cluster.put("Pod", a_pod("u1", "train-0"))
    sync = MetadataSync(cluster)
    server = certificates.issue("localhost")
    async with serving_metadata(sync, "127.0.0.1:0", server, Sealer(KEY)) as port:
        yield World(cluster, port, certificates, tmp_path)


def cost_center(store: SnapshotStore, uid: str) -> str | None:
    current = store.current
    pod = current.pods.get(uid) if current is not None else None
    return pod.at(dt.datetime.now(dt.UTC)).get("cost_center") if pod is not None else None


async def test_a_node_is_told_its_pods_their_changes_and_no_others(world: World) -> None:
    store = world.store()
    async with listening(world.client(store)):
        await until(lambda: cost_center(store, "u1") == "CC-1")
        calls = world.cluster.calls
        world.cluster.put("Pod", a_pod("u2", "train-1"))
        world.cluster.put("Pod", a_pod("u3", "other-0", node="gpu-1"))
        await until(lambda: cost_center(store, "u2") == "CC-1")
        world.cluster.put("BusinessGroup", a_group("CC-2"))
        await until(lambda: cost_center(store, "u1") == "CC-2")
        world.cluster.delete("Pod", "train-1")
        await until(lambda: store.current is not None and set(store.current.pods) == {"u1"})
        assert world.cluster.calls == calls, "a change is told by the watch; nothing more is asked"


async def test_a_node_that_starts_while_the_control_plane_is_away_has_its_last_snapshot_and_its_age(
    world: World,
) -> None:
    store = world.store()
    async with listening(world.client(store)):
        await until(lambda: cost_center(store, "u1") == "CC-1")
    again = world.store()
    assert again.load()
    assert cost_center(again, "u1") == "CC-1"
    age = again.age(dt.datetime.now(dt.UTC) + dt.timedelta(hours=2))
    assert age is not None
    assert age >= 7200


async def test_a_certificate_of_another_node_is_told_nothing(world: World) -> None:
    store = world.store("gpu-1")
    client = world.client(store, node="gpu-1")
    async with listening(client):
        await until(lambda: client.failures > 0)
    assert store.current is None


async def test_without_a_certificate_there_is_no_connection(world: World) -> None:
    authorities = (world.certificates.folder / "ca.pem").read_bytes()
    credentials = grpc.ssl_channel_credentials(authorities)
    options = (("grpc.ssl_target_name_override", "localhost"),)
    async with grpc.aio.secure_channel(f"127.0.0.1:{world.port}", credentials, options=options) as connection:
        watch: Any = connection.unary_stream(channel.METHOD)
        call = watch(channel.request(NODE), timeout=10)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
    assert refused.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL)


async def test_a_snapshot_of_another_key_is_not_kept(world: World) -> None:
    other = Ed25519PrivateKey.generate().public_key()
    store = SnapshotStore(world.folder / "snapshot", Opener(NODE, [other]))
    async with listening(world.client(store)):
        await until(lambda: store.rejected > 0)
    assert store.current is None
    assert not (world.folder / "snapshot").exists()


async def test_while_the_cluster_cannot_be_seen_nothing_is_issued_and_afterwards_it_goes_on() -> None:
    seen = False

    def snapshot(node: str) -> Any:
        if not seen:
            raise BackendError("not yet")
        return a_snapshot(told("u1"))

    service = MetadataService(snapshot, Sealer(KEY))
    stream = service.stream(NODE)
    first = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0.05)
    assert not first.done()
    seen = True
    service.changed([NODE])
    assert b"u1" in await asyncio.wait_for(first, 10)
    await stream.aclose()  # type: ignore[attr-defined]
    assert service.watchers == 0


async def test_an_unchanged_snapshot_is_issued_anew_and_only_then() -> None:
    at = [dt.datetime(2026, 11, 30, tzinfo=dt.UTC)]

    def snapshot(node: str) -> Any:
        return a_snapshot(told("u1"), issued_at=at[0])

    service = MetadataService(snapshot, Sealer(KEY), refresh=dt.timedelta(seconds=60))
    stream = service.stream(NODE)
    await anext(stream)
    second = asyncio.ensure_future(anext(stream))
    service.changed()
    await asyncio.sleep(0.8)
    assert not second.done(), "nothing changed, and it is not due"
    at[0] += dt.timedelta(seconds=60)
    service.changed()
    assert b"2026-11-30T00:01:00Z" in await asyncio.wait_for(second, 10)
    await stream.aclose()  # type: ignore[attr-defined]
