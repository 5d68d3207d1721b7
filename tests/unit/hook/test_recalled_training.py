"""A real training run that is recalled, stopped and resumed ends bit for bit like one that nobody disturbed."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np

TRAIN = Path(__file__).parents[3] / "examples" / "trainer" / "train.py"
STEPS = 160


class Run:
    """One start of the example, as a Job's pod would start it."""

    def __init__(self, folder: Path, uid: str, *arguments: str) -> None:
        self._address_file = folder / f"address-{uid}"
        hook = {
            "GPUBANK_HOOK_STORAGE": f"file://{folder}/checkpoints",
            "GPUBANK_HOOK_PORT": "0",
            "GPUBANK_HOOK_ADDRESS_FILE": str(self._address_file),
            "GPUBANK_HOOK_UID": uid,
        }
        self._log = folder / f"log-{uid}"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, TRAIN, f"--steps={STEPS}", f"--out={folder}/result.json", *arguments],
                env={**os.environ, **hook, "PYTHONUNBUFFERED": "1"},
                stdout=log,
            )

    def finish(self) -> tuple[int, str]:
        """Wait for the end; return exit code and log."""
        return self.process.wait(90), self._log.read_text()

    def checkpoint(self, request_id: str, epoch: int) -> dict[str, Any]:
        """Ask for a checkpoint and wait until it is durable, as the bank does.

        The run is let begin first: one that has not found its own checkpoint yet has done no step that it knows of.
        """
        self._wait(self._address_file.exists)
        self._wait(lambda: "from step" in self._log.read_text())
        url = f"{self._address_file.read_text().strip()}/v1/checkpoint"
        body = {"id": request_id, "epoch": epoch, "deadline": "2099-01-01T00:00:00Z", "reason": "wanted back"}
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode()), timeout=30) as response:
            assert response.status == 202
        answer: dict[str, Any] = {}

        def is_durable() -> bool:
            with urllib.request.urlopen(f"{url}/{request_id}", timeout=30) as response:
                answer.update(json.load(response))
            return bool(answer["state"] == "durable")

        self._wait(is_durable)
        return answer

    def stop(self) -> tuple[int, str]:
        """Send SIGTERM, as the kubelet does."""
        self.process.send_signal(signal.SIGTERM)
        return self.finish()

    def _wait(self, condition: Any) -> None:
        end = time.monotonic() + 60
        while not condition():
            assert self.process.poll() is None, "the run ended"
            assert time.monotonic() < end, "nothing in 60 s"
            time.sleep(0.01)


def result(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


def test_recalled_run_ends_with_the_weights_of_an_undisturbed_one(tmp_path: Path) -> None:
    calm, stormy = tmp_path / "calm", tmp_path / "stormy"
    calm.mkdir()
    stormy.mkdir()
    assert Run(calm, "pod-0").finish()[0] == 0

    steps = [0]
    for recall in (1, 2):
        run = Run(stormy, f"pod-{recall}", "--step-time=0.02")
        answer = run.checkpoint(f"recall-{recall}", recall)
        code, log = run.stop()
        assert code == 143
        assert not (stormy / "result.json").exists()
        assert (answer["state"], answer["trainerUID"]) == ("durable", f"pod-{recall}")
        assert f"from step {steps[-1]}" in log
        assert steps[-1] <= answer["stepAtRequest"] <= answer["step"] < STEPS
        steps.append(answer["step"])
    # Both recalls came in the middle of the run, so both resumes had something to lose.
    assert 0 < steps[1] < steps[2] < STEPS
    code, log = Run(stormy, "pod-3").finish()
    assert code == 0
    assert f"resumed from step {steps[2]}" in log

    assert result(stormy) == result(calm)
    with np.load(calm / "result.npz") as wanted, np.load(stormy / "result.npz") as found:
        assert sorted(found) == sorted(wanted) == ["b1", "b2", "w1", "w2"]
        assert all(found[name].tobytes() == wanted[name].tobytes() for name in wanted)


def test_the_network_learns_and_another_seed_gives_other_weights(tmp_path: Path) -> None:
    results = []
    for seed in (1, 2):
        folder = tmp_path / str(seed)
        folder.mkdir()
        assert Run(folder, "pod-0", f"--seed={seed}").finish()[0] == 0
        results.append(result(folder))
    assert all(found["accuracy"] > 0.9 for found in results)
    assert results[0]["weightsSha256"] != results[1]["weightsSha256"]


def test_checkpoint_of_another_recipe_is_refused(tmp_path: Path) -> None:
    assert Run(tmp_path, "pod-0", "--save-every=100").finish()[0] == 0
    run = subprocess.run(
        [sys.executable, TRAIN, f"--storage={tmp_path}/checkpoints", "--seed=2", "--steps=1"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 1
    assert "use another --storage" in run.stderr
