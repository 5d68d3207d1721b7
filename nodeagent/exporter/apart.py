"""Reading settings and device classes in a child process, so that what reads them does not stay in memory.

    parent ── starts ──▶ child: pydantic, YAML, checks ── plain data ──▶ parent: never imports them

A process on every node is counted in MiB, and the models are needed once.
"""

import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

from gpubank.domain.errors import BackendError, PolicyError
from nodeagent.classes.rulebook import Rulebook

if TYPE_CHECKING:
    from nodeagent.exporter.settings import ExporterSettings

_SECONDS: Final = 60


def read_apart(path: Path | None) -> tuple["ExporterSettings", Rulebook]:
    """Read the settings file and the rules it names. Raises PolicyError, BackendError.

    The settings have every field of the model, and none of its methods.
    """
    command = [sys.executable, "-m", __name__, *([str(path)] if path is not None else [])]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=_SECONDS)
        outcome = pickle.loads(done.stdout)  # from our own child, over our own pipe
    except (subprocess.SubprocessError, OSError, pickle.UnpicklingError, EOFError) as error:
        raise BackendError(
            f"settings cannot be read: the process that reads them failed ({error}); try again"
        ) from error
    if isinstance(outcome, str):
        raise PolicyError(outcome)
    settings, rulebook = outcome
    return cast("ExporterSettings", _namespace(settings)), rulebook


def main() -> None:
    """Read, check, and write plain data to standard output; a refusal is a sentence."""
    from nodeagent.exporter.settings import plain

    try:
        outcome: Any = plain(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
    except PolicyError as error:
        outcome = str(error)
    sys.stdout.buffer.write(pickle.dumps(outcome))


def _namespace(value: Any) -> Any:
    if isinstance(value, dict):
        return SimpleNamespace(**{name: _namespace(each) for name, each in value.items()})
    return value


if __name__ == "__main__":
    main()
