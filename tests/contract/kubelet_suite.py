"""The contract of a kubelet, as far as a device plugin and an exporter live with it.

A module derives a class from `KubeletSuite` and gives it a fixture `world`: the real kubelet holds the contract because
it is what it is, the fake one because everything else is tested on it.
"""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from nodeagent.pb.podresources import api_pb2 as resources
from nodeagent.pb.podresources import api_pb2_grpc as resources_grpc
from nodeagent.pb.pods import api_pb2 as pods
from nodeagent.pb.pods import api_pb2_grpc as pods_grpc
from tests.contract.kubelet_world import AUTHORITY, AdmissionError, KubeletWorld, ScriptedPlugin
from tests.support.waiting import seen

__all__ = ("KubeletSuite",)

GOOD, BAD = "Healthy", "Unhealthy"
CHECKPOINT = "kubelet_internal_checkpoint"
MakePlugin = Callable[..., Awaitable[ScriptedPlugin]]


class KubeletSuite:
    """Derive from it and provide the fixture `world`."""

    @pytest.fixture
    def resource(self) -> str:
        """Return a resource of the test's own: a kubelet remembers one for minutes."""
        return f"contract.gpubank.test/{uuid.uuid4().hex[:8]}"

    @pytest.fixture
    async def plugin(self, world: KubeletWorld, resource: str) -> AsyncIterator[MakePlugin]:
        """Make plugins that serve and, unless told otherwise, are registered."""
        made: list[ScriptedPlugin] = []

        async def make(socket: str = "first", *, register: bool = True, **devices: str) -> ScriptedPlugin:
            path = world.folder / f"contract-{resource.rpartition('/')[2]}-{socket}.sock"
            found = ScriptedPlugin(path, resource, devices)
            made.append(found)
            await found.serve()
            if register:
                await found.register()
            return found

        yield make
        for each in made:
            await each.close()
            each.path.unlink(missing_ok=True)

    # -- registration

    async def test_a_plugin_is_called_back_before_its_registration_is_answered(
        self, world: KubeletWorld, plugin: MakePlugin
    ) -> None:
        made = await plugin(register=False, a=GOOD)
        await made.register()
        assert [each.method for each in made.told] == ["options"]
        await sees(world, made, 1, 1)

    async def test_a_plugin_that_does_not_serve_yet_is_refused(self, world: KubeletWorld, plugin: MakePlugin) -> None:
        made = await plugin(register=False, a=GOOD)
        await made.close()
        made.path.unlink(missing_ok=True)
        with pytest.raises(grpc.aio.AioRpcError, match="failed to dial device plugin"):
            await made.register()

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"version": "v1alpha"}, "not supported by kubelet"),
            ({"resource": "gpu"}, "is invalid"),
            ({"resource": "kubernetes.io/gpu"}, "is invalid"),
        ],
    )
    async def test_a_registration_that_makes_no_sense_is_refused(
        self, plugin: MakePlugin, change: dict[str, str], words: str
    ) -> None:
        made = await plugin(register=False, a=GOOD)
        with pytest.raises(grpc.aio.AioRpcError, match=words):
            await made.register(**change)

    async def test_a_second_plugin_of_a_resource_takes_its_place(self, world: KubeletWorld, plugin: MakePlugin) -> None:
        first = await plugin("first", a=GOOD)
        await sees(world, first, 1, 1)
        second = await plugin("second", b=GOOD, c=GOOD)
        await sees(world, second, 2, 2)
        pod = await world.admit("second-takes-over", {second.resource: 1})
        assert (first.calls("allocate"), len(second.calls("allocate"))) == ([], 1)
        await first.close()
        # That the first one ends does not hurt the second.
        await world.remove(pod)
        pod = await world.admit("first-has-gone", {second.resource: 1})
        assert len(second.calls("allocate")) == 2
        await world.remove(pod)

    async def test_the_same_socket_twice_is_refused_while_the_first_connection_stands(
        self, world: KubeletWorld, plugin: MakePlugin
    ) -> None:
        made = await plugin(a=GOOD)
        await sees(world, made, 1, 1)
        with pytest.raises(grpc.aio.AioRpcError, match="already connected"):
            await made.register()
        # And from then on this path is lost: the kubelet never sees the end of the first connection. It must have had
        # time to: one that hears of it while the path is being registered anew takes it for the new connection's.
        await made.close()
        await asyncio.sleep(1)
        await made.serve()
        with pytest.raises(grpc.aio.AioRpcError, match="already connected"):
            await made.register()
        # Another path is not.
        other = await plugin("other", b=GOOD, c=GOOD)
        await sees(world, other, 2, 2)

    # -- lists

    async def test_every_list_replaces_the_one_before(self, world: KubeletWorld, plugin: MakePlugin) -> None:
        made = await plugin(a=GOOD, b=BAD)
        await sees(world, made, 2, 1)
        await made.tell(c=GOOD, d=GOOD, e=GOOD)
        await sees(world, made, 3, 3)
        await made.tell(c=BAD, d=GOOD)
        await sees(world, made, 2, 1)

    async def test_an_empty_list_leaves_a_resource_of_which_there_is_none(
        self, world: KubeletWorld, plugin: MakePlugin
    ) -> None:
        made = await plugin(a=GOOD)
        await sees(world, made, 1, 1)
        made.devices = {}
        await made.tell()
        await sees(world, made, 0, 0)

    async def test_when_the_stream_ends_all_devices_are_unhealthy_at_once(
        self, world: KubeletWorld, plugin: MakePlugin
    ) -> None:
        made = await plugin(a=GOOD, b=GOOD)
        await sees(world, made, 2, 2)
        await made.close()
        await sees(world, made, 2, 0)
        await made.serve()
        await made.register()
        await sees(world, made, 2, 2)

    # -- admission

    async def test_a_preference_is_asked_for_before_devices_are_handed_out(
        self, world: KubeletWorld, plugin: MakePlugin
    ) -> None:
        made = await plugin(a=GOOD, b=GOOD, c=GOOD, d=BAD)
        made.prefers = lambda available, size: available[-size:]
        await sees(world, made, 4, 3)
        pod = await world.admit("prefers", {made.resource: 2})
        asked = [(each.method, each.ids, each.size) for each in made.told if each.method != "options"]
        assert asked == [("preferred", ("a", "b", "c"), 2), ("allocate", ("b", "c"), 1)]
        environment = await world.environment(pod, "c0")
        assert (environment["CONTRACT_DEVICES"], "CONTRACT_SECOND" in environment) == ("b,c", False)
        await world.remove(pod)

    async def test_a_preference_is_asked_for_although_there_is_no_choice(
        self, world: KubeletWorld, plugin: MakePlugin
    ) -> None:
        made = await plugin(a=GOOD, b=GOOD)
        await sees(world, made, 2, 2)
        pod = await world.admit("all", {made.resource: 2})
        assert [each.ids for each in made.calls("preferred")] == [("a", "b")]
        await world.remove(pod)

    async def test_containers_are_served_one_call_each(self, world: KubeletWorld, plugin: MakePlugin) -> None:
        made = await plugin(a=GOOD, b=GOOD, c=GOOD)
        await sees(world, made, 3, 3)
        pod = await world.admit("two", {made.resource: 1}, {made.resource: 2})
        calls = made.calls("allocate")
        assert [len(each.ids) for each in calls] == [1, 2]
        assert {name for each in calls for name in each.ids} == {"a", "b", "c"}
        given = [(await world.environment(pod, name))["CONTRACT_DEVICES"] for name in ("c0", "c1")]
        assert given == [",".join(each.ids) for each in calls]
        await world.remove(pod)

    async def test_a_preference_for_what_is_not_there_is_made_up_for(
        self, world: KubeletWorld, plugin: MakePlugin
    ) -> None:
        made = await plugin(a=GOOD, b=GOOD)
        made.prefers = lambda available, size: ["nobody-knows-it"]
        await sees(world, made, 2, 2)
        pod = await world.admit("made-up", {made.resource: 1})
        assert made.calls("allocate")[0].ids[0] in {"a", "b"}
        await world.remove(pod)

    async def test_an_error_of_the_preference_fails_the_pod(self, world: KubeletWorld, plugin: MakePlugin) -> None:
        made = await plugin(a=GOOD, b=GOOD)
        made.refuse_preference = "no taste today"
        await sees(world, made, 2, 2)
        with pytest.raises(AdmissionError, match="no taste today"):
            await world.admit("no-taste", {made.resource: 1})

    async def test_an_error_of_the_allocation_fails_the_pod_and_gives_its_devices_back(
        self, world: KubeletWorld, plugin: MakePlugin
    ) -> None:
        made = await plugin(a=GOOD)
        made.refuse_allocation = "it is not what it was"
        await sees(world, made, 1, 1)
        with pytest.raises(AdmissionError, match="it is not what it was"):
            await world.admit("refused", {made.resource: 1})
        made.refuse_allocation = ""
        pod = await world.admit("accepted", {made.resource: 1})
        await world.remove(pod)

    async def test_what_is_in_use_is_not_handed_out_twice(self, world: KubeletWorld, plugin: MakePlugin) -> None:
        made = await plugin(a=GOOD, b=GOOD)
        await sees(world, made, 2, 2)
        first = await world.admit("one", {made.resource: 1})
        second = await world.admit("other", {made.resource: 1})
        assert sorted(each.ids for each in made.calls("allocate")) == [("a",), ("b",)]
        with pytest.raises(AdmissionError, match=r"Requested: 1, Available: 0|have enough resource"):
            await world.admit("third", {made.resource: 1})
        await world.remove(first)
        again = await world.admit("again", {made.resource: 1})
        assert made.calls("allocate")[-1].ids == made.calls("allocate")[0].ids
        for pod in (second, again):
            await world.remove(pod)

    async def test_a_pod_runs_on_when_its_device_turns_unhealthy(self, world: KubeletWorld, plugin: MakePlugin) -> None:
        made = await plugin(a=GOOD, b=GOOD)
        await sees(world, made, 2, 2)
        pod = await world.admit("runs-on", {made.resource: 2})
        await made.tell(a=BAD, b=GOOD)
        await sees(world, made, 2, 1)
        assert await world.phase(pod) == "Running"
        await world.remove(pod)

    # -- restart

    async def test_a_start_removes_sockets_and_keeps_the_note_of_devices(
        self, world: KubeletWorld, plugin: MakePlugin
    ) -> None:
        made = await plugin(a=GOOD, b=GOOD)
        await sees(world, made, 2, 2)
        pod = await world.admit("stays", {made.resource: 1})
        held = made.calls("allocate")[0].ids
        assert await held_by(world, pod.uid) == {made.resource: set(held)}
        await world.stop()
        stranger = world.folder / "contract-note"
        stranger.write_text("no socket")
        assert made.path.exists()
        await world.start()
        await seen(lambda: not made.path.exists(), "the kubelet's clearing of sockets")
        assert stranger.read_text() == "no socket"
        stranger.unlink()
        assert await held_by(world, pod.uid) == {made.resource: set(held)}
        # It knows of the resource, and that there is none of it until a plugin comes back.
        await seen(lambda: _none_of(world, made.resource), "the resource without devices")
        assert await world.phase(pod) == "Running"
        await made.close()
        await made.serve()
        await made.register()
        await sees(world, made, 2, 2)
        other = await world.admit("newcomer", {made.resource: 1})
        assert made.calls("allocate")[-1].ids != held
        for each in (pod, other):
            await world.remove(each)

    # -- PodResources

    async def test_pod_resources_say_what_was_handed_to_whom(self, world: KubeletWorld, plugin: MakePlugin) -> None:
        made = await plugin(a=GOOD, b=GOOD, c=BAD)
        await sees(world, made, 3, 2)
        pod = await world.admit("listed", {made.resource: 1}, {})
        held = list(made.calls("allocate")[0].ids)
        async with lister(world) as stub:
            found = {each.name: each for each in (await stub.List(resources.ListPodResourcesRequest())).pod_resources}
            answer = found[pod.name]
            assert answer.namespace == pod.namespace
            given = {
                container.name: {each.resource_name: list(each.device_ids) for each in container.devices}
                for container in answer.containers
            }
            assert given == {"c0": {made.resource: held}, "c1": {}}
            one = await stub.Get(resources.GetPodResourcesRequest(pod_name=pod.name, pod_namespace=pod.namespace))
            assert one.pod_resources == answer
            all_ = await stub.GetAllocatableResources(resources.AllocatableResourcesRequest())
            ids = {name for each in all_.devices if each.resource_name == made.resource for name in each.device_ids}
            assert ids == {"a", "b"}, "what is held counts, what is unhealthy does not"
        await world.remove(pod)
        async with lister(world) as stub:
            found = {each.name: each for each in (await stub.List(resources.ListPodResourcesRequest())).pod_resources}
            assert pod.name not in found
            with pytest.raises(grpc.aio.AioRpcError, match="not found"):
                await stub.Get(resources.GetPodResourcesRequest(pod_name=pod.name, pod_namespace=pod.namespace))

    async def test_the_topology_that_a_plugin_told_is_said_again(self, world: KubeletWorld, plugin: MakePlugin) -> None:
        made = await plugin(register=False, a=GOOD)
        made.numa["a"] = 1
        await made.register()
        await sees(world, made, 1, 1)
        pod = await world.admit("numa", {made.resource: 1})
        async with lister(world) as stub:
            found = {each.name: each for each in (await stub.List(resources.ListPodResourcesRequest())).pod_resources}
        devices = found[pod.name].containers[0].devices
        assert [[each.ID for each in device.topology.nodes] for device in devices] == [[1]]
        await world.remove(pod)

    # -- Pods API

    async def test_the_pods_api_names_every_pod_with_its_uid(self, world: KubeletWorld, plugin: MakePlugin) -> None:
        pod = await world.admit("named", {})
        async with pods_stub(world) as stub:
            listed = (await stub.ListPods(pods.ListPodsRequest())).pods
            raw = [each for each in listed if pod.uid.encode() in each]
            assert len(raw) == 1
            assert pod.name.encode() in raw[0]
            one = (await stub.GetPod(pods.GetPodRequest(podUID=pod.uid))).pod
            assert pod.uid.encode() in one
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await stub.GetPod(pods.GetPodRequest(podUID="00000000-0000-4000-8000-000000000000"))
            assert error.value.code() is grpc.StatusCode.NOT_FOUND
        await world.remove(pod)
        async with pods_stub(world) as stub:
            listed = (await stub.ListPods(pods.ListPodsRequest())).pods
            assert not any(pod.uid.encode() in each for each in listed)

    async def test_a_watch_of_pods_begins_with_those_that_are_there(self, world: KubeletWorld) -> None:
        before = await world.admit("before", {})
        async with pods_stub(world) as stub:
            watch = stub.WatchPods(pods.WatchPodsRequest())
            first: list[Any] = []
            async with asyncio.timeout(30):
                async for event in watch:
                    first.append(event)
                    if event.type == pods.INITIAL_SYNC_COMPLETE:
                        break
                assert [each.type for each in first[:-1]] == [pods.ADDED] * (len(first) - 1)
                assert any(before.uid.encode() in each.pod for each in first)
                after = await world.admit("after", {})
                await _until_event(watch, after.uid, {pods.ADDED, pods.MODIFIED})
                removing = asyncio.create_task(world.remove(after))
                await _until_event(watch, after.uid, {pods.DELETED})
                await removing
            watch.cancel()
        await world.remove(before)


