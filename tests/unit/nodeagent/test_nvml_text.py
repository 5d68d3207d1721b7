"""A driver that says what is no text: one GPU cannot be described, and no process ends of it."""

from pathlib import Path

import pytest

from nodeagent.nvml.library import PynvmlSession
from nodeagent.nvml.reading import read_node
from nodeagent.nvml.snapshot import NodeSnapshot
from tests.native.facts import NvmlFacts

GOOD = "GPU-00000000-0000-4000-8000-000000000000"
BAD = "GPU-11111111-0000-4000-8000-000000000000"


def spoilt(path: Path, text: bytes) -> NodeSnapshot:
    """Look at the node after a piece of what its driver says became noise."""
    raw = path.read_bytes()
    assert text in raw
    path.write_bytes(raw.replace(text, b"\xff\xfe" + text[2:], 1))
    session = PynvmlSession()
    driver = session.open()
    try:
        return read_node(session, driver)  # type: ignore[arg-type]  # without deadlines the same
    finally:
        session.close()


@pytest.fixture
def facts(nvml_facts: NvmlFacts) -> NvmlFacts:
    nvml_facts.gpu(GOOD)
    nvml_facts.gpu(BAD, "NVIDIA Strange")
    nvml_facts.set_system(driver="580.95.05")
    return nvml_facts


@pytest.mark.parametrize("text", [b"NVIDIA Strange", BAD.encode()])
def test_a_gpu_whose_name_or_uuid_is_noise_is_unreadable_and_the_others_are_not(facts: NvmlFacts, text: bytes) -> None:
    found = spoilt(facts.path, text)
    assert [gpu.uuid for gpu in found.gpus] == [GOOD]
    assert [(each.index, "no text" in each.reason, each.lost) for each in found.unreadable] == [(1, True, False)]


def test_a_drivers_version_that_is_noise_is_left_out(facts: NvmlFacts) -> None:
    found = spoilt(facts.path, b"580.95.05")
    assert (found.driver, len(found.gpus)) == ("", 2)
