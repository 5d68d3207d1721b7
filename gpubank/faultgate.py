"""Gates at the named points of a recall: files by which a crash test holds a process where it is about to kill it.

    FOLDER/<pool>/<point>.<position>.hold      there: whoever comes by waits until it is gone
    FOLDER/<pool>/<point>.<position>.reached   one line for everybody who waited: its process id

Files, for they outlive whoever is killed. A process has gates only where the setting `faults.folder` is set.
"""

import asyncio
import os
from pathlib import Path
from typing import Final

from gpubank.domain.faults import Spot

LOOK: Final = 0.02
"""Seconds between two looks at a gate that is shut."""


class FaultGate:
    """The gates of all pools, below one folder: the side of the bank, and that of the test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def at(self, pool: str, spot: Spot) -> None:
        """Come by: go on at once, or wait until the gate is opened."""
        hold = self._hold(pool, spot)
        if not hold.exists():
            return
        with self._reached(pool, spot).open("a") as file:
            file.write(f"{os.getpid()}\n")
        while hold.exists():  # noqa: ASYNC110 - whoever opens it is another process
            await asyncio.sleep(LOOK)

    # ---- the test's side

    def shut(self, pool: str, spot: Spot) -> None:
        """Have everybody who comes by wait from now on."""
        hold = self._hold(pool, spot)
        hold.parent.mkdir(parents=True, exist_ok=True)
        self._reached(pool, spot).unlink(missing_ok=True)
        hold.touch()

    def open(self, pool: str, spot: Spot) -> None:
        """Let everybody go on who waits."""
        self._hold(pool, spot).unlink(missing_ok=True)

    def waited(self, pool: str, spot: Spot) -> list[int]:
        """Return the process id of everybody who came by a gate that was shut, the first one first."""
        reached = self._reached(pool, spot)
        return [int(line) for line in reached.read_text().split()] if reached.exists() else []

    def _hold(self, pool: str, spot: Spot) -> Path:
        return self._folder / pool / f"{spot}.hold"

    def _reached(self, pool: str, spot: Spot) -> Path:
        return self._folder / pool / f"{spot}.reached"
