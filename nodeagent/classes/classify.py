"""Which class a GPU belongs to, and why.

The first rule that applies decides; every other outcome is quarantine, never a neighbour:

1. the product name, normalised, is listed by at least one class;
2. the memory lies in that class's band (of a MIG device: the GPU's memory does, or the slice's own fits its profile);
3. the compute capability, where both sides say one, is the class's;
4. exactly one class is left;
5. the partition is one that the class publishes.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gpubank.domain.device import PROFILE_PATTERN, UNKNOWN_CLASS, Offer, Sharing, partition_of
from nodeagent.classes.facts import Facts, normalised, split_mig
from nodeagent.classes.rulebook import DeviceClass, Rulebook

# A slice of nominally N GB reports less than N GiB: the framebuffer's own share is taken off, and rounding is by SKU.
_SLICE_LEAST: Final = 0.85
_SLICE_MOST: Final = 1.03


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one GPU or MIG device is."""

    device_class: str
    """A class of the rules, or `unknown`."""

    partition: str
    """`full`, or as in `mig-1g.10gb`; what it is, also where it is not published."""

    resource: str | None
    """Resource under which it is offered to one holder at a time; None if nobody can ask for it."""

    reason: str
    """Why, for people."""

    @property
    def quarantined(self) -> bool:
        """Whether no rule places it."""
        return self.device_class == UNKNOWN_CLASS


def classify(facts: Facts, rulebook: Rulebook) -> Verdict:
    """Judge one device; never raises, whatever the facts are."""
    name, profile, trouble = _name_and_profile(facts)
    partition = partition_of(profile)
    if trouble:
        return _quarantine("full" if not profile else partition, trouble, rulebook)
    candidates = rulebook.by_product.get(name, ())
    if not candidates:
        return _quarantine(partition, f"no class lists the product {facts.name!r}", rulebook)
    if facts.memory_mib is None:
        return _quarantine(partition, f"the memory of {facts.name!r} is not reported", rulebook)
    fitting = [found for found in candidates if _memory_fits(found, facts.memory_mib, profile)]
    if not fitting:
        return _quarantine(partition, _memory_reason(facts, candidates, profile), rulebook)
    capable = [found for found in fitting if _capability_fits(found, facts.compute_capability)]
    if not capable:
        names = ", ".join(f"{found.name} has {found.compute_capability}" for found in fitting)
        found = facts.compute_capability
        return _quarantine(partition, f"compute capability {found!r} of {facts.name!r} is wrong: {names}", rulebook)
    if len(capable) > 1:
        names = ", ".join(found.name for found in capable)
        return _quarantine(partition, f"{facts.name!r} fits more than one class: {names}", rulebook)
    return _placed(capable[0], partition, facts, rulebook)


def _placed(found: DeviceClass, partition: str, facts: Facts, rulebook: Rulebook) -> Verdict:
    offer = Offer(found.name, partition)
    because = f"{facts.name!r} with {facts.memory_mib} MiB is {found.name} (rules {rulebook.revision})"
    if partition not in found.partitions:
        return Verdict(found.name, partition, None, f"{because}, whose partition {partition!r} is not published")
    if Sharing.EXCLUSIVE not in found.sharing:
        return Verdict(found.name, partition, None, f"{because}, which is only published shared")
    return Verdict(found.name, partition, offer.resource, because)


def _quarantine(partition: str, reason: str, rulebook: Rulebook) -> Verdict:
    resource = Offer(UNKNOWN_CLASS).resource if rulebook.quarantine_resource else None
    return Verdict(UNKNOWN_CLASS, partition, resource, f"quarantine: {reason} (rules {rulebook.revision})")


def _name_and_profile(facts: Facts) -> tuple[str, str, str]:
    """Normalised name, MIG profile in lower case, and what is wrong with them, if anything."""
    name, told = split_mig(normalised(facts.name))
    given = facts.mig_profile.strip().lower().removeprefix("mig ").removeprefix("mig-")
    if given and not re.fullmatch(PROFILE_PATTERN, given):
        return name, "", f"the MIG profile {facts.mig_profile!r} is none"
    if given and told and partition_of(given) != partition_of(told):
        return name, given, f"the name {facts.name!r} and the MIG profile {facts.mig_profile!r} contradict each other"
    if " mig " in f" {name} " and not (given or told):
        return name, "", f"{facts.name!r} is a MIG device of no profile that can be read"
    return name, given or told, ""


def _memory_fits(found: DeviceClass, memory_mib: int, profile: str) -> bool:
    whole = found.memory_min_mib <= memory_mib <= found.memory_max_mib
    if whole or not profile:
        return whole
    # The slice's own memory: it fits its profile, and the profile is one that this class can be cut into. The latter
    # tells same-named products of different memory apart; a profile that nobody publishes fits none.
    return partition_of(profile) in found.partitions and _slice_fits(memory_mib, profile)


def _slice_fits(memory_mib: int, profile: str) -> bool:
    found = re.search(r"g\.([1-9][0-9]*)gb", profile)
    nominal = int(found.group(1)) * 1024 if found else 0
    return _SLICE_LEAST * nominal <= memory_mib <= _SLICE_MOST * nominal


def _memory_reason(facts: Facts, candidates: Sequence[DeviceClass], profile: str) -> str:
    bands = ", ".join(f"{found.name} has {found.memory_min_mib}-{found.memory_max_mib}" for found in candidates)
    part = f", profile {profile}," if profile else ""
    return f"{facts.memory_mib} MiB of {facts.name!r}{part} fit no class of that product: {bands}"


def _capability_fits(found: DeviceClass, capability: str) -> bool:
    return not capability or not found.compute_capability or capability == found.compute_capability
