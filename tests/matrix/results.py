"""Results of the matrix: a JSON file that a run adds to, so that an interrupted one goes on; a page for people."""

import json
import platform
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
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
    """What is known of every cell."""

    def __init__(self, path: Path = DATA) -> None:
        self._path = path
        self._data: dict[str, Any] = {"cells": {}}
        if path.exists():
            self._data = json.loads(path.read_text())

    def missing(self, cells: Iterable[Cell], *, failed: bool) -> list[Cell]:
        """Return those that have not been played yet; `failed` counts those that went wrong too."""
        known = self._data["cells"]
        return [cell for cell in cells if str(cell) not in known or (failed and known[str(cell)]["violations"])]

    def add(self, results: Iterable[Result]) -> None:
        """Write down what came of some cells, with today's date and versions."""
        self._data["at"], self._data["versions"] = _now(), self._data.get("versions") or versions()
        for result in results:
            self._data["cells"][str(result.cell)] = {
                "at": _now(),
                "seconds": result.seconds,
                "held": result.held,
                "notes": sorted(set(result.notes)),
                "violations": [violation.splitlines()[0] for violation in result.violations],
            }
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
            *(f"- {name}: {version}" for name, version in (self._data.get("versions") or {}).items()),
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


def _row(kill: Kill, cells: dict[str, Any]) -> str:
    mine = [each for name, each in cells.items() if Cell.of(name).kill == kill]
    if not mine:
        return f"| {' + '.join(kill)} | 0 | | | |"
    bad = sum(bool(each["violations"]) for each in mine)
    notes = "; ".join(sorted({note for each in mine for note in each["notes"]}))
    return f"| {' + '.join(kill)} | {len(mine)} | {bad} | {max(each['seconds'] for each in mine):.1f} | {notes} |"


def versions() -> dict[str, str]:
    """Return what was played on."""
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
