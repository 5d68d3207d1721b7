"""The contract of `ObjectStore`, on the simulation and on a real API server."""

import asyncio
import copy
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from gpubank.adapters.kubernetes.connection import Connection
from gpubank.adapters.kubernetes.kinds import BANK_KINDS, EVENT, NAMESPACE, Object
from gpubank.adapters.kubernetes.objects import KubernetesObjectStore
from gpubank.domain.contract import FINALIZER
from gpubank.domain.errors import ConflictError, InvalidObjectError
from gpubank.lab import Lab
from gpubank.ports import ObjectStore
from gpubank.schema import crds
from gpubank.simulation.clock import ManualClock
from gpubank.simulation.cluster import SimulatedCluster

_numbers = itertools.count(1)


def a_group(name: str, **spec: Any) -> Object:
    return {
        "apiVersion": "platform.aik8s.run/v1alpha1",
        "kind": "BusinessGroup",
        "metadata": {"name": name},
        "spec": {"owner": "ann@example.com", "namespaces": ["team-a"], **spec},
    }


def a_policy(name: str, namespace: str, **spec: Any) -> Object:
    return {
        "apiVersion": "platform.aik8s.run/v1alpha1",
        "kind": "GPUQuotaPolicy",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"businessGroup": "ads", "resourcePool": "h100", "guaranteed": 8, **spec},
    }


async def until(holds: Callable[[], Any]) -> Any:
    """Look until it holds; what somebody else deletes is seen a moment later."""
    async with asyncio.timeout(5):
        while not (found := await holds()):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return found


