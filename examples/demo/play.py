"""The main job of the bank, played with a real training run: lend, recall after a verified checkpoint, resume.

    python -m examples.demo.play [--cluster embedded|lab] [--keep]

    vision idle → search borrows → vision's demand → notice, checkpoint verified, parked → vision admitted
    → vision done → search resumes → ends with the result of a run that nobody disturbed

Exit code 0 only if the weights are bit for bit the same and the ledger balances.
"""

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from examples.demo.jobs import owner_job, service_job, training_job
from examples.demo.stage import Stage, embedded_stage, lab_stage
from examples.demo.timeline import Timeline
from gpubank.domain.errors import BankError
from gpubank.exit import clean_exit
from gpubank.lab.errors import LabError
from gpubank.schema.manifest import read_documents

HERE = Path(__file__).parent
TRAINER = HERE.parent / "trainer" / "train.py"
STEPS = 300
STEP_SECONDS = 0.04
"""Pause after every step, so that the run lasts about as long as the play."""

PATIENCE = 120.0
"""Longest wait for one scene, in seconds; each takes a few."""


class SceneError(Exception):
    """A scene did not come to its end."""


async def wait_for(what: str, stage: Stage, namespace: str, name: str, states: Sequence[str]) -> None:
    """Wait until a job is in one of `states`."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if await stage.job_state(namespace, name) in states:
            return
        await asyncio.sleep(0.2)
    state = await stage.job_state(namespace, name)
    raise SceneError(f"{what}: after {PATIENCE:.0f} s job {namespace}/{name} is {state or 'not there'}")


def undisturbed(folder: Path) -> dict[str, Any]:
    """Train in one go, as a reference."""
    out = folder / "undisturbed.json"
    command = [sys.executable, str(TRAINER), "--storage", str(folder / "undisturbed"), "--steps", str(STEPS)]
    subprocess.run([*command, "--out", str(out)], check=True, stdout=subprocess.DEVNULL)
    result: dict[str, Any] = json.loads(out.read_text())
    return result


async def play(stage: Stage, folder: Path, line: Timeline) -> bool:
    """Play all scenes; return whether the result is the undisturbed one and the books are clean."""
    reference = asyncio.create_task(asyncio.to_thread(undisturbed, folder))
    for document in read_documents((HERE / "bank.yaml").read_text(), "bank.yaml"):
        await stage.apply(document.body)
    line.say("a pool of 16 GPUs; search and vision are guaranteed 8 each, and vision is idle")
    await stage.submit(service_job())
    await wait_for("search's own job starts", stage, "search", "serving", ["Running"])
    line.say("search runs its own work on all of its 8 GPUs")

    storage, out = folder / "checkpoints", folder / "result.json"
    storage.mkdir()
    arguments = ["--storage", str(storage), "--steps", str(STEPS), "--step-time", str(STEP_SECONDS), "--out", str(out)]
    await stage.submit(training_job([sys.executable, str(TRAINER), *arguments], storage))
    line.say("search submits a training run of 8 GPUs to its borrow queue")
    await wait_for("the training run borrows", stage, "search", "train", ["Running"])
    line.say("the training run runs, on vision's idle quota")
    await asyncio.sleep(3)

    await stage.submit(owner_job([sys.executable, "-c", "import time; time.sleep(6)"]))
    line.say("vision submits a job of its own: it wants its 8 GPUs back")
    await wait_for("vision is admitted", stage, "vision", "batch", ["Running", "Succeeded"])
    line.say("vision's job runs; the training run is parked, not lost")
    await wait_for("vision is done", stage, "vision", "batch", ["Succeeded"])
    line.say("vision is done; its quota is idle again")
    await wait_for("the training run resumes", stage, "search", "train", ["Running", "Succeeded"])
    line.say("the training run is back, from its checkpoint")
    await wait_for("the training run ends", stage, "search", "train", ["Succeeded"])
    await returned(stage)
    await line.stop()
    return await epilogue(stage, await reference, json.loads(out.read_text()))


async def returned(stage: Stage) -> None:
    """Wait until the last loan is back: nobody uses it any more."""
    deadline = time.monotonic() + PATIENCE
    while await stage.ledger.lines(open_only=True):
        if time.monotonic() > deadline:
            raise SceneError(f"the loan of a finished job is not back after {PATIENCE:.0f} s")
        await asyncio.sleep(0.2)


async def epilogue(stage: Stage, reference: dict[str, Any], result: dict[str, Any]) -> bool:
    """Compare the results and show the books."""
    same = bool(reference["weightsSha256"] == result["weightsSha256"])
    print(f"\nundisturbed run   accuracy {reference['accuracy']:.4f}   weights sha256 {reference['weightsSha256']}")
    print(f"recalled run      accuracy {result['accuracy']:.4f}   weights sha256 {result['weightsSha256']}")
    print("bit for bit the same" if same else "NOT the same")
    print("\nledger")
    for row in reversed(await stage.ledger.lines()):
        ended = f"{row.ended_at:%H:%M:%S}" if row.ended_at else "open"
        granted = f"{row.granted_at:%H:%M:%S}" if row.granted_at else "-"
        who = f"{row.lender} lends {row.borrower} {row.gpus} GPUs"
        print(f"  {row.line_id:<8} term {row.term}  {who:<32} {granted} - {ended}  {row.state}")
    await stage.ledger.post(until=datetime.now(UTC))
    balance: dict[str, int] = {}
    for posting in await stage.ledger.postings():
        balance[posting.account] = balance.get(posting.account, 0) + posting.gpu_ms
    for account, gpu_ms in sorted(balance.items()):
        print(f"  {account:<8} {'owes' if gpu_ms > 0 else 'is owed'} {abs(gpu_ms) / 1000:.1f} GPU-seconds")
    print(f"  in all   {sum(balance.values())}")
    report = await stage.ledger.verify()
    print(f"  {report.audit_events} audit events in one chain, head {report.head[:16]}: ", end="")
    print("clean" if report.ok else "; ".join(finding.message for finding in report.findings))
    return same and report.ok


async def run(cluster: str, keep: bool) -> bool:
    """Set the stage, play, and leave it standing if asked; SIGTERM takes it down as Ctrl-C does."""
    playing = asyncio.current_task()
    assert playing is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, playing.cancel)
    stages: dict[str, Any] = {"embedded": embedded_stage, "lab": lab_stage}
    with tempfile.TemporaryDirectory(prefix="gpubank-demo-") as name:
        folder = Path(name)
        print(f"setting the stage ({cluster}) ...", flush=True)
        setting: AbstractAsyncContextManager[Stage] = stages[cluster](folder)
        async with setting as stage:
            print(f"every process can be watched in Temporal's UI: {stage.ui_url}\n", flush=True)
            line = Timeline(stage.ledger, stage.client)
            line.start()
            try:
                good = await play(stage, folder, line)
            except (SceneError, LabError) as error:
                await line.stop()
                print(f"\n{error}", file=sys.stderr)
                good = False
            if keep:
                print(
                    f"\nleft running; look around with:\n  {stage.hint}\nTemporal's UI: {stage.ui_url}\nCtrl-C ends it"
                )
                await asyncio.Event().wait()
            return good


def main() -> None:
    """Parse the arguments and play."""
    parser = argparse.ArgumentParser(description="The main job of the bank, played with a real training run.")
    parser.add_argument("--cluster", choices=("embedded", "lab"), default="embedded", help="what it plays on")
    parser.add_argument("--keep", action="store_true", help="leave everything running until Ctrl-C")
    arguments = parser.parse_args()
    try:
        good = asyncio.run(run(arguments.cluster, arguments.keep))
    except (KeyboardInterrupt, asyncio.CancelledError):
        good = arguments.keep
    except (BankError, LabError) as error:
        print(error, file=sys.stderr)
        good = False
    clean_exit(0 if good else 1)


if __name__ == "__main__":
    main()
