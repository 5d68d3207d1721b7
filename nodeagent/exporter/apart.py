"""Reading settings and device classes in a child process, so that what reads them does not stay in memory.

    parent ── fork ──▶ child: pydantic, YAML, checks ── plain data ──▶ parent: never imports them

A process on every node is counted in MiB, and the models are needed once. Only to be called before any thread runs.
"""

import os
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn, cast

from gpubank.domain.errors import BackendError, PolicyError
from nodeagent.classes.rulebook import Rulebook

if TYPE_CHECKING:
    from nodeagent.exporter.settings import ExporterSettings


def read_apart(path: Path | None) -> tuple["ExporterSettings", Rulebook]:
    """Read the settings file and the rules it names. Raises PolicyError, BackendError.

    The settings have every field of the model, and none of its methods.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _read_and_end(path, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        raw = pipe.read()
    os.waitpid(child, 0)
    if not raw:
        raise BackendError("settings cannot be read: the process that reads them ended without a word; try again")
    outcome = pickle.loads(raw)  # from our own child, over our own pipe
    if isinstance(outcome, str):
        raise PolicyError(outcome)
    settings, rulebook = outcome
    return cast("ExporterSettings", _namespace(settings)), rulebook


def _read_and_end(path: Path | None, writer: int) -> NoReturn:
    code = 0
    try:
        from nodeagent.exporter.settings import plain

        try:
            outcome: Any = plain(path)
        except PolicyError as error:
            outcome = str(error)
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(pickle.dumps(outcome))
    except BaseException as error:
        sys.stderr.write(f"gpubank-exporter: {type(error).__name__}: {error}\n")
        code = 1
    finally:
        # What the parent has open or registered for its end is not the child's to flush.
        os._exit(code)


def _namespace(value: Any) -> Any:
    if isinstance(value, dict):
        return SimpleNamespace(**{name: _namespace(each) for name, each in value.items()})
    return value
