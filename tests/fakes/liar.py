"""A pod's trainer that saves truly, with the real hook, and then lies as it is told to; over any transport.

Liar      answers requests: the honest checkpoint, tampered with
HttpPod   lets it answer over HTTP on loopback
Pods      lets it answer over annotations of simulated pods, or as a command in them
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from gpubank.adapters.checkpoint import ExecResult, PodNotes
from gpubank.domain.checkpoint import CheckpointRequest
from gpubank.domain.contract import CHECKPOINT_REQUEST_ANNOTATION, CHECKPOINT_STATUS_ANNOTATION
from gpubank.domain.errors import BackendError, ConflictError
from gpubank.simulation.cluster import SimulatedCluster
from tests.fakes.plays import Server
from tests.fakes.written import Lie, Written, write

Claim = dict[str, Any]
Say = Callable[[Claim, CheckpointRequest], Claim | None]
"""Makes of a claim what is said when somebody asks; None for "I know of no such request"."""


def truly(claim: Claim, asked: CheckpointRequest) -> Claim:
    return claim


@dataclass
class Liar:
    """One pod's trainer."""

    storage: Path
    uid: Callable[[], Awaitable[str]]
    lie: Lie = lambda written: None
    say: Say = truly
    late: float = 0.0
    """Seconds after the claim until the files are there."""

    asked: dict[str, CheckpointRequest] = field(default_factory=dict)
    written_at: datetime | None = None
    _claims: dict[str, Claim] = field(default_factory=dict)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def request(self, raw: bytes | str) -> Claim | None:
        """Take a request; save once for each id."""
        asked = CheckpointRequest.model_validate_json(raw)
        if asked.id not in self.asked:
            self.asked[asked.id] = asked
            uid = await self.uid()
            written = await asyncio.to_thread(write, self.storage / f"run-{len(self.asked)}", asked, uid=uid)
            written.root = self.storage
            self.lie(written)
            self._claims[asked.id] = written.claim
            if self.late:
                self._tasks.append(asyncio.create_task(self._bring_late(written)))
            else:
                self.written_at = datetime.now(UTC)
        return self.answer(asked.id)

    def answer(self, request_id: str) -> Claim | None:
        """Say how far a request is."""
        claim = self._claims.get(request_id)
        return None if claim is None else self.say(claim, self.asked[request_id])

    async def _bring_late(self, written: Written) -> None:
        elsewhere = written.folder.with_name(".elsewhere")
        written.folder.rename(elsewhere)
        await asyncio.sleep(self.late)
        elsewhere.rename(written.folder)
        self.written_at = datetime.now(UTC)


class HttpPod(Server):
    """Serves a `Liar` over HTTP."""

    def __init__(self, liar: Liar) -> None:
        super().__init__(self._answer)
        self._liar = liar

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if first.startswith("POST "):
            claim = await self._liar.request(await reader.readexactly(int(headers["content-length"])))
        else:
            claim = self._liar.answer(unquote(first.split()[1].rpartition("/")[2]))
        status, body = ("404 None", b"{}") if claim is None else ("200 OK", json.dumps(claim).encode())
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()


Run = Callable[[Liar, Sequence[str]], Awaitable[ExecResult]]
"""What a command in a pod does."""


class Pods:
    """Implements `PodAnnotations` and `ExecInPod` on simulated clusters; liars answer by the namespace of their pod."""

    def __init__(self, clusters: Callable[[str], SimulatedCluster]) -> None:
        self._clusters = clusters
        """Finds the cluster of a namespace."""

        self.liars: dict[str, Liar] = {}
        self.shown: dict[str, Callable[[Claim], str]] = {}
        """How a claim is written into the annotation."""

        self.runs: dict[str, Run] = {}

    async def read(self, namespace: str, pod: str) -> PodNotes | None:
        found = self._clusters(namespace).pod_annotations(namespace, pod)
        return None if found is None else PodNotes(uid=found[0], annotations=found[1])

    async def write(self, namespace: str, pod: str, *, uid: str, annotations: Mapping[str, str]) -> None:
        found = await self.read(namespace, pod)
        if found is None or found.uid != uid:
            raise ConflictError(f"pod {namespace}/{pod} with uid {uid} is gone")
        cluster = self._clusters(namespace)
        cluster.annotate_pod(uid, annotations)
        claim = await self.liars[namespace].request(annotations[CHECKPOINT_REQUEST_ANNOTATION])
        if claim is not None:
            cluster.annotate_pod(uid, {CHECKPOINT_STATUS_ANNOTATION: self.shown[namespace](claim)})

    async def run(
        self, namespace: str, pod: str, *, uid: str, container: str, command: Sequence[str], timeout: timedelta
    ) -> ExecResult:
        found = await self.read(namespace, pod)
        if found is None or found.uid != uid:
            raise ConflictError(f"pod {namespace}/{pod} with uid {uid} is gone")
        try:
            async with asyncio.timeout(timeout.total_seconds()):
                return await self.runs.get(namespace, obeys)(self.liars[namespace], command)
        except TimeoutError as error:
            raise BackendError(f"command {command[0]!r} did not end within {timeout}") from error


async def obeys(liar: Liar, command: Sequence[str]) -> ExecResult:
    """Answer as the command of the hook does."""
    options = dict(part[2:].partition("=")[::2] for part in command if part.startswith("--"))
    if "status" in options:
        claim = liar.answer(options["id"])
    else:
        asked = {name: options[name] for name in ("id", "deadline", "reason")} | {"epoch": int(options["epoch"])}
        claim = await liar.request(json.dumps(asked))
    if claim is None:
        return ExecResult(exit_code=66, stdout=b"")
    return ExecResult(exit_code=0 if claim["state"] == "durable" else 75, stdout=json.dumps(claim).encode())
