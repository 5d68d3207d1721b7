"""The NVML adapter under the real binding, over the stand-in for the driver's library."""

import time
from collections.abc import Iterator
from threading import Thread

import pynvml
import pytest

from nodeagent.nvml.guard import Guarded, Lane
from nodeagent.nvml.library import PynvmlSession
from nodeagent.nvml.port import GpuLostError, NvmlError, NvmlHungError, NvmlMissingError
from nodeagent.nvml.reading import read_node
from nodeagent.nvml.snapshot import ANY_INSTANCE, Ancestor, EventKind, RecoveryAction, Unreadable
from tests.native.facts import NvmlFacts


@pytest.fixture
def session(nvml_facts: NvmlFacts) -> Iterator[Guarded]:
    guarded = Guarded(PynvmlSession(), timeout=2)
    yield guarded
    nvml_facts.set_system(hang=0, hang_events=0)
    guarded.close()


def test_a_gpu_is_described_as_the_driver_tells_it(nvml_facts: NvmlFacts, session: Guarded) -> None:
    nvml_facts.gpu("GPU-a", numa=1, minor=3)
    assert session.open() == "580.95.05"
    (gpu,) = read_node(session).gpus
    assert (gpu.uuid, gpu.index, gpu.name, gpu.memory_mib) == ("GPU-a", 0, "NVIDIA H100 80GB HBM3", 81559)
    assert (gpu.compute_capability, gpu.pci_bus_id, gpu.pci_device_id) == ("9.0", "0000:18:00.0", "10de:2330")
    assert (gpu.minor, gpu.numa_node, gpu.mig_enabled, gpu.migs) == (3, 1, False, ())


def test_what_the_driver_does_not_support_is_none_and_never_zero(nvml_facts: NvmlFacts, session: Guarded) -> None:
    nvml_facts.gpu("GPU-a", recovery=None, remap_pending=None, ecc_dbe_volatile=None, numa=None, cc=None, minor=None)
    session.open()
    (gpu,) = read_node(session).gpus
    assert (gpu.numa_node, gpu.compute_capability, gpu.minor) == (None, "", None)
    condition = session.condition("GPU-a")
    assert (condition.recovery_action, condition.remap_pending, condition.ecc_uncorrected) == (None, None, None)


@pytest.mark.parametrize("numa", [-1, None])
def test_a_gpu_without_numa_node_has_none(nvml_facts: NvmlFacts, session: Guarded, numa: int | None) -> None:
    nvml_facts.gpu("GPU-a", numa=numa)
    session.open()
    assert session.describe(next(iter(u for u in session.enumerate() if isinstance(u, str)))).numa_node is None


def test_the_condition_is_read(nvml_facts: NvmlFacts, session: Guarded) -> None:
    nvml_facts.gpu("GPU-a", recovery=4, remap_pending=1, remap_failed=1, ecc_dbe_volatile=7)
    session.open()
    session.enumerate()
    condition = session.condition("GPU-a")
    assert condition.recovery_action is RecoveryAction.DRAIN_AND_RESET
    assert (condition.remap_pending, condition.remap_failed, condition.ecc_uncorrected) == (True, True, 7)


