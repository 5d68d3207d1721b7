"""What a node's agent can be told: one file, strict, with defaults that fit a node with NVIDIA's container toolkit."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from gpubank.domain.base import ApiModel, broken, first_twice
from gpubank.domain.device import Offer, Sharing
from gpubank.domain.refusal import read
from nodeagent.classes.text import read_file, read_mapping

Seconds = Annotated[float, Field(gt=0, le=3600)]


class MigStrategy(StrEnum):
    """What becomes of MIG, by upstream's names."""

    NONE = "none"
    """Nothing is sold of a GPU in MIG mode."""

    SINGLE = "single"
    """All GPUs of the node are cut the same way, or nothing is sold."""

    MIXED = "mixed"
    """Every slice is sold by what it is."""


class DeviceList(StrEnum):
    """How a container is told which GPUs are its own, by upstream's names."""

    ENVVAR = "envvar"
    VOLUME_MOUNTS = "volume-mounts"
    CDI_ANNOTATIONS = "cdi-annotations"
    CDI_CRI = "cdi-cri"


class SharedResource(ApiModel):
    """One resource whose devices are taken in turns."""

    name: str
    """Resource as it is without sharing, with or without its domain, as in `l4-24gb`."""

    replicas: Annotated[int, Field(ge=2, le=64)]
    """How many hold one device."""

    @model_validator(mode="after")
    def _names_a_device(self) -> Self:
        if (offer := self.offer) is None or offer.sharing is not Sharing.EXCLUSIVE:
            raise broken("must name a resource that is not shared", "write it as in 'l4-24gb'", field="name")
        return self

    @property
    def offer(self) -> Offer | None:
        """What is shared."""
        return Offer.of(self.name if "/" in self.name else Offer(self.name).resource)


class TimeSlicing(ApiModel):
    """Sharing by time; a shared resource always ends in `.shared`."""

    resources: tuple[SharedResource, ...] = ()
    fail_requests_greater_than_one: bool = True
    """Refuse a container that asks for more than one turn: it would get no more of the GPU."""

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        if twice := first_twice(resource.name for resource in self.resources):
            raise broken("is listed twice", "list each once", field="resources", value=twice)
        return self


class Sharings(ApiModel):
    """Kinds of sharing on this node."""

    time_slicing: TimeSlicing = TimeSlicing()


class Intervals(ApiModel):
    """How often the agent looks, and how long it waits, in seconds."""

    health: Seconds = 5
    """Between two polls of every GPU's condition."""

    inventory: Seconds = 15
    """Between two looks at which GPUs and MIG devices there are."""

    events: Seconds = 1
    """Longest that one wait for an event lasts; a session with NVML is only closed between two of them."""

    sockets: Seconds = 1
    """Between two looks at the kubelet's folder, beside the watch."""

    nvml: Seconds = 5
    """Longest that one call of NVML is waited for."""

    allocate: Seconds = 2
    """Longest that a GPU is waited for when it is handed out."""


class AgentSettings(ApiModel):
    """The whole file."""

    plugin_directory: Path = Path("/var/lib/kubelet/device-plugins")
    """The kubelet's folder of device plugins."""

    registry_directory: Path = Path("/var/lib/kubelet/plugins_registry")
    """The kubelet's folder of other plugins, DRA drivers among them."""

    state_directory: Path = Path("/var/lib/gpubank/nodeagent")
    """Folder on the host for marks, lock and control socket."""

    driver_directory: Path = Path("/proc/driver/nvidia/gpus")
    """The driver's list of GPUs by PCI address; a change in it means hot-plug."""

    rules: Path | None = None
    """Rules file or mounted ConfigMap; unset uses the agent's own."""

    health_policy: Path | None = None
    """Health policy or mounted ConfigMap; unset uses the agent's own."""

    mig_strategy: MigStrategy = MigStrategy.MIXED
    device_list: Annotated[tuple[DeviceList, ...], Field(min_length=1)] = (DeviceList.ENVVAR,)
    """How containers are told; several at once while a runtime is being changed."""

    device_files: bool = False
    """Also hand over `/dev/nvidia*`, for containers that no NVIDIA runtime prepares."""

    cdi_kind: Annotated[str, Field(pattern=r"^[a-z0-9.-]+/[a-z0-9._-]+$")] = "nvidia.com/gpu"
    """Vendor and class in the CDI specification that the toolkit wrote."""

    cdi_annotation_prefix: str = "cdi.k8s.io/"
    """Domain of the annotation that names CDI devices."""

    sharing: Sharings = Sharings()
    intervals: Intervals = Intervals()

    @model_validator(mode="after")
    def _lists_each_once(self) -> Self:
        if twice := first_twice(self.device_list):
            raise broken("is listed twice", "list each once", field="deviceList", value=twice)
        return self


SETTINGS_KEY: Final = "nodeagent.yaml"
"""Key of the settings in a ConfigMap, hence the file's name in a mounted one."""


def load(path: Path | None) -> AgentSettings:
    """Read the settings; without a file everything has its default. Raises PolicyError."""
    if path is None:
        return AgentSettings()
    file = path / SETTINGS_KEY if path.is_dir() else path
    return read(AgentSettings, read_mapping(read_file(file, "settings file"), str(file), "settings file"))
