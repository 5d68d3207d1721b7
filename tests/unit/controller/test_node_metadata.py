import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gpubank.adapters.kubernetes.cache import Cache, Caches
from gpubank.adapters.kubernetes.kinds import BANK_KINDS, POD, Kind, Object
from gpubank.controller.metadata import MetadataSync, NodeMetadataServer
from gpubank.domain.errors import BackendError, PolicyError
from gpubank.settings import MetadataSettings
from tests.contract.test_exporter_metadata import NODE, Cluster, a_group, a_pod, until


def test_metadata_is_served_over_mutual_tls_or_not_at_all() -> None:
    source: Any = None
    settings = MetadataSettings(address="127.0.0.1:0", certificate=Path("a"), key=Path("b"))
    with pytest.raises(PolicyError, match=r"metadata\.client_authorities is not set"):
        NodeMetadataServer(settings, source)


async def test_a_node_is_told_nothing_before_the_cluster_was_seen() -> None:
    source: Any = None
    with pytest.raises(BackendError, match="cannot be read"):
        MetadataSync(source).snapshot("gpu-0")


def told(sync: MetadataSync) -> dict[str, str]:
    """Cost center by pod, as the node is told it; nothing while the cluster cannot be seen."""
    with suppress(BackendError):
        snapshot = sync.snapshot(NODE)
        return {pod.name: span.cost_center for pod in snapshot.pods.values() for span in pod.org}
    return {}


async def test_pods_and_groups_are_read_off_watches_that_are_there_and_also_what_they_knew_before() -> None:
    cluster = Cluster()
    cluster.put("Pod", a_pod("u1", "train-0"))
    cluster.put("BusinessGroup", a_group())
    pods: Cache[Any] = Cache(cluster, POD, lambda body, before: body)
    groups: Cache[Any] = Cache(cluster, BANK_KINDS["BusinessGroup"], lambda body, before: body)
    sync = MetadataSync(cluster, pods=pods, groups=groups)
    shared = Caches(pods, groups)
    shared.start()
    await shared.ready()
    calls = cluster.calls
    running = Caches(Running(sync))
    running.start()
    try:
        await until(lambda: told(sync) == {"train-0": "CC-1"})
        cluster.put("Pod", a_pod("u2", "train-1"))
        await until(lambda: set(told(sync)) == {"train-0", "train-1"})
        cluster.delete("Pod", "train-0")
        cluster.put("BusinessGroup", a_group("CC-2"))
        await until(lambda: told(sync) == {"train-1": "CC-2"})
        assert cluster.calls - calls == 2, "a list and a watch of ResourceSlices, and nothing of pods and groups"
    finally:
        await running.stop()
        await shared.stop()


async def test_a_groups_status_is_no_news_for_nodes() -> None:
    cluster = Cluster()
    cluster.put("Pod", a_pod("u1", "train-0"))
    cluster.put("BusinessGroup", a_group())
    sync = MetadataSync(cluster)
    heard: list[set[str] | None] = []
    running = Caches(Running(sync))
    running.start()
    try:
        await until(lambda: told(sync) == {"train-0": "CC-1"})
        sync.on_change(heard.append)
        cluster.put("BusinessGroup", a_group() | {"status": {"observedGeneration": 1}})
        cluster.put("Pod", a_pod("u2", "train-1"))
        await until(lambda: heard != [])
        assert heard == [{NODE}]
    finally:
        await running.stop()


class SlowCluster(Cluster):
    """Lists pods when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.may_list = asyncio.Event()
        self.lists_of_pods = 0

    async def page(self, kind: Kind, *, selectors: Mapping[str, str], token: str = "") -> tuple[list[Object], str, str]:
        if kind == POD:
            self.lists_of_pods += 1
            await self.may_list.wait()
        return await super().page(kind, selectors=selectors, token=token)


async def test_a_first_list_that_takes_longer_than_one_wait_is_waited_for_and_not_begun_anew(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gpubank.adapters.kubernetes.cache.FIRST_LIST", 0.02)
    monkeypatch.setattr("gpubank.controller.metadata._AGAIN", 0.01)
    cluster = SlowCluster()
    cluster.put("Pod", a_pod("u1", "train-0"))
    cluster.put("BusinessGroup", a_group())
    sync = MetadataSync(cluster)
    running = Caches(Running(sync))
    running.start()
    try:
        await until(lambda: len([record for record in caplog.records if "cannot be seen yet" in record.message]) > 2)
        cluster.may_list.set()
        await until(lambda: told(sync) == {"train-0": "CC-1"})
        assert cluster.lists_of_pods == 1
    finally:
        await running.stop()


class Running:
    """A sync that can be run beside caches."""

    kind = POD

    def __init__(self, sync: MetadataSync) -> None:
        self._sync = sync

    async def run(self) -> None:
        await self._sync.run()

    async def ready(self) -> None:
        """Nothing to wait for."""
