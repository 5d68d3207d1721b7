"""The commands of pages that need no cluster are run, in order, as a reader would run them."""

from pathlib import Path

import pytest

from tests.docs.offline import SCENES, Desk
from tests.docs.shell import checkout, environment
from tests.docs.walk import lacking
from tests.native.facts import ENVIRONMENT, NvmlFacts
from tests.plugins.lab import missing


@pytest.fixture
def desk(tmp_path: Path, nvml_library: Path) -> Desk:
    facts = NvmlFacts(tmp_path / "nvml.facts")
    facts.write()
    driver = {"LD_LIBRARY_PATH": str(nvml_library.parent), ENVIRONMENT: str(facts.path)}
    (tmp_path / "gpubank").mkdir()
    return Desk(checkout(tmp_path / "gpubank"), environment(tmp_path / "home", {}, **driver), facts)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("page", SCENES)
async def test_the_commands_of_a_page_do_what_it_says(desk: Desk, page: str) -> None:
    if lacks := lacking(page, desk.env):
        missing(f"{page} is not read: this machine has no {', '.join(lacks)}")
    await SCENES[page](desk)
