"""Writes the facts that the stand-in for NVML tells, and changes them while a program runs."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ENVIRONMENT: Final = "GPUBANK_FAKE_NVML"
"""Environment variable that names the facts file."""

MEMORY: Final = {
    "NVIDIA H100 80GB HBM3": 81559,
    "NVIDIA L40S": 46068,
    "NVIDIA A100-SXM4-40GB": 40960,
    "Tesla T4": 15360,
}
CAPABILITY: Final = {
    "NVIDIA H100 80GB HBM3": "9.0",
    "NVIDIA L40S": "8.9",
    "NVIDIA A100-SXM4-40GB": "8.0",
    "Tesla T4": "7.5",
}

Value = int | float | str | None


@dataclass
class NvmlFacts:
    """The facts of one pretended node; every change is written at once, as a whole, by rename."""

    path: Path
    system: dict[str, Value] = field(default_factory=dict)
    gpus: dict[str, dict[str, Value]] = field(default_factory=dict)
    lines: list[tuple[str, dict[str, Value]]] = field(default_factory=list)
    _events: int = 0
    _quiet: bool = False

    def gpu(self, uuid: str, name: str = "NVIDIA H100 80GB HBM3", **facts: Value) -> str:
        """Add a GPU, sound and idle; a fact of None is not supported by it. Returns the UUID."""
        place = len(self.gpus)
        self.gpus[uuid] = {
            "uuid": uuid,
            "name": name,
            "memory": MEMORY.get(name, 16384),
            "cc": CAPABILITY.get(name),
            "bus": f"0000:{0x18 + place:02x}:00.0",
            "pci": "0x233010de",
            "minor": place,
            "numa": 0,
            "mig": 0,
            "temperature": 35,
            "recovery": 0,
            "remap_corrected": 0,
            "remap_uncorrected": 0,
            "remap_pending": 0,
            "remap_failed": 0,
            "ecc_sbe_volatile": 0,
            "ecc_sbe_aggregate": 0,
            "ecc_dbe_volatile": 0,
            "ecc_dbe_aggregate": 0,
            **facts,
        }
        self.write()
        return uuid

    def change(self, uuid: str, **facts: Value) -> None:
        """Change facts of a GPU, as in `lost=1`, `hang=1`, `recovery=1`, `mig=1`."""
        self.gpus[uuid].update(facts)
        self.write()

    def remove(self, uuid: str) -> None:
        """Take a GPU away."""
        del self.gpus[uuid]
        self.lines = [(kind, facts) for kind, facts in self.lines if facts.get("gpu") != uuid]
        self.write()

    def mig(self, gpu: str, uuid: str, profile: str, gi: int, ci: int = 0, **facts: Value) -> str:
        """Add a MIG device and switch MIG on; returns its UUID."""
        slices, gigabytes = profile.split("g.")
        size = int(gigabytes.split("gb", maxsplit=1)[0]) * 1024 - 256
        given: dict[str, Value] = {
            "profile": profile,
            "gi": gi,
            "ci": ci,
            "memory": size,
            "gi_slices": slices,
            "ci_slices": slices,
        }
        self.lines.append(("mig", {"gpu": gpu, "uuid": uuid, **given, **facts}))
        self.gpus[gpu]["mig"] = 1
        self.write()
        return uuid

    def unmig(self, gpu: str) -> None:
        """Destroy a GPU's MIG devices and switch MIG off."""
        self.lines = [(kind, facts) for kind, facts in self.lines if kind != "mig" or facts["gpu"] != gpu]
        self.change(gpu, mig=0)

    def near(self, one: str, other: str, level: int) -> None:
        """Say the nearest common PCIe ancestor of two GPUs, in NVML's numbers."""
        self.lines.append(("near", {"a": one, "b": other, "level": level}))
        self.write()

    def nvlink(self, one: str, other: str, links: int) -> None:
        """Connect two GPUs by NVLinks."""
        for gpu, remote in ((one, other), (other, one)):
            first = sum(kind == "link" and facts["gpu"] == gpu for kind, facts in self.lines)
            for number in range(first, first + links):
                self.lines.append(("link", {"gpu": gpu, "number": number, "remote": self.gpus[remote]["bus"]}))
        self.write()

    def event(
        self, gpu: str, *, xid: int | None = None, kind: int = 8, gi: int | None = None, ci: int | None = None
    ) -> None:
        """Send an event: an XID, or another kind by its bit."""
        self._events += 1
        facts: dict[str, Value] = {
            "number": self._events,
            "gpu": gpu,
            "type": kind,
            "data": xid or 0,
            "gi": gi,
            "ci": ci,
        }
        self.lines.append(("event", facts))
        self.write()

    def add(self, kind: str, **facts: Value) -> None:
        """Add any line: `field`, `gpm`, `process`; see the sources."""
        self.lines.append((kind, facts))
        self.write()

    def set_system(self, **facts: Value) -> None:
        """Change facts of the node, as in `hang=1`, `hang_events=1`, `fail=9`, `driver="580.95.05"`."""
        self.system.update(facts)
        self.write()

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Make several changes one."""
        self._quiet = True
        try:
            yield
        finally:
            self._quiet = False
            self.write()

    def write(self) -> None:
        """Write the file."""
        if self._quiet:
            return
        lines = [("system", self.system), *(("gpu", facts) for facts in self.gpus.values()), *self.lines]
        text = "".join(f"{kind} {_pairs(facts)}\n" for kind, facts in lines)
        new = self.path.with_suffix(".new")
        new.write_text(text)
        os.replace(new, self.path)


def _pairs(facts: dict[str, Value]) -> str:
    return " ".join(f'{key}="{value}"' for key, value in facts.items() if value is not None)
