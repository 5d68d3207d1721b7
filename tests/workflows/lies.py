"""Every lie that a trainer can tell about a checkpoint, as one row with a sentence for a name.

`says` is what people read about it afterwards: in the Reclaim's victims, in the Loan, and in the ledger.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from gpubank.adapters.checkpoint import ExecResult
from gpubank.domain.checkpoint import CheckpointRequest
from gpubank.domain.contract import Transport
from tests.fakes import written as lies
from tests.fakes.liar import Claim, Liar, Run, Say, obeys, truly
from tests.fakes.plays import Play, drips, hangs, status
from tests.fakes.written import Lie


def honest(written: lies.Written) -> None:
    """Leave the checkpoint as it was saved."""


@dataclass(frozen=True)
class Row:
    """One trainer."""

    name: str
    says: str = ""
    lie: Lie = honest
    say: Say = truly
    late: float = 0.0
    play: Play | None = None
    """Plays another part over HTTP, byte by byte."""

    endpoint: str = ""
    """Endpoint that the job declares instead of its pod's."""

    storage: str = ""
    """Storage that the job declares instead of its folder."""

    transport: Transport = Transport.HTTP
    shown: Callable[[Claim], str] = json.dumps
    run: Run = obeys
    believed: bool = False
    elsewhere: str = ""
    """What a redirect leads to."""


def still_saving(claim: Claim, asked: CheckpointRequest) -> Claim:
    return {"id": asked.id, "state": "saving"}


def fails(claim: Claim, asked: CheckpointRequest) -> Claim:
    return {"id": asked.id, "state": "failed", "message": "the disk is full"}


def after_the_deadline(claim: Claim, asked: CheckpointRequest) -> Claim:
    late = datetime.now(UTC) > asked.deadline + timedelta(minutes=1)
    return claim if late else still_saving(claim, asked)


def knows_nothing(claim: Claim, asked: CheckpointRequest) -> None:
    return None


def skewed(seconds: float) -> Lie:
    """Let the trainer's clock be wrong by so much."""

    def lie(written: lies.Written) -> None:
        written.claim["durableAt"] = (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()

    return lie


async def endless_headers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"X-More: " + b"x" * 4096 + b"\r\n")
        await writer.drain()


async def hundred_megabytes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 104857600\r\n\r\n")
    for _ in range(1600):
        writer.write(b" " * 65_536)
        await writer.drain()


def ends(code: int, stdout: bytes, stderr: bytes = b"") -> Run:
    """Let the command end so, whatever it is asked."""

    async def run(liar: Liar, command: Sequence[str]) -> ExecResult:
        return ExecResult(exit_code=code, stdout=stdout, stderr=stderr)

    return run


async def never_ends(liar: Liar, command: Sequence[str]) -> ExecResult:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


async def durable_by_exit_code_only(liar: Liar, command: Sequence[str]) -> ExecResult:
    said = {"state": "saving"}
    return ExecResult(exit_code=0, stdout=json.dumps(said).encode())


def tells_of_another(claim: Claim) -> str:
    return json.dumps(claim | {"id": "r-0"})


def garbled(claim: Claim) -> str:
    return json.dumps({"id": claim["id"], "state": "perhaps"})


S3 = "s3://nowhere/run"

ON_STORAGE = (
    Row("a file is shorter than the manifest says", "FileSize: 'weights.bin' has 999 bytes", lies.truncated),
    Row("a file is missing", "FileMissing: 'weights.bin' is not there", lies.missing),
    Row("the manifest lists a file that was never written", "FileMissing: 'optim.bin'", lies.lists_extra),
    Row("the claim counts a file that the manifest does not list", "ClaimMismatch", lies.counts_extra),
    Row("a file has another hash", "FileHash: 'weights.bin'", lies.flipped),
    Row("a file is a link out of the storage", "FileEscapes: 'weights.bin'", lies.link_out),
    Row("a file is a pipe that nobody writes to", "FileEscapes: 'weights.bin'", lies.pipe),
    Row("the manifest has another hash", "ManifestHash", lies.manifest_swapped),
    Row("the manifest is garbage", "ManifestMalformed", lies.manifest_garbage),
    Row("the manifest is longer than any", "ManifestTooBig", lies.manifest_huge),
    Row("the manifest is of another request", "OtherRequest: the manifest is of", lies.of_another_request),
    Row("the manifest was written by another pod", "OtherTrainer: written by pod 'pod-uid-0'", lies.of_another_pod),
    Row("a path of the manifest leads up and out", "BadPath: '../../outside.bin'", lies.traversal),
    Row("durable is claimed and nothing is ever written", "ManifestMissing", lies.manifest_gone),
    Row("the storage vanishes between claim and check", "ManifestMissing", lies.storage_gone),
    Row("the checkpoint is another team's", "OutsideStorage", lies.of_another_team),
    Row("the storage does not answer", "cannot be read", lies.on(S3), storage=S3),
)

