"""Checkpoints over a command in the pod, for images whose trainer has a hook script but no network.

The endpoint is the command; the bank appends `--id=… --epoch=… --deadline=… --reason=… --wait=0`, or `--id=… --status`
to ask how far a request is. The command must not wait for the checkpoint (`--wait=0`). The last line of its output is
the answer as JSON. Exit codes: 0 durable; 75 not yet; 66 the id is unknown (with --status); 64 unsupported; anything
else failed.
"""

import shlex
from collections.abc import Sequence
from datetime import timedelta
from typing import Final, Protocol

from gpubank.domain.base import Message, format_instant
from gpubank.domain.checkpoint import (
    MAX_ANSWER_BYTES,
    CheckpointAnswer,
    CheckpointRequest,
    CheckpointState,
    CheckpointTarget,
    ClaimError,
)
from gpubank.domain.errors import BackendError, ConflictError

DURABLE: Final = 0
UNSUPPORTED: Final = 64
UNKNOWN: Final = 66
RETRY: Final = 75
_NOT_FOUND: Final = (126, 127)


class ExecResult(Message):
    """How a command in a pod ended."""

    exit_code: int
    stdout: bytes
    """Its output, or at least the last `MAX_ANSWER_BYTES` of it."""

    stderr: bytes = b""


class ExecInPod(Protocol):
    """Runs a command in a container of a pod."""

    async def run(
        self, namespace: str, pod: str, *, uid: str, container: str, command: Sequence[str], timeout: timedelta
    ) -> ExecResult:
        """Run `command` in the pod with that uid and wait for its end.

        Raises `BackendError` where it cannot be run or does not end in time, `ConflictError` if the pod is another one.
        """
        ...


class ExecHook:
    """A `CheckpointHook` over a command."""

    def __init__(self, pods: ExecInPod, *, timeout: timedelta = timedelta(seconds=30)) -> None:
        """Run commands through `pods`; one that does not end within `timeout` is a failure that may pass."""
        self._pods = pods
        self._timeout = timeout

    async def request(self, target: CheckpointTarget, request: CheckpointRequest) -> CheckpointAnswer:
        """Ask, once per `request.id`; see `gpubank.ports.CheckpointHook`."""
        asked = [f"--epoch={request.epoch}", f"--deadline={format_instant(request.deadline)}"]
        try:
            answer = await self._run(target, request.id, [*asked, f"--reason={request.reason}", "--wait=0"])
        except ConflictError as error:
            return _failed(str(error))
        return answer or _failed(f"{target.endpoint!r} does not know the request that it was just given")

    async def answer(self, target: CheckpointTarget, request_id: str) -> CheckpointAnswer | None:
        """Return how far a request is; None where it is unknown."""
        try:
            return await self._run(target, request_id, ["--status"])
        except ConflictError:
            return None

    async def _run(self, target: CheckpointTarget, request_id: str, arguments: list[str]) -> CheckpointAnswer | None:
        try:
            command = shlex.split(target.endpoint)
        except ValueError as error:
            return _failed(f"endpoint {target.endpoint!r} is no command line: {error}")
        if not command:
            return _failed(f"pod {target.namespace}/{target.pod} declares no command as its endpoint")
        result = await self._pods.run(
            target.namespace,
            target.pod,
            uid=target.uid,
            container=target.container,
            # Name and value in one argument, so that a value which begins with a dash stays one.
            command=[*command, f"--id={request_id}", *arguments],
            timeout=self._timeout,
        )
        return _read(target, result)


def _read(target: CheckpointTarget, result: ExecResult) -> CheckpointAnswer | None:
    if result.exit_code == UNKNOWN:
        return None
    if result.exit_code == UNSUPPORTED or result.exit_code in _NOT_FOUND:
        return _failed(f"{target.endpoint!r} (exit code {result.exit_code}): {_text(result.stderr)}")
    lines = result.stdout[-MAX_ANSWER_BYTES:].rstrip().splitlines()
    try:
        answer = CheckpointAnswer.from_claim(lines[-1] if lines else b"")
    except ClaimError as error:
        if result.exit_code not in (DURABLE, RETRY):
            return _failed(f"{target.endpoint!r} failed (exit code {result.exit_code}): {_text(result.stderr)}")
        raise BackendError(
            f"{target.endpoint!r} ended with {result.exit_code} and no answer in its last line: {error}:"
            f" {_text(result.stderr)}"
        ) from error
    if (result.exit_code == DURABLE) != (answer.state is CheckpointState.DURABLE):
        raise BackendError(f"{target.endpoint!r} ended with {result.exit_code} but says {answer.state}; 0 is durable")
    return answer


def _text(raw: bytes) -> str:
    return "".join(character for character in raw[-300:].decode(errors="replace") if character.isprintable())


def _failed(message: str) -> CheckpointAnswer:
    return CheckpointAnswer(state=CheckpointState.FAILED, message=message[:1000])
