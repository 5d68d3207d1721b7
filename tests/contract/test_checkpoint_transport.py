"""One contract for the three transports, and what a lying or broken trainer can do over each of them."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpubank.adapters.checkpoint import (
    AddressRules,
    AnnotationHook,
    CheckpointHooks,
    ExecHook,
    ExecResult,
    FsspecStorage,
    HttpHook,
    verify,
)
from gpubank.decide.attest import AttestPolicy, Disbelief, Verdict
from gpubank.domain.checkpoint import CheckpointAnswer, CheckpointRequest, CheckpointState, CheckpointTarget
from gpubank.domain.contract import CHECKPOINT_REQUEST_ANNOTATION, CHECKPOINT_STATUS_ANNOTATION, Transport
from gpubank.domain.errors import BackendError
from gpubank.hook import Hook
from gpubank.hook.export import single_file
from gpubank.ports import CheckpointHook
from tests.contract.trainees import UID, FakePod, LocalExec, Trainer, request


@dataclass
class There:
    """One transport with a trainer behind it."""

    adapter: CheckpointHook
    target: CheckpointTarget
    trainer: Trainer
    folder: Path

    async def settled(self, asked: CheckpointRequest) -> CheckpointAnswer:
        """Ask until the answer is final."""
        async with asyncio.timeout(60):
            while True:
                answer = await self.adapter.answer(self.target, asked.id)
                if answer is not None and answer.is_final:
                    return answer
                await asyncio.sleep(0.02)


@pytest.fixture(params=list(Transport))
async def there(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[There]:
    transport: Transport = request.param
    folder = tmp_path / "checkpoints"
    pod = FakePod(tmp_path / "request")
    hook = Hook(
        folder,
        uid=UID,
        port=None if transport is Transport.ANNOTATION else 0,
        request_file=pod.request_file if transport is Transport.ANNOTATION else None,
        on_status=pod.publish,
        poll_seconds=0.01,
    )
    with hook:
        trainer = Trainer(hook)
        trainer.start()
        http = HttpHook(rules=AddressRules(loopback=True))
        exported = tmp_path / "gpubank_hook.py"
        exported.write_text(single_file())
        endpoint = {
            Transport.HTTP: hook.address or "",
            Transport.ANNOTATION: "",
            Transport.EXEC: f"{sys.executable} -I '{exported}' checkpoint",
        }[transport]
        env = {"GPUBANK_HOOK_HOST": "127.0.0.1", "GPUBANK_HOOK_PORT": (hook.address or ":").rpartition(":")[2]}
        adapter = CheckpointHooks(
            {Transport.HTTP: http, Transport.ANNOTATION: AnnotationHook(pod), Transport.EXEC: ExecHook(LocalExec(env))}
        )
        target = CheckpointTarget(
            namespace="team-a",
            pod="job-0",
            uid=UID,
            transport=transport,
            endpoint=endpoint,
            storage=f"file://{folder}",
        )
        yield There(adapter, target, trainer, folder)
        trainer.stop()
        await http.close()


async def judged(
    answer: CheckpointAnswer, asked: CheckpointRequest, requested_at: datetime, target: CheckpointTarget
) -> Verdict:
    """Judge an answer as the bank does, hashes included."""
    storage, policy = FsspecStorage(), AttestPolicy(check_hashes=True)
    verdict = await verify(
        storage,
        answer,
        request=asked,
        requested_at=requested_at,
        target=target,
        last_step=0,
        policy=policy,
        now=datetime.now(UTC),
    )
    storage.close()
    return verdict


async def test_request_becomes_a_checkpoint_that_the_bank_believes(there: There) -> None:
    asked, requested_at = request(), datetime.now(UTC)
    first = await there.adapter.request(there.target, asked)
    assert first.state in CheckpointState
    answer = await there.settled(asked)

    assert (answer.state, answer.trainer_uid, answer.world_size) == (CheckpointState.DURABLE, UID, 1)
    assert answer.step is not None
    assert answer.step_at_request is not None
    assert answer.step >= answer.step_at_request
    verdict = await judged(answer, asked, requested_at, there.target)
    assert (verdict.reason, verdict.detail) == (None, "")
    assert (verdict.step, verdict.files, verdict.bytes) == (answer.step, 2, 1010)


async def test_same_id_again_is_the_same_request(there: There) -> None:
    asked = request()
    await there.adapter.request(there.target, asked)
    await there.adapter.request(there.target, asked)
    answer = await there.settled(asked)
    assert await there.adapter.request(there.target, asked) == answer
    assert await there.adapter.answer(there.target, asked.id) == answer
    assert there.trainer.saves == 1


async def test_request_waits_for_the_step_boundary(there: There) -> None:
    there.trainer.gate.clear()
    asked = request()
    await there.adapter.request(there.target, asked)
    answer = await there.adapter.answer(there.target, asked.id)
    assert answer is not None
    assert answer.state is CheckpointState.ACCEPTED
    there.trainer.gate.set()
    assert (await there.settled(asked)).state is CheckpointState.DURABLE


async def test_newer_recall_is_served_and_an_older_one_refused(there: There) -> None:
    newer, older = request("newer", epoch=2), request("older", epoch=1)
    await there.adapter.request(there.target, newer)
    assert (await there.settled(newer)).state is CheckpointState.DURABLE
    refused = await there.adapter.request(there.target, older)
    assert refused.state is CheckpointState.FAILED
    assert "newer" in refused.message or "older" in refused.message
    assert there.trainer.saves == 1


async def test_unknown_id_is_none(there: There) -> None:
    assert await there.adapter.answer(there.target, "never-asked") is None


async def test_save_that_fails_is_told_with_its_reason(there: There) -> None:
    there.trainer.broken = True
    asked = request()
    await there.adapter.request(there.target, asked)
    answer = await there.settled(asked)
    assert answer.state is CheckpointState.FAILED
    assert "No space left" in answer.message


async def test_id_and_reason_may_hold_any_text(there: There) -> None:
    asked = request("--status /../x?y#z %2f ü", reason="--id=other; $(touch x) 'ü\"")
    await there.adapter.request(there.target, asked)
    assert (await there.settled(asked)).state is CheckpointState.DURABLE


async def test_pod_that_was_replaced_gives_no_checkpoint(there: There) -> None:
    target = there.target.model_copy(update={"uid": "pod-uid-2"})
    asked, requested_at = request(), datetime.now(UTC)
    answer = await there.adapter.request(target, asked)
    if answer.state is not CheckpointState.FAILED:
        # Over HTTP nobody can tell who answers; the uid in the answer does.
        answer = await there.settled(asked)
    verdict = await judged(answer, asked, requested_at, target)
    assert verdict.reason in (Disbelief.OTHER_TRAINER, Disbelief.NOT_DURABLE)


async def test_transport_that_is_not_served_fails_with_the_fact() -> None:
    target = CheckpointTarget(namespace="a", pod="p", uid=UID, transport=Transport.EXEC, storage="file:///x")
    hooks = CheckpointHooks({Transport.HTTP: HttpHook()})
    answer = await hooks.request(target, request())
    assert (answer.state, answer.message) == (CheckpointState.FAILED, "transport exec is not served here; served: http")
    assert await hooks.answer(target, "x") == answer


# ---- a broken trainer behind the other transports


@dataclass
class PlayedExec:
    """Ends every command as told."""

    exit_code: int
    stdout: bytes = b""
    commands: list[Sequence[str]] = field(default_factory=list)

    async def run(
        self, namespace: str, pod: str, *, uid: str, container: str, command: Sequence[str], timeout: timedelta
    ) -> ExecResult:
        self.commands.append(command)
        return ExecResult(exit_code=self.exit_code, stdout=self.stdout, stderr=b"Traceback: no GPU")


def exec_target(endpoint: str = "/hooks/checkpoint --fast") -> CheckpointTarget:
    return CheckpointTarget(
        namespace="a", pod="p", uid=UID, transport=Transport.EXEC, endpoint=endpoint, storage="file:///x"
    )


@pytest.mark.parametrize(
    ("code", "stdout", "want"),
    [
        pytest.param(0, b'log line\n{"state": "durable"}\n', CheckpointState.DURABLE, id="last-line-counts"),
        pytest.param(75, b'{"state": "saving"}', CheckpointState.SAVING, id="not-yet"),
        pytest.param(1, b'{"state": "failed", "message": "x"}', CheckpointState.FAILED, id="failed"),
        pytest.param(64, b"", CheckpointState.FAILED, id="unsupported"),
        pytest.param(127, b"", CheckpointState.FAILED, id="no-such-command"),
        pytest.param(1, b"", CheckpointState.FAILED, id="crash"),
        pytest.param(0, b"", BackendError, id="silent-success"),
        pytest.param(75, b"busy", BackendError, id="retry-without-answer"),
        pytest.param(0, b'{"state": "saving"}', BackendError, id="success-that-is-none"),
        pytest.param(1, b'{"state": "durable"}', BackendError, id="failure-that-is-none"),
        pytest.param(0, b"\xff" * 100, BackendError, id="binary"),
    ],
)
async def test_exit_code_and_last_line_of_a_command_must_agree(code: int, stdout: bytes, want: Any) -> None:
    hook = ExecHook(PlayedExec(code, stdout))
    if want is BackendError:
        with pytest.raises(BackendError):
            await hook.request(exec_target(), request())
    else:
        assert (await hook.request(exec_target(), request())).state is want


async def test_command_gets_every_value_as_one_argument() -> None:
    played = PlayedExec(66)
    hook = ExecHook(played)
    asked = request("r 1", epoch=3, reason="--status")
    assert (await hook.request(exec_target(), asked)).state is CheckpointState.FAILED
    assert await hook.answer(exec_target(), "r 1") is None
    deadline = asked.model_dump(mode="json")["deadline"]
    assert played.commands == [
        [
            "/hooks/checkpoint",
            "--fast",
            "--id=r 1",
            "--epoch=3",
            f"--deadline={deadline}",
            "--reason=--status",
            "--wait=0",
        ],
        ["/hooks/checkpoint", "--fast", "--id=r 1", "--status"],
    ]


@pytest.mark.parametrize("endpoint", ["", "  ", "hook 'unclosed"])
async def test_endpoint_that_is_no_command_is_never_run(endpoint: str) -> None:
    played = PlayedExec(0)
    assert (await ExecHook(played).request(exec_target(endpoint), request())).state is CheckpointState.FAILED
    assert played.commands == []


def annotation_target() -> CheckpointTarget:
    return CheckpointTarget(namespace="a", pod="job-0", uid=UID, transport=Transport.ANNOTATION, storage="file:///x")


async def test_status_of_an_earlier_request_is_nobodys_answer(tmp_path: Path) -> None:
    pod = FakePod(tmp_path / "request")
    hook = AnnotationHook(pod)
    pod.publish({"id": "r-0", "state": "durable"})
    assert (await hook.request(annotation_target(), request("r-1"))).state is CheckpointState.ACCEPTED
    found = await hook.answer(annotation_target(), "r-1")
    assert found is not None
    assert found.state is CheckpointState.ACCEPTED
    assert await hook.answer(annotation_target(), "r-2") is None


async def test_request_is_written_once_and_a_foreign_text_in_its_place_is_replaced(tmp_path: Path) -> None:
    pod = FakePod(tmp_path / "request", annotations={CHECKPOINT_REQUEST_ANNOTATION: "not ours"})
    hook = AnnotationHook(pod)
    for _ in range(3):
        await hook.request(annotation_target(), request("r-1"))
    assert pod.writes == 1
    assert json.loads(pod.annotations[CHECKPOINT_REQUEST_ANNOTATION])["id"] == "r-1"


@pytest.mark.parametrize("text", ["", "{", "[]", "x" * 70_000, '{"id": "r-0"}'])
async def test_status_that_is_none_is_as_if_nobody_had_answered(tmp_path: Path, text: str) -> None:
    pod = FakePod(tmp_path / "request")
    hook = AnnotationHook(pod)
    pod.annotations[CHECKPOINT_STATUS_ANNOTATION] = text
    assert (await hook.request(annotation_target(), request("r-1"))).state is CheckpointState.ACCEPTED


async def test_malformed_answer_to_this_request_is_a_failure_that_may_pass(tmp_path: Path) -> None:
    pod = FakePod(tmp_path / "request")
    hook = AnnotationHook(pod)
    await hook.request(annotation_target(), request("r-1"))
    pod.publish({"id": "r-1", "state": "perhaps"})
    with pytest.raises(BackendError, match="no checkpoint answer: state"):
        await hook.answer(annotation_target(), "r-1")
