"""The device plugin as a process between pretended GPUs and a real kubelet."""

import signal
from pathlib import Path

import pytest

from gpubank.lab import podspec
from tests.support.realnode import PREFIX, SHOW, RealNode, visible
from tests.support.waiting import until

H100, L40S = "h100-80gb", "l40s-48gb"


def h100s(node: RealNode, count: int) -> list[str]:
    return [node.facts.gpu(f"GPU-{index:08d}-0000-4000-8000-000000000000") for index in range(count)]


def test_a_mixed_node_has_a_capacity_for_every_class_and_an_unknown_card_counts_for_none(node: RealNode) -> None:
    h100s(node, 4)
    node.facts.gpu("GPU-l40s", "NVIDIA L40S")
    # By its size it might be an H100; by its name it is nothing that the rules list.
    node.facts.gpu("GPU-odd", "NVIDIA H100 80GB HBM3 rev B", memory=81559, cc="9.0")
    node.start_plugin()
    node.sees({H100: 4, L40S: 1}, capacity={H100: 4, L40S: 1})
    withheld = {each["uuid"]: each["reason"] for each in node.inspect()["withheld"]}
    assert list(withheld) == ["GPU-odd"]


def test_a_pod_runs_in_a_container_that_sees_exactly_the_gpus_that_it_was_given(node: RealNode) -> None:
    gpus = h100s(node, 4)
    node.facts.nvlink(gpus[1], gpus[3], 4)
    node.start_plugin()
    node.sees({H100: 4})
    node.run("near", podspec.python_pod(["-c", SHOW], resources={PREFIX + H100: 2}))
    node.await_phase("near", "Succeeded")
    assert visible(node.output("near")) == [gpus[1], gpus[3]], "the two that NVLinks connect"


def test_a_card_that_became_another_is_refused_to_the_pod_with_the_reason(node: RealNode) -> None:
    gpus = h100s(node, 1)
    slow = {"health": 60, "inventory": 60, "events": 0.2, "sockets": 0.2}
    node.start_plugin(intervals=slow)
    node.sees({H100: 1})
    node.facts.change(gpus[0], name="NVIDIA L40S", memory=46068, cc="8.9")
    node.run("deceived", podspec.idle_pod(resources={PREFIX + H100: 1}))
    status = node.await_phase("deceived", "Failed")["status"]
    assert status["reason"] == "UnexpectedAdmissionError"
    assert "is not 'accelerator.aik8s.run/h100-80gb' any more" in status["message"]


def test_a_gpu_that_turns_unhealthy_is_not_allocatable_until_it_is_released_and_its_pod_runs_on(
    node: RealNode,
) -> None:
    gpus = h100s(node, 2)
    node.start_plugin()
    node.sees({H100: 2})
    node.run("runs-on", podspec.idle_pod(resources={PREFIX + H100: 2}))
    node.await_phase("runs-on", "Running")
    node.facts.event(gpus[0], xid=79)
    node.sees({H100: 1}, capacity={H100: 2})
    assert node.phase("runs-on") == "Running"
    node.release(gpus[0])
    node.sees({H100: 2})


def test_a_cut_of_mig_devices_changes_what_is_sold_and_back(node: RealNode) -> None:
    gpus = h100s(node, 2)
    node.start_plugin()
    node.sees({H100: 2})
    with node.facts.at_once():
        for place in range(2):
            node.facts.mig(gpus[0], f"MIG-{place}", "3g.40gb", gi=place + 1)
    node.sees({H100: 1, f"{H100}.mig-3g.40gb": 2})
    node.run("slice", podspec.python_pod(["-c", SHOW], resources={f"{PREFIX}{H100}.mig-3g.40gb": 1}))
    node.await_phase("slice", "Succeeded")
    assert visible(node.output("slice"))[0] in {"MIG-0", "MIG-1"}
    node.facts.unmig(gpus[0])
    node.sees({H100: 2}, capacity={H100: 2, f"{H100}.mig-3g.40gb": 0})


def test_a_gpu_that_is_plugged_in_is_sold_and_one_that_is_taken_out_is_not(node: RealNode) -> None:
    gpus = h100s(node, 1)
    (node.driver / "0000:18:00.0").mkdir()
    node.start_plugin()
    node.sees({H100: 1})
    node.facts.gpu("GPU-new", "NVIDIA L40S")
    (node.driver / "0000:19:00.0").mkdir()
    node.sees({H100: 1, L40S: 1})
    node.facts.remove(gpus[0])
    (node.driver / "0000:18:00.0").rmdir()
    node.sees({L40S: 1}, capacity={L40S: 1, H100: 0})


def test_after_a_restart_of_the_kubelet_the_plugin_is_there_again_and_pods_run_on(node: RealNode) -> None:
    h100s(node, 2)
    node.start_plugin()
    node.sees({H100: 2})
    uid = node.run("survivor", podspec.idle_pod(resources={PREFIX + H100: 1}))
    node.await_phase("survivor", "Running")
    node.lab.kill("kubelet")
    node.lab.start("kubelet")
    until(lambda: node.log("plugin").count("registered ") >= 2, "a second registration", say=lambda: node.log("plugin"))
    node.sees({H100: 2})
    pod = node.await_phase("survivor", "Running")
    assert (pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"]) == (uid, 0)
    node.run("newcomer", podspec.idle_pod(resources={PREFIX + H100: 1}))
    node.await_phase("newcomer", "Running")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_agent_that_ends_takes_its_gpus_out_and_its_successor_brings_them_back(
    node: RealNode, number: signal.Signals
) -> None:
    h100s(node, 2)
    node.start_plugin()
    node.sees({H100: 2})
    node.run("busy", podspec.idle_pod(resources={PREFIX + H100: 1}))
    node.await_phase("busy", "Running")
    node.stop("plugin", number)
    node.sees({}, capacity={H100: 2})
    assert node.phase("busy") == "Running"
    node.start_plugin()
    node.sees({H100: 2})
    node.run("next", podspec.idle_pod(resources={PREFIX + H100: 1}))
    node.await_phase("next", "Running")


def test_a_socket_that_vanishes_is_served_anew_and_the_kubelet_takes_it(node: RealNode) -> None:
    h100s(node, 1)
    node.start_plugin()
    node.sees({H100: 1})
    folder = Path("/var/lib/kubelet/device-plugins")
    (path,) = folder.glob("gpubank-*.sock")
    path.unlink()
    until(lambda: node.log("plugin").count("registered ") >= 2, "a second registration", say=lambda: node.log("plugin"))
    node.sees({H100: 1})
    node.run("served", podspec.idle_pod(resources={PREFIX + H100: 1}))
    node.await_phase("served", "Running")
