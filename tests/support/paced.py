"""Runs the example's trainer at a pace that a test sets: paced.py HURRY ARGUMENTS...

It takes the time per step that its arguments ask for until the file HURRY is there, and none from then on.
"""

import runpy
import sys
import time
from pathlib import Path

TRAINER = Path(__file__).parents[2] / "examples" / "trainer" / "train.py"

if __name__ == "__main__":
    hurry, sleep = Path(sys.argv[1]), time.sleep
    time.sleep = lambda seconds: sleep(0 if hurry.exists() else seconds)
    sys.argv[:] = [str(TRAINER), *sys.argv[2:]]
    runpy.run_path(str(TRAINER), run_name="__main__")
