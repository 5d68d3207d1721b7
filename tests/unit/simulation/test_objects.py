"""The bank's objects in memory behave as on an API server."""

import asyncio
from typing import Any

import pytest

from gpubank.domain.contract import FINALIZER
from gpubank.domain.errors import ConflictError, InvalidObjectError
from gpubank.domain.loan import WorkloadKey
from gpubank.ports import Notifier, ObjectStore
from gpubank.simulation.clock import ManualClock
from gpubank.simulation.cluster import SimulatedCluster

API = "platform.aik8s.run/v1alpha1"
STATUS = {
    "observedGeneration": 1,
    "conditions": [{"type": "Ready", "status": "True", "reason": "Applied", "message": "", "observedGeneration": 1}],
}


def a_policy(**spec: Any) -> dict[str, Any]:
    spec = {"businessGroup": "search", "resourcePool": "h100", "guaranteed": 32, **spec}
    metadata = {"name": "search-h100", "namespace": "team-search", "labels": {"team": "search"}}
    return {"apiVersion": API, "kind": "GPUQuotaPolicy", "metadata": metadata, "spec": spec}


def a_pool(capacity: int = 8) -> dict[str, Any]:
    return {"apiVersion": API, "kind": "GPUPool", "metadata": {"name": "h100"}, "spec": {"capacity": capacity}}


@pytest.fixture
def cluster() -> SimulatedCluster:
    return SimulatedCluster(ManualClock())


@pytest.fixture
def store(cluster: SimulatedCluster) -> ObjectStore:
    return cluster.objects


async def test_an_object_is_created_with_what_a_server_adds(store: ObjectStore) -> None:
    applied = await store.apply(a_policy())
    metadata = applied["metadata"]
    assert (metadata["generation"], metadata["creationTimestamp"]) == (1, "2026-01-05T09:00:00Z")
    assert metadata["uid"]
    assert metadata["resourceVersion"]
    assert await store.get("GPUQuotaPolicy", "search-h100", "team-search") == applied
    assert await store.list("GPUQuotaPolicy") == [applied]
    assert await store.get("GPUQuotaPolicy", "search-h100", "elsewhere") is None
    assert await store.list("GPUPool") == []


async def test_only_a_changed_spec_raises_the_generation_and_only_a_change_the_version(store: ObjectStore) -> None:
    first = (await store.apply(a_policy()))["metadata"]
    again = (await store.apply(a_policy()))["metadata"]
    assert again == first
    relabelled = a_policy()
    relabelled["metadata"]["labels"] = {"team": "other"}
    labelled = (await store.apply(relabelled))["metadata"]
    assert (labelled["generation"], labelled["labels"]) == (1, {"team": "other"})
    assert labelled["resourceVersion"] != first["resourceVersion"]
    changed = await store.apply(a_policy(guaranteed=16))
    assert (changed["metadata"]["generation"], changed["spec"]["guaranteed"]) == (2, 16)
    assert changed["metadata"]["uid"] == first["uid"]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        pytest.param(a_policy(guaranteed="32"), "spec.guaranteed", id="number in quotes"),
        pytest.param(a_policy(lendingLimit=33), "lendingLimit", id="rule between fields"),
        pytest.param(a_policy(guarantee=1), "guarantee", id="unknown field"),
        pytest.param({**a_policy(), "kind": "GPUQuota"}, "is no kind of the bank", id="unknown kind"),
        pytest.param({**a_pool(), "metadata": {"name": "h100", "namespace": "x"}}, "no namespace", id="wrong scope"),
        pytest.param({**a_pool(), "metadata": {"name": "h100-borrow"}}, "-borrow", id="name"),
        pytest.param({**a_pool(), "spec": None}, "spec", id="no spec"),
    ],
)
async def test_what_the_models_refuse_is_refused(store: ObjectStore, body: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidObjectError, match=told):
        await store.apply(body)


async def test_what_is_handed_out_is_nobody_elses(store: ObjectStore) -> None:
    body = a_policy()
    applied = await store.apply(body)
    body["spec"]["guaranteed"] = applied["spec"]["guaranteed"] = 0
    found = await store.get("GPUQuotaPolicy", "search-h100", "team-search")
    assert found is not None
    assert found["spec"]["guaranteed"] == 32


