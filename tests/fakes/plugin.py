"""A device plugin that answers on its control socket what a test says: one GPU, broken and mended at will."""

import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gpubank.domain.errors import ConflictError, PolicyError
from nodeagent.plugin.control import listening


class FakePlugin:
    """Implements the control socket's `Orders`."""

    def __init__(self, uuid: str = "GPU-1") -> None:
        self.uuid = uuid
        self.marks: dict[str, dict[str, Any]] = {}
        self.wrong, self.verdict = "", "NONE"

    def fault(self, cause: str, fault: str, *, verdict: str = "", at: float | None = None) -> None:
        """Break the GPU."""
        moment = time.time() if at is None else at
        self.marks[cause] = {
            "cause": cause,
            "fault": fault,
            "action": "RESET_GPU",
            "first_at": moment,
            "last_at": moment,
            "count": 1,
            "note": "",
        }
        self.verdict = verdict

    def inspect(self) -> dict[str, Any]:
        gpu = {"uuid": self.uuid, "marks": list(self.marks.values()), "wrong": self.wrong, "verdict": self.verdict}
        return {"gpus": [gpu], "resources": {}}

    async def quarantine(self, uuid: str, by: str, reason: str, key: str = "") -> bool:
        self._must_know(uuid)
        self.fault("quarantine", "manual", verdict=self.verdict)
        self.marks["quarantine"]["note"] = f"{by}: {reason}"
        return True

    async def release(self, uuid: str, key: str = "") -> bool:
        self._must_know(uuid)
        if self.wrong:
            raise ConflictError(f"GPU {uuid!r} cannot be released: it still reports {self.wrong}; mend it first")
        had = bool(self.marks)
        self.marks.clear()
        return had

    def _must_know(self, uuid: str) -> None:
        if uuid != self.uuid:
            raise PolicyError(f"GPU {uuid!r} is none of this node's; `inspect` lists them")


@asynccontextmanager
async def fake_plugin() -> AsyncIterator[tuple[FakePlugin, Path]]:
    """Answer on a socket whose path is short enough; yields the plugin and its state folder."""
    plugin = FakePlugin()
    with tempfile.TemporaryDirectory(prefix="gpb-") as folder:
        async with listening(Path(folder), plugin):
            yield plugin, Path(folder)
