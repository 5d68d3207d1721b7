"""What can be held on this node, and what the ids that kubelets and plugins use for it mean.

GPU-<uuid>                     a GPU                       MIG-<uuid>              a MIG device
GPU-<uuid>::3                  one turn of a shared GPU    MIG-GPU-<uuid>/3/0      the same, of old drivers
nvidia0, nvidia0/gi3[/vgpu1]   a GPU by its device file, as one cloud's plugin writes it
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Self

from gpubank.domain.device import RESOURCE_PREFIX
from nodeagent.nvml.snapshot import Gpu, MigDevice, NodeSnapshot

_REPLICA: Final = re.compile(r"::[0-9]+$")
_GPU_ID: Final = re.compile(r"GPU-[0-9a-fA-F-]{8,64}")
_OLD_MIG_ID: Final = re.compile(r"MIG-(GPU-[0-9a-fA-F-]{8,64})/([0-9]{1,4})/([0-9]{1,4})")
_FILE_ID: Final = re.compile(r"nvidia([0-9]{1,4})(?:/gi([0-9]{1,4}))?(?:/vgpu[0-9]{1,4})?")
_GPU_RESOURCES: Final = ("nvidia.com/gpu", "nvidia.com/mig-")
_LONGEST_ID: Final = 256


@dataclass(frozen=True, slots=True)
class Device:
    """One thing that can be held: a whole GPU, or a MIG device of one."""

    uuid: str
    """Its own UUID."""

    gpu: Gpu
    mig: MigDevice | None = None


class Inventory:
    """Devices of the node, by every id that means one."""

    def __init__(self, gpus: Iterable[Gpu] = ()) -> None:
        self.gpus: tuple[Gpu, ...] = tuple(gpus)
        self.devices: dict[str, Device] = {}
        """By UUID; of a GPU in MIG mode its MIG devices instead of itself."""
        self._by_id: dict[str, Device] = {}
        for gpu in self.gpus:
            if gpu.mig_enabled:
                for mig in gpu.migs:
                    self._add(Device(mig.uuid, gpu, mig))
            else:
                self._add(Device(gpu.uuid, gpu))

    @classmethod
    def of(cls, snapshot: NodeSnapshot) -> Self:
        """Take what NVML says."""
        return cls(snapshot.gpus)

    def resolve(self, device_id: str) -> Device | None:
        """Return the device that an id means; None where it means none of this node's."""
        plain = base_id(device_id)
        found = self._by_id.get(plain)
        if found is None and not self.gpus and _GPU_ID.fullmatch(plain):
            # Without NVML, as beside another exporter, a whole GPU's id still says which it is.
            return Device(plain, Gpu(uuid=plain, index=-1, name="", memory_mib=None))
        return found

    def _add(self, device: Device) -> None:
        self.devices[device.uuid] = device
        self._by_id[device.uuid] = device
        gpu, mig = device.gpu, device.mig
        if mig is not None:
            self._by_id[f"MIG-{gpu.uuid}/{mig.gi}/{mig.ci}"] = device
        if gpu.minor is not None:
            # A GPU instance with several compute instances has no single device behind this id.
            name = f"nvidia{gpu.minor}" if mig is None else f"nvidia{gpu.minor}/gi{mig.gi}"
            alone = mig is None or sum(other.gi == mig.gi for other in gpu.migs) == 1
            if alone:
                self._by_id[name] = device


def base_id(device_id: str) -> str:
    """Strip what numbers the turns of a shared device."""
    plain = _REPLICA.sub("", device_id[:_LONGEST_ID])
    if found := _FILE_ID.fullmatch(plain):
        return f"nvidia{found.group(1)}" + (f"/gi{found.group(2)}" if found.group(2) else "")
    return plain


def is_turn(device_id: str) -> bool:
    """Whether the id is one turn of a device that several may hold."""
    return _REPLICA.search(device_id) is not None or "/vgpu" in device_id


def is_gpu_resource(resource: str) -> bool:
    """Whether devices of this resource are GPUs, also those that the node no longer knows."""
    return resource.startswith((f"{RESOURCE_PREFIX}/", *_GPU_RESOURCES))


def looks_like_gpu(device_id: str) -> bool:
    """Whether an id is written as a GPU's or MIG device's."""
    plain = base_id(device_id)
    return bool(_GPU_ID.fullmatch(plain) or _OLD_MIG_ID.fullmatch(plain) or plain.startswith("MIG-"))


def by_uuid(devices: Iterable[Device]) -> Mapping[str, Device]:
    """Index devices by their own UUID."""
    return {device.uuid: device for device in devices}
