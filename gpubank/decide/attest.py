"""Whether a checkpoint may be believed: the trainer's claim against what the bank has read itself.

    claim ─▶ refuse_claim ─▶ read its manifest ─▶ read_manifest ─▶ look at its files ─▶ attest ─▶ Verdict

Each step is checked before the next one reads anything, so a lie costs the bank one look at most. A job is stopped
only after a Verdict without a reason.
"""

import hashlib
from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from gpubank.domain.base import Duration, Message
from gpubank.domain.checkpoint import (
    MAX_MANIFEST_BYTES,
    CheckpointAnswer,
    CheckpointRequest,
    CheckpointState,
    CheckpointTarget,
    ClaimError,
    Count,
    FileFact,
    Manifest,
    ManifestClaim,
    ManifestFile,
)


class Disbelief(StrEnum):
    """Why a checkpoint is not believed."""

    NOT_DURABLE = "NotDurable"
    """The trainer does not say that it is durable, or says so without naming a manifest."""

    OTHER_REQUEST = "OtherRequest"
    """The answer or the manifest belongs to another request."""

    OTHER_TRAINER = "OtherTrainer"
    """Written by another pod than the one that runs."""

    STALE_STEP = "StaleStep"
    """Holds fewer steps than were done at the request, or than an earlier checkpoint proved."""

    BEFORE_REQUEST = "BeforeRequest"
    """Said to have become durable before it was asked for."""

    IN_FUTURE = "InFuture"
    """Said to have become durable later than now."""

    OUTSIDE_STORAGE = "OutsideStorage"
    """A URI does not lie under the declared storage prefix."""

    MANIFEST_MISSING = "ManifestMissing"
    MANIFEST_TOO_BIG = "ManifestTooBig"
    MANIFEST_HASH = "ManifestHash"
    """The manifest is not the one that was claimed."""

    MANIFEST_MALFORMED = "ManifestMalformed"
    CLAIM_MISMATCH = "ClaimMismatch"
    """Claim and manifest tell different steps, file counts or sizes."""

    NO_FILES = "NoFiles"
    BAD_PATH = "BadPath"
    """A path is absolute, not normalised, or stands twice."""

    FILE_MISSING = "FileMissing"
    FILE_ESCAPES = "FileEscapes"
    """A file is none, or is a link that leads out of the storage."""

    FILE_SIZE = "FileSize"
    FILE_HASH = "FileHash"
    NOT_HASHED = "NotHashed"
    """The policy asks for hashes and the manifest has none."""


_MAY_STILL_COME: Final = frozenset({Disbelief.NOT_DURABLE, Disbelief.MANIFEST_MISSING, Disbelief.FILE_MISSING})


class AttestPolicy(Message):
    """How closely the bank looks."""

    check_hashes: bool = False
    """Read every file and compare its hash, not only its size."""

    max_manifest_bytes: Count = MAX_MANIFEST_BYTES
    clock_skew: Duration = timedelta(seconds=30)
    """How far the trainer's clock may be off the bank's."""


class Verdict(Message):
    """What the bank found; `reason` is None for a checkpoint that it believes."""

    reason: Disbelief | None = None
    detail: str = ""
    """The fact behind the reason, for people."""

    step: Count = 0
    uri: str = ""
    files: Count = 0
    bytes: Count = 0

    @property
    def verified(self) -> bool:
        """Whether the workload may be stopped on the strength of this checkpoint."""
        return self.reason is None

    @property
    def may_still_come(self) -> bool:
        """Whether looking again may find it: not yet durable, or not yet visible on an object store."""
        return self.reason in _MAY_STILL_COME


class Escape(Message):
    """What a storage tells instead of a `FileFact`: the path is no plain file, or leads out of the prefix."""

    detail: str


