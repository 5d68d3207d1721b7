"""Measuring through NVIDIA's own binding, on a stand-in for the library below it."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from nodeagent.exporter.hardware import Hardware
from nodeagent.exporter.quantities import BY_KEY, Level
from nodeagent.exporter.telemetry import GuardedTelemetry, PynvmlTelemetry, Reading
from nodeagent.exporter.wiring import NvmlNode
from nodeagent.exporter.xids import OTHER, XidBook, XidListener
from nodeagent.nvml.guard import Guarded
from nodeagent.nvml.library import PynvmlSession
from nodeagent.nvml.port import GpuLostError, NvmlError, NvmlHungError
from nodeagent.nvml.snapshot import ANY_INSTANCE, Event, EventKind, Gpu
from tests.native.facts import NvmlFacts

FULL: dict[str, Any] = {
    "power": 412_345,
    "energy": 9_876_543_210,
    "util": 87,
    "mem_util": 12,
    "enc_util": 1,
    "dec_util": 2,
    "pcie_replay": 3,
    "gpm": 1,
}
TRAFFIC = BY_KEY["pcie_tx"]


class Bench:
    """One telemetry, and the GPUs as the node describes them."""

    def __init__(self, telemetry: PynvmlTelemetry) -> None:
        self.telemetry = telemetry
        self.node = NvmlNode(Guarded(PynvmlSession(), timeout=2))
        self.node.open()
        telemetry.open()

    def gpus(self) -> tuple[Gpu, ...]:
        return self.node.look("").gpus

    def read(self) -> Reading:
        return self.telemetry.read(self.gpus()[0])

    def close(self) -> None:
        self.telemetry.close()
        self.node.close()


@pytest.fixture
def bench(nvml_facts: NvmlFacts) -> Iterator[Bench]:
    nvml_facts.gpu("GPU-aaaaaaaa", **FULL)
    found = Bench(PynvmlTelemetry(extended=True))
    yield found
    found.close()


def test_a_gpu_gives_its_numbers_in_the_units_of_nvml(bench: Bench) -> None:
    values = bench.read().gpu
    assert values["power"] == 412_345
    assert values["energy"] == 9_876_543_210
    assert values["gpu_temperature"] == 35
    assert (values["gpu_utilization"], values["memory_utilization"]) == (87, 12)
    assert (values["encoder_utilization"], values["decoder_utilization"]) == (1, 2)
    assert values["memory_total"] == 81559 * 1024 * 1024
    assert (values["row_remap_failure"], values["ecc_uncorrected"]) == (0, 0)
    assert set(values) <= set(BY_KEY)


def test_what_a_gpu_does_not_say_is_left_out(bench: Bench, nvml_facts: NvmlFacts) -> None:
    nvml_facts.change("GPU-aaaaaaaa", power=None, energy=None, util=None, remap_failed=None, gpm=None, recovery=None)
    reading = bench.read()
    missing = {"power", "energy", "gpu_utilization", "memory_utilization", "row_remap_failure", "sm_active"}
    assert not missing & set(reading.gpu)
    assert reading.recovery_action is None
    assert reading.gpu["gpu_temperature"] == 35


def test_gpm_needs_two_samples_and_then_gives_percent(bench: Bench, nvml_facts: NvmlFacts) -> None:
    nvml_facts.add("gpm", gpu="GPU-aaaaaaaa", id=2, value=55.5)
    nvml_facts.add("gpm", gpu="GPU-aaaaaaaa", id=20, value=100.0)
    assert "sm_active" not in bench.read().gpu
    values = bench.read().gpu
    assert values["sm_active"] == 55.5
    assert "sm_occupancy" not in values, "the GPU gives no number for it"
    assert TRAFFIC.level is Level.TRAFFIC
    assert "pcie_tx" not in values, "byte rates are shown only where they are asked for"


def test_mig_instances_have_their_own_memory_and_gpm_and_the_gpu_has_no_utilization(
    bench: Bench, nvml_facts: NvmlFacts
) -> None:
    nvml_facts.mig("GPU-aaaaaaaa", "MIG-1", "1g.10gb", gi=7, used=100)
    nvml_facts.mig("GPU-aaaaaaaa", "MIG-2", "1g.10gb", gi=8, used=200)
    nvml_facts.add("gpm", gpu="GPU-aaaaaaaa", gi=7, id=1, value=10.0)
    bench.read()
    reading = bench.read()
    assert "gpu_utilization" not in reading.gpu
    assert "memory_used" not in reading.gpu
    assert reading.gpu["power"] == 412_345
    assert (reading.instances[7]["gr_engine_active"], "gr_engine_active" in reading.instances[8]) == (10.0, False)
    assert reading.instances[8]["memory_used"] - reading.instances[7]["memory_used"] == 100 * 1024 * 1024


def test_nvlink_is_a_rate_between_two_collections_and_a_counter_that_went_back_says_nothing(
    nvml_facts: NvmlFacts,
) -> None:
    now = [0.0]
    nvml_facts.gpu("GPU-aaaaaaaa", **FULL)
    bench = Bench(PynvmlTelemetry(clock=lambda: now[0]))
    gpu = bench.gpus()[0]

    def moved(kib: int) -> float | None:
        nvml_facts.lines = [line for line in nvml_facts.lines if line[0] != "field"]
        for number in (138, 139):
            nvml_facts.add("field", gpu="GPU-aaaaaaaa", id=number, value=kib)
        now[0] += 10
        return bench.telemetry.read(gpu).gpu.get("nvlink_throughput")

    assert [moved(1000), moved(6000), moved(10)] == [None, 1000, None]
    bench.close()


def test_an_impossible_memory_temperature_is_left_out(bench: Bench, nvml_facts: NvmlFacts) -> None:
    nvml_facts.add("field", gpu="GPU-aaaaaaaa", id=82, value=4_000_000_000, type=1)
    assert "memory_temperature" not in bench.read().gpu
    nvml_facts.lines = [line for line in nvml_facts.lines if line[0] != "field"]
    nvml_facts.add("field", gpu="GPU-aaaaaaaa", id=82, value=71, type=1)
    assert bench.read().gpu["memory_temperature"] == 71


def test_a_lost_gpu_is_an_error_that_says_so(bench: Bench, nvml_facts: NvmlFacts) -> None:
    gpu = bench.gpus()[0]
    nvml_facts.change("GPU-aaaaaaaa", lost=1)
    with pytest.raises(GpuLostError, match="it is lost"):
        bench.telemetry.read(gpu)


def test_samples_of_gpus_and_instances_that_are_gone_are_given_back(bench: Bench, nvml_facts: NvmlFacts) -> None:
    for gi in (7, 8):
        nvml_facts.mig("GPU-aaaaaaaa", f"MIG-{gi}", "1g.10gb", gi=gi)
    bench.read()
    assert len(bench.telemetry._gpm) == 2
    nvml_facts.unmig("GPU-aaaaaaaa")
    bench.read()
    assert [gi for _, gi in bench.telemetry._gpm] == [None]
    bench.telemetry.keep([])
    assert not bench.telemetry._gpm


def test_a_gpu_that_hangs_costs_its_own_numbers_and_no_others(nvml_facts: NvmlFacts) -> None:
    for uuid in ("GPU-aaaaaaaa", "GPU-bbbbbbbb"):
        nvml_facts.gpu(uuid, **FULL)
    node = NvmlNode(Guarded(PynvmlSession(), timeout=0.3))
    hardware = Hardware(node, GuardedTelemetry(PynvmlTelemetry(), timeout=0.3), look_seconds=3600)
    gpus = hardware.look().gpus
    assert set(hardware.measure(gpus)) == {"GPU-aaaaaaaa", "GPU-bbbbbbbb"}
    nvml_facts.change("GPU-aaaaaaaa", hang=1)
    assert set(hardware.measure(gpus)) == {"GPU-bbbbbbbb"}
    for _ in range(20):
        assert set(hardware.measure(gpus)) == {"GPU-bbbbbbbb"}
    assert hardware.failures["gpu_hung"] == 21
    nvml_facts.change("GPU-aaaaaaaa", hang=0)
    deadline = time.monotonic() + 10
    while set(hardware.measure(gpus)) != {"GPU-aaaaaaaa", "GPU-bbbbbbbb"} and time.monotonic() < deadline:
        time.sleep(0.05)
    assert set(hardware.measure(gpus)) == {"GPU-aaaaaaaa", "GPU-bbbbbbbb"}
    hardware.close()


def test_a_lost_gpu_stays_known_so_that_its_pod_keeps_it(nvml_facts: NvmlFacts) -> None:
    for uuid in ("GPU-aaaaaaaa", "GPU-bbbbbbbb"):
        nvml_facts.gpu(uuid, **FULL)
    hardware = Hardware(NvmlNode(Guarded(PynvmlSession(), timeout=2)), GuardedTelemetry(PynvmlTelemetry()))
    hardware.look()
    nvml_facts.change("GPU-aaaaaaaa", lost=1)
    hardware.stale()
    snapshot = hardware.look()
    assert [gpu.uuid for gpu in snapshot.gpus] == ["GPU-aaaaaaaa", "GPU-bbbbbbbb"]
    assert [each.index for each in snapshot.unreadable] == [0]
    assert set(hardware.measure(snapshot.gpus)) == {"GPU-bbbbbbbb"}
    hardware.close()


def test_a_node_without_a_driver_is_tried_again_later_and_costs_nothing() -> None:
    class Missing:
        tries = 0

        def open(self) -> str:
            self.tries += 1
            raise NvmlError("no driver")

        def look(self, driver: str) -> None:
            raise AssertionError

        def close(self) -> None:
            return

    now = [0.0]
    node = Missing()
    hardware = Hardware(node, None, clock=lambda: now[0])  # type: ignore[arg-type]
    for now[0] in (0.0, 1.0, 14.0, 16.0):
        assert hardware.look().gpus == ()
    assert node.tries == 2


def an_xid(number: int, gpu: str = "GPU-a", gi: int = ANY_INSTANCE) -> Event:
    return Event(gpu, EventKind.XID, number, gi, gi)


def test_the_book_counts_each_xid_and_keeps_the_last() -> None:
    book = XidBook()
    for number in (79, 31, 79):
        book.record(an_xid(number))
    book.record(an_xid(94, gi=3))
    book.record(Event("GPU-a", EventKind.DOUBLE_BIT_ECC, 1))
    book.record(an_xid(1, gpu=""))
    assert book.last == {"GPU-a": 94}
    assert [(each.gi, each.xid, each.count) for each in book.counts] == [(None, "31", 1), (None, "79", 2), (3, "94", 1)]


def test_a_gpu_that_reports_endlessly_new_xids_fills_no_memory() -> None:
    book = XidBook()
    for number in range(10_000):
        book.record(an_xid(number))
    assert len(book.counts) == 65
    assert sum(each.count for each in book.counts) == 10_000
    assert OTHER in {each.xid for each in book.counts}
    book.keep(["GPU-b"])
    assert (book.counts, book.last) == ([], {})


def test_xids_of_a_real_event_set_are_heard(nvml_facts: NvmlFacts) -> None:
    nvml_facts.gpu("GPU-aaaaaaaa", **FULL)
    nvml, book, changes = Guarded(PynvmlSession(), timeout=2), XidBook(), []
    nvml.open()
    nvml.enumerate()
    listener = XidListener(nvml, book, on_change=lambda: changes.append(1), pause=0.05)
    listener.watch(["GPU-aaaaaaaa"])
    listener.start()
    _until(lambda: listener.listening == {"GPU-aaaaaaaa"})
    nvml_facts.event("GPU-aaaaaaaa", xid=79)
    nvml_facts.event("GPU-aaaaaaaa", kind=EventKind.MIG_CONFIG_CHANGE)
    _until(lambda: book.last == {"GPU-aaaaaaaa": 79} and changes != [])
    listener.stop()
    nvml.close()


def test_a_listener_whose_driver_hangs_goes_on_when_it_answers_again() -> None:
    class Source:
        def __init__(self) -> None:
            self.waits = 0

        def listen(self, uuids: object) -> None:
            return

        def wait(self, timeout_ms: int) -> Event | None:
            self.waits += 1
            if self.waits < 3:
                raise NvmlHungError("stuck")
            time.sleep(0.01)
            return an_xid(48)

    book = XidBook()
    listener = XidListener(Source(), book, pause=0.01)
    listener.watch(["GPU-a"])
    listener.start()
    _until(lambda: book.last == {"GPU-a": 48})
    listener.stop()


def _until(holds: object, seconds: float = 10) -> None:
    assert callable(holds)
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)
