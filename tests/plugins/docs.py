"""Fixture `kubectl`, and the lab and the bank in which the documents are read: `read_lab`, `read_bank`.

A test that takes one is marked `lab` by itself. Where they cannot be built the tests are skipped and say why, except
where the lab must run: there they fail.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.plugins.lab import built_or_missing, missing

if TYPE_CHECKING:
    from gpubank.lab.postgres import Postgres
    from tests.docs.cluster import ReadBank, ReadLab

_NOT_BUILT = pytest.StashKey[str]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Compile kubectl before the first test: no test's time-out should count it."""
    wanted = any("kubectl" in getattr(item, "fixturenames", ()) for item in session.items)
    if session.config.option.collectonly or not wanted:
        return
    from gpubank.lab import BuildError
    from gpubank.lab.build import build
    from gpubank.lab.components.kubectl import KUBECTL

    try:
        build(KUBECTL)
    except BuildError as error:
        session.config.stash[_NOT_BUILT] = str(error)


@pytest.fixture(scope="session")
def kubectl(request: pytest.FixtureRequest) -> Path:
    """Path of a real kubectl."""
    from gpubank.lab.build import build
    from gpubank.lab.components.kubectl import KUBECTL

    if reason := request.config.stash.get(_NOT_BUILT, None):
        missing(f"kubectl cannot be built: {reason}")
    return build(KUBECTL).binary


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def read_lab(
    request: pytest.FixtureRequest, kubectl: Path, tmp_path_factory: pytest.TempPathFactory
) -> "AsyncIterator[ReadLab]":
    """A lab that was started by the page that says how, and a reader's machine with it; one module reads all pages."""
    from tests.docs.cluster import read_lab

    built_or_missing(request.config)
    async with read_lab(tmp_path_factory.mktemp("reader"), kubectl) as lab:
        yield lab


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def read_bank(read_lab: "ReadLab", postgres_server: "Postgres") -> "AsyncIterator[ReadBank]":
    """A bank that was installed by the page that says how, in the lab of `read_lab`, with work in its pool."""
    from tests.docs.cluster import read_bank

    async with read_bank(read_lab, postgres_server) as bank:
        yield bank
