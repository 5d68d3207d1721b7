"""The checkpoint contract between the bank and a training run: what is asked, claimed and written down.

    request ─▶ accepted ─▶ saving ─▶ durable        an answer is a claim;
                  └───────────┴────▶ failed         the manifest is what the bank checks it against

Claims come from pods, so they are read strictly and bounded (`from_claim`), and believed only after
`gpubank.decide.attest` has judged them.
"""

from enum import StrEnum
from typing import Annotated, Final, Self

from pydantic import AwareDatetime, Field, PlainSerializer, ValidationError

from gpubank.domain.base import Instant, Message, format_instant
from gpubank.domain.contract import Transport

MAX_ANSWER_BYTES: Final = 65_536
"""Longest answer that is read from a pod."""

MAX_MANIFEST_BYTES: Final = 32 * 1024 * 1024
"""Longest manifest that is read, by default; room for some 100,000 files."""

MAX_COUNT: Final = 2**53 - 1
"""Largest count on the wire: the largest integer that every JSON reader keeps exact."""

Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
"""Steps, files or bytes."""

RequestId = Annotated[str, Field(min_length=1, max_length=256)]
"""Idempotency key of a request."""

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256 in lower-case hexadecimal."""

Uri = Annotated[str, Field(min_length=1, max_length=2048)]

# Not `Instant`: its validator runs before pydantic's own, which then no longer knows that the value came from JSON.
ClaimedTime = Annotated[AwareDatetime, PlainSerializer(format_instant, return_type=str)]
"""A moment that a pod names, by its own clock."""


class ClaimError(ValueError):
    """What a pod or its storage says is not what the contract says; the message names the field and the rule."""


class _Claimed(Message):
    """Something that a pod wrote."""

    @classmethod
    def from_claim(cls, raw: bytes | str) -> Self:
        """Read JSON strictly: wire names only, no number in quotes. Raises `ClaimError`."""
        try:
            return cls.model_validate_json(raw, strict=True, by_alias=True, by_name=False)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "document"
            raise ClaimError(f"{where}: {first['msg']}"[:300]) from error


class CheckpointRequest(Message):
    """Save now, durably, and go on; the stop comes later as SIGTERM."""

    id: RequestId
    """Idempotency key: the same id again is the same request."""

    epoch: Annotated[int, Field(ge=0, le=MAX_COUNT)]
    """Ordinal of the recall; a request of a newer recall supersedes an older one."""

    deadline: Instant
    """When the checkpoint must be durable."""

    reason: Annotated[str, Field(max_length=4096)] = ""
    """For the owner of the job."""

    def to_wire(self) -> str:
        """Return the request as the JSON that every transport carries."""
        return self.model_dump_json(by_alias=True)


class CheckpointState(StrEnum):
    """How far a trainer says a request is."""

    ACCEPTED = "accepted"
    """It waits for the next step boundary."""

    SAVING = "saving"
    DURABLE = "durable"
    """On the storage, to survive a power cut; so the trainer says."""

    FAILED = "failed"
    """Will not come; `message` says why."""


class ManifestClaim(Message):
    """Where the manifest lies, and what it holds."""

    uri: Uri
    sha256: Sha256
    files: Count
    bytes: Count


class CheckpointAnswer(_Claimed):
    """What a trainer says about one request."""

    id: RequestId | None = None
    """The request that is answered; tells a new answer from an old one where one slot holds both."""

    state: CheckpointState
    step: Count | None = None
    """Steps done in the checkpoint."""

    step_at_request: Count | None = None
    """Steps done when the request came."""

    world_size: Annotated[int, Field(ge=1, le=MAX_COUNT)] | None = None
    """Ranks that wrote the checkpoint."""

    uri: Uri | None = None
    """Folder of the checkpoint; paths in the manifest are relative to it."""

    manifest: ManifestClaim | None = None
    started_at: ClaimedTime | None = None
    durable_at: ClaimedTime | None = None
    trainer_uid: Annotated[str | None, Field(alias="trainerUID", max_length=256)] = None
    """Uid of the pod that wrote it."""

    message: Annotated[str, Field(max_length=4096)] = ""
    """For people: why it failed, or what goes on."""

    @property
    def is_final(self) -> bool:
        """Whether the answer will not change any more."""
        return self.state in (CheckpointState.DURABLE, CheckpointState.FAILED)


class ManifestFile(Message):
    """One file of a checkpoint."""

    path: Annotated[str, Field(min_length=1, max_length=1024)]
    """Relative to the checkpoint's folder, with `/` between the parts."""

    size: Count
    """Bytes."""

    sha256: Sha256 | None = None
    """None where the writer did not hash; a policy may refuse that."""


class Manifest(_Claimed):
    """What a checkpoint consists of; written last, so its presence says that the files are complete."""

    request_id: RequestId | None = None
    """The request it answers; None for one that the trainer wrote by itself."""

    id: RequestId
    step: Count
    trainer_uid: Annotated[str, Field(alias="trainerUID", max_length=256)]
    created_at: ClaimedTime
    files: Annotated[tuple[ManifestFile, ...], Field(max_length=1_000_000)]


class CheckpointTarget(Message):
    """The pod that is asked, and how: the index-0 pod of a workload."""

    namespace: str
    pod: str
    uid: str
    """Uid of the pod; a later pod of the same name is another trainer."""

    transport: Transport
    endpoint: str = ""
    """http: URL, `host:port` or port; exec: command line; annotation: unused."""

    storage: str
    """URI prefix under which every file of a checkpoint lies."""

    pod_ip: Annotated[str, Field(alias="podIP")] = ""
    """Address of the pod; where an http endpoint that is only a port leads."""

    container: str = ""
    """Container of an exec; empty for the pod's default one."""


class FileFact(Message):
    """What the bank itself saw of a file."""

    size: Count
    """Bytes."""

    sha256: Sha256 | None = None
    """None where it was not read."""
