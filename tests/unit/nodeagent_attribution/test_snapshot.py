"""Sealed snapshots: what a node believes, and what it keeps."""

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import example, given
from hypothesis import strategies as st

from gpubank.domain.attribution import CLAIM_FIELDS, FIELDS, MOST_LENGTHS, permitted
from gpubank.domain.errors import BankError, PolicyError
from gpubank.metadata import body
from gpubank.metadata.channel import may_watch, requested_node
from gpubank.metadata.seal import MAGIC, Opener, Sealer, SealError
from tests.unit.nodeagent_attribution.worlds import GPU, KEY, NOW, a_snapshot, a_store, an_opener, sealed, told

DEVICES = {"d/p/gpu-0": GPU}
FULL = a_snapshot(
    told("u1", model="llama", queue="h100-borrow"), told("u2", name="train-1"), devices={"d/p/gpu-0": GPU}
)


def test_what_is_sealed_is_what_is_opened() -> None:
    assert an_opener().open(sealed(FULL), now=NOW) == FULL


def test_equal_facts_are_equal_bytes() -> None:
    again = a_snapshot(
        told("u2", name="train-1"), told("u1", queue="h100-borrow", model="llama"), devices={"d/p/gpu-0": GPU}
    )
    assert body.encode(again) == body.encode(FULL)


@given(
    node=st.sampled_from(["gpu-0", "issuedat.1970-01-01t00-00-00z"]),
    at=st.floats(1, 4e9).map(lambda seconds: datetime.fromtimestamp(seconds, UTC)),
)
def test_a_time_said_afterwards_gives_the_same_bytes(node: str, at: datetime) -> None:
    metadata = a_snapshot(told("u1", model="llama"), node=node, issued_at=at, devices=DEVICES)
    assert body.issued(body.content(metadata), at) == body.encode(metadata)


@given(place=st.integers(0, 10_000), bit=st.integers(0, 7))
@example(place=126, bit=1)  # in the letter of the signature that says two bits too many
def test_a_snapshot_with_any_bit_changed_is_not_believed(place: int, bit: int) -> None:
    raw = bytearray(sealed(FULL))
    raw[place % len(raw)] ^= 1 << bit
    with pytest.raises(BankError):
        an_opener().open(bytes(raw), now=NOW)


@given(st.binary(max_size=300) | st.binary(max_size=200).map(lambda raw: MAGIC + b" " + raw))
def test_any_bytes_are_refused_and_nothing_else_happens(raw: bytes) -> None:
    with pytest.raises(SealError):
        an_opener().open(raw, now=NOW)


def test_a_snapshot_for_another_node_is_refused() -> None:
    with pytest.raises(SealError, match=r"for node 'gpu-0', and this is 'gpu-1'"):
        an_opener("gpu-1").open(sealed(FULL), now=NOW)


def test_a_snapshot_of_another_key_is_refused_until_that_key_is_trusted() -> None:
    other = Ed25519PrivateKey.generate()
    raw = Sealer(other).seal(FULL)
    with pytest.raises(SealError, match="not trusted"):
        an_opener().open(raw, now=NOW)
    assert Opener("gpu-0", [KEY.public_key(), other.public_key()]).open(raw, now=NOW) == FULL


def test_an_older_snapshot_and_one_from_the_future_are_refused() -> None:
    with pytest.raises(SealError, match="before the one that is known"):
        an_opener().open(sealed(FULL), now=NOW, newest=NOW + timedelta(seconds=1))
    with pytest.raises(SealError, match="in the future"):
        an_opener().open(sealed(FULL), now=NOW - timedelta(minutes=6))


def test_without_a_trusted_key_nothing_can_be_opened() -> None:
    with pytest.raises(PolicyError, match="no public key is trusted"):
        Opener("gpu-0", [])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    max_leaves=10,
)
PODS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            name: JSON | st.text(max_size=200) for name in ("uid", "namespace", "name", "org", "claims", "verified")
        },
    ),
    max_size=3,
)