class ObjectStoreSuite:
    """Derive from it and provide the fixtures `store` and `space`, a namespace."""

    @pytest.fixture
    async def name(self, store: ObjectStore) -> AsyncIterator[str]:
        """A name that is free; what bears it is removed."""
        name = f"group-{next(_numbers)}"
        yield name
        await store.set_finalizer("BusinessGroup", name, None, held=False)
        await store.delete("BusinessGroup", name)

    async def test_what_was_applied_is_listed_at_once_and_read(self, store: ObjectStore, name: str) -> None:
        written = await store.apply(a_group(name))
        assert written["metadata"]["uid"]
        assert written["metadata"]["resourceVersion"]
        (listed,) = [each for each in await store.list("BusinessGroup") if each["metadata"]["name"] == name]
        assert (listed["kind"], listed["spec"]) == ("BusinessGroup", written["spec"])
        found = await store.get("BusinessGroup", name)
        assert found is not None
        assert found["spec"]["owner"] == "ann@example.com"

    async def test_what_is_handed_out_is_a_copy(self, store: ObjectStore, name: str) -> None:
        await store.apply(a_group(name))
        for body in await store.list("BusinessGroup"):
            body["spec"]["owner"] = "nobody"
        (listed,) = [each for each in await store.list("BusinessGroup") if each["metadata"]["name"] == name]
        assert listed["spec"]["owner"] == "ann@example.com"

    async def test_applying_again_replaces_spec_labels_and_annotations(self, store: ObjectStore, name: str) -> None:
        first = a_group(name, costCenter="cc-1")
        first["metadata"] |= {"labels": {"a": "1", "b": "2"}, "annotations": {"x": "1"}}
        before = await store.apply(first)
        second = a_group(name, owner="bob@example.com")
        second["metadata"]["labels"] = {"a": "3"}
        after = await store.apply(second)
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        assert after["metadata"]["generation"] == before["metadata"]["generation"] + 1
        assert after["metadata"]["labels"] == {"a": "3"}
        assert not after["metadata"].get("annotations")
        assert (after["spec"]["owner"], after["spec"].get("costCenter", "")) == ("bob@example.com", "")

    async def test_applying_what_stands_changes_nothing(self, store: ObjectStore, name: str) -> None:
        before = await store.apply(a_group(name))
        after = await store.apply(a_group(name))
        assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]

    async def test_applying_keeps_status_and_finalizer(self, store: ObjectStore, name: str) -> None:
        written = await store.apply(a_group(name))
        await store.set_finalizer("BusinessGroup", name, None, held=True)
        found = await store.get("BusinessGroup", name)
        assert found is not None
        seen = found["metadata"]["resourceVersion"]
        await store.patch_status("BusinessGroup", name, None, {"observedGeneration": 1}, seen=seen)
        again = await store.apply(a_group(name, owner="bob@example.com"))
        assert again["metadata"]["finalizers"] == [FINALIZER]
        assert again["status"]["observedGeneration"] == 1
        assert again["metadata"]["uid"] == written["metadata"]["uid"]

    @pytest.mark.parametrize(
        ("change", "field"),
        [
            ({"owner": ""}, "spec.owner"),
            ({"namespaces": "team-a"}, "spec.namespaces"),
            ({"owners": "ann"}, "owners"),
            ({"namespaces": ["Team_A"]}, "spec.namespaces"),
        ],
        ids=["bound", "type", "unknown", "pattern"],
    )
    async def test_what_breaks_a_rule_is_refused_by_name(
        self, store: ObjectStore, name: str, change: Object, field: str
    ) -> None:
        with pytest.raises(InvalidObjectError) as refused:
            await store.apply(a_group(name, **change))
        assert field in str(refused.value)
        assert name in str(refused.value)
        assert refused.value.problems
        assert await store.get("BusinessGroup", name) is None

    async def test_a_refused_change_leaves_what_stood(self, store: ObjectStore, name: str) -> None:
        await store.apply(a_group(name))
        with pytest.raises(InvalidObjectError):
            await store.apply(a_group(name, owner=""))
        found = await store.get("BusinessGroup", name)
        assert found is not None
        assert found["spec"]["owner"] == "ann@example.com"

    async def test_a_kind_that_is_not_the_banks_is_refused(self, store: ObjectStore) -> None:
        with pytest.raises(InvalidObjectError, match="Pod"):
            await store.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}})
        with pytest.raises(InvalidObjectError, match="Pod"):
            await store.list("Pod")

    async def test_a_status_is_replaced_whole_and_against_a_version(self, store: ObjectStore, name: str) -> None:
        written = await store.apply(a_group(name))
        condition = {
            "type": "Ready",
            "status": "True",
            "reason": "Applied",
            "message": "",
            "observedGeneration": 1,
            "lastTransitionTime": "2026-11-02T09:00:00Z",
        }
        old = written["metadata"]["resourceVersion"]
        await store.patch_status("BusinessGroup", name, None, {"conditions": [condition]}, seen=old, dry_run=True)
        assert (await store.get("BusinessGroup", name) or {}).get("status", {}).get("conditions") in (None, [])
        await store.patch_status("BusinessGroup", name, None, {"conditions": [condition]}, seen=old)
        found = await store.get("BusinessGroup", name)
        assert found is not None
        assert found["status"]["conditions"] == [condition]
        assert found["metadata"]["generation"] == 1
        with pytest.raises(ConflictError):
            await store.patch_status("BusinessGroup", name, None, {"observedGeneration": 1}, seen=old, dry_run=True)
        seen = found["metadata"]["resourceVersion"]
        await store.patch_status("BusinessGroup", name, None, {"observedGeneration": 1}, seen=seen)
        found = await store.get("BusinessGroup", name)
        assert found is not None
        assert found["status"]["observedGeneration"] == 1
        assert not found["status"].get("conditions")  # a server may write its default

    async def test_the_status_of_what_is_gone_is_a_conflict(self, store: ObjectStore) -> None:
        with pytest.raises(ConflictError, match="gone"):
            await store.patch_status("BusinessGroup", "nobody", None, {}, seen="1")

    async def test_a_finalizer_holds_an_object_until_it_is_released(self, store: ObjectStore, name: str) -> None:
        await store.apply(a_group(name))
        await store.set_finalizer("BusinessGroup", name, None, held=True)
        await store.set_finalizer("BusinessGroup", name, None, held=True)
        assert await store.delete("BusinessGroup", name)
        found = await store.get("BusinessGroup", name)
        assert found is not None
        assert found["metadata"]["deletionTimestamp"]
        await store.set_finalizer("BusinessGroup", name, None, held=False)

        async def gone() -> bool:
            names = [each["metadata"]["name"] for each in await store.list("BusinessGroup")]
            return name not in names and await store.get("BusinessGroup", name) is None

        await until(gone)
        await store.set_finalizer("BusinessGroup", name, None, held=True)  # gone needs no finalizer
        assert not await store.delete("BusinessGroup", name)

    async def test_objects_with_a_namespace_are_told_apart_by_it(
        self, store: ObjectStore, space: str, name: str
    ) -> None:
        policy = a_policy(f"policy-{name}", space)
        try:
            await store.apply(policy)
            assert await store.get("GPUQuotaPolicy", f"policy-{name}", "elsewhere") is None
            found = await store.get("GPUQuotaPolicy", f"policy-{name}", space)
            assert found is not None
            assert found["metadata"]["namespace"] == space
        finally:
            assert await store.delete("GPUQuotaPolicy", f"policy-{name}", space)

    async def test_changes_yields_at_the_start_and_whenever_an_object_changes(
        self, store: ObjectStore, name: str
    ) -> None:
        await store.list("BusinessGroup")
        changes = store.changes()
        await asyncio.wait_for(anext(changes), 5)
        await store.apply(a_group(name))
        await asyncio.wait_for(anext(changes), 5)
        written = await store.get("BusinessGroup", name)
        assert written is not None
        seen = written["metadata"]["resourceVersion"]
        await store.patch_status("BusinessGroup", name, None, {"observedGeneration": 1}, seen=seen)
        await asyncio.wait_for(anext(changes), 5)
        await changes.aclose()  # type: ignore[attr-defined]


