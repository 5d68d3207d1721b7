"""What a container gets: the answer to Allocate, by the node's ways of telling a container its GPUs. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from nodeagent.plugin.inventory import Device
from nodeagent.settings import AgentSettings, DeviceList

VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"
"""Environment variable that NVIDIA's container toolkit reads."""

VOLUME_ROOT: Final = "/var/run/nvidia-container-devices"
"""Folder whose entries the toolkit takes for devices; unlike a variable, a pod cannot write it for itself."""

CONTROL_FILES: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
"""Device files that every GPU needs, where the host has them."""


@dataclass(frozen=True, slots=True)
class Response:
    """One container's part of the answer."""

    envs: dict[str, str] = field(default_factory=dict)
    mounts: list[tuple[str, str]] = field(default_factory=list)
    """Host path, container path; read-only."""

    device_files: list[str] = field(default_factory=list)
    annotations: dict[str, str] = field(default_factory=dict)
    cdi_devices: list[str] = field(default_factory=list)


def respond(devices: Sequence[Device], settings: AgentSettings, host_files: Sequence[str] = ()) -> Response:
    """Build the answer; `host_files` are the device files that the host has.

    A device that is shared stands once, however many turns of it the container has.
    """
    uuids = tuple(dict.fromkeys(device.uuid for device in devices))
    answer = Response()
    if DeviceList.ENVVAR in settings.device_list:
        answer.envs[VISIBLE] = ",".join(uuids)
    if DeviceList.VOLUME_MOUNTS in settings.device_list:
        answer.envs[VISIBLE] = VOLUME_ROOT
        answer.mounts.extend(("/dev/null", f"{VOLUME_ROOT}/{uuid}") for uuid in uuids)
    names = [f"{settings.cdi_kind}={uuid}" for uuid in uuids]
    if DeviceList.CDI_ANNOTATIONS in settings.device_list:
        digest = sha256(",".join(uuids).encode()).hexdigest()[:16]
        answer.annotations[f"{settings.cdi_annotation_prefix}gpubank_{digest}"] = ",".join(names)
    if DeviceList.CDI_CRI in settings.device_list:
        answer.cdi_devices.extend(names)
    if not {DeviceList.ENVVAR, DeviceList.VOLUME_MOUNTS} & set(settings.device_list):
        # Without it an image that sets the variable itself would be given GPUs that it did not ask for.
        answer.envs[VISIBLE] = "void"
    if settings.device_files:
        minors = dict.fromkeys(device.gpu.minor for device in devices if device.gpu.minor is not None)
        own = [f"/dev/nvidia{minor}" for minor in minors]
        answer.device_files.extend(path for path in (*CONTROL_FILES, *own) if path in host_files)
    return answer
