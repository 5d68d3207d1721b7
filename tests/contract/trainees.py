"""Trainers and pods that answer checkpoint requests, for the transports' contract tests."""

import asyncio
import json
import os
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from gpubank.adapters.checkpoint import (
    ExecResult,
    PodNotes,
)
from gpubank.domain.checkpoint import CheckpointRequest
from gpubank.domain.contract import CHECKPOINT_REQUEST_ANNOTATION, CHECKPOINT_STATUS_ANNOTATION
from gpubank.domain.errors import ConflictError
from gpubank.hook import Answer, Hook

UID = "pod-uid-1"


def request(name: str = "loan/local/uid-1/1", epoch: int = 1, reason: str = "wanted back") -> CheckpointRequest:
    return CheckpointRequest(id=name, epoch=epoch, deadline=datetime.now(UTC) + timedelta(minutes=10), reason=reason)


# ---- the three transports, each in front of the same real hook


@dataclass
class FakePod:
    """A pod of an API server in memory, whose kubelet shows the request to the trainer at once."""

    request_file: Path
    uid: str = UID
    annotations: dict[str, str] = field(default_factory=dict)
    writes: int = 0

    async def read(self, namespace: str, pod: str) -> PodNotes | None:
        return PodNotes(uid=self.uid, annotations=dict(self.annotations)) if pod == "job-0" else None

    async def write(self, namespace: str, pod: str, *, uid: str, annotations: Any) -> None:
        if (pod, uid) != ("job-0", self.uid):
            raise ConflictError(f"pod {namespace}/{pod} with uid {uid} is gone")
        self.writes += 1
        self.annotations.update(annotations)
        scratch = self.request_file.with_suffix(".new")
        scratch.write_text(self.annotations[CHECKPOINT_REQUEST_ANNOTATION])
        os.replace(scratch, self.request_file)

    def publish(self, answer: Answer) -> None:
        """Copy an answer to the status, as the sidecar does."""
        self.annotations[CHECKPOINT_STATUS_ANNOTATION] = json.dumps(answer)


class LocalExec:
    """Runs the command on this machine, as a kubelet would in the container."""

    def __init__(self, env: dict[str, str]) -> None:
        self._env = env

    async def run(
        self, namespace: str, pod: str, *, uid: str, container: str, command: Sequence[str], timeout: timedelta
    ) -> ExecResult:
        if uid != UID:
            raise ConflictError(f"pod {namespace}/{pod} with uid {uid} is gone")
        process = await asyncio.create_subprocess_exec(
            *command, env={**os.environ, **self._env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        stdout, stderr = await process.communicate()
        return ExecResult(exit_code=process.returncode or 0, stdout=stdout, stderr=stderr)


class Trainer:
    """A training loop in a thread: steps, and saves when asked; `gate` holds it at a step boundary."""

    def __init__(self, hook: Hook) -> None:
        self.hook = hook
        self.gate = threading.Event()
        self.gate.set()
        self.broken = False
        self.saves = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._train)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._end.set()
        self.gate.set()
        self._thread.join()

    def _train(self) -> None:
        step = 0
        while not self._end.wait(0.01):
            self.gate.wait()
            step += 1
            asked = self.hook.requested(step)
            if asked is not None:
                self.saves += 1
                self.hook.save(step, self._write, asked)

    def _write(self, folder: Path) -> None:
        (folder / "weights.bin").write_bytes(b"w" * 1000)
        (folder / "rank-0").mkdir()
        (folder / "rank-0" / "optim.bin").write_bytes(b"o" * 10)
        if self.broken:
            raise OSError(28, "No space left on device")
