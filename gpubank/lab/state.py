"""What is known of a lab between two commands: one JSON file, replaced whole.

The file is written after every start, so that whatever kills the command that starts a lab, the next one finds every
process of it. Pids carry their start time and the boot they belong to: neither a recycled pid nor a reboot can make
`down` stop somebody else's process.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import SystemRandom
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from gpubank.simulation.processes import ProcessId, is_free

FILE: Final = "state.json"
MARKER: Final = "GPUBANK_LAB_FOLDER"
"""Environment variable of every process of a lab: the lab's folder. Finds what no state file knows of."""

# Below the range that outgoing connections take their ports from: between choice and use nobody gets one by chance.
_PORTS: Final = range(20_000, 32_000)


class Record(BaseModel):
    """One process of a lab."""

    model_config = ConfigDict(frozen=True)

    component: str
    pid: int
    started: str
    log: Path

    @property
    def identity(self) -> ProcessId:
        return ProcessId(self.pid, self.started)


class State(BaseModel):
    """A lab as its folder has it."""

    model_config = ConfigDict(frozen=True)

    name: str
    phase: Literal["starting", "ready"]
    boot: str
    """Boot of the machine that the pids belong to."""
    ports: dict[str, int]
    processes: tuple[Record, ...] = ()
    """In the order of their start."""
    components: tuple[str, ...] = ()
    seconds: float | None = None
    """How long the start took."""

    def started(self, record: Record) -> "State":
        """Return the state with `record` added, in the place of an older process of the same component."""
        # In its place, for what stands before it must be stopped after it.
        known = {each.component: each for each in self.processes} | {record.component: record}
        return self.model_copy(update={"processes": tuple(known.values())})

    def alive(self) -> dict[str, bool]:
        """Tell for every process whether it still runs."""
        here = self.boot == boot_id()
        return {record.component: here and record.identity.alive() for record in self.processes}

    def whole(self) -> bool:
        """Tell whether the lab is up with every process it should have."""
        alive = self.alive()
        return self.phase == "ready" and all(alive.get(component, False) for component in self.components)


def read(folder: Path) -> State | None:
    """Return the state in `folder`; None if there is none, or one of a version that cannot be read."""
    try:
        return State.model_validate_json((folder / FILE).read_bytes())
    except (FileNotFoundError, ValueError):
        return None


def write(folder: Path, state: State) -> None:
    """Replace the state in `folder` in one step."""
    write_whole(folder / FILE, state.model_dump_json(indent=2) + "\n")


def write_whole(path: Path, text: str) -> None:
    """Write a file that a reader finds old or new, never half; only its owner may read it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def boot_id() -> str:
    """Return what tells this boot of the machine from another."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def strays(folder: Path, *, having: str = MARKER) -> Iterator[ProcessId]:
    """Find the live processes that carry `folder` in their environment, whether or not a state file knows them.

    `having` narrows it to those with another variable as well.
    """
    wanted, other = f"{MARKER}={folder}".encode(), f"{having}=".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if wanted not in variables or not any(each.startswith(other) for each in variables):
            continue
        if process := ProcessId.of(int(entry.name)):
            yield process


def choose_ports(names: Iterable[str], root: Path) -> dict[str, int]:
    """Choose a free loopback port for every name, none of them promised to another lab below `root`.

    The caller holds the lock of `root` until its own state is written.
    """
    promised = {
        port for file in root.glob(f"*/{FILE}") if (state := read(file.parent)) for port in state.ports.values()
    }
    candidates = iter(SystemRandom().sample(_PORTS, k=len(_PORTS)))
    chosen: dict[str, int] = {}
    for name in names:
        chosen[name] = next(port for port in candidates if port not in promised and is_free(port))
    return chosen