async def test_a_status_is_written_against_the_version_that_was_read(store: ObjectStore) -> None:
    seen = (await store.apply(a_pool()))["metadata"]["resourceVersion"]
    await store.patch_status("GPUPool", "h100", None, STATUS, seen=seen)
    written = await store.get("GPUPool", "h100")
    assert written is not None
    assert (written["status"], written["metadata"]["generation"]) == (STATUS, 1)
    with pytest.raises(ConflictError, match="moved on"):
        await store.patch_status("GPUPool", "h100", None, STATUS, seen=seen)
    await store.patch_status("GPUPool", "h100", None, STATUS, seen=written["metadata"]["resourceVersion"])
    assert await store.get("GPUPool", "h100") == written, "the same status again changes nothing"
    assert (await store.apply(a_pool(16)))["status"] == STATUS
    with pytest.raises(ConflictError, match="gone"):
        await store.patch_status("GPUPool", "other", None, STATUS, seen="1")


async def test_a_malformed_status_is_refused(store: ObjectStore) -> None:
    seen = (await store.apply(a_pool()))["metadata"]["resourceVersion"]
    with pytest.raises(InvalidObjectError, match="status"):
        await store.patch_status("GPUPool", "h100", None, {"conditions": [{"type": "Ready"}]}, seen=seen)


async def test_a_finalizer_holds_an_object_until_it_is_released(store: ObjectStore) -> None:
    await store.apply(a_pool())
    await store.set_finalizer("GPUPool", "h100", None, held=True)
    await store.set_finalizer("GPUPool", "h100", None, held=True)
    assert await store.delete("GPUPool", "h100")
    held = await store.get("GPUPool", "h100")
    assert held is not None
    assert held["metadata"]["finalizers"] == [FINALIZER]
    assert held["metadata"]["deletionTimestamp"] == "2026-01-05T09:00:00Z"
    assert await store.delete("GPUPool", "h100")
    await store.apply(a_pool(16))
    await store.set_finalizer("GPUPool", "h100", None, held=False)
    assert await store.get("GPUPool", "h100") is None
    assert not await store.delete("GPUPool", "h100")
    await store.set_finalizer("GPUPool", "h100", None, held=False)


async def test_what_is_being_deleted_takes_no_new_finalizer(cluster: SimulatedCluster) -> None:
    await cluster.objects.apply(a_pool())
    await cluster.objects.set_finalizer("GPUPool", "h100", None, held=True)
    body = cluster.objects._objects["GPUPool", "", "h100"]
    body["metadata"]["finalizers"] = ["somebody/else"]
    await cluster.objects.delete("GPUPool", "h100")
    with pytest.raises(ConflictError, match="being deleted"):
        await cluster.objects.set_finalizer("GPUPool", "h100", None, held=True)


async def test_without_a_finalizer_an_object_goes_at_once(store: ObjectStore) -> None:
    await store.apply(a_policy())
    assert await store.delete("GPUQuotaPolicy", "search-h100", "team-search")
    assert await store.list("GPUQuotaPolicy") == []


async def test_changes_wake_whoever_follows_them(store: ObjectStore) -> None:
    changes = store.changes()
    await anext(changes)
    woken = asyncio.ensure_future(anext(changes))
    await asyncio.sleep(0)
    assert not woken.done()
    await store.apply(a_pool())
    await asyncio.wait_for(woken, 5)
    woken = asyncio.ensure_future(anext(changes))
    await store.apply(a_pool())
    await asyncio.sleep(0)
    assert not woken.done(), "nothing changed"
    woken.cancel()


async def test_events_and_notices_are_kept(cluster: SimulatedCluster) -> None:
    pool = await cluster.objects.apply(a_pool())
    await cluster.objects.event(pool, reason="Oversubscribed", message="too much", warning=True)
    (event,) = cluster.events.on("GPUPool", "h100")
    assert (event.reason, event.message, event.warning, event.at) == (
        "Oversubscribed",
        "too much",
        True,
        cluster.clock.now(),
    )
    notifier: Notifier = cluster.notices
    workload = WorkloadKey(uid="u", namespace="team", name="job-train")
    for _ in range(2):
        await notifier.notify(key="loan/1/recall", pool="h100", workload=workload, reason="Recalled", message="soon")
    assert [each.reason for each in cluster.events.on("Workload", "job-train")] == ["Recalled"]
