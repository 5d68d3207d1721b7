"""Marks: what takes a GPU out, what puts it back, and that a restart does neither."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubank.domain.errors import ConflictError, PolicyError
from nodeagent.health import policy
from nodeagent.health.book import HealthBook, Observation
from nodeagent.health.policy import Symptom
from nodeagent.health.store import HealthStore
from nodeagent.nvml.snapshot import Condition, Event, EventKind, RecoveryAction

POLICY = policy.load()
GOOD = Observation(Condition(recovery_action=RecoveryAction.NONE, remap_pending=False, remap_failed=False))
OLD_DRIVER = Condition()


def xid(code: int, uuid: str = "GPU-a", gi: int = 0xFFFFFFFF, ci: int = 0xFFFFFFFF) -> Event:
    return Event(uuid, EventKind.XID, code, gi, ci)


def verdict(action: RecoveryAction) -> Observation:
    return Observation(Condition(recovery_action=action))


@pytest.mark.parametrize("code", [13, 31, 43, 45, 63, 68, 94, 139, 162])
def test_an_applications_fault_leaves_the_gpu_to_others(code: int) -> None:
    book = HealthBook(POLICY)
    assert not book.event(xid(code), 0, OLD_DRIVER)
    assert book.reason("GPU-a") == ""


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        *((code, "reset") for code in (48, 64, 74, 95, 109, 119)),
        *((code, "hardware") for code in (1, 54, 79, 9999)),
        (144, "transient"),
    ],
)
def test_a_gpus_own_fault_takes_it_out(code: int, fault: str) -> None:
    book = HealthBook(POLICY)
    assert book.event(xid(code), 0, OLD_DRIVER)
    assert book.reason("GPU-a") == f"xid {code} ({fault})"


def test_the_drivers_verdict_goes_before_the_table() -> None:
    book = HealthBook(POLICY)
    assert book.event(xid(94), 0, Condition(recovery_action=RecoveryAction.GPU_RESET))
    assert book.reason("GPU-a") == "recovery action GPU_RESET (reset)"


def test_xid_154_is_the_drivers_verdict_and_nothing_else() -> None:
    book = HealthBook(POLICY)
    assert not book.event(xid(154), 0, GOOD.condition)
    assert book.event(xid(154), 0, OLD_DRIVER)
    assert book.reason("GPU-a") == "xid 154 (reset)"


@pytest.mark.parametrize("symptom", [Symptom.HUNG, Symptom.UNREADABLE])
def test_a_transient_fault_is_over_after_the_quiet_period_and_not_before(symptom: Symptom) -> None:
    book = HealthBook(POLICY)
    assert book.observe("GPU-a", Observation(symptom=symptom), 1000)
    assert not book.observe("GPU-a", Observation(symptom=symptom), 1200)  # again: the quiet period begins anew
    assert not book.observe("GPU-a", GOOD, 1499)
    assert book.reason("GPU-a") != ""
    assert book.observe("GPU-a", GOOD, 1500)
    assert book.reason("GPU-a") == ""


@pytest.mark.parametrize("code", [48, 79, 109])
def test_reset_and_hardware_faults_never_heal_by_themselves(code: int) -> None:
    book = HealthBook(POLICY)
    book.event(xid(code), 0, OLD_DRIVER)
    book.observe("GPU-a", GOOD, 10**9)
    assert book.reason("GPU-a") != ""
    assert book.release("GPU-a", 10**9)
    assert book.reason("GPU-a") == ""


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (verdict(RecoveryAction.NODE_REBOOT), "recovery action NODE_REBOOT"),
        (Observation(symptom=Symptom.LOST, detail="it fell off"), r"lost \(it fell off\)"),
        (Observation(Condition(remap_failed=True)), "remap-failed"),
        (Observation(Condition(remap_pending=True)), "remap-pending"),
    ],
)
def test_a_gpu_that_still_reports_a_fault_is_not_released(seen: Observation, words: str) -> None:
    book = HealthBook(POLICY)
    assert book.observe("GPU-a", seen, 0)
    with pytest.raises(ConflictError, match=f"'GPU-a' cannot be released: it still reports {words}"):
        book.release("GPU-a", 1)
    book.observe("GPU-a", GOOD, 2)
    assert book.reason("GPU-a") != ""  # sound again, but signed off by nobody
    assert book.release("GPU-a", 3)


def test_pending_rows_of_which_the_driver_asks_nothing_are_no_fault() -> None:
    book = HealthBook(POLICY)
    seen = Condition(recovery_action=RecoveryAction.NONE, remap_pending=True)
    assert not book.observe("GPU-a", Observation(seen), 0)


def test_a_person_takes_out_and_puts_back() -> None:
    book = HealthBook(POLICY)
    assert book.quarantine("GPU-a", "ops@x", "noisy fan", 0, key="q/1")
    assert book.reason("GPU-a") == "quarantine (manual, ops@x: noisy fan)"
    assert book.release("GPU-a", 1, key="r/1")
    assert not book.quarantine("GPU-a", "ops@x", "noisy fan", 2, key="q/1")  # the order arrives once more
    assert book.reason("GPU-a") == ""


def test_a_late_copy_of_a_release_does_not_undo_a_newer_fault() -> None:
    book = HealthBook(POLICY)
    book.event(xid(79), 0, OLD_DRIVER)
    assert book.release("GPU-a", 1, key="r/1")
    book.event(xid(79), 2, OLD_DRIVER)
    assert not book.release("GPU-a", 3, key="r/1")
    assert book.reason("GPU-a") == "xid 79 (hardware)"


def test_a_fault_on_one_instance_leaves_the_others_alone() -> None:
    book = HealthBook(POLICY)
    book.event(xid(95, gi=3, ci=0), 0, OLD_DRIVER)
    assert book.reason("GPU-a", 3, 0) != ""
    assert book.reason("GPU-a", 4, 0) == ""
    assert book.reason("GPU-a") != ""  # who holds the whole GPU holds that instance too
    book.event(xid(79), 1, OLD_DRIVER)
    assert book.reason("GPU-a", 4, 0) == "xid 79 (hardware)"


def test_marks_survive_a_restart(tmp_path: Path) -> None:
    store = HealthStore(tmp_path)
    book = store.load(POLICY)
    book.event(xid(79, gi=1, ci=2), 12.5, OLD_DRIVER)
    book.quarantine("GPU-b", "ops", "why", 13, key="k")
    store.save(book)
    again = HealthStore(tmp_path).load(POLICY)
    assert (again.marks, again.keys) == (book.marks, ["k"])


def test_a_broken_file_falls_back_to_the_one_before(tmp_path: Path) -> None:
    store = HealthStore(tmp_path)
    book = HealthBook(POLICY)
    book.quarantine("GPU-a", "ops", "why", 0)
    store.save(book)
    store.save(book)
    store.path.write_text("{")
    assert "GPU-a" in store.load(POLICY).marks


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 2}', '{"version": 1, "gpus": {"a": [{}]}, "keys": []}'])
def test_without_any_readable_file_the_agent_does_not_call_gpus_sound(tmp_path: Path, text: str) -> None:
    store = HealthStore(tmp_path)
    store.path.write_text(text)
    with pytest.raises(PolicyError, match="not known which GPUs are unfit"):
        store.load(POLICY)


def test_a_mark_of_a_class_that_a_newer_policy_lacks_still_holds(tmp_path: Path) -> None:
    store = HealthStore(tmp_path)
    book = HealthBook(POLICY)
    book.event(xid(79), 0, OLD_DRIVER)
    store.save(book)
    store.path.write_text(store.path.read_text().replace("hardware", "melted"))
    again = store.load(POLICY)
    again.observe("GPU-a", GOOD, 10**9)
    assert again.reason("GPU-a") == "xid 79 (melted)"


@given(st.recursive(st.none() | st.integers() | st.text(max_size=9), lambda i: st.dictionaries(st.text(max_size=9), i)))
def test_no_state_file_makes_it_fail_otherwise_than_in_words(body: object) -> None:
    from nodeagent.health.store import _book

    found = _book(json.dumps({"version": 1, "gpus": body, "keys": []}), POLICY)
    assert found is None or isinstance(found, HealthBook)


@given(st.lists(st.tuples(st.sampled_from([13, 48, 79, 144]), st.integers(0, 5000)), max_size=12))
def test_whatever_comes_first_a_gpu_with_a_lasting_fault_stays_out_until_release(events: list[tuple[int, int]]) -> None:
    book = HealthBook(POLICY)
    for code, at in events:
        book.event(xid(code), at, OLD_DRIVER)
        book.observe("GPU-a", GOOD, at + 400)
    lasting = any(code in (48, 79) for code, _ in events)
    book.observe("GPU-a", GOOD, 10**6)
    assert bool(book.reason("GPU-a")) == lasting


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("codes: [79]", "codes: [78]", "an XID has one rule"),
        ("  lost: hardware ", "  gone: hardware ", "missing or unknown: gone, lost"),
        ("BUS_RESET: reset", "BUS_RESET: fix", "lacks fix"),
        ("reset: {schedulable: false, recovers: release}", "reset: {schedulable: false}", "recovers"),
        (
            "manual: {schedulable: false, recovers: release}",
            "manual: {schedulable: false, recovers: locally}",
            "person",
        ),
    ],
)
def test_a_policy_with_a_hole_is_refused(tmp_path: Path, old: str, new: str, words: str) -> None:
    text = policy.DEFAULT_POLICY.read_text()
    assert old in text
    file = tmp_path / "health.yaml"
    file.write_text(text.replace(old, new))
    with pytest.raises(PolicyError, match=words):
        policy.load(tmp_path)
