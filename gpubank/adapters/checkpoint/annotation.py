"""Checkpoints over annotations of the index-0 pod, for pods that nothing may connect to.

The bank writes the request as JSON into `…/request`, which a downward-API volume shows to the trainer (the kubelet
may take a minute or two), and reads the answer as JSON from `…/status`, which a sidecar copies there. One slot each:
an answer to another id is an answer to nobody.
"""

import json
from collections.abc import Mapping
from typing import Protocol

from pydantic import Field

from gpubank.domain.base import Message
from gpubank.domain.checkpoint import (
    MAX_ANSWER_BYTES,
    CheckpointAnswer,
    CheckpointRequest,
    CheckpointState,
    CheckpointTarget,
    ClaimError,
)
from gpubank.domain.contract import CHECKPOINT_REQUEST_ANNOTATION, CHECKPOINT_STATUS_ANNOTATION
from gpubank.domain.errors import BackendError, ConflictError


class PodNotes(Message):
    """The annotations of one pod."""

    uid: str
    annotations: Mapping[str, str] = Field(default_factory=dict)


class PodAnnotations(Protocol):
    """Reads and writes annotations of pods."""

    async def read(self, namespace: str, pod: str) -> PodNotes | None:
        """Return the annotations; None if there is no such pod. Raises `BackendError`."""
        ...

    async def write(self, namespace: str, pod: str, *, uid: str, annotations: Mapping[str, str]) -> None:
        """Set annotations on the pod with that uid; `ConflictError` if it is another one. Raises `BackendError`."""
        ...


class AnnotationHook:
    """A `CheckpointHook` over annotations."""

    def __init__(self, pods: PodAnnotations) -> None:
        self._pods = pods

    async def request(self, target: CheckpointTarget, request: CheckpointRequest) -> CheckpointAnswer:
        """Ask, once per `request.id`; see `gpubank.ports.CheckpointHook`."""
        notes = await self._read(target)
        if notes is None:
            return _failed(f"pod {target.namespace}/{target.pod} with uid {target.uid} is gone")
        asked = _asked(notes)
        if asked is None or asked.id != request.id:
            if asked is not None and asked.epoch > request.epoch:
                return _failed(f"a request of recall {asked.epoch} is there, newer than {request.epoch}")
            written = {CHECKPOINT_REQUEST_ANNOTATION: request.to_wire()}
            try:
                await self._pods.write(target.namespace, target.pod, uid=target.uid, annotations=written)
            except ConflictError as error:
                return _failed(str(error))
        return _status(notes, request.id) or CheckpointAnswer(
            id=request.id, state=CheckpointState.ACCEPTED, message="written to the pod; not answered yet"
        )

    async def answer(self, target: CheckpointTarget, request_id: str) -> CheckpointAnswer | None:
        """Return how far a request is; None where it is unknown."""
        notes = await self._read(target)
        if notes is None:
            return None
        status = _status(notes, request_id)
        if status is not None:
            return status
        asked = _asked(notes)
        if asked is None or asked.id != request_id:
            return None
        return CheckpointAnswer(
            id=request_id, state=CheckpointState.ACCEPTED, message="written to the pod; not answered yet"
        )

    async def _read(self, target: CheckpointTarget) -> PodNotes | None:
        notes = await self._pods.read(target.namespace, target.pod)
        return notes if notes is not None and notes.uid == target.uid else None


def _asked(notes: PodNotes) -> CheckpointRequest | None:
    raw = notes.annotations.get(CHECKPOINT_REQUEST_ANNOTATION)
    try:
        return None if raw is None else CheckpointRequest.model_validate_json(raw)
    except ValueError:
        return None  # written by somebody else; the bank's own takes its place


def _status(notes: PodNotes, request_id: str) -> CheckpointAnswer | None:
    """Return the answer to one request; None if the slot is empty or holds the answer to another one."""
    raw = notes.annotations.get(CHECKPOINT_STATUS_ANNOTATION)
    if raw is None or len(raw) > MAX_ANSWER_BYTES:
        return None
    try:
        answer = CheckpointAnswer.from_claim(raw)
    except ClaimError as error:
        if _id_in(raw) != request_id:
            return None
        raise BackendError(f"the status annotation is no checkpoint answer: {error}") from error
    return answer if answer.id == request_id else None


def _id_in(raw: str) -> object:
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return found.get("id") if isinstance(found, dict) else None


def _failed(message: str) -> CheckpointAnswer:
    return CheckpointAnswer(state=CheckpointState.FAILED, message=message[:1000])
