"""A reader's terminal: one bash per page, in which commands see what earlier ones exported, started or wrote."""

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.docs.reading import ROOT

COPIED: Final = ("Makefile", "containers", "examples", "manifests", "pyproject.toml", "requirements.lock", "scripts")
"""What of the project stands in a reader's folder: a copy, for readers write into it."""


@dataclass(frozen=True)
class Ran:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """Both outputs, for people."""
        return (self.out + self.err).strip()


def checkout(folder: Path) -> Path:
    """Return a copy of what readers use of the project, prepared as `make setup` does it."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(source, folder / name)
    # The environment that runs the tests is what `make setup` makes; it is on PATH already.
    (folder / ".venv").mkdir()
    (folder / ".venv" / ".ready").touch()
    return folder


def environment(home: Path, programs: Mapping[str, Path], **more: str) -> dict[str, str]:
    """Return a reader's environment: a home of its own, these programs on PATH, nothing of the bank's settings."""
    tools = home / "bin"
    tools.mkdir(parents=True, exist_ok=True)
    for name, target in programs.items():
        wrapper = tools / name
        wrapper.write_text(f'#!/bin/sh\nexec "{target}" "$@"\n')
        wrapper.chmod(0o755)
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("GPUBANK_", "KUBE", "PG", "TEMPORAL_", "XDG_", "PYTEST_", "COV_", "MAKE"))
    }
    path = os.pathsep.join([str(tools), str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])
    return {**kept, "HOME": str(home), "PATH": path, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "default", **more}


class Shell:
    """One bash; use it as a context manager, which ends it and whatever it started."""

    def __init__(self, folder: Path, env: Mapping[str, str], cwd: Path) -> None:
        """Start it in `cwd`; scripts and outputs go to `folder`."""
        self._folder, self._count = folder, 0
        folder.mkdir(parents=True, exist_ok=True)
        self._told, ours = os.pipe()
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc", "-c", f'exec {ours}>&{ours}; while read -r line; do eval "$line"; done'],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[ours],
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
        )
        self._status = ours
        os.close(ours)

    def run(self, text: str, *, typed: str = "", timeout: float = 60) -> Ran:
        """Run a command as it stands; `typed` is what is typed while it runs."""
        self._count += 1
        script, out, err, keys = (self._folder / f"{self._count}.{end}" for end in ("sh", "out", "err", "in"))
        script.write_text(f"{text}\n")
        keys.write_text(typed)
        # The command may leave something running; that must not hold the pipe on which its end is told.
        line = f'source "{script}" {self._status}>&- <"{keys}" >"{out}" 2>"{err}"; echo $? >&{self._status}\n'
        assert self._bash.stdin is not None
        self._bash.stdin.write(line.encode())
        self._bash.stdin.flush()
        code = self._code(timeout)
        ran = Ran(code if code is not None else -1, out.read_text(errors="replace"), err.read_text(errors="replace"))
        if code is None:
            raise TimeoutError(f"`{text}` has not ended after {timeout:g} s; it said: {ran.said}")
        return ran

    def _code(self, timeout: float) -> int | None:
        deadline, told = time.monotonic() + timeout, b""
        while not told.endswith(b"\n"):
            if not select.select([self._told], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return None
            if not (more := os.read(self._told, 64)):
                raise RuntimeError(f"bash ended with {self._bash.wait()}")
            told += more
        return int(told)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bash.poll() is None:
            os.killpg(self._bash.pid, signal.SIGKILL)
        self._bash.wait()
        assert self._bash.stdin is not None
        self._bash.stdin.close()
        os.close(self._told)
