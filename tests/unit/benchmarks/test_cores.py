"""Cores of two sides: pinned threads, and a machine that has too few."""

import os
import subprocess
import sys

import pytest

from benchmarks.cores import Split, pin, split

THREADS = """
import sys, threading
stop = threading.Event()
for _ in range(3):
    threading.Thread(target=stop.wait, daemon=True).start()
print("up", flush=True)
sys.stdin.read()
"""


def test_every_thread_of_a_process_is_pinned() -> None:
    cores = frozenset({max(os.sched_getaffinity(0))})
    with subprocess.Popen([sys.executable, "-c", THREADS], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        pin(process.pid, cores)
        tasks = [int(name) for name in os.listdir(f"/proc/{process.pid}/task")]
        found = {task: os.sched_getaffinity(task) for task in tasks}
        process.communicate()
    assert len(found) == 4
    assert set(map(frozenset, found.values())) == {cores}


@pytest.mark.parametrize(("cores", "many"), [({0, 1}, {0}), ({2, 5, 7}, {2, 5})])
def test_one_core_is_kept_apart(monkeypatch: pytest.MonkeyPatch, cores: set[int], many: set[int]) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores)
    assert split() == Split(frozenset(many), frozenset(cores - many))


def test_one_core_cannot_be_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    with pytest.raises(ValueError, match="one core only"):
        split()
