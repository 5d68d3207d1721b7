"""What the kubelet handed to whom, read from an answer of its PodResources API."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from gpubank.domain.attribution import is_object_name

_MOST: Final = 16384
_LONGEST: Final = 512


@dataclass(frozen=True, slots=True, order=True)
class Allocation:
    """One device in one container of one pod. The pod is named, for the kubelet does not say its UID here."""

    namespace: str
    pod: str
    container: str
    resource: str
    """Extended resource; of a claim its DRA driver."""

    device_id: str
    """As the plugin named it; of a claim `driver/pool/device`."""

    claimed: bool = False
    """Whether it came through a resource claim (DRA)."""


def read_allocations(answer: Any) -> Iterator[Allocation]:
    """Read a ListPodResourcesResponse; names that Kubernetes would not allow are passed over."""
    left = _MOST
    for pod in answer.pod_resources:
        if not (is_object_name(pod.namespace) and is_object_name(pod.name)):
            continue
        for container in pod.containers:
            for resource, device_id, claimed in _devices(container):
                if left == 0:
                    return
                if is_object_name(container.name) and max(len(resource), len(device_id)) <= _LONGEST:
                    left -= 1
                    yield Allocation(pod.namespace, pod.name, container.name, resource, device_id, claimed)


def _devices(container: Any) -> Iterator[tuple[str, str, bool]]:
    for devices in container.devices:
        for device_id in devices.device_ids:
            yield devices.resource_name, device_id, False
    for dynamic in container.dynamic_resources:
        for claim in dynamic.claim_resources:
            if claim.device_name:
                yield claim.driver_name, f"{claim.driver_name}/{claim.pool_name}/{claim.device_name}", True
