"""How long the reporter waits before it connects to Temporal anew."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpubank.domain.errors import BackendError
from nodeagent import reporter as reporters
from nodeagent.reporter import LONGEST_PAUSE, Reporter
from nodeagent.reporting.settings import ReporterSettings


class Enough(Exception):  # noqa: N818
    """The scenario is over."""


class Played(Reporter):
    """Plays what became of each connection: seconds that the work lasted, or None where nobody answered."""

    def __init__(self, folder: Path, *outcomes: float | None) -> None:
        super().__init__(ReporterSettings(spool_directory=folder), "n1")
        self.outcomes = list(outcomes)
        self.now = 0.0
        self.rests: list[float] = []

    async def _connect(self) -> Any:
        if not self.outcomes:
            raise Enough
        if self.outcomes[0] is None:
            self.outcomes.pop(0)
            raise BackendError("nobody answers")

    async def _work(self, client: object) -> None:
        self.now += self.outcomes.pop(0) or 0.0

    async def _rest(self, seconds: float) -> None:
        self.now += seconds
        self.rests.append(seconds)


@pytest.mark.parametrize(
    ("outcomes", "rests"),
    [
        ((None, None, None), [1, 2, 4]),
        ((0.1, 0.1, 0.1), [1, 2, 4]),
        ((None, 0.1, None, 59.0), [1, 2, 4, 8]),
        ((None, None, LONGEST_PAUSE + 1, None), [1, 2, 1, 2]),
        ((0.1,) * 8, [1, 2, 4, 8, 16, 32, 60, 60]),
    ],
)
async def test_the_pause_grows_until_the_work_has_lasted_longer_than_the_longest_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcomes: tuple[float | None, ...], rests: list[float]
) -> None:
    played = Played(tmp_path, *outcomes)
    monkeypatch.setattr(reporters, "time", SimpleNamespace(monotonic=lambda: played.now))
    with pytest.raises(Enough):
        await played._serve()
    assert played.rests == rests
