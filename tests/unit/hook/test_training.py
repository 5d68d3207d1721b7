"""The hook as a training loop sees it."""

import json
import os
import signal
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from gpubank.hook import Answer, Hook, Request

BODY = {"id": "r-1", "epoch": 1, "deadline": "2026-03-01T12:00:00Z", "reason": "wanted back"}


def post(hook: Hook, body: dict[str, Any]) -> Answer:
    assert hook.address is not None
    call = urllib.request.Request(f"{hook.address}/v1/checkpoint", data=json.dumps(body).encode(), method="POST")
    with urllib.request.urlopen(call, timeout=20) as response:
        found: Answer = json.load(response)
        return found


def get(hook: Hook, request_id: str) -> Answer:
    with urllib.request.urlopen(f"{hook.address}/v1/checkpoint/{request_id}", timeout=20) as response:
        found: Answer = json.load(response)
        return found


def test_request_is_saved_at_the_next_step_boundary_and_resumed_from(tmp_path: Path) -> None:
    with Hook(tmp_path / "run", uid="pod-1", port=0) as hook:
        assert hook.requested(1) is None
        assert post(hook, BODY)["stepAtRequest"] == 1
        request = hook.requested(2)
        assert request is not None
        assert request.reason == "wanted back"
        with hook.saving(request, step=2) as save:
            (save.path / "weights").write_bytes(b"w")
            assert get(hook, "r-1")["state"] == "saving"
        assert hook.requested(3) is None
        answer = get(hook, "r-1")

    latest = Hook(tmp_path / "run").latest()
    assert latest is not None
    assert (latest.step, latest.request_id, latest.trainer_uid) == (2, "r-1", "pod-1")
    assert (answer["state"], answer["step"]) == ("durable", 2)
    assert answer["uri"] == f"file://{latest.path}"
    assert answer["manifest"] == {
        "uri": f"file://{latest.path}/manifest.json",
        "sha256": latest.manifest_sha256,
        "files": 1,
        "bytes": 1,
    }


def test_failed_save_keeps_the_previous_checkpoint_and_tells_the_bank(tmp_path: Path) -> None:
    def fails(folder: Path) -> None:
        (folder / "weights").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with Hook(tmp_path / "run", port=0) as hook:
        assert hook.save(1, lambda folder: (folder / "weights").write_bytes(b"good"))
        post(hook, BODY)
        assert hook.save(2, fails, hook.requested(2)) is False
        answer = get(hook, "r-1")
        assert answer["state"] == "failed"
        assert "No space left" in answer["message"]
        assert hook.requested(3) is None
        latest = hook.latest()
        assert latest is not None
        assert latest.step == 1
        assert [path for path in (tmp_path / "run").iterdir() if path.name.startswith(".")] == []


def test_error_of_the_script_goes_on_to_the_script(tmp_path: Path) -> None:
    with Hook(tmp_path / "run", port=0) as hook:
        post(hook, BODY)
        request = hook.requested(1)
        with pytest.raises(KeyError), hook.saving(request, step=1):
            raise KeyError("no such tensor")
        assert get(hook, "r-1")["state"] == "failed"


def test_without_a_storage_nothing_is_asked_and_nothing_listens() -> None:
    with Hook.from_env({"GPUBANK_HOOK_PORT": "0"}) as hook:
        assert not hook.enabled
        assert hook.address is None
        assert hook.requested(1) is None
        assert hook.latest() is None
        with pytest.raises(ValueError, match="GPUBANK_HOOK_STORAGE"), hook.saving(step=1):
            pass


