"""What a class is decided from: one GPU or one MIG device, as NVML describes it."""

import re
from dataclasses import dataclass
from typing import Final

_TRADEMARKS: Final = re.compile(r"\((?:r|tm)\)|[®™]", re.IGNORECASE)
_SEPARATORS: Final = re.compile(r"[\s_-]+")
_MIG_TAIL: Final = re.compile(r"\smig\s([1-9][0-9]*(?:c\.[1-9][0-9]*)?g\.[1-9][0-9]*gb(?:[+.-][a-z]+)*)$")


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts of one GPU or MIG device; driver and VBIOS are left out on purpose, for they change and it does not."""

    name: str
    """Product name, as in `NVIDIA H100 80GB HBM3`; of a MIG device also as in `NVIDIA A100-SXM4-40GB MIG 1g.5gb`."""

    memory_mib: int | None
    """Total memory in MiB, of the GPU or of the MIG device itself; None if NVML does not say."""

    compute_capability: str = ""
    """As in `9.0`; empty if unsaid."""

    pci_device_id: str = ""
    """As found, recorded for people; nothing is decided by it."""

    mig_profile: str = ""
    """As in `1g.10gb`; empty for a whole GPU."""


def normalised(name: str) -> str:
    """Write a product name so that spelling does not matter: case, separators, trade marks, the maker's prefix.

    Nothing that tells two products apart is dropped: `H100 PCIe`, `H100 NVL` and `H100` stay three names.
    """
    plain = _SEPARATORS.sub(" ", _TRADEMARKS.sub("", name)).strip().lower()
    plain = plain.removeprefix("nvidia ")
    return plain.removeprefix("tesla ")


def split_mig(name: str) -> tuple[str, str]:
    """Split a normalised name into the GPU's and the MIG profile's, which is empty for a whole GPU.

    `normalised` writes `1g.10gb-me` with a space for its dash; both spellings name the same profile.
    """
    found = _MIG_TAIL.search(name)
    return (name[: found.start()], found.group(1)) if found else (name, "")
