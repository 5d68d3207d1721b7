"""What a container is told: by variable, mounts, annotations or CDI names, and nothing it did not ask for."""

from typing import Any

from gpubank.domain.device import Offer
from gpubank.domain.refusal import read
from nodeagent.nvml.snapshot import Gpu
from nodeagent.plugin.inventory import Device
from nodeagent.plugin.response import Response, respond
from nodeagent.settings import AgentSettings

DEVICES = [Device(f"GPU-{i}", f"GPU-{i}", Gpu(f"GPU-{i}", i, "x", 1, minor=i), Offer("l4-24gb")) for i in range(2)]


def answer(*ways: str, devices: list[Device] = DEVICES, **changes: Any) -> Response:
    settings = read(AgentSettings, {"deviceList": list(ways) or ["envvar"], **changes})
    return respond(devices, settings, ["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia7"])


def test_the_variable_lists_the_uuids() -> None:
    assert answer() == Response(envs={"NVIDIA_VISIBLE_DEVICES": "GPU-0,GPU-1"})


def test_mounts_list_the_uuids_where_a_pod_cannot_write_them() -> None:
    found = answer("volume-mounts")
    assert found.envs == {"NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices"}
    assert found.mounts == [("/dev/null", f"/var/run/nvidia-container-devices/GPU-{i}") for i in range(2)]


def test_cdi_names_stand_in_the_answer_or_in_an_annotation_and_switch_the_variable_off() -> None:
    assert answer("cdi-cri").cdi_devices == ["nvidia.com/gpu=GPU-0", "nvidia.com/gpu=GPU-1"]
    found = answer("cdi-annotations", cdiKind="example.com/card", cdiAnnotationPrefix="cdi.example.com/")
    ((key, value),) = found.annotations.items()
    assert key.startswith("cdi.example.com/gpubank_")
    assert len(key.split("/")[1]) <= 63
    assert value == "example.com/card=GPU-0,example.com/card=GPU-1"
    assert found.envs == {"NVIDIA_VISIBLE_DEVICES": "void"}


def test_two_containers_of_a_pod_have_annotations_that_do_not_overwrite_each_other() -> None:
    one, other = (answer("cdi-annotations", devices=[device]) for device in DEVICES)
    assert one.annotations.keys() != other.annotations.keys()


def test_device_files_are_those_that_the_host_has() -> None:
    assert answer(deviceFiles=True).device_files == ["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1"]
    assert answer().device_files == []


def test_a_device_of_which_a_container_has_two_turns_stands_once() -> None:
    turns = [Device(f"GPU-0::{n}", "GPU-0", DEVICES[0].gpu, Offer("l4-24gb")) for n in range(2)]
    assert answer(devices=turns).envs == {"NVIDIA_VISIBLE_DEVICES": "GPU-0"}
