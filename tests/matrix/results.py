"""Results of the matrix: a JSON file that a run adds to, so that an interrupted one goes on; a page for people."""

import hashlib
import json
import platform
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from gpubank.embedded.devserver import find_binary
from gpubank.lab.components import BASE
from gpubank.lab.postgres import find_binaries
from gpubank.lab.state import write_whole
from tests.matrix.cells import CELLS, KILLS, Cell, Kill
from tests.matrix.play import Result

ROOT: Final = Path(__file__).parents[2]
DATA: Final = Path(__file__).with_name("results.json")
PAGE: Final = ROOT / "docs" / "crash-matrix-results.md"


class Results:
    """What is known of every cell, and on which code and servers it was played."""

    def __init__(self, path: Path = DATA) -> None:
        self._path = path
        self._data: dict[str, Any] = {"played_on": {}, "cells": {}}
        if path.exists():
            self._data = json.loads(path.read_text())

    def missing(self, cells: Iterable[Cell], *, failed: bool) -> list[Cell]:
        """Return those that were not played on what is here now; with `failed` only those that went wrong."""
        known, here = self._data["cells"], ground()
        if failed:
            return [cell for cell in cells if known.get(str(cell), {}).get("violations")]
        return [cell for cell in cells if known.get(str(cell), {}).get("on") != here]

    def add(self, results: Iterable[Result]) -> None:
        """Write down what came of some cells, with today's date and versions."""
        here, known = ground(), self._data["cells"]
        self._data["at"] = _now()
        self._data["played_on"].setdefault(here, versions())
        for result in results:
            known[str(result.cell)] = {
                "on": here,
                "at": _now(),
                "seconds": result.seconds,
                "held": result.held,
                "notes": sorted(set(result.notes)),
                "violations": [violation.splitlines()[0] for violation in result.violations],
            }
        used = {each["on"] for each in known.values()}
        self._data["played_on"] = {on: named for on, named in self._data["played_on"].items() if on in used}
        write_whole(self._path, json.dumps(self._data, indent=1) + "\n")

    def page(self) -> str:
        """Write it for people."""
        cells = self._data["cells"]
        bad = {name: each for name, each in cells.items() if each["violations"]}
        lines = [
            "# Crash matrix: results",
            "",
            "Written by `make matrix`; [what is played and judged](crash-matrix.md).",
            "",
            f"{len(cells)} of {len(CELLS)} cells, the last at {self._data.get('at')}; {len(bad)} with violations.",
            "",
            *(self._ground(on, named) for on, named in self._data["played_on"].items()),
            "",
            "| killed | cells | violations | longest from crash to end, s | ended by themselves |",
            "|---|---|---|---|---|",
            *(_row(kill, cells) for kill in KILLS),
        ]
        if bad:
            lines += ["", "## Violations", ""]
            lines += [f"- `{name}`: {'; '.join(each['violations'])}" for name, each in bad.items()]
        lines += ["", "## Cells", "", "| cell | seconds | held | |", "|---|---|---|---|"]
        lines += [
            f"| {name} | {each['seconds']} | {each['held']} | {'violated' if each['violations'] else 'as if nothing'} |"
            for name, each in sorted(cells.items(), key=lambda item: CELLS.index(Cell.of(item[0])))
        ]
        return "\n".join(lines) + "\n"

    def _ground(self, on: str, named: dict[str, str]) -> str:
        mine = [each["at"] for each in self._data["cells"].values() if each["on"] == on]
        versions_ = ", ".join(f"{name} {version}" for name, version in named.items())
        return f"- {len(mine)} cells from {min(mine)} to {max(mine)} on code `{on}`: {versions_}"


def _row(kill: Kill, cells: dict[str, Any]) -> str:
    mine = [each for name, each in cells.items() if Cell.of(name).kill == kill]
    if not mine:
        return f"| {' + '.join(kill)} | 0 | | | |"
    bad = sum(bool(each["violations"]) for each in mine)
    notes = "; ".join(sorted({note for each in mine for note in each["notes"]}))
    return f"| {' + '.join(kill)} | {len(mine)} | {bad} | {max(each['seconds'] for each in mine):.1f} | {notes} |"


@cache
def ground() -> str:
    """Return a hash of the code of the bank's processes and of the versions of all servers: what a result speaks of."""
    summed = hashlib.sha256(json.dumps(versions(), sort_keys=True).encode())
    for folder in ("gpubank", "workflows", "activities", "workers"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            summed.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return summed.hexdigest()[:12]


@cache
def versions() -> dict[str, str]:
    """Return the versions of what was played on."""
    temporal = subprocess.run([str(find_binary()), "--version"], capture_output=True, text=True, check=True)
    postgres = subprocess.run([str(find_binaries() / "postgres"), "-V"], capture_output=True, text=True, check=True)
    servers = {each.name: each.program.version for each in BASE if each.program is not None}
    return {
        "gpubank": metadata.version("gpubank"),
        "Python": platform.python_version(),
        "temporalio": metadata.version("temporalio"),
        "Temporal": temporal.stdout.strip(),
        "PostgreSQL": postgres.stdout.strip(),
        **servers,
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
