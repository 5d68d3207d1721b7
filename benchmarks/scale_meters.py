"""What the scale proof reads off the machine: processes, the API server's audit log, the controller's turns."""

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit
from urllib.request import urlopen

from gpubank.lab.bank import SYSTEM_NAMESPACE

TICKS: Final = os.sysconf("SC_CLK_TCK")
ACCOUNTS: Final = f"system:serviceaccount:{SYSTEM_NAMESPACE}:gpubank-"
TURNS: Final = "gpubank_turn_seconds"


@dataclass(frozen=True)
class Used:
    """What one program has used until a moment."""

    seconds: float
    """Of processor time, children included."""

    mib: float
    """Resident now; of what processes share, each has its part."""


def used(pid: int) -> Used:
    """Return what a process and everything that it started and that still runs use."""
    seconds, mib = 0.0, 0.0
    for each in (pid, *_descendants(pid)):
        try:
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            mib += _pss_mib(each)
        except (OSError, StopIteration):
            continue  # it has just ended
        # utime and stime, and those of children that were waited for
        seconds += sum(int(value) for value in fields[11:15]) / TICKS
    return Used(seconds, mib)


def _descendants(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return []
    return [found for child in children for found in (child, *_descendants(child))]


def _pss_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("Pss:")).split()[1]) / 1024


def busy_seconds() -> float:
    """Return the processor seconds that the whole machine has spent on anything."""
    fields = [int(value) for value in Path("/proc/stat").read_text().splitlines()[0].split()[1:8]]
    return (sum(fields) - fields[3] - fields[4]) / TICKS  # all but idle and iowait


class Meter:
    """Processor time between two moments, program by program."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = pids
        self._before = {name: used(pid) for name, pid in pids.items()}
        self._busy = busy_seconds()

    def since(self, seconds: float) -> tuple[dict[str, float], dict[str, float], float]:
        """Return cores and MiB by program, and the cores that the whole machine was busy with."""
        now = {name: used(pid) for name, pid in self._pids.items()}
        cores = {name: (now[name].seconds - self._before[name].seconds) / seconds for name in now}
        return cores, {name: each.mib for name, each in now.items()}, (busy_seconds() - self._busy) / seconds


class Audit:
    """What the bank's accounts ask the API server for, from its audit log."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._at = 0

    def skip(self) -> None:
        """Forget what was asked until now."""
        self._at = self._file.stat().st_size

    def read(self) -> Counter[tuple[str, str, str]]:
        """Count what was asked since: (process, verb, resource)."""
        with self._file.open("rb") as file:
            file.seek(self._at)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        return counted(whole.splitlines())


def counted(lines: Iterable[bytes]) -> Counter[tuple[str, str, str]]:
    """Count the calls of the bank's accounts, each when it is answered, by (process, verb, resource)."""
    found = Counter[tuple[str, str, str]]()
    for line in lines:
        event = json.loads(line)
        user = event["user"]["username"]
        # A watch is answered once when it begins and once when it ends.
        stage = "ResponseStarted" if event["verb"] == "watch" else "ResponseComplete"
        if user.startswith(ACCOUNTS) and event["stage"] == stage and "objectRef" in event:
            about = event["objectRef"]
            resource = "/".join(part for part in (about["resource"], about.get("subresource")) if part)
            found[user.removeprefix(ACCOUNTS), _verb(event), resource] += 1
    return found


def _verb(event: Mapping[str, Any]) -> str:
    """Return the verb; a list of one object, which only asks whether a kind is served, is called `probe`."""
    query = parse_qs(urlsplit(event.get("requestURI", "")).query)
    return "probe" if event["verb"] == "list" and query.get("limit") == ["1"] else str(event["verb"])


class Turns:
    """Turns of the controller's loops, from its own metrics."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/metrics"
        self._count, self._seconds = self._read()

    def since(self) -> tuple[int, float]:
        """Return how many turns there were since, and their mean length in seconds."""
        count, seconds = self._read()
        turns, took = count - self._count, seconds - self._seconds
        self._count, self._seconds = count, seconds
        return int(turns), took / turns if turns else 0.0

    def _read(self) -> tuple[float, float]:
        with urlopen(self._url, timeout=30) as answer:
            text = answer.read().decode()
        return _sum(text, f"{TURNS}_count"), _sum(text, f"{TURNS}_sum")


def _sum(text: str, name: str) -> float:
    values = (line.rpartition(" ")[2] for line in text.splitlines() if line.startswith((f"{name}{{", f"{name} ")))
    return sum(float(value) for value in values)
