"""Handing devices out: everything is judged once more at the moment it counts, and a refusal says why.

The kubelet fails the pod for good on a refusal, so that its controller starts another one; better that than a job on a
GPU of another class, or on one that is known to be broken.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from gpubank.domain.device import Offer, Sharing
from gpubank.domain.errors import ConflictError, PolicyError
from nodeagent.classes.classify import classify
from nodeagent.classes.observed import facts_of
from nodeagent.classes.rulebook import Rulebook
from nodeagent.health.book import HealthBook
from nodeagent.nvml.port import NvmlError
from nodeagent.nvml.snapshot import Gpu
from nodeagent.plugin.inventory import Device, Inventory
from nodeagent.settings import AgentSettings

Describe = Callable[[str], Awaitable[Gpu]]

_AGAIN: Final = "the pod's controller will start another one"


async def checked(
    offer: Offer,
    containers: Sequence[Sequence[str]],
    *,
    inventory: Inventory,
    book: HealthBook,
    rulebook: Rulebook,
    settings: AgentSettings,
    describe: Describe,
) -> list[list[Device]]:
    """Return the devices of each container, or raise PolicyError or ConflictError with the reason why not."""
    found = [[_known(offer, name, inventory) for name in names] for names in containers]
    if offer.sharing is Sharing.TIME_SLICING and settings.sharing.time_slicing.fail_requests_greater_than_one:
        for devices in found:
            if len(devices) > 1:
                raise PolicyError(
                    f"{offer.resource!r} gives turns on a GPU: {len(devices)} turns are no more GPU than one; ask for 1"
                )
    seen: dict[str, Gpu] = {}
    for device in (device for devices in found for device in devices):
        if reason := book.reason(device.gpu.uuid, device.gi, device.ci):
            raise ConflictError(f"device {device.id!r} of {offer.resource!r} is unhealthy: {reason}; {_AGAIN}")
        if device.gpu.uuid not in seen:
            try:
                seen[device.gpu.uuid] = await describe(device.gpu.uuid)
            except NvmlError as error:
                raise ConflictError(
                    f"device {device.id!r} of {offer.resource!r} cannot be verified: {error}; {_AGAIN}"
                ) from error
        if changed := _changed(device, seen[device.gpu.uuid], rulebook):
            raise ConflictError(f"device {device.id!r} is not {offer.resource!r} any more: {changed}; {_AGAIN}")
    return found


def _known(offer: Offer, name: str, inventory: Inventory) -> Device:
    device = inventory.device(offer, name)
    if device is None:
        raise ConflictError(f"device {name!r} is none of {offer.resource!r} on this node; {_AGAIN}")
    return device


def _changed(device: Device, now: Gpu, rulebook: Rulebook) -> str:
    """Why the device is no longer what it is sold as; empty if it is."""
    if device.uuid == device.gpu.uuid:
        if now.mig_enabled != device.gpu.mig_enabled:
            return f"MIG mode was switched {'on' if now.mig_enabled else 'off'}"
        verdict = classify(facts_of(now), rulebook)
    else:
        mig = next((mig for mig in now.migs if mig.uuid == device.uuid), None)
        if mig is None:
            return f"GPU {now.uuid!r} has no such MIG device now"
        verdict = classify(facts_of(now, mig), rulebook)
    if device.offer.device_class != verdict.device_class and device.offer.device_class in rulebook.by_name:
        return verdict.reason
    if device.offer.partition != verdict.partition and device.offer.device_class in rulebook.by_name:
        return f"its partition is {verdict.partition!r}"
    return ""
