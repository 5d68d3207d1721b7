"""Fixtures `promtool` and `prometheus_binary`: compiled like the lab's servers, and usable without a lab.

A test that takes one is marked `lab` by itself. Where they cannot be compiled the tests are skipped and say why, except
where the lab must run: there they fail.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.plugins.lab import missing

if TYPE_CHECKING:
    from tests.support.prometheus import Promtool

_PROGRAMS = {"promtool": "promtool", "prometheus_binary": "prometheus"}
_NOT_BUILT = pytest.StashKey[dict[str, str]]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Compile what is wanted before the first test: it may take minutes, which no test's time-out should count."""
    wanted = {name for item in session.items for name in getattr(item, "fixturenames", ()) if name in _PROGRAMS}
    not_built = session.config.stash.setdefault(_NOT_BUILT, {})
    if session.config.option.collectonly or not wanted:
        return
    from gpubank.lab import BuildError
    from gpubank.lab.build import build
    from gpubank.lab.components.prometheus import PROGRAM, PROMTOOL

    for fixture in sorted(wanted):
        program = PROMTOOL if fixture == "promtool" else PROGRAM
        try:
            build(program)
        except BuildError as error:
            not_built[fixture] = str(error)


@pytest.fixture(scope="session")
def prometheus_binary(request: pytest.FixtureRequest) -> Path:
    """Path of a real Prometheus."""
    return _binary(request.config, "prometheus_binary")


@pytest.fixture(scope="session")
def promtool(request: pytest.FixtureRequest) -> "Promtool":
    """Runs a real promtool."""
    from tests.support.prometheus import Promtool

    return Promtool(_binary(request.config, "promtool"))


def _binary(config: pytest.Config, fixture: str) -> Path:
    from gpubank.lab.build import build
    from gpubank.lab.components.prometheus import PROGRAM, PROMTOOL

    if reason := config.stash[_NOT_BUILT].get(fixture):
        missing(f"{_PROGRAMS[fixture]} cannot be built: {reason}")
    return build(PROMTOOL if fixture == "promtool" else PROGRAM).binary
