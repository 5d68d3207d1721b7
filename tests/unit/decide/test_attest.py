"""What the bank believes: one honest checkpoint, and every lie about it."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubank.decide.attest import (
    AttestPolicy,
    Disbelief,
    Escape,
    Verdict,
    attest,
    is_relative,
    is_under,
    read_manifest,
    refuse_claim,
)
from gpubank.domain.checkpoint import (
    CheckpointAnswer,
    CheckpointRequest,
    CheckpointTarget,
    FileFact,
    Manifest,
)
from gpubank.domain.contract import Transport

ASKED = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOW = ASKED + timedelta(seconds=20)
STORAGE = "s3://bucket/team-a"
RUN = f"{STORAGE}/run-7/step-42"
REQUEST = CheckpointRequest(id="recall-3", epoch=3, deadline=ASKED + timedelta(minutes=10), reason="wanted back")
TARGET = CheckpointTarget(namespace="a", pod="job-0", uid="pod-1", transport=Transport.HTTP, storage=STORAGE)
HASHES = AttestPolicy(check_hashes=True)

MANIFEST: dict[str, Any] = {
    "requestId": "recall-3",
    "id": "step-42",
    "step": 42,
    "trainerUID": "pod-1",
    "createdAt": "2026-03-01T12:00:10Z",
    "files": [
        {"path": "w.npy", "size": 3, "sha256": sha256(b"abc").hexdigest()},
        {"path": "rank-0/o.npy", "size": 2, "sha256": sha256(b"de").hexdigest()},
    ],
}
CLAIM: dict[str, Any] = {
    "id": "recall-3",
    "state": "durable",
    "step": 42,
    "stepAtRequest": 41,
    "worldSize": 1,
    "uri": RUN,
    "startedAt": "2026-03-01T12:00:05Z",
    "durableAt": "2026-03-01T12:00:10Z",
    "trainerUID": "pod-1",
}
FACTS: dict[str, FileFact | Escape | None] = {
    "w.npy": FileFact(size=3, sha256=sha256(b"abc").hexdigest()),
    "rank-0/o.npy": FileFact(size=2, sha256=sha256(b"de").hexdigest()),
}


def judge(
    *,
    claim: Mapping[str, Any] | None = None,
    manifest: Mapping[str, Any] | bytes | None = None,
    raw: bytes | None = b"as the manifest says",
    facts: Mapping[str, FileFact | Escape | None] | None = None,
    policy: AttestPolicy = HASHES,
    last_step: int = 40,
    summary: Mapping[str, Any] | None = None,
) -> Verdict:
    """Judge the honest checkpoint with some of it changed; the claimed hash follows a changed manifest."""
    content = manifest if isinstance(manifest, bytes) else json.dumps({**MANIFEST, **(manifest or {})}).encode()
    listed = (
        MANIFEST["files"]
        if manifest is None or isinstance(manifest, bytes)
        else manifest.get("files", MANIFEST["files"])
    )
    pointed = {
        "uri": f"{RUN}/manifest.json",
        "sha256": sha256(content).hexdigest(),
        "files": len(listed),
        "bytes": sum(file["size"] for file in listed),
        **(summary or {}),
    }
    answer = CheckpointAnswer.from_claim(json.dumps({**CLAIM, "manifest": pointed, **(claim or {})}))
    refusal = refuse_claim(
        answer, request=REQUEST, requested_at=ASKED, target=TARGET, last_step=last_step, policy=policy, now=NOW
    )
    if refusal is not None:
        return refusal
    found = read_manifest(
        content if raw is not None else None,
        answer,
        request=REQUEST,
        target=TARGET,
        last_step=last_step,
        policy=policy,
    )
    if not isinstance(found, Manifest):
        return found
    return attest(found, answer, FACTS if facts is None else facts, policy=policy)


def file(path: str, size: int = 3, digest: str | None = "ab" * 32) -> dict[str, Any]:
    return {"path": path, "size": size, "sha256": digest}


def test_honest_checkpoint_is_believed_with_its_step_and_size() -> None:
    verdict = judge()
    assert verdict == Verdict(step=42, uri=RUN, files=2, bytes=5)
    assert verdict.verified


LIES = [
    pytest.param({"claim": {"state": "saving"}}, Disbelief.NOT_DURABLE, id="saving"),
    pytest.param({"claim": {"state": "failed", "message": "disk full"}}, Disbelief.NOT_DURABLE, id="failed"),
    pytest.param({"claim": {"manifest": None}}, Disbelief.NOT_DURABLE, id="no-manifest-named"),
    pytest.param({"claim": {"durableAt": None}}, Disbelief.NOT_DURABLE, id="no-time"),
    pytest.param({"claim": {"step": None}}, Disbelief.NOT_DURABLE, id="no-step"),
    pytest.param({"claim": {"id": "recall-2"}}, Disbelief.OTHER_REQUEST, id="answer-to-another-request"),
    pytest.param({"claim": {"trainerUID": "pod-0"}}, Disbelief.OTHER_TRAINER, id="claim-of-another-pod"),
    pytest.param({"claim": {"trainerUID": None}}, Disbelief.OTHER_TRAINER, id="claim-of-nobody"),
    pytest.param({"claim": {"durableAt": "2026-03-01T11:59:00Z"}}, Disbelief.BEFORE_REQUEST, id="durable-before"),
    pytest.param({"claim": {"durableAt": "2026-03-01T12:01:00Z"}}, Disbelief.IN_FUTURE, id="durable-in-future"),
    pytest.param({"claim": {"durableAt": "9999-12-31T23:59:59-23:00"}}, Disbelief.IN_FUTURE, id="end-of-time"),
    pytest.param({"claim": {"step": 40}}, Disbelief.STALE_STEP, id="older-than-at-request"),
    pytest.param({"last_step": 43}, Disbelief.STALE_STEP, id="older-than-proved-before"),
    pytest.param({"claim": {"stepAtRequest": None}}, Disbelief.STALE_STEP, id="step-at-request-unsaid"),
    pytest.param({"claim": {"uri": "s3://bucket/team-b/run"}}, Disbelief.OUTSIDE_STORAGE, id="other-prefix"),
    pytest.param({"claim": {"uri": f"{STORAGE}-evil/run"}}, Disbelief.OUTSIDE_STORAGE, id="prefix-of-a-name"),
    pytest.param({"claim": {"uri": f"{STORAGE}/../team-b"}}, Disbelief.OUTSIDE_STORAGE, id="step-up"),
    pytest.param({"claim": {"uri": f"simplecache::{RUN}"}}, Disbelief.OUTSIDE_STORAGE, id="chained"),
    pytest.param({"summary": {"uri": "http://10.0.0.1/manifest"}}, Disbelief.OUTSIDE_STORAGE, id="manifest-elsewhere"),
    pytest.param({"summary": {"uri": "file:///etc/passwd"}}, Disbelief.OUTSIDE_STORAGE, id="manifest-local"),
    pytest.param({"raw": None}, Disbelief.MANIFEST_MISSING, id="manifest-missing"),
    pytest.param({"policy": AttestPolicy(max_manifest_bytes=100)}, Disbelief.MANIFEST_TOO_BIG, id="manifest-too-big"),
    pytest.param({"summary": {"sha256": "0" * 64}}, Disbelief.MANIFEST_HASH, id="manifest-of-another-hash"),
    pytest.param({"manifest": b'{"requestId": "recall-3", '}, Disbelief.MANIFEST_MALFORMED, id="manifest-truncated"),
    pytest.param({"manifest": b"\xff\xfe"}, Disbelief.MANIFEST_MALFORMED, id="manifest-binary"),
    pytest.param({"manifest": {"step": "42"}}, Disbelief.MANIFEST_MALFORMED, id="step-in-quotes"),
    pytest.param({"manifest": {"requestId": "recall-2"}}, Disbelief.OTHER_REQUEST, id="manifest-of-another-request"),
    pytest.param({"manifest": {"requestId": None}}, Disbelief.OTHER_REQUEST, id="manifest-of-no-request"),
    pytest.param({"manifest": {"trainerUID": "pod-0"}}, Disbelief.OTHER_TRAINER, id="manifest-of-another-pod"),
    pytest.param({"manifest": {"step": 40}}, Disbelief.STALE_STEP, id="manifest-of-a-stale-step"),
    pytest.param({"manifest": {"step": 43}}, Disbelief.CLAIM_MISMATCH, id="steps-differ"),
    pytest.param({"summary": {"files": 1}}, Disbelief.CLAIM_MISMATCH, id="file-counts-differ"),
    pytest.param({"summary": {"bytes": 6}}, Disbelief.CLAIM_MISMATCH, id="sizes-differ"),
    pytest.param({"manifest": {"files": []}}, Disbelief.NO_FILES, id="no-files"),
    pytest.param({"manifest": {"files": [file("../x")]}}, Disbelief.BAD_PATH, id="path-up"),
    pytest.param({"manifest": {"files": [file("a/../../x")]}}, Disbelief.BAD_PATH, id="path-up-inside"),
    pytest.param({"manifest": {"files": [file("/etc/passwd")]}}, Disbelief.BAD_PATH, id="path-absolute"),
    pytest.param({"manifest": {"files": [file("./x")]}}, Disbelief.BAD_PATH, id="path-not-normal"),
    pytest.param({"manifest": {"files": [file("a//x")]}}, Disbelief.BAD_PATH, id="path-double-slash"),
    pytest.param({"manifest": {"files": [file("a\\x")]}}, Disbelief.BAD_PATH, id="path-backslash"),
    pytest.param({"manifest": {"files": [file("a\u0000x")]}}, Disbelief.BAD_PATH, id="path-nul"),
    pytest.param({"manifest": {"files": [file("w"), file("w")]}}, Disbelief.BAD_PATH, id="path-twice"),
    pytest.param({"manifest": {"files": [file("w.npy", digest=None)]}}, Disbelief.NOT_HASHED, id="not-hashed"),
    pytest.param({"facts": {**FACTS, "w.npy": None}}, Disbelief.FILE_MISSING, id="file-missing"),
    pytest.param({"facts": {"w.npy": FACTS["w.npy"]}}, Disbelief.FILE_MISSING, id="file-not-looked-at"),
    pytest.param({"facts": {**FACTS, "w.npy": Escape(detail="a link")}}, Disbelief.FILE_ESCAPES, id="file-escapes"),
    pytest.param({"facts": {**FACTS, "w.npy": FileFact(size=2)}}, Disbelief.FILE_SIZE, id="file-truncated"),
    pytest.param(
        {"facts": {**FACTS, "w.npy": FileFact(size=3, sha256="0" * 64)}}, Disbelief.FILE_HASH, id="file-of-another-hash"
    ),
    pytest.param({"facts": {**FACTS, "w.npy": FileFact(size=3)}}, Disbelief.FILE_HASH, id="file-hash-not-read"),
]


@pytest.mark.parametrize(("changes", "reason"), LIES)
def test_lie_is_not_believed_and_its_reason_is_named(changes: dict[str, Any], reason: Disbelief) -> None:
    verdict = judge(**changes)
    assert (verdict.reason, verdict.verified) == (reason, False)
    assert verdict.detail


def test_every_reason_has_a_lie() -> None:
    assert {case.values[1] for case in LIES} == set(Disbelief)


def test_hashes_matter_only_where_the_policy_asks_for_them() -> None:
    sizes_only = {"w.npy": FileFact(size=3), "rank-0/o.npy": FileFact(size=2, sha256="0" * 64)}
    assert judge(facts=sizes_only, policy=AttestPolicy()).verified
    assert not judge(facts=sizes_only).verified
    unhashed = {"files": [file("w.npy", digest=None)]}
    assert judge(manifest=unhashed, policy=AttestPolicy()).verified


def test_clock_of_the_trainer_may_be_off_a_little() -> None:
    assert judge(claim={"durableAt": "2026-03-01T11:59:31Z"}).verified
    assert judge(claim={"durableAt": "2026-03-01T12:00:49Z"}).verified


def test_file_beside_those_of_the_manifest_is_none_of_the_banks_business() -> None:
    assert judge(facts={**FACTS, "extra.log": FileFact(size=9)}).verified


@pytest.mark.parametrize(
    ("reason", "may"),
    [
        (reason, reason in (Disbelief.NOT_DURABLE, Disbelief.MANIFEST_MISSING, Disbelief.FILE_MISSING))
        for reason in Disbelief
    ],
)
def test_only_what_may_still_appear_is_worth_another_look(reason: Disbelief, may: bool) -> None:
    assert Verdict(reason=reason).may_still_come is may


PARTS = st.sampled_from(["a", "b.npy", "..", ".", "", "x y", "...", "%2e%2e", "~"])


@given(parts=st.lists(PARTS, min_size=1, max_size=6))
def test_relative_path_never_leaves_its_folder(parts: list[str]) -> None:
    path = "/".join(parts)
    depth = lowest = 0
    for part in parts:
        depth += {"..": -1, ".": 0, "": 0}.get(part, 1)
        lowest = min(lowest, depth)
    plain = all(part not in ("", ".", "..") for part in parts)
    assert is_relative(path) is plain
    if is_relative(path):
        assert lowest == 0
        assert not path.startswith("/")
        assert is_under(f"{RUN}/{path}", STORAGE)


@given(uri=st.text(alphabet="abs3:/.?#~ \\", max_size=20))
def test_nothing_is_under_a_prefix_that_does_not_begin_with_it(uri: str) -> None:
    assert not is_under(uri, STORAGE)
    if is_under(STORAGE + uri, STORAGE):
        assert uri.startswith("/")
        assert ".." not in uri.split("/")


@pytest.mark.parametrize(
    ("uri", "prefix", "under"),
    [
        ("file:///ckpt/a", "file:///ckpt", True),
        ("file:///ckpt/a", "file:///ckpt/", True),
        ("file:///ckpt", "file:///ckpt", False),
        ("file:///ckpt/", "file:///ckpt", False),
        ("file:///ckpt/a/", "file:///ckpt", False),
        ("file:///a", "file:///", False),  # a whole file system is nobody's storage
        ("memory://run/a", "memory://run", True),
        ("s3://bucket/a", "file:///bucket", False),
        ("/ckpt/a", "/ckpt", False),
        ("file:///ckpt/a?x", "file:///ckpt", False),
    ],
)
def test_under_means_below_with_plain_parts(uri: str, prefix: str, under: bool) -> None:
    assert is_under(uri, prefix) is under


def test_a_claim_without_a_manifest_is_judged_before_anything_is_read() -> None:
    answer = CheckpointAnswer.from_claim(json.dumps(CLAIM))
    with pytest.raises(ValueError, match="judge it by refuse_claim first"):
        read_manifest(b"{}", answer, request=REQUEST, target=TARGET, last_step=0, policy=HASHES)