IN_THE_CLAIM = (
    Row("the step is stale", "StaleStep: holds step 4, at least 7", lies.stale),
    Row("the claim was made by another pod", "OtherTrainer: written by pod 'pod-uid-0'", lies.claimed_by_another_pod),
    Row("the claim answers another request", "OtherRequest: the answer is to 'r-0'", lies.answers_another_request),
    Row("the claim names no manifest", "NotDurable", lies.names_no_manifest),
    Row("the trainer's clock is an hour ahead", "InFuture", skewed(3600)),
    Row("the trainer's clock is an hour behind", "BeforeRequest", skewed(-3600)),
    Row("it is saving for ever", "the trainer says saving", say=still_saving),
    Row("it becomes durable after the deadline", "the trainer says saving", say=after_the_deadline),
    Row("it says that it failed", "the trainer says failed: the disk is full", say=fails),
    Row("it forgets every request", "embed the hook", say=knows_nothing),
)

OVER_HTTP = (
    Row("the trainer hangs", "did not answer within", play=hangs),
    Row("the answer drips in byte by byte", "did not answer within", play=drips),
    Row("the answer has a body of 100 MB", "more than 65536 bytes", play=hundred_megabytes),
    Row("the headers never end", "cannot be reached", play=endless_headers),
    Row("the answer is a 500", "HTTP status 500: cuda error", play=status("500 Oops", b'{"message": "cuda error"}')),
    Row("the answer is garbage", "no checkpoint answer", play=status("200 OK", b"<html>")),
    Row("the answer leads elsewhere", "redirects are not followed", elsewhere="/v1/checkpoint"),
    Row("the endpoint is the cloud's metadata", "neither the pod's address", endpoint="http://169.254.169.254"),
    Row("the endpoint is another pod", "neither the pod's address", endpoint="http://10.9.9.9:8471"),
    Row("the endpoint is a name that may lead anywhere", "must be an IP address", endpoint="http://rebind.example:80"),
)

ANNOTATION, EXEC = Transport.ANNOTATION, Transport.EXEC

OVER_OTHERS = (
    Row("the annotation answers another request", "not answered yet", transport=ANNOTATION, shown=tells_of_another),
    Row("the annotation is garbage", "no checkpoint answer: state", transport=ANNOTATION, shown=garbled),
    Row("the annotation names another pod", "OtherTrainer", lies.claimed_by_another_pod, transport=ANNOTATION),
    Row("the annotation tells of files that are not there", "FileMissing", lies.missing, transport=ANNOTATION),
    Row("the command ends well and says nothing", "no answer in its last line", transport=EXEC, run=ends(0, b"")),
    Row("the command ends well and is still saving", "but says saving", transport=EXEC, run=durable_by_exit_code_only),
    Row("the command never ends", "did not end within", transport=EXEC, run=never_ends),
    Row("the command fails", "exit code 1): no GPU", transport=EXEC, run=ends(1, b"", b"no GPU")),
    Row("the command tells of files that are not there", "FileMissing", lies.missing, transport=EXEC),
)

HONEST = (
    Row("it saves truly, over HTTP", believed=True),
    Row("it saves truly, over annotations", transport=ANNOTATION, believed=True),
    Row("it saves truly, by a command", transport=EXEC, believed=True),
    Row("a file lies beside that the manifest does not list", lie=lies.extra, believed=True),
    Row("its clock is some seconds off", lie=skewed(20), believed=True),
    Row("it claims durable a second before the files are there", late=1.0, believed=True),
)

LIES = (*ON_STORAGE, *IN_THE_CLAIM, *OVER_HTTP, *OVER_OTHERS)
ROWS = (*HONEST, *LIES)
