"""What can go wrong with a lab.

* LabError
  + BuildError   a server could not be compiled; the message ends with the compiler's last lines
  + StartError   a server died or was not ready in time; the message ends with the last lines of its log
  + StateError   what was asked does not fit the lab's state: not up, no such component
"""

from pathlib import Path
from typing import Final

TAIL_LINES: Final = 15


class LabError(Exception):
    """Base of everything the lab raises on purpose."""


class BuildError(LabError):
    """A server could not be built."""


class StartError(LabError):
    """A server did not come up."""


class StateError(LabError):
    """The lab is not in the state that the call needs."""


def tail(path: Path, lines: int = TAIL_LINES) -> str:
    """Return the last `lines` lines of a log, indented, or a note that there is none."""
    try:
        with path.open("rb") as log:
            log.seek(0, 2)
            log.seek(max(0, log.tell() - 64 * 1024))
            text = log.read().decode(errors="replace")
    except FileNotFoundError:
        return "  (no log)"
    kept = text.splitlines()[-lines:]
    return "\n".join(f"  {line[:400]}" for line in kept) or "  (empty log)"
