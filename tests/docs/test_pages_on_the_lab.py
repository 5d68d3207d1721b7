"""The commands of pages about a bank on a cluster are run, in order, on a lab and a bank that the pages have set up."""

from typing import Any

import pytest

from tests.docs.cluster import POOL, ReadBank, ReadLab
from tests.docs.onthelab import SCENES, in_passing, remove
from tests.docs.walk import lacking
from tests.plugins.lab import missing
from tests.support.waiting import seen

pytestmark = [pytest.mark.temporal, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="session")]


async def test_the_lab_that_a_page_starts_runs(read_lab: ReadLab) -> None:
    assert read_lab.lab.is_up()
    await read_lab.page.to_the_end()


async def test_the_bank_that_a_page_installs_has_the_examples_in_force(read_bank: ReadBank) -> None:
    read_bank.processes.check()
    in_force = {POOL: ("Applied", 64), "search-team-h100": ("Applied", None), "ads-h100": ("Applied", None)}
    await seen(lambda: judged(read_bank) == in_force, "the examples in force", say=lambda: judged(read_bank))


def judged(bank: ReadBank) -> dict[str, tuple[str, int | None]]:
    """Return the reason of the condition Ready of pools and policies, and what the pools can give out."""
    with bank.lab.api() as api:
        items = [
            item
            for kind in ("gpupools", "gpuquotapolicies")
            for item in api.request("GET", f"/apis/platform.aik8s.run/v1alpha1/{kind}")["items"]
        ]
    states = {item["metadata"]["name"]: item.get("status") or {} for item in items}
    return {name: (_reason(state), state.get("allocatable")) for name, state in states.items()}


def _reason(status: dict[str, Any]) -> str:
    ready = (each for each in status.get("conditions") or () if each["type"] == "Ready")
    return "".join(each["reason"] for each in ready)


@pytest.mark.parametrize("page", SCENES)
async def test_the_commands_of_a_page_do_what_it_says(read_bank: ReadBank, page: str) -> None:
    if lacks := lacking(page, read_bank.machine.env):
        missing(f"{page} is not read: this machine has no {', '.join(lacks)}")
    await SCENES[page](read_bank)
    read_bank.processes.check()


async def test_the_commands_that_pages_name_in_passing_are_taken(read_bank: ReadBank) -> None:
    await in_passing(read_bank)


async def test_the_bank_is_removed_as_its_page_says(read_bank: ReadBank) -> None:
    """The last of this module: no bank is left for another."""
    await remove(read_bank)
