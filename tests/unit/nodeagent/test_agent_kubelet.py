"""The plugin and a kubelet: serve, register, restart, hand out, refuse."""

import asyncio
import socket
from typing import Any

import grpc
import pytest

from gpubank.domain.errors import ConflictError
from nodeagent.pb.deviceplugin import api_pb2, api_pb2_grpc
from nodeagent.plugin.server import sockets
from tests.fakes.kubelet import AUTHORITY, AdmissionError
from tests.unit.nodeagent.conftest import PREFIX, Node

H100 = f"{PREFIX}h100-80gb"


def h100s(node: Node, count: int) -> list[str]:
    return [node.facts.gpu(f"GPU-{index}", numa=index * 2 // count) for index in range(count)]


async def test_a_mixed_node_has_a_resource_per_class_with_numa_topology(node: Node) -> None:
    h100s(node, 2)
    node.facts.gpu("GPU-l", "NVIDIA L40S", numa=None)
    await node.start_agent()
    await node.sees(h100_80gb=2, l40s_48gb=1)
    numa = {name: [each.ID for each in device.topology.nodes] for name, device in node.kubelet.devices[H100].items()}
    assert numa == {"GPU-0": [0], "GPU-1": [1]}
    assert not node.kubelet.devices[f"{PREFIX}l40s-48gb"]["GPU-l"].HasField("topology")


async def test_a_pod_gets_exactly_the_gpus_that_were_chosen_together(node: Node) -> None:
    h100s(node, 4)
    node.facts.nvlink("GPU-1", "GPU-3", 4)
    await node.start_agent()
    await node.sees(h100_80gb=4)
    pod = await node.kubelet.admit("u1", {H100: 2})
    assert pod.containers[0].devices == {H100: ["GPU-1", "GPU-3"]}
    assert pod.containers[0].envs == {"NVIDIA_VISIBLE_DEVICES": "GPU-1,GPU-3"}
    second = await node.kubelet.admit("u2", {H100: 1}, {H100: 1})
    assert sorted(name for each in second.containers for name in each.devices[H100]) == ["GPU-0", "GPU-2"]


async def test_a_kubelet_that_restarts_knows_every_resource_again(node: Node) -> None:
    h100s(node, 2)
    node.facts.gpu("GPU-l", "NVIDIA L40S")
    await node.start_agent()
    await node.sees(h100_80gb=2, l40s_48gb=1)
    await node.kubelet.admit("u1", {H100: 1})
    for times in range(2, 4):
        await node.kubelet.restart()
        await node.sees(h100_80gb=2, l40s_48gb=1)
        assert sorted(node.kubelet.registrations) == sorted([H100, f"{PREFIX}l40s-48gb"] * times)
    node.kubelet.readmit("u1")


async def test_an_agent_that_starts_before_the_kubelet_registers_when_it_comes(node: Node) -> None:
    await node.kubelet.stop()
    h100s(node, 1)
    await node.start_agent()
    await asyncio.sleep(0.3)
    await node.kubelet.start()
    await node.sees(h100_80gb=1)


async def test_a_socket_that_vanishes_alone_is_served_anew(node: Node) -> None:
    h100s(node, 1)
    agent = await node.start_agent()
    await node.sees(h100_80gb=1)
    (path,) = sockets(node.folder / "plugins", next(iter(agent.inventory.devices)))
    path.unlink()
    await node.kubelet.until_registered(2)
    await node.sees(h100_80gb=1)
    await node.kubelet.admit("u1", {H100: 1})


async def test_a_kubelet_that_refuses_is_asked_again(node: Node) -> None:
    node.kubelet.refuse_registration = True
    h100s(node, 1)
    await node.start_agent()
    await asyncio.sleep(0.3)
    assert node.kubelet.registrations == []
    node.kubelet.refuse_registration = False
    await node.sees(h100_80gb=1)


async def test_a_registration_whose_answer_was_lost_is_made_anew_on_a_socket_that_nobody_refuses(node: Node) -> None:
    node.kubelet.lost_answers = 1
    h100s(node, 1)
    await node.start_agent()
    await node.kubelet.until_registered(2)
    await node.sees(h100_80gb=1)
    await node.kubelet.admit("u1", {H100: 1})


async def test_an_agent_that_restarts_takes_its_place_again(node: Node) -> None:
    h100s(node, 2)
    agent = await node.start_agent()
    await node.sees(h100_80gb=2)
    await node.stop_agent(agent)
    await node.sees(h100_80gb=0)  # the kubelet saw the stream end
    await node.start_agent()
    await node.sees(h100_80gb=2)


async def test_a_socket_left_behind_by_a_killed_agent_is_no_obstacle(node: Node) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(node.folder / "plugins" / "gpubank-h100-80gb.sock"))
    h100s(node, 1)
    await node.start_agent()
    await node.sees(h100_80gb=1)


async def test_nothing_is_registered_and_nothing_said_twice_while_nothing_changes(node: Node) -> None:
    h100s(node, 2)
    await node.start_agent()
    await node.sees(h100_80gb=2)
    await asyncio.sleep(0.5)
    assert node.kubelet.registrations == [H100]
    assert node.kubelet.messages == {H100: 1}


async def test_it_does_not_start_beside_another_provider(node: Node) -> None:
    h100s(node, 1)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(node.folder / "plugins" / "nvidia-gpu.sock"))
        other.listen()
        with pytest.raises(ConflictError, match="NVIDIA's device plugin answers"):
            await node.start_agent()
    assert node.kubelet.registrations == []


