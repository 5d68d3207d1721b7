"""The command line's way to a real cluster: objects, identity, and what `doctor` finds there."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpubank.cli.checks.cluster import check_cluster
from gpubank.cli.checks.finding import Check, Level
from gpubank.cli.cluster import KubernetesCluster, open_cluster
from gpubank.domain.errors import InvalidObjectError
from gpubank.lab import Lab
from gpubank.schema import crds
from gpubank.settings import Settings


def settings(kubeconfig: Path) -> Settings:
    return Settings.load({"mode": "cluster", "cluster.kubeconfig": kubeconfig})


@pytest.fixture(scope="module")
def installed(lab: Lab) -> Lab:
    """A lab that has the bank's kinds."""
    lab.apply(crds())
    return lab


@pytest.fixture
async def cluster(installed: Lab) -> AsyncIterator[KubernetesCluster]:
    async with open_cluster(settings(installed.kubeconfig)) as found:
        yield found


def of(checks: list[Check], area: str) -> list[Check]:
    return [check for check in checks if check.area == area]


async def test_a_real_cluster_passes_every_check(installed: Lab, cluster: KubernetesCluster) -> None:
    checks = await check_cluster(cluster, settings(installed.kubeconfig))
    assert [check for check in checks if check.level is Level.FAIL] == []
    assert [check.level for area in ("kinds", "rights", "kueue") for check in of(checks, area)] == [Level.OK] * 3


async def test_objects_are_written_read_and_deleted(cluster: KubernetesCluster) -> None:
    body = {
        "apiVersion": "platform.aik8s.run/v1alpha1",
        "kind": "BusinessGroup",
        "metadata": {"name": "cli-group"},
        "spec": {"owner": "mia"},
    }
    await cluster.apply(body)
    assert [item["metadata"]["name"] for item in await cluster.list("BusinessGroup")].count("cli-group") == 1
    found = await cluster.get("bgrp", "cli-group")
    assert found is not None
    assert found["spec"]["owner"] == "mia"
    with pytest.raises(InvalidObjectError):
        await cluster.apply({**body, "spec": {"owner": "mia", "colour": "red"}})
    assert await cluster.delete("BusinessGroup", "cli-group")
    assert not await cluster.delete("BusinessGroup", "cli-group")


async def test_who_has_no_rights_is_known_by_name_and_told_what_is_missing(installed: Lab) -> None:
    kubeconfig = installed.user("alice")
    async with open_cluster(settings(kubeconfig)) as cluster:
        assert await cluster.whoami() == "alice"
        checks = await check_cluster(cluster, settings(kubeconfig))
    (needed, *_) = of(checks, "rights")
    assert needed.level is Level.FAIL
    assert "list gpupools" in needed.message