@given(
    pods=PODS,
    devices=JSON,
    node=st.just("gpu-0") | JSON,
    at=st.just("2026-11-30T12:00:00Z") | st.text(max_size=30),
)
def test_a_body_that_a_trusted_key_signed_is_still_checked_field_by_field(
    pods: list[Any], devices: Any, node: Any, at: str
) -> None:
    raw = json.dumps({"version": 1, "node": node, "issuedAt": at, "pods": pods, "devices": devices}).encode()
    try:
        found = body.decode(raw)
    except body.MetadataFormatError:
        return
    for pod in found.pods.values():
        for name, value in pod.at(NOW).items():
            assert permitted(name, value) == value


@pytest.mark.parametrize("name", FIELDS)
@given(value=st.text(max_size=150))
def test_no_permitted_value_can_break_out_of_a_label(name: str, value: str) -> None:
    allowed = permitted(name, value)
    assert allowed in (None, value)
    if allowed is not None:
        assert len(allowed) <= MOST_LENGTHS[name]
        assert allowed.isprintable()
        assert name not in CLAIM_FIELDS or not set(allowed) & set('"\\\n{}, ')


def test_the_newest_believed_snapshot_survives_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "state" / "snapshot"
    assert a_store(path).accept(sealed(FULL))
    assert oct(path.stat().st_mode & 0o777) == "0o600"
    again = a_store(path)
    assert again.load()
    assert again.current == FULL
    assert again.age(NOW + timedelta(seconds=90)) == 90


def test_a_copy_that_was_changed_on_disk_or_is_another_nodes_is_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    path.write_bytes(sealed(FULL).replace(b'"search"', b'"secret"'))
    changed, moved = a_store(path), a_store(path, "gpu-1")
    assert not changed.load()
    path.write_bytes(sealed(FULL))
    assert not moved.load()
    assert (changed.current, changed.rejected, moved.current) == (None, 1, None)


def test_a_node_without_a_copy_starts_without_one(tmp_path: Path) -> None:
    store = a_store(tmp_path / "none")
    assert (store.load(), store.age(datetime.now(UTC)), store.rejected) == (False, None, 0)


def test_a_refused_snapshot_leaves_the_known_one_and_the_file_as_they_were(tmp_path: Path) -> None:
    store = a_store(tmp_path / "snapshot")
    store.accept(sealed(FULL))
    before = (tmp_path / "snapshot").read_bytes()
    older = a_snapshot(issued_at=NOW - timedelta(days=1))
    assert not store.accept(sealed(older))
    assert not store.accept(b"nonsense")
    assert (store.current, (tmp_path / "snapshot").read_bytes(), store.rejected) == (FULL, before, 2)


def test_a_crash_while_writing_leaves_the_old_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "snapshot"
    store = a_store(path)
    store.accept(sealed(FULL))

    def crash(*_: object) -> None:
        raise OSError(5, "no power")

    monkeypatch.setattr(os, "replace", crash)
    newer = a_snapshot(issued_at=NOW + timedelta(seconds=1))
    assert store.accept(sealed(newer)), "it is believed all the same"
    assert (store.current, store.unsaved) == (newer, 1)
    again = a_store(path)
    assert again.load()
    assert again.current == FULL


def test_a_client_sees_only_the_node_that_its_certificate_names() -> None:
    one = {"x509_common_name": [b"system:node:gpu-0"]}
    alternative = {"x509_common_name": [b"x"], "x509_subject_alternative_name": [b"gpu-0"]}
    shared = {"x509_common_name": [b"gpubank-nodes"]}
    assert may_watch(one, "gpu-0")
    assert may_watch(alternative, "gpu-0")
    assert not may_watch(one, "gpu-00")
    assert not may_watch({}, "gpu-0")
    assert not may_watch(shared, "gpu-0")
    assert may_watch(shared, "gpu-0", "gpubank-nodes")


@given(st.binary(max_size=100) | JSON.map(lambda value: json.dumps({"node": value}).encode()))
def test_any_request_names_a_node_or_none(raw: bytes) -> None:
    node = requested_node(raw)
    assert node is None or node.isascii()
