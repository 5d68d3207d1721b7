"""Processes of this machine, known by pid and start time."""

import os
import signal
from pathlib import Path

import pytest

from gpubank.simulation import processes
from gpubank.simulation.processes import launch


def test_a_process_that_ends_while_it_is_looked_at_leaves_no_zombie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = launch(["sleep", "600"], env=dict(os.environ), log=tmp_path / "log")
    look = processes._start_of

    def as_it_dies(pid: int) -> str | None:
        os.kill(pid, signal.SIGKILL)
        while look(pid) is not None:
            pass
        return look(pid)

    monkeypatch.setattr(processes, "_start_of", as_it_dies)
    assert not process.alive()
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
