"""The last holders in a file: what a restart of the exporter remembers, and what it refuses to believe."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubank.domain.attribution import FIELDS
from nodeagent.attribution.holders import LARGEST, HoldersFile, parse
from nodeagent.attribution.identity import Witnesses
from nodeagent.attribution.mapping import Attribution, DeviceMapping, Holder, MappingStatus, attribute
from nodeagent.attribution.memory import Memory
from tests.unit.nodeagent_attribution.worlds import GPU, GPU2, NOW, a_snapshot, an_inventory, held, told

PODS = {("team-a", "train-0"): frozenset({"u1"}), ("team-a", "train-1"): frozenset({"u2"})}
HOLDER = Holder("u1", "team-a", "train-0", "main", {"cost_center": "CC-1", "model": "llama"}, ("model",))
MAPPED = DeviceMapping(MappingStatus.MAPPED, (HOLDER,))


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def touched(path: Path, clock: Clock) -> None:
    """Say that the file was written now, by the test's clock."""
    os.utime(path, (clock.now, clock.now))


def found(*pods: str, told_uids: tuple[str, ...] = ("u1",)) -> Attribution:
    metadata = a_snapshot(*(told(uid) for uid in told_uids))
    return attribute([held(pod) for pod in pods], an_inventory(), Witnesses(pods=PODS), metadata, now=NOW)


def restarted(path: Path, clock: Clock) -> Memory:
    return Memory(120, HoldersFile(path, clock=clock))


def test_a_pod_that_ends_while_the_exporter_is_away_has_its_tombstone_all_the_same(
    tmp_path: Path, clock: Clock
) -> None:
    path, inventory = tmp_path / "deep" / "holders.json", an_inventory()
    before = restarted(path, clock).complete(found("train-0"), inventory, now=5000).of(GPU)
    touched(path, clock)
    clock.now += 30
    memory = restarted(path, clock)  # of a process whose own clock begins anew
    after = memory.complete(found(), inventory, now=3)
    assert after.of(GPU) == before
    assert after.tombstones == {GPU}
    assert memory.complete(found(), inventory, now=3 + 91).tombstones == frozenset()


def test_a_tombstone_ends_at_its_time_however_often_the_exporter_is_restarted(tmp_path: Path, clock: Clock) -> None:
    path, inventory = tmp_path / "holders.json", an_inventory()
    memory = restarted(path, clock)
    memory.complete(found("train-0"), inventory, now=0)
    for age in (40, 80, 119):
        clock.now = 1_800_000_000.0 + age
        assert memory.complete(found(), inventory, now=age).tombstones == {GPU}
        touched(path, clock)
        memory = restarted(path, clock)
    clock.now += 2
    assert memory.complete(found(), inventory, now=0).tombstones == frozenset()


def test_what_was_long_ago_is_nobodys_last_sample(tmp_path: Path, clock: Clock) -> None:
    path, inventory = tmp_path / "holders.json", an_inventory()
    restarted(path, clock).complete(found("train-0"), inventory, now=0)
    touched(path, clock)
    clock.now += 3600
    assert restarted(path, clock).complete(found(), inventory, now=0).tombstones == frozenset()


def test_a_clock_that_went_back_makes_no_tombstone_older_or_longer_than_it_may_be(tmp_path: Path, clock: Clock) -> None:
    path, inventory = tmp_path / "holders.json", an_inventory()
    restarted(path, clock).complete(found("train-0"), inventory, now=0)
    touched(path, clock)
    clock.now -= 3600
    memory = restarted(path, clock)
    assert memory.complete(found(), inventory, now=0).tombstones == {GPU}
    assert memory.complete(found(), inventory, now=121).tombstones == frozenset()


def test_what_was_told_about_a_pod_that_runs_on_outlives_the_restart_too(tmp_path: Path, clock: Clock) -> None:
    path, inventory = tmp_path / "holders.json", an_inventory()
    before = restarted(path, clock).complete(found("train-0"), inventory, now=0).of(GPU)
    touched(path, clock)
    forgotten = found("train-0", told_uids=())
    assert forgotten.of(GPU).holders[0].fields == {}
    assert restarted(path, clock).complete(forgotten, inventory, now=0).of(GPU) == before


def test_a_quiet_node_writes_nothing_and_still_says_that_it_looked(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "holders.json"
    file = HoldersFile(path, clock=clock)
    file.save({GPU: MAPPED}, {})
    written = path.stat()
    os.utime(path, (0, 0))
    file.save({GPU: MAPPED}, {})
    assert path.stat().st_ino == written.st_ino
    assert path.stat().st_mtime > 0
    file.save({GPU2: MAPPED}, {})
    assert path.stat().st_ino != written.st_ino or json.loads(path.read_text())["devices"][0]["uuid"] == GPU2
    assert (path.stat().st_mode & 0o777, list(tmp_path.iterdir())) == (0o600, [path])


def test_a_file_that_cannot_be_written_is_counted_and_breaks_nothing(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    memory = restarted(tmp_path / "file" / "holders.json", clock)
    for now in (0, 10):
        assert memory.complete(found("train-0"), an_inventory(), now=now).of(GPU).holders
    assert memory.unsaved == 2
    assert len([record for record in caplog.records if "cannot be written" in record.message]) == 1


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"version": 2, "devices": []}', '{"version": 1}', '{"version": 1, "devices": 5}', "[" * 100_000],
)
def test_a_file_that_makes_no_sense_is_nobody_and_no_end(tmp_path: Path, clock: Clock, text: str) -> None:
    path = tmp_path / "holders.json"
    path.write_text(text)
    assert HoldersFile(path, clock=clock).load() == {}


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "holders.json"
    path.write_bytes(b" " * (LARGEST + 1))
    assert HoldersFile(path, clock=clock).load() == {}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
holder_like = st.fixed_dictionaries(
    {
        "uid": st.text(max_size=70) | json_values,
        "namespace": st.text(max_size=20) | st.just("team-a"),
        "pod": st.text(max_size=20) | st.just("train-0"),
        "container": st.just("") | st.text(max_size=10),
        "fields": st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=8), st.text(max_size=200), max_size=6),
        "unverified": st.lists(st.sampled_from(FIELDS) | st.text(max_size=8), max_size=4),
    }
)
device_like = st.fixed_dictionaries(
    {"uuid": st.text(max_size=150) | json_values, "holders": st.lists(holder_like, max_size=3) | json_values},
    optional={"gone": json_values},
)


@given(st.binary(max_size=200) | json_values.map(lambda value: json.dumps(value).encode()))
def test_no_bytes_do_more_than_be_refused(raw: bytes) -> None:
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        list(parse(raw))


@given(st.lists(device_like, max_size=4))
def test_whatever_a_file_says_only_what_could_be_is_believed(devices: list[Any]) -> None:
    raw = json.dumps({"version": 1, "devices": devices}).encode()
    try:
        read = list(parse(raw))
    except (ValueError, KeyError, TypeError, AttributeError):
        return
    for uuid, mapping, _ in read:
        assert 0 < len(uuid) <= 128
        assert mapping.holders
        for holder in mapping.holders:
            assert "\n" not in holder.uid + holder.pod + holder.namespace + holder.container
            assert set(holder.fields) <= set(FIELDS)
            assert set(holder.unverified) <= set(FIELDS)


def test_what_is_written_is_read_again(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "holders.json"
    HoldersFile(path, clock=clock).save({GPU: MAPPED}, {GPU2: (MAPPED, 40.0)})
    touched(path, clock)
    assert HoldersFile(path, clock=clock).load() == {GPU: (MAPPED, 0.0), GPU2: (MAPPED, 40.0)}
