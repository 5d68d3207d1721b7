"""Trainers that answer as they are told to, and the storage on which their checkpoints lie."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, auto
from typing import TypeVar

from gpubank.domain.checkpoint import (
    CheckpointAnswer,
    CheckpointRequest,
    CheckpointState,
    CheckpointTarget,
    FileFact,
    ManifestClaim,
)

FILE_BYTES = 4096
T = TypeVar("T")


class Mood(Enum):
    """How a trainer takes a request."""

    SAVES = auto()
    SILENT = auto()
    """Accepts, and never gets anywhere."""

    FAILS = auto()
    LIES = auto()
    """Claims a checkpoint that is not there."""


@dataclass
class _Asked:
    target: CheckpointTarget
    request: CheckpointRequest
    at: datetime
    step: int


class Trainers:
    """Implements `CheckpointHook` and `CheckpointStorage` for every pod of a test."""

    def __init__(self) -> None:
        self.mood = Mood.SAVES
        self.moods: dict[str, Mood] = {}
        """By the beginning of the pod's name; `mood` is for all others."""

        self.seconds = 0.05
        """How long saving takes."""

        self.slow: dict[str, float] = {}
        """How long it takes by the beginning of the pod's name; `seconds` is for all others."""

        self.asked: list[CheckpointRequest] = []
        """Every request once, in order."""

        self._records: dict[str, _Asked] = {}
        self._step = 100

    async def request(self, target: CheckpointTarget, request: CheckpointRequest) -> CheckpointAnswer:
        if request.id not in self._records:
            self._step += 1
            self._records[request.id] = _Asked(target, request, datetime.now(UTC), self._step)
            self.asked.append(request)
        return self._answer(self._records[request.id])

    async def answer(self, target: CheckpointTarget, request_id: str) -> CheckpointAnswer | None:
        asked = self._records.get(request_id)
        return None if asked is None or asked.target.uid != target.uid else self._answer(asked)

    async def read_manifest(self, uri: str, *, prefix: str, max_bytes: int) -> bytes | None:
        for asked in self._records.values():
            if uri == self._claim_uri(asked) and self._mood(asked.target) is Mood.SAVES:
                return self._manifest(asked)
        return None

    async def look_at(self, uris: Sequence[str], *, prefix: str, hashes: bool) -> Sequence[FileFact | None]:
        return [FileFact(size=FILE_BYTES) for _ in uris]

    def _mood(self, target: CheckpointTarget) -> Mood:
        return _by_name(self.moods, target.pod, self.mood)

    def _takes(self, target: CheckpointTarget) -> float:
        return _by_name(self.slow, target.pod, self.seconds)

    def _answer(self, asked: _Asked) -> CheckpointAnswer:
        mood = self._mood(asked.target)
        if mood is Mood.FAILS:
            return CheckpointAnswer(id=asked.request.id, state=CheckpointState.FAILED, message="the disk is full")
        if mood is Mood.SILENT or (datetime.now(UTC) - asked.at).total_seconds() < self._takes(asked.target):
            return CheckpointAnswer(id=asked.request.id, state=CheckpointState.SAVING)
        raw = self._manifest(asked)
        return CheckpointAnswer(
            id=asked.request.id,
            state=CheckpointState.DURABLE,
            step=asked.step,
            step_at_request=asked.step,
            uri=self._folder(asked),
            manifest=ManifestClaim(
                uri=self._claim_uri(asked), sha256=hashlib.sha256(raw).hexdigest(), files=1, bytes=FILE_BYTES
            ),
            durable_at=datetime.now(UTC),
            trainer_uid=asked.target.uid,
        )

    def _folder(self, asked: _Asked) -> str:
        return f"{asked.target.storage}/step-{asked.step}"

    def _claim_uri(self, asked: _Asked) -> str:
        return f"{self._folder(asked)}/manifest.json"

    def _manifest(self, asked: _Asked) -> bytes:
        body = {
            "requestId": asked.request.id,
            "id": f"step-{asked.step}",
            "step": asked.step,
            "trainerUID": asked.target.uid,
            "createdAt": asked.at.isoformat(),
            "files": [{"path": "weights.bin", "size": FILE_BYTES}],
        }
        return json.dumps(body).encode()


def _by_name(kept: Mapping[str, T], pod: str, otherwise: T) -> T:
    """Return what is kept for the longest beginning of the pod's name: `train-14` is not `train-1`."""
    found = max((name for name in kept if pod.startswith(name)), key=len, default=None)
    return kept[found] if found is not None else otherwise
