"""Local processes: exit codes that survive their starter, signals that reach the whole tree and nobody else."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gpubank.simulation.processes import KILLED, LocalProcess, ProcessId, free_port
from tests.support.waiting import until


def start(tmp_path: Path, *argv: str) -> LocalProcess:
    return LocalProcess.start(argv, env=os.environ, exit_file=tmp_path / "exit", log=tmp_path / "log", folder=tmp_path)


@pytest.mark.parametrize("code", [0, 1, 42])
async def test_the_exit_code_is_the_commands_own(tmp_path: Path, code: int) -> None:
    assert await start(tmp_path, "sh", "-c", f"exit {code}").wait() == code


async def test_a_command_that_does_not_exist_ends_with_127_and_says_so(tmp_path: Path) -> None:
    assert await start(tmp_path, "no-such-program").wait() == 127
    assert "no-such-program" in (tmp_path / "log").read_text()


async def test_arguments_reach_the_command_as_they_are(tmp_path: Path) -> None:
    await start(tmp_path, "printf", "%s|", "a b", "$HOME", "'", "").wait()
    assert (tmp_path / "log").read_text() == "a b|$HOME|'||"


async def test_the_command_sees_sigterm_and_may_end_as_it_likes(tmp_path: Path) -> None:
    process = start(tmp_path, "sh", "-c", "trap 'exit 7' TERM; touch up; while :; do sleep 0.02; done")
    until((tmp_path / "up").exists, "the trap")
    assert process.exit_code() is None
    assert await process.stop(10) == 7


async def test_a_command_without_a_handler_ends_by_the_signal(tmp_path: Path) -> None:
    process = start(tmp_path, "sh", "-c", "touch up; exec sleep 60")
    until((tmp_path / "up").exists, "the start")
    assert await process.stop(10) == 128 + signal.SIGTERM


async def test_a_stubborn_command_and_its_children_are_killed_after_the_grace(tmp_path: Path) -> None:
    process = start(tmp_path, "sh", "-c", "trap '' TERM; sleep 60 & echo $! > child; while :; do sleep 0.02; done")
    until(lambda: (tmp_path / "child").exists() and bool((tmp_path / "child").read_text()), "the child")
    child = ProcessId.of(int((tmp_path / "child").read_text()))
    assert child is not None
    assert await process.stop(0.1) == KILLED
    until(lambda: not child.alive(), "the end of the child")


def test_a_successor_that_is_no_parent_learns_the_exit_code(tmp_path: Path) -> None:
    script = f"""
import os, pathlib
from gpubank.simulation.processes import LocalProcess
folder = pathlib.Path({str(tmp_path)!r})
made = LocalProcess.start(["sh", "-c", "while ! test -e go; do sleep 0.02; done; exit 9"],
                          env=os.environ, exit_file=folder / "exit", log=folder / "log", folder=folder)
print(made.identity.pid, made.identity.started)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    pid, started = done.stdout.split()
    adopted = LocalProcess(ProcessId(int(pid), started), tmp_path / "exit")
    assert adopted.exit_code() is None
    (tmp_path / "go").touch()
    until(lambda: adopted.exit_code() == 9, "the exit code")


def test_another_process_with_the_same_pid_is_never_signalled(tmp_path: Path) -> None:
    process = start(tmp_path, "sleep", "60")
    recycled = ProcessId(process.identity.pid, "long ago")
    assert not recycled.alive()
    assert not recycled.signal(signal.SIGKILL)
    assert process.identity.alive()
    process.identity.signal(signal.SIGKILL)
    until(lambda: not process.identity.alive(), "the end")


def test_free_ports_are_free() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port()))
