"""What the series of one device are called: DCGM's own labels, the device's class, and whose it is.

    gpu UUID pci_bus_id device modelName [GPU_I_PROFILE GPU_I_ID] Hostname      identity: always there
    accelerator_class _model _partition _sharing                                what it is sold as
    mapping_status pod namespace container pod_uid business_group …             whose it is, in direct mode

A budget bounds how many labels a series has, for some stores refuse more than thirty. Labels give way from the end of
`YIELDING`; identity never does.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from gpubank.domain.attribution import FIELDS
from nodeagent.attribution.mapping import DeviceMapping, Holder, MappingStatus
from nodeagent.exporter.quantities import Dialect
from nodeagent.nvml.snapshot import Gpu

LEAST_BUDGET: Final = 16
HOLDER_LABELS: Final = ("pod", "namespace", "container", "pod_uid")
STATUS: Final = "mapping_status"
CLASS_LABELS: Final = ("accelerator_class", "accelerator_model", "accelerator_partition", "accelerator_sharing")
_DRIVER: Final = {Dialect.CLASSIC: "DCGM_FI_DRIVER_VERSION", Dialect.DCGM47: "DCGM_FI_SYSTEM_DRIVER_VERSION"}
_HOST: Final = {Dialect.CLASSIC: "Hostname", Dialect.DCGM47: "hostname"}

YIELDING: Final = (
    STATUS,
    "pod_uid",
    "pod",
    "namespace",
    "business_group",
    "cost_center",
    "accelerator_class",
    "container",
    "workload_uid",
    "owner_id",
    "queue",
    "workload_type",
    "accelerator_partition",
    "model",
    "accelerator_sharing",
    "accelerator_model",
    "model_version",
    *_DRIVER.values(),
)
"""Labels that give way to the budget, the last first."""


class Naming:
    """Names series for one node."""

    def __init__(
        self, *, host: str, dialect: Dialect = Dialect.CLASSIC, budget: int = 30, fields: Iterable[str] = FIELDS
    ) -> None:
        self._host, self._dialect = host, dialect
        self._budget = max(budget, LEAST_BUDGET)
        self._fields = tuple(name for name in FIELDS if name in set(fields))
        self.dropped: set[str] = set()
        """Labels that gave way to the budget so far."""

    def identity(self, gpu: Gpu, *, gi: int | None = None, profile: str = "", driver: str = "") -> dict[str, str]:
        """Labels that tell a physical GPU or a GPU instance from every other."""
        found = {"gpu": str(gpu.index) if gpu.index >= 0 else "", "UUID": gpu.uuid, "pci_bus_id": gpu.pci_bus_id}
        found["device"] = f"nvidia{gpu.minor}" if gpu.minor is not None else ""
        found["modelName"] = gpu.name
        if gi is not None:
            found["GPU_I_PROFILE"], found["GPU_I_ID"] = profile, str(gi)
        found[_HOST[self._dialect]] = self._host
        found[_DRIVER[self._dialect]] = driver
        return found

    def key(self, gpu: Gpu, gi: int | None = None) -> dict[str, str]:
        """The few labels by which series of one device are joined."""
        found = {"UUID": gpu.uuid, _HOST[self._dialect]: self._host}
        return found if gi is None else {**found, "GPU_I_ID": str(gi)}

    def holder(self, holder: Holder) -> dict[str, str]:
        """Labels that say who holds a device."""
        found = {
            "pod": holder.pod,
            "namespace": holder.namespace,
            "container": holder.container,
            "pod_uid": holder.uid,
        }
        found.update((name, holder.fields[name]) for name in self._fields if name in holder.fields)
        return found

    def direct(self, mapping: DeviceMapping) -> dict[str, str]:
        """Labels of a device's own series in direct mode; what several hold, or nobody knows who, names no one."""
        found = {STATUS: str(mapping.status)}
        if mapping.status is MappingStatus.MAPPED:
            found.update(self.holder(mapping.holders[0]))
        return found

    def info(self, mapping: DeviceMapping, holder: Holder | None) -> dict[str, str]:
        """Labels of the info series, besides the key."""
        found = {STATUS: str(mapping.status)}
        if holder is not None:
            found.update(self.holder(holder))
            found["unverified"] = ",".join(name for name in holder.unverified if name in self._fields)
        return found

    def within_budget(self, pairs: Mapping[str, str]) -> dict[str, str]:
        """Leave out what the budget does not allow."""
        found = {name: value for name, value in pairs.items() if value}
        for name in reversed(YIELDING):
            if len(found) <= self._budget:
                break
            if found.pop(name, None) is not None:
                self.dropped.add(name)
        return found