def refuse_claim(
    claim: CheckpointAnswer,
    *,
    request: CheckpointRequest,
    requested_at: datetime,
    target: CheckpointTarget,
    last_step: int,
    policy: AttestPolicy,
    now: datetime,
) -> Verdict | None:
    """Judge a claim by itself; None says that its manifest is worth reading.

    `requested_at` is when the bank first asked, `last_step` the highest step an earlier checkpoint proved.
    """
    if claim.state is not CheckpointState.DURABLE:
        return _no(Disbelief.NOT_DURABLE, f"the trainer says {claim.state}" + (claim.message and f": {claim.message}"))
    if claim.manifest is None or claim.uri is None or claim.durable_at is None or claim.step is None:
        return _no(Disbelief.NOT_DURABLE, "the claim lacks uri, manifest, step or durableAt")
    if claim.id is not None and claim.id != request.id:
        return _no(Disbelief.OTHER_REQUEST, f"the answer is to {claim.id!r}, asked was {request.id!r}")
    if claim.trainer_uid != target.uid:
        return _no(Disbelief.OTHER_TRAINER, f"written by pod {claim.trainer_uid!r}, running is {target.uid!r}")
    if claim.durable_at < requested_at - policy.clock_skew:
        return _no(Disbelief.BEFORE_REQUEST, f"durable at {claim.durable_at}, asked for at {requested_at}")
    if claim.durable_at > now + policy.clock_skew:
        return _no(Disbelief.IN_FUTURE, f"durable at {claim.durable_at}, it is {now}")
    floor = max(claim.step_at_request or 0, last_step)
    if claim.step_at_request is None or claim.step < floor:
        return _no(Disbelief.STALE_STEP, f"holds step {claim.step}, at least {floor} were done at the request")
    for uri in (file_uri(claim, "file"), claim.manifest.uri):
        if not is_under(uri, target.storage):
            return _no(Disbelief.OUTSIDE_STORAGE, f"{uri!r} is not under the storage {target.storage!r}")
    return None


def read_manifest(
    raw: bytes | None,
    claim: CheckpointAnswer,
    *,
    request: CheckpointRequest,
    target: CheckpointTarget,
    last_step: int,
    policy: AttestPolicy,
) -> Manifest | Verdict:
    """Read the manifest of a claim that `refuse_claim` let pass; a Verdict says why it is not believed.

    `raw` is what lies at the claimed URI, or its first `maxManifestBytes` + 1 bytes; None if nothing does.
    """
    claimed = _claimed(claim)
    if raw is None:
        return _no(Disbelief.MANIFEST_MISSING, f"nothing lies at {claimed.uri!r}")
    if len(raw) > policy.max_manifest_bytes:
        return _no(Disbelief.MANIFEST_TOO_BIG, f"the manifest is longer than {policy.max_manifest_bytes} bytes")
    if hashlib.sha256(raw).hexdigest() != claimed.sha256:
        return _no(Disbelief.MANIFEST_HASH, f"the manifest at {claimed.uri!r} has another sha256 than claimed")
    try:
        manifest = Manifest.from_claim(raw)
    except ClaimError as error:
        return _no(Disbelief.MANIFEST_MALFORMED, str(error))
    return _refuse_manifest(manifest, claim, request, target, last_step) or _refuse_files(manifest, policy) or manifest


def attest(
    manifest: Manifest, claim: CheckpointAnswer, files: Mapping[str, FileFact | Escape | None], *, policy: AttestPolicy
) -> Verdict:
    """Judge a checkpoint by its files: `files` has what the bank saw of each path, None where nothing is."""
    for file in manifest.files:
        refusal = _refuse_file(file, files.get(file.path), policy)
        if refusal is not None:
            return refusal
    return Verdict(
        step=manifest.step,
        uri=claim.uri or "",
        files=len(manifest.files),
        bytes=sum(file.size for file in manifest.files),
    )


def file_uri(claim: CheckpointAnswer, path: str) -> str:
    """Where the file lies that the manifest calls `path`."""
    return f"{(claim.uri or '').rstrip('/')}/{path}"


