"""The rules in the form that decisions read: plain records, found by normalised product name.

Whoever decides needs neither the file nor the library that checked it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpubank.domain.device import FULL, UNKNOWN_CLASS, Offer, Sharing
from nodeagent.classes.facts import normalised

VENDOR: Final = "nvidia"
"""Maker of every GPU that NVML describes."""


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """GPUs that a job cannot tell apart: one chip, one memory size."""

    name: str
    model: str
    """Value of the node label and flavor field `model`, as in `h100`."""

    products: tuple[str, ...]
    """Product names as the rules write them."""

    memory_min_mib: int
    memory_max_mib: int
    """Inclusive band; it is wider than one value, for drivers and ECC take different parts for themselves."""

    memory_gib: int
    """Nominal memory, for labels."""

    compute_capability: str
    """As in `9.0`; empty accepts any."""

    partitions: tuple[str, ...] = (FULL,)
    sharing: tuple[Sharing, ...] = (Sharing.EXCLUSIVE,)

    def publishes(self, offer: Offer) -> bool:
        """Whether the rules let this combination be sold."""
        return offer.partition in self.partitions and offer.sharing in self.sharing


@dataclass(frozen=True, slots=True)
class Rulebook:
    """Every class, and what becomes of GPUs that have none."""

    revision: str
    """Names this state of the rules, for logs, metrics and answers."""

    classes: tuple[DeviceClass, ...]
    quarantine_resource: bool = False
    """Whether GPUs in quarantine are published as `accelerator.aik8s.run/unknown`, for administrators to test."""

    by_product: Mapping[str, Sequence[DeviceClass]] = field(init=False)
    by_name: Mapping[str, DeviceClass] = field(init=False)

    def __post_init__(self) -> None:
        index: dict[str, list[DeviceClass]] = {}
        for device_class in self.classes:
            for product in device_class.products:
                index.setdefault(normalised(product), []).append(device_class)
        object.__setattr__(self, "by_product", index)
        object.__setattr__(self, "by_name", {device_class.name: device_class for device_class in self.classes})

    def publishes(self, offer: Offer) -> bool:
        """Whether the rules let this be sold; the quarantine's own resource is, where it is switched on."""
        if offer.device_class == UNKNOWN_CLASS:
            return self.quarantine_resource and offer == Offer(UNKNOWN_CLASS)
        device_class = self.by_name.get(offer.device_class)
        return device_class is not None and device_class.publishes(offer)
