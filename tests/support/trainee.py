"""A training run for scenarios: it saves when it is asked, once its gate is open, and ends when it is told to.

    trainee.py STORAGE GATE

Without the file GATE it answers every request with "accepted" and saves nothing; with it, it saves at its next step.
It ends with 0 as soon as the file STORAGE/done is there.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

from gpubank.hook import Hook

STOPPED = 143


def written(step: int) -> Callable[[Path], object]:
    """Return what writes a checkpoint of this step into its folder."""
    return lambda folder: (folder / "step").write_text(str(step))


def main(storage: Path, gate: Path) -> int:
    with Hook.from_env(storage=storage) as hook:
        latest = hook.latest()
        step = latest.step if latest is not None else 0
        while not hook.stopping:
            if (storage / "done").exists():
                return 0
            step += 1
            request = hook.requested(step)
            if request is not None and gate.exists():
                hook.save(step, written(step), request)
            time.sleep(0.02)
    return STOPPED


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