async def sees(world: KubeletWorld, plugin: ScriptedPlugin, capacity: int, allocatable: int) -> None:
    """Wait until the node has exactly this of the plugin's resource."""
    last: tuple[int, int] | None = None

    async def holds() -> bool:
        nonlocal last
        last = await world.counts(plugin.resource)
        return last == (capacity, allocatable)

    await seen(holds, f"{(capacity, allocatable)} of {plugin.resource}", say=lambda: f"there is {last}")


async def held_by(world: KubeletWorld, uid: str) -> dict[str, set[str]]:
    """Read out of the kubelet's own note what a pod holds."""
    text = await asyncio.to_thread((world.folder / CHECKPOINT).read_text)
    found: dict[str, set[str]] = {}
    for entry in json.loads(text)["Data"]["PodDeviceEntries"] or ():
        if entry["PodUID"] == uid:
            ids = {name for names in entry["DeviceIDs"].values() for name in names}
            found.setdefault(entry["ResourceName"], set()).update(ids)
    return found


@asynccontextmanager
async def lister(world: KubeletWorld) -> AsyncIterator[Any]:
    """Connect to the PodResources API of a world."""
    async with grpc.aio.insecure_channel(f"unix://{world.pod_resources}", options=AUTHORITY) as channel:
        yield resources_grpc.PodResourcesListerStub(channel)


@asynccontextmanager
async def pods_stub(world: KubeletWorld) -> AsyncIterator[Any]:
    """Connect to the Pods API of a world."""
    async with grpc.aio.insecure_channel(f"unix://{world.pods_api}", options=AUTHORITY) as channel:
        yield pods_grpc.PodsStub(channel)


async def _none_of(world: KubeletWorld, resource: str) -> bool:
    return await world.counts(resource) in {(0, 0), None}


async def _until_event(watch: Any, uid: str, kinds: set[Any]) -> None:
    async for event in watch:
        if uid.encode() in event.pod and event.type in kinds:
            return
    raise AssertionError(f"the watch ended before {kinds} of {uid}")
