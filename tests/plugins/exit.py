"""The test run ends without the interpreter's own shutdown, in which Temporal's client library may crash.

A crash there turns a green run red about one time in ten; what a run has to leave behind is written before.
"""

import sys

import pytest

from gpubank.exit import clean_exit

_SESSION = pytest.StashKey[pytest.Session]()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Remember the session, whose exit status is final only when everything has been torn down."""
    session.config.stash[_SESSION] = session


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave with the session's exit status, once every other plugin has finished."""
    session = config.stash.get(_SESSION, None)
    is_worker = hasattr(config, "workerinput")
    if session is None or is_worker or "temporalio" not in sys.modules or not _is_the_process():
        return
    _save_coverage()
    clean_exit(int(session.exitstatus))


def _is_the_process() -> bool:
    """Whether this process was started to run pytest, and not only called it."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return (spec is not None and spec.name.startswith("pytest")) or sys.argv[0].endswith(("pytest", "py.test"))


def _save_coverage() -> None:
    """Write out what `coverage run` would write at the interpreter's exit."""
    if "coverage" in sys.modules:
        current = sys.modules["coverage"].Coverage.current()
        if current is not None:
            current.stop()
            current.save()