def test_sigterm_is_noted_and_the_old_handler_comes_back(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Hook(tmp_path) as hook:
        assert not hook.stopping
        signal.raise_signal(signal.SIGTERM)
        assert hook.stopping
    assert signal.getsignal(signal.SIGTERM) is before


def test_hook_works_outside_the_main_thread_without_touching_signals(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    states: list[str] = []

    def run() -> None:
        with Hook(tmp_path / "run", port=0) as hook:
            states.append(post(hook, BODY)["state"])

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert states == ["accepted"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_environment_sets_everything_and_arguments_win(tmp_path: Path) -> None:
    env = {
        "GPUBANK_HOOK_STORAGE": f"file://{tmp_path}/run",
        "GPUBANK_HOOK_URI": "s3://bucket/run",
        "GPUBANK_HOOK_UID": "pod-9",
        "GPUBANK_HOOK_HOST": "127.0.0.1",
        "GPUBANK_HOOK_PORT": "0",
        "GPUBANK_HOOK_ADDRESS_FILE": str(tmp_path / "address"),
        "GPUBANK_HOOK_STATUS_FILE": str(tmp_path / "status"),
        "GPUBANK_HOOK_KEEP": "3",
        "WORLD_SIZE": "8",
        "RANK": "0",
    }
    with Hook.from_env(env, uid="pod-10") as hook:
        assert (tmp_path / "address").read_text().strip() == hook.address
        answer = post(hook, BODY)
        assert (answer["worldSize"], answer["trainerUID"]) == (8, "pod-10")
        assert hook.save(1, lambda folder: (folder / "w").write_bytes(b"w"), hook.requested(1))
    status = json.loads((tmp_path / "status").read_text())
    assert status["state"] == "durable"
    assert status["uri"].startswith("s3://bucket/run/step-0000000001-")


def test_number_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="GPUBANK_HOOK_PORT is 'http'"):
        Hook.from_env({"GPUBANK_HOOK_STORAGE": str(tmp_path), "GPUBANK_HOOK_PORT": "http"})


def test_port_that_is_taken_is_told_at_the_start_and_the_signal_handler_is_restored(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Hook(tmp_path / "a", port=0) as first:
        assert first.address is not None
        taken = Hook(tmp_path / "b", port=int(first.address.rpartition(":")[2]))
        inside = signal.getsignal(signal.SIGTERM)
        with pytest.raises(OSError, match="in use"), taken:
            pass
        assert signal.getsignal(signal.SIGTERM) == inside
    assert signal.getsignal(signal.SIGTERM) is before


def test_ranks_write_into_one_folder_and_rank_0_completes_it(tmp_path: Path) -> None:
    ranks = [Hook(tmp_path / "run", rank=rank, world_size=2, port=0) for rank in (0, 1)]
    with ranks[0] as zero, ranks[1] as one:
        assert one.address is None
        post(zero, BODY)
        assert one.requested(4) is None
        request = zero.requested(4)
        with zero.saving(request, step=4) as save:
            with one.saving(step=4) as other:
                assert other.path == save.path
                (other.path / "rank-1").write_bytes(b"1")
                other.sync()
            (save.path / "rank-0").write_bytes(b"0")
        answer = get(zero, "r-1")
    assert (answer["state"], answer["manifest"]["files"], answer["worldSize"]) == ("durable", 2, 2)


def test_request_in_the_downward_api_file_is_answered_in_the_status(tmp_path: Path) -> None:
    states: list[str] = []
    asked = threading.Event()

    def on_status(answer: Answer) -> None:
        states.append(answer["state"])
        asked.set()

    hook = Hook(tmp_path / "run", request_file=tmp_path / "request", on_status=on_status, poll_seconds=0.01)
    (tmp_path / "request").write_text(json.dumps(BODY))
    with hook:
        assert asked.wait(30)
        request = hook.requested(1)
        assert isinstance(request, Request)
        hook.save(1, lambda folder: (folder / "w").write_bytes(b"w"), request)
    assert states == ["accepted", "saving", "durable"]


def test_interrupted_save_of_an_earlier_run_is_removed_at_the_start(tmp_path: Path) -> None:
    hook = Hook(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt), hook.saving(step=1):
        raise KeyboardInterrupt
    left = tmp_path / "run" / ".step-0000000002.partial"
    left.mkdir()
    with hook:
        assert os.listdir(tmp_path / "run") == []
