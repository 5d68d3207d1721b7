"""Names of GPUs as the platform sells them: class, partition, sharing, and the resource that a pod asks for.

    h100-80gb                        a whole GPU, one holder          accelerator.aik8s.run/h100-80gb
    h100-80gb.mig-1g.10gb            a MIG slice of it                accelerator.aik8s.run/h100-80gb.mig-1g.10gb
    h100-80gb.shared                 a GPU in turns                   accelerator.aik8s.run/h100-80gb.shared

The three parts are orthogonal, and a name never says more than what its holder gets: a slice or a turn is never called
by the whole GPU's name. Node agent and control plane share this module; it needs nothing but the standard library.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

RESOURCE_PREFIX: Final = "accelerator.aik8s.run"
"""Domain of every resource and node label about accelerators."""

UNKNOWN_CLASS: Final = "unknown"
"""Class of every GPU that no rule names: it is in quarantine and sold to nobody."""

FULL: Final = "full"
"""Partition that is the whole GPU."""

MIG_PREFIX: Final = "mig-"
"""Begins the name of a partition that is a MIG device."""

SHARED_SUFFIX: Final = "shared"
"""Ends the name of a resource whose holders take turns, as upstream's device plugin has it."""

CLASS_LABEL: Final = f"{RESOURCE_PREFIX}/class"
"""On a node all of whose GPUs are of one class: that class."""

MEMORY_LABEL: Final = f"{RESOURCE_PREFIX}/memory-gib"
"""On a node all of whose GPUs are of one class: nominal memory of one GPU in GiB."""

COUNT_LABEL_PREFIX: Final = f"count.{RESOURCE_PREFIX}"
"""`count.accelerator.aik8s.run/<class>` says how many GPUs of that class a node has; also on mixed nodes."""

CLASS_PATTERN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
"""A class is a DNS label without dots, for a dot begins the next part of a resource's name."""

PARTITION_PATTERN: Final = r"^(full|mig-[1-9][0-9]*(c\.[1-9][0-9]*)?g\.[1-9][0-9]*gb(\.[a-z]+)*)$"
"""`full`, or `mig-` and a MIG profile with its `+` written as a dot."""

PROFILE_PATTERN: Final = r"^[1-9][0-9]*(c\.[1-9][0-9]*)?g\.[1-9][0-9]*gb([+.-][a-z]+)*$"
"""A MIG profile as NVML and nvidia-smi write it, as in `1g.10gb` or `1g.10gb+me`, in lower case."""


class Sharing(StrEnum):
    """How many hold a device at the same time."""

    EXCLUSIVE = "exclusive"
    """One."""

    TIME_SLICING = "time-slicing"
    """Several, in turns, without isolation of memory."""


@dataclass(frozen=True, slots=True, order=True)
class Offer:
    """What a pod gets one of for one unit of a resource."""

    device_class: str
    partition: str = FULL
    sharing: Sharing = Sharing.EXCLUSIVE

    @property
    def name(self) -> str:
        """The resource's name without its domain."""
        parts = [self.device_class]
        if self.partition != FULL:
            parts.append(self.partition)
        if self.sharing is Sharing.TIME_SLICING:
            parts.append(SHARED_SUFFIX)
        return ".".join(parts)

    @property
    def resource(self) -> str:
        """The extended resource that a pod asks for."""
        return f"{RESOURCE_PREFIX}/{self.name}"

    @classmethod
    def of(cls, resource: str) -> Self | None:
        """Take a resource's name apart; None if it is none of ours."""
        domain, _, name = resource.partition("/")
        device_class, _, rest = name.partition(".")
        if domain != RESOURCE_PREFIX or not re.fullmatch(CLASS_PATTERN, device_class):
            return None
        sharing = Sharing.EXCLUSIVE
        if rest == SHARED_SUFFIX or rest.endswith(f".{SHARED_SUFFIX}"):
            sharing, rest = Sharing.TIME_SLICING, rest.removesuffix(SHARED_SUFFIX).removesuffix(".")
        if (rest == "" and not name.endswith(".")) or (rest != FULL and re.fullmatch(PARTITION_PATTERN, rest)):
            return cls(device_class, rest or FULL, sharing)
        return None


def partition_of(mig_profile: str) -> str:
    """Name the partition that a MIG profile makes; an empty profile is the whole GPU."""
    if not mig_profile:
        return FULL
    return MIG_PREFIX + mig_profile.lower().replace("+", ".").replace("-", ".")
