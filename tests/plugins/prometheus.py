"""Fixtures `promtool` and `prometheus_binary`: compiled like the lab's servers, and usable without a lab.

A test that takes one is marked `lab` by itself. Where they cannot be compiled the tests are skipped and say why, except
where the lab must run: there they fail.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.prometheus import Promtool

_PROGRAMS = {"promtool": "promtool", "prometheus_binary": "prometheus"}
_MISSING = pytest.StashKey[dict[str, str]]()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that takes one of the programs."""
    for item in items:
        if set(_PROGRAMS) & set(getattr(item, "fixturenames", ())):
            item.add_marker("lab")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Compile what is wanted before the first test: it may take minutes, which no test's time-out should count."""
    wanted = {name for item in session.items for name in getattr(item, "fixturenames", ()) if name in _PROGRAMS}
    missing = session.config.stash.setdefault(_MISSING, {})
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
            missing[fixture] = str(error)


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

    if reason := config.stash[_MISSING].get(fixture):
        text = f"{_PROGRAMS[fixture]} cannot be built: {reason}"
        if os.environ.get("CI") == "true" or os.environ.get("GPUBANK_LAB_REQUIRED") == "1":
            pytest.fail(text)
        pytest.skip(text)
    return build(PROMTOOL if fixture == "promtool" else PROGRAM).binary