def is_under(uri: str, prefix: str) -> bool:
    """Whether `uri` lies below `prefix`: same scheme and host, every part plain, no step up, nothing chained."""
    base = prefix.rstrip("/")
    if not (_is_plain(uri) and _is_plain(base)) or not uri.startswith(base + "/"):
        return False
    return all(part not in ("", ".", "..") for part in uri[len(base) + 1 :].split("/"))


def is_relative(path: str) -> bool:
    """Whether a path stays below the folder that it is relative to, and has no second spelling."""
    if any(character == "\\" or not character.isprintable() for character in path):
        return False
    return all(part not in ("", ".", "..") for part in path.split("/"))


def _is_plain(uri: str) -> bool:
    # fsspec chains file systems with '::'; '?' and '#' would end the path on some of them.
    scheme, separator, rest = uri.partition("://")
    if not separator or not scheme.isalnum() or "::" in uri or "?" in rest or "#" in rest:
        return False
    parts = rest.rstrip("/").split("/")
    return uri.isprintable() and "\\" not in uri and "." not in parts and ".." not in parts


def _refuse_manifest(
    manifest: Manifest, claim: CheckpointAnswer, request: CheckpointRequest, target: CheckpointTarget, last_step: int
) -> Verdict | None:
    if manifest.request_id != request.id:
        return _no(Disbelief.OTHER_REQUEST, f"the manifest is of request {manifest.request_id!r}, not {request.id!r}")
    if manifest.trainer_uid != target.uid:
        return _no(Disbelief.OTHER_TRAINER, f"written by pod {manifest.trainer_uid!r}, running is {target.uid!r}")
    if manifest.step < max(claim.step_at_request or 0, last_step):
        return _no(Disbelief.STALE_STEP, f"the manifest holds step {manifest.step} only")
    claimed = _claimed(claim)
    held = (manifest.step, len(manifest.files), sum(file.size for file in manifest.files))
    if held != (claim.step, claimed.files, claimed.bytes):
        said = (claim.step, claimed.files, claimed.bytes)
        return _no(Disbelief.CLAIM_MISMATCH, f"(step, files, bytes) are {held} in the manifest and {said} in the claim")
    return None


def _refuse_files(manifest: Manifest, policy: AttestPolicy) -> Verdict | None:
    if not manifest.files:
        return _no(Disbelief.NO_FILES, "the manifest lists no file")
    seen: set[str] = set()
    for file in manifest.files:
        if not is_relative(file.path) or file.path in seen:
            return _no(Disbelief.BAD_PATH, f"{file.path!r} is not a plain relative path, or stands twice")
        if policy.check_hashes and file.sha256 is None:
            return _no(Disbelief.NOT_HASHED, f"the manifest has no sha256 of {file.path!r}")
        seen.add(file.path)
    return None


def _refuse_file(file: ManifestFile, fact: FileFact | Escape | None, policy: AttestPolicy) -> Verdict | None:
    if fact is None:
        return _no(Disbelief.FILE_MISSING, f"{file.path!r} is not there")
    if isinstance(fact, Escape):
        return _no(Disbelief.FILE_ESCAPES, f"{file.path!r}: {fact.detail}")
    if fact.size != file.size:
        return _no(Disbelief.FILE_SIZE, f"{file.path!r} has {fact.size} bytes, the manifest says {file.size}")
    if policy.check_hashes and fact.sha256 != file.sha256:
        return _no(Disbelief.FILE_HASH, f"{file.path!r} has another sha256 than the manifest says")
    return None


def _claimed(claim: CheckpointAnswer) -> ManifestClaim:
    if claim.manifest is None:
        raise ValueError("the claim names no manifest; judge it by refuse_claim first")
    return claim.manifest


def _no(reason: Disbelief, detail: str) -> Verdict:
    return Verdict(reason=reason, detail=detail[:500])