# ------------------------------------------------------------------------------------------------ handing out


async def test_a_gpu_that_is_not_what_it_was_is_refused_with_the_reason(node: Node) -> None:
    h100s(node, 1)
    agent = await node.start_agent(intervals=SLOW)
    await node.sees(h100_80gb=1)
    node.facts.change("GPU-0", name="NVIDIA L40S", memory=46068, cc="8.9")
    with pytest.raises(AdmissionError, match=r"'GPU-0' is not '.*h100-80gb' any more: 'NVIDIA L40S'"):
        await node.kubelet.admit("u1", {H100: 1})
    assert agent.monitor.book.marks == {}


async def test_a_gpu_whose_mig_mode_was_switched_on_is_not_handed_out_whole(node: Node) -> None:
    h100s(node, 1)
    await node.start_agent(intervals=SLOW)
    await node.sees(h100_80gb=1)
    node.facts.change("GPU-0", mig=1)
    with pytest.raises(AdmissionError, match="MIG mode was switched on"):
        await node.kubelet.admit("u1", {H100: 1})


SLOW = {"health": 60, "inventory": 60, "events": 0.05, "sockets": 0.2, "nvml": 1, "allocate": 0.3}


@pytest.mark.parametrize(
    ("change", "words"),
    [({"lost": 1}, "the GPU is lost|is unhealthy: lost"), ({"hang": 1}, "cannot be verified: NVML did not answer")],
)
async def test_a_gpu_that_does_not_answer_is_refused_in_time(node: Node, change: dict[str, Any], words: str) -> None:
    h100s(node, 1)
    await node.start_agent(intervals=SLOW)
    await node.sees(h100_80gb=1)
    node.facts.change("GPU-0", **change)
    with pytest.raises(AdmissionError, match=words):
        await node.kubelet.admit("u1", {H100: 1})


async def call(node: Node, request: Any, method: str) -> Any:
    (path,) = (node.folder / "plugins").glob("gpubank-h100-80gb_*.sock")
    async with grpc.aio.insecure_channel(f"unix://{path}", options=AUTHORITY) as channel:
        return await getattr(api_pb2_grpc.DevicePluginStub(channel), method)(request)


async def test_a_device_of_another_resource_is_refused(node: Node) -> None:
    h100s(node, 1)
    await node.start_agent()
    await node.sees(h100_80gb=1)
    asked = api_pb2.ContainerAllocateRequest(devices_ids=["GPU-x"])
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call(node, api_pb2.AllocateRequest(container_requests=[asked]), "Allocate")
    assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "'GPU-x' is none of" in (error.value.details() or "")


async def test_a_preference_about_devices_that_nobody_knows_is_answered(node: Node) -> None:
    h100s(node, 1)
    await node.start_agent()
    await node.sees(h100_80gb=1)
    wanted = api_pb2.ContainerPreferredAllocationRequest(available_deviceIDs=["a", "b"], allocation_size=1)
    answer = await call(node, api_pb2.PreferredAllocationRequest(container_requests=[wanted]), "GetPreferredAllocation")
    assert list(answer.container_responses[0].deviceIDs) == ["a"]
    assert await call(node, api_pb2.PreStartContainerRequest(devices_ids=["a"]), "PreStartContainer") is not None


async def test_turns_are_handed_out_one_per_container(node: Node) -> None:
    node.facts.gpu("GPU-l", "NVIDIA L40S")
    await node.start_agent(sharing={"timeSlicing": {"resources": [{"name": "l40s-48gb", "replicas": 4}]}})
    await node.sees(l40s_48gb__shared=4)
    shared = f"{PREFIX}l40s-48gb.shared"
    pod = await node.kubelet.admit("u1", {shared: 1}, {shared: 1})
    assert [each.envs for each in pod.containers] == [{"NVIDIA_VISIBLE_DEVICES": "GPU-l"}] * 2
    with pytest.raises(AdmissionError, match="2 turns are no more GPU than one"):
        await node.kubelet.admit("u2", {shared: 2})


async def test_a_mig_slice_is_handed_out_by_its_own_uuid(node: Node) -> None:
    h100s(node, 1)
    node.facts.mig("GPU-0", "MIG-a", "1g.10gb", gi=7)
    node.facts.mig("GPU-0", "MIG-b", "1g.10gb", gi=8)
    await node.start_agent()
    await node.sees(h100_80gb__mig_1g__10gb=2)
    pod = await node.kubelet.admit("u1", {f"{PREFIX}h100-80gb.mig-1g.10gb": 1})
    assert pod.containers[0].envs == {"NVIDIA_VISIBLE_DEVICES": "MIG-a"}
