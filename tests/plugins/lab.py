"""Fixtures over real servers: `lab` (etcd, Kubernetes, Kueue, fake nodes) and `postgres_url`.

A test that takes one of them is marked `lab` or `postgres` by itself. Where the servers cannot be had the tests are
skipped and say why, except where they must run: with `CI=true` or `GPUBANK_LAB_REQUIRED=1` they fail instead.
"""

import os
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from gpubank.lab import Lab, Progress
    from gpubank.lab.postgres import Postgres

_BUILT_APART = {"promtool", "prometheus_binary"}
"""Fixtures of servers that a test can have without the lab's others; see the plugin `prometheus`."""
_MARKS = {"postgres_server": "postgres", **dict.fromkeys(("lab", "kubelet_lab", "kubectl", *_BUILT_APART), "lab")}
"""Mark by fixture, of this plugin and of `docs`, `kubelet` and `prometheus`."""
_NO_LAB = pytest.StashKey[str]()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test by the real server it takes, so that `-m "not lab"` leaves nothing behind."""
    for item in items:
        for fixture, mark in _MARKS.items():
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(mark)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Compile the servers before the first test: it may take minutes, which no test's time-out should count."""
    if session.config.option.collectonly or not any(_needs_lab(item) for item in session.items):
        return
    from gpubank.lab import Lab, LabError, Stage

    terminal = session.config.pluginmanager.getplugin("terminalreporter")

    def show(progress: "Progress") -> None:
        if terminal and progress.stage is Stage.BUILDING:
            terminal.write_line(f"lab: {progress.component}: {progress.detail}")

    try:
        Lab(report=show).build()
    except LabError as error:
        session.config.stash[_NO_LAB] = str(error)


def _needs_lab(item: pytest.Item) -> bool:
    fixtures = set(getattr(item, "fixturenames", ()))
    return item.get_closest_marker("lab") is not None and ("lab" in fixtures or not fixtures & _BUILT_APART)


@pytest.fixture(scope="session")
def lab(request: pytest.FixtureRequest) -> Iterator["Lab"]:
    """A lab for the whole session: 16 nodes of 8 GPUs in pool `h100-pool`. Tests keep to namespaces of their own."""
    from gpubank.lab import Lab, LabError

    built_or_missing(request.config)
    lab = Lab(f"test-{uuid.uuid4().hex[:8]}", nodes=16)
    try:
        lab.up()
    except LabError as error:
        # Servers that were built must start: this is a failure everywhere, never a reason to skip.
        lab.clean()
        pytest.fail(f"the lab does not start: {error}")
    try:
        yield lab
    finally:
        lab.clean()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator["Postgres"]:
    """A PostgreSQL server for the whole session."""
    from gpubank.lab import LabError
    from gpubank.lab.postgres import Postgres

    server = Postgres()
    try:
        server.start()
    except LabError as error:
        server.close()
        missing(f"no PostgreSQL: {error}")
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def postgres_url(postgres_server: "Postgres") -> str:
    """Return the URL, `postgresql://…`, of an empty database of the test's own."""
    return postgres_server.create_database()


def built_or_missing(config: pytest.Config) -> None:
    """Skip the test, or fail it where the lab must run, if the lab could not be built."""
    if reason := config.stash.get(_NO_LAB, None):
        missing(f"the lab cannot be built: {reason}")


def missing(reason: str) -> NoReturn:
    if os.environ.get("CI") == "true" or os.environ.get("GPUBANK_LAB_REQUIRED") == "1":
        pytest.fail(reason)
    pytest.skip(reason)