class TestSimulation(ObjectStoreSuite):
    @pytest.fixture
    async def store(self) -> AsyncIterator[ObjectStore]:
        cluster = SimulatedCluster(ManualClock())
        yield cluster.objects
        await cluster.close()

    @pytest.fixture
    def space(self) -> str:
        return "team-a"


class TestKubernetes(ObjectStoreSuite):
    @pytest.fixture
    async def connection(self, lab: Lab) -> AsyncIterator[Connection]:
        await asyncio.to_thread(lab.apply, crds())
        async with Connection.open(lab.kubeconfig) as connection:
            yield connection

    @pytest.fixture
    async def store(self, connection: Connection) -> AsyncIterator[KubernetesObjectStore]:
        async with KubernetesObjectStore(connection) as store:
            yield store

    @pytest.fixture
    async def space(self, connection: Connection) -> str:
        name = "object-store-test"
        if await connection.get(NAMESPACE, name) is None:
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            await connection.create(NAMESPACE, body)
        return name

    async def test_what_is_kept_is_handed_out_as_it_is_until_it_changes(
        self, store: KubernetesObjectStore, name: str
    ) -> None:
        await store.apply(a_group(name))

        async def kept() -> dict[str, Any]:
            return next(each for each in await store.kept.list("BusinessGroup") if each["metadata"]["name"] == name)

        first = await kept()
        assert await kept() is first
        assert next(each for each in await store.list("BusinessGroup") if each["metadata"]["name"] == name) == first
        await store.set_finalizer("BusinessGroup", name, None, held=True)
        second = await kept()
        assert second is not first
        assert "finalizers" not in first["metadata"]
        assert second["metadata"]["finalizers"]
        await store.set_finalizer("BusinessGroup", name, None, held=False)

    async def test_an_event_is_written_on_the_object_and_counted(
        self, store: KubernetesObjectStore, connection: Connection, name: str
    ) -> None:
        written = await store.apply(a_group(name))
        for message in ("has no namespace", "has no namespace", "is fine again"):
            await store.event(written, reason="Invalid", message=message, warning=True)
        selectors = {"fieldSelector": f"involvedObject.uid={written['metadata']['uid']}"}
        events, _, _ = await connection.page(EVENT, selectors=selectors)
        assert sorted(each["message"] for each in events) == ["has no namespace", "is fine again"]
        assert {(each["type"], each["reason"], each["involvedObject"]["name"]) for each in events} == {
            ("Warning", "Invalid", name)
        }
        other = KubernetesObjectStore(connection)  # another process says it too
        await other.event(written, reason="Invalid", message="is fine again", warning=True)
        events, _, _ = await connection.page(EVENT, selectors=selectors)
        assert sorted(each["count"] for each in events) == [1, 2]


def test_the_kinds_that_the_adapter_knows_are_those_of_the_crds() -> None:
    known = {(kind.name, kind.plural, kind.group, kind.version, kind.namespaced) for kind in BANK_KINDS.values()}
    assert known == {
        (
            crd["spec"]["names"]["kind"],
            crd["spec"]["names"]["plural"],
            crd["spec"]["group"],
            crd["spec"]["versions"][0]["name"],
            crd["spec"]["scope"] == "Namespaced",
        )
        for crd in copy.deepcopy(crds())
    }