def test_a_call_that_a_new_session_overtakes_says_so_in_the_drivers_words(
    nvml_facts: NvmlFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml_facts.gpu("GPU-a")
    session = PynvmlSession()
    session.open()
    session.enumerate()

    def gone(*_: object) -> None:
        session.close()
        raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetTemperature", gone)
    with pytest.raises(NvmlError, match="GPU 'GPU-a' does not say how it is: Uninitialized"):
        session.condition("GPU-a")
    session.close()


def test_a_verdict_from_a_newer_driver_is_taken_as_the_worst(nvml_facts: NvmlFacts, session: Guarded) -> None:
    nvml_facts.gpu("GPU-a", recovery=99)
    session.open()
    session.enumerate()
    assert session.condition("GPU-a").recovery_action is RecoveryAction.SYSTEM_REBOOT


def test_mig_devices_come_with_profile_and_instances(nvml_facts: NvmlFacts, session: Guarded) -> None:
    nvml_facts.gpu("GPU-a")
    nvml_facts.mig("GPU-a", "MIG-1", "1g.10gb", gi=9)
    nvml_facts.mig("GPU-a", "MIG-2", "1g.10gb+me", gi=11, slot=4)
    session.open()
    (gpu,) = read_node(session).gpus
    assert gpu.mig_enabled
    assert [(mig.uuid, mig.profile, mig.gi, mig.ci) for mig in gpu.migs] == [
        ("MIG-1", "1g.10gb", 9, 0),
        ("MIG-2", "1g.10gb+me", 11, 0),
    ]
    assert gpu.migs[0].memory_mib == 9984


def test_a_lost_gpu_is_said_to_be_lost_and_the_others_are_read(nvml_facts: NvmlFacts, session: Guarded) -> None:
    nvml_facts.gpu("GPU-a")
    nvml_facts.gpu("GPU-b")
    session.open()
    session.enumerate()
    nvml_facts.change("GPU-a", lost=1)
    with pytest.raises(GpuLostError, match=r"GPU 'GPU-a'.*is lost"):
        session.condition("GPU-a")
    node = read_node(session)
    assert [gpu.uuid for gpu in node.gpus] == ["GPU-b"]
    assert [(found.index, found.lost) for found in node.unreadable] == [(0, True)]


def test_a_gpu_that_was_never_seen_is_not_there(nvml_facts: NvmlFacts, session: Guarded) -> None:
    session.open()
    with pytest.raises(GpuLostError, match="is not there"):
        session.describe("GPU-x")


def test_another_error_names_the_gpu(nvml_facts: NvmlFacts, session: Guarded) -> None:
    nvml_facts.gpu("GPU-a")
    session.open()
    session.enumerate()
    nvml_facts.change("GPU-a", fail=999)
    with pytest.raises(NvmlError, match="GPU 'GPU-a' cannot be described: Unknown Error") as error:
        session.describe("GPU-a")
    assert not isinstance(error.value, GpuLostError)


def test_a_new_gpu_is_seen_by_the_next_session(nvml_facts: NvmlFacts, session: Guarded) -> None:
    nvml_facts.gpu("GPU-a")
    session.open()
    nvml_facts.gpu("GPU-b")
    assert list(session.enumerate()) == ["GPU-a"]
    session.close()
    session.open()
    assert list(session.enumerate()) == ["GPU-a", "GPU-b"]


def test_a_gpu_that_was_pulled_is_lost(nvml_facts: NvmlFacts, session: Guarded) -> None:
    nvml_facts.gpu("GPU-a")
    nvml_facts.gpu("GPU-b")
    session.open()
    nvml_facts.remove("GPU-a")
    first, second = session.enumerate()
    assert isinstance(first, Unreadable)
    assert (first.lost, second) == (True, "GPU-b")


def test_a_driver_that_does_not_load_is_told_in_words(nvml_facts: NvmlFacts, session: Guarded) -> None:
    nvml_facts.set_system(fail=9)
    with pytest.raises(NvmlMissingError, match="NVML does not start"):
        session.open()


def test_links_count_nvlinks_between_two_gpus_and_the_nearest_ancestor(nvml_facts: NvmlFacts, session: Guarded) -> None:
    for uuid in ("GPU-a", "GPU-b", "GPU-c"):
        nvml_facts.gpu(uuid)
    nvml_facts.nvlink("GPU-a", "GPU-b", 4)
    nvml_facts.near("GPU-a", "GPU-c", 50)
    session.open()
    links = session.links([uuid for uuid in session.enumerate() if isinstance(uuid, str)])
    assert links.nvlinks == {("GPU-a", "GPU-b"): 4}
    assert links.ancestors == {("GPU-a", "GPU-c"): Ancestor.SYSTEM}


def test_through_a_switch_every_pair_has_the_links_of_the_poorer(nvml_facts: NvmlFacts, session: Guarded) -> None:
    for uuid, count in (("GPU-a", 3), ("GPU-b", 2)):
        nvml_facts.gpu(uuid)
        for number in range(count):
            nvml_facts.add("link", gpu=uuid, number=number, remote="0000:f0:00.0")
    session.open()
    assert session.links([u for u in session.enumerate() if isinstance(u, str)]).nvlinks == {("GPU-a", "GPU-b"): 2}


def test_an_xid_arrives_with_its_gpu_and_instance(nvml_facts: NvmlFacts, session: Guarded) -> None:
    nvml_facts.gpu("GPU-a")
    nvml_facts.gpu("GPU-b")
    session.open()
    session.enumerate()
    session.listen(["GPU-a", "GPU-b"])
    assert session.wait(10) is None
    nvml_facts.event("GPU-b", xid=79)
    event = session.wait(1000)
    assert event is not None
    assert (event.uuid, event.kind, event.data, event.gi) == ("GPU-b", EventKind.XID, 79, ANY_INSTANCE)
    nvml_facts.event("GPU-a", kind=0x100, gi=9, ci=0)
    event = session.wait(1000)
    assert event is not None
    assert (event.uuid, event.kind, event.gi, event.ci) == ("GPU-a", EventKind.MIG_CONFIG_CHANGE, 9, 0)


def test_events_from_before_listening_are_not_told_again(nvml_facts: NvmlFacts, session: Guarded) -> None:
    nvml_facts.gpu("GPU-a")
    nvml_facts.event("GPU-a", xid=31)
    session.open()
    session.enumerate()
    session.listen(["GPU-a"])
    assert session.wait(20) is None


def test_a_gpu_without_event_support_does_not_spoil_the_others(nvml_facts: NvmlFacts, session: Guarded) -> None:
    nvml_facts.gpu("GPU-a", events=0)
    nvml_facts.gpu("GPU-b")
    session.open()
    session.enumerate()
    session.listen(["GPU-a", "GPU-b"])
    nvml_facts.event("GPU-b", xid=13)
    event = session.wait(1000)
    assert event is not None
    assert event.data == 13


def test_waiting_says_that_a_gpu_is_lost(nvml_facts: NvmlFacts, session: Guarded) -> None:
    nvml_facts.gpu("GPU-a")
    session.open()
    session.enumerate()
    session.listen(["GPU-a"])
    nvml_facts.change("GPU-a", lost=1)
    with pytest.raises(GpuLostError):
        session.wait(1000)


def test_a_hung_gpu_costs_its_deadline_once_and_the_others_nothing(nvml_facts: NvmlFacts) -> None:
    nvml_facts.gpu("GPU-a")
    nvml_facts.gpu("GPU-b")
    session = Guarded(PynvmlSession(), timeout=0.2)
    session.open()
    session.enumerate()
    nvml_facts.change("GPU-a", hang=1)
    with pytest.raises(NvmlHungError, match=r"did not answer on 'GPU-a' within 0\.2 s"):
        session.condition("GPU-a")
    with pytest.raises(NvmlHungError, match="is stuck"):
        session.condition("GPU-a")
    assert session.condition("GPU-b").recovery_action is RecoveryAction.NONE
    nvml_facts.change("GPU-a", hang=0)
    deadline = time.monotonic() + 5
    while True:
        try:
            assert session.condition("GPU-a").recovery_action is RecoveryAction.NONE
            break
        except NvmlHungError:
            assert time.monotonic() < deadline, "the lane does not come back"
            time.sleep(0.01)
    session.close()


def test_a_lane_passes_on_what_its_work_raises_and_goes_on() -> None:
    lane = Lane("x")
    with pytest.raises(ZeroDivisionError):
        lane.run(lambda: 1 // 0, 1)
    assert lane.run(lambda: 7, 1) == 7
    lane.close()


def test_two_callers_of_one_lane_take_turns() -> None:
    lane, inside, most = Lane("x"), [], []

    def work() -> None:
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.005)
        inside.pop()

    threads = [Thread(target=lambda: lane.run(work, 5)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    lane.close()
