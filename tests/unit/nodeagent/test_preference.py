"""Devices that go together: near each other, leaving neighbours behind, and never an exception."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubank.domain.device import Offer
from nodeagent.nvml.snapshot import Ancestor, Gpu, Links, pair
from nodeagent.plugin.inventory import Device
from nodeagent.plugin.preference import preferred

OFFER = Offer("h100-80gb")


def node(count: int, numa: dict[int, int] | None = None) -> dict[str, Device]:
    gpus = [Gpu(f"G{i:02}", i, "x", 1, numa_node=(numa or {}).get(i)) for i in range(count)]
    return {gpu.uuid: Device(gpu.uuid, gpu.uuid, gpu, OFFER) for gpu in gpus}


def islands(*groups: tuple[int, ...], links: int = 4) -> Links:
    """GPUs of a group are joined by NVLinks; all others meet at the system."""
    names = [f"G{i:02}" for group in groups for i in group]
    nvlinks = {pair(f"G{a:02}", f"G{b:02}"): links for group in groups for a, b in combinations(group, 2)}
    return Links(nvlinks, {pair(a, b): Ancestor.SYSTEM for a, b in combinations(names, 2)})


def ids(*indices: int) -> set[str]:
    return {f"G{i:02}" for i in indices}


def test_two_come_from_one_nvlink_island() -> None:
    devices, links = node(4), islands((0, 2), (1, 3))
    assert set(preferred(devices, links, ["G00", "G01", "G03"], [], 2)) == ids(1, 3)


def test_one_is_taken_where_it_breaks_the_fewest_neighbours() -> None:
    devices, links = node(4), islands((0, 1, 2))
    assert preferred(devices, links, sorted(devices), [], 1) == ("G03",)


def test_half_a_node_stays_on_one_side() -> None:
    devices, links = node(8), islands((0, 2, 4, 6), (1, 3, 5, 7))
    assert set(preferred(devices, links, sorted(devices), [], 4)) == ids(0, 2, 4, 6)
    assert set(preferred(devices, links, sorted(devices)[1:], [], 4)) == ids(1, 3, 5, 7)


def test_what_must_be_in_draws_its_neighbours() -> None:
    devices, links = node(8), islands((0, 2, 4, 6), (1, 3, 5, 7))
    chosen = preferred(devices, links, sorted(devices), ["G05"], 3)
    assert chosen[0] == "G05"
    assert set(chosen) < ids(1, 3, 5, 7)


def test_a_nearer_pcie_ancestor_decides_without_nvlink() -> None:
    devices = node(3)
    near = {
        ("G00", "G01"): Ancestor.SYSTEM,
        ("G00", "G02"): Ancestor.SINGLE_SWITCH,
        ("G01", "G02"): Ancestor.HOST_BRIDGE,
    }
    assert set(preferred(devices, Links({}, near), sorted(devices), [], 2)) == ids(0, 2)


def test_the_same_numa_node_decides_when_nothing_else_does() -> None:
    devices = node(4, numa={0: 0, 1: 1, 2: 0, 3: 1})
    assert set(preferred(devices, Links(), ["G00", "G01", "G03"], [], 2)) == ids(1, 3)


def test_sixteen_gpus_are_grown_rather_than_counted_out() -> None:
    devices = node(16)
    links = islands(tuple(range(0, 16, 2)), tuple(range(1, 16, 2)))
    assert set(preferred(devices, links, sorted(devices), [], 8)) == ids(*range(0, 16, 2))


def test_mig_devices_of_one_gpu_go_together() -> None:
    first, second = Gpu("G0", 0, "x", 1), Gpu("G1", 1, "x", 1)
    devices = {
        name: Device(name, name, gpu, OFFER, 1, 0) for name, gpu in (("M1", first), ("M2", second), ("M3", first))
    }
    assert set(preferred(devices, Links(), ["M1", "M2", "M3"], [], 2)) == {"M1", "M3"}


def test_turns_are_taken_on_different_gpus_and_where_most_are_left() -> None:
    gpus = [Gpu("G0", 0, "x", 1), Gpu("G1", 1, "x", 1)]
    devices = {f"{g.uuid}::{n}": Device(f"{g.uuid}::{n}", g.uuid, g, OFFER) for g in gpus for n in range(3)}
    free = ["G0::2", "G1::0", "G1::1", "G1::2"]
    assert preferred(devices, Links(), free, [], 1) == ("G1::0",)
    assert {name.split("::")[0] for name in preferred(devices, Links(), free, [], 2)} == {"G0", "G1"}


@pytest.mark.parametrize("size", [-1, 0])
def test_nothing_is_chosen_of_nothing(size: int) -> None:
    assert preferred(node(2), Links(), ["G00"], [], size) == ()


def test_ids_that_nobody_knows_are_taken_last_and_never_refused() -> None:
    assert preferred(node(1), Links(), ["new", "G00"], [], 2) == ("G00", "new")


NAME = st.sampled_from([f"G{i:02}" for i in range(10)] + ["G00::1", "G01::1", "??", ""])


@given(
    available=st.lists(NAME, max_size=12),
    must=st.lists(NAME, max_size=6),
    size=st.integers(-2, 14),
    count=st.integers(0, 10),
)
def test_it_never_raises_and_answers_with_what_is_there(
    available: list[str], must: list[str], size: int, count: int
) -> None:
    links = islands(tuple(range(0, count, 2)), tuple(range(1, count, 2)))
    chosen = preferred(node(count), links, available, must, size)
    assert len(chosen) == len(set(chosen))
    assert set(chosen) <= {*available, *must}
    assert len(chosen) == max(0, min(size, len({*available, *must})))
    assert size < len(set(must)) or set(must) <= set(chosen) or size <= 0


def test_a_defect_in_the_scoring_costs_the_pod_nothing() -> None:
    class Broken(Links):
        @property
        def nvlinks(self) -> dict[tuple[str, str], int]:
            raise RuntimeError

    broken = object.__new__(Broken)
    assert len(preferred(node(4), broken, ["G00", "G01", "G02"], [], 2)) == 2
