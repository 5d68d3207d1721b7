"""Orders of an incident, carried out by this node's device plugin over its control socket.

What a person holds against a GPU stays theirs: an incident neither takes a person's quarantine over nor lifts it.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gpubank.domain.errors import ConflictError, PolicyError
from gpubank.domain.incident import GpuSight, NodeOrder, Released
from gpubank.domain.servicing import PodName
from nodeagent.attribution.allocations import Allocation
from nodeagent.attribution.inventory import base_id
from nodeagent.attribution.kubelet import KubeletError
from nodeagent.plugin.client import ask
from nodeagent.reporting.edges import QUARANTINE, as_mark, faults

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class NodeOrders:
    """What an incident may have done on this node; blocking."""

    def __init__(self, plugin: Path, allocations: Callable[[], Sequence[Allocation]]) -> None:
        """`plugin` is the plugin's state folder; `allocations` asks the kubelet who holds what."""
        self._plugin, self._allocations = plugin, allocations

    def inspected(self) -> dict[str, Any]:
        """Return the plugin's own answer. Raises BackendError if it does not answer."""
        node: dict[str, Any] = ask(self._plugin, order="inspect")["node"]
        return node

    def inspect(self, order: NodeOrder) -> GpuSight:
        """Return the GPU as the plugin sees it."""
        node = self.inspected()
        gpu = next((each for each in node["gpus"] if each["uuid"] == order.uuid), None)
        if gpu is None:
            return GpuSight(found=False, holders=(), boot_id=boot_id())
        return GpuSight(
            marks=tuple(as_mark(mark) for mark in faults(gpu)),
            wrong=str(gpu["wrong"]),
            verdict=str(gpu["verdict"]),
            quarantined_by=_by_a_person(gpu, order.incident),
            holders=self._holders(node, order.uuid),
            boot_id=boot_id(),
        )

    def quarantine(self, order: NodeOrder) -> GpuSight:
        """Take the GPU out in the incident's name, unless it is out by a person's word."""
        sight = self.inspect(order)
        if sight.found and not sight.quarantined_by:
            reason = order.reason or "an incident"
            # Under a name that no incident takes for its own: a retired GPU that reports again is not put back.
            by = f"{order.incident} for good" if order.for_good else order.incident
            ask(
                self._plugin,
                order="quarantine",
                uuid=order.uuid,
                by=by,
                reason=reason,
                **({"key": order.key} if order.key else {}),
            )
        return sight

    def release(self, order: NodeOrder) -> Released:
        """Put the GPU back, unless a person holds it or it still reports a fault."""
        sight = self.inspect(order)
        if sight.quarantined_by:
            return Released(released=False, why_not=f"the GPU stays out: quarantined by {sight.quarantined_by}")
        try:
            ask(self._plugin, order="release", uuid=order.uuid, **({"key": order.key} if order.key else {}))
        except ConflictError as error:
            return Released(released=False, mended=False, why_not=str(error))
        except PolicyError:
            return Released(released=False, why_not="this node has no such GPU any more")
        return Released()

    def _holders(self, node: Mapping[str, Any], uuid: str) -> tuple[PodName, ...] | None:
        """Pods on the GPU or on its MIG devices, by the kubelet's word; None where it gives none."""
        ids = {uuid} | {
            str(device["uuid"]) for devices in node["resources"].values() for device in devices if device["gpu"] == uuid
        }
        try:
            allocations = self._allocations()
        except KubeletError:
            return None
        held = {
            (allocation.namespace, allocation.pod) for allocation in allocations if base_id(allocation.device_id) in ids
        }
        return tuple(PodName(namespace=namespace, name=name) for namespace, name in sorted(held))


def boot_id() -> str:
    """Return the id of this boot; empty where the kernel does not tell."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def _by_a_person(gpu: Mapping[str, Any], incident: str) -> str:
    """Who holds it by hand, and why; empty if nobody but the incident."""
    for mark in gpu["marks"]:
        if mark["cause"] == QUARANTINE and not str(mark["note"]).startswith(f"{incident}: "):
            return str(mark["note"])
    return ""
