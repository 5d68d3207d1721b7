"""A training run that keeps a diary, which survives it: when it started, saved, was told to stop, and ended.

    trainee.py STORAGE

It saves whenever it is asked, and ends with 0 as soon as the file STORAGE/done is there. A diary is the word of the job
itself on how often it was stopped, and on what it had saved by then.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from gpubank.hook import Hook

STOPPED = 143
DIARY = "diary.jsonl"


def written(step: int) -> Callable[[Path], object]:
    """Return what writes a checkpoint of this step into its folder."""
    return lambda folder: (folder / "step").write_text(str(step))


def main(storage: Path) -> int:
    def write(event: str, step: int) -> None:
        with (storage / DIARY).open("a") as diary:
            diary.write(json.dumps({"event": event, "step": step, "at": time.time()}) + "\n")

    with Hook.from_env(storage=storage) as hook:
        latest = hook.latest()
        step = latest.step if latest is not None else 0
        write("started", step)
        while not hook.stopping:
            if (storage / "done").exists():
                write("finished", step)
                return 0
            step += 1
            request = hook.requested(step)
            if request is not None:
                hook.save(step, written(step), request)
                write("saved", step)
            time.sleep(0.05)
    write("stopped", step)
    return STOPPED


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
