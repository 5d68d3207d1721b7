"""The desk between the bank, which asks, and the training loop, which saves.

    accepted ──▶ saving ──▶ durable
        └───────────┴─────▶ failed

Requests come in from any thread; the training thread takes the one that waits at its next step boundary. A newer
request takes the place of one that still waits; a save that has begun is always finished.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from gpubank.hook.protocol import Request, RequestRefusedError, format_time, utc_now
from gpubank.hook.store import MANIFEST, Checkpoint

Answer = dict[str, Any]
_REMEMBERED = 64


class Desk:
    """Requests and their answers; `on_change` is told every answer as it changes, one at a time."""

    def __init__(self, *, uid: str, world_size: int, uri: str, on_change: Callable[[Answer], None]) -> None:
        self._uid = uid
        self._world_size = world_size
        self._uri = uri.rstrip("/")
        self._on_change = on_change
        # Reentrant: `on_change` runs under it, and may look at an answer.
        self._lock = threading.RLock()
        self._answers: dict[str, Answer] = {}
        self._epoch = -1
        self.step = 0
        """Steps that the training loop last said are done."""
        self.waiting: Request | None = None
        """The request that the next step boundary takes; read without the lock, once per step."""

    def ask(self, request: Request) -> Answer:
        """Take a request and return its answer; the same id again returns the same record.

        Raises `RequestRefusedError` (409) when a request of a newer recall is already here.
        """
        with self._lock:
            known = self._answers.get(request.id)
            if known is not None:
                return dict(known)
            if request.epoch < self._epoch:
                raise RequestRefusedError(
                    409, f"epoch {request.epoch} of request {request.id!r} is older than {self._epoch}, the latest here"
                )
            if self.waiting is not None:
                self._fail(self.waiting.id, f"superseded by request {request.id!r}")
            self._epoch = request.epoch
            self.waiting = request
            self._answers[request.id] = answer = {
                "id": request.id,
                "state": "accepted",
                "step": None,
                "stepAtRequest": self.step,
                "worldSize": self._world_size,
                "uri": None,
                "manifest": None,
                "startedAt": None,
                "durableAt": None,
                "trainerUID": self._uid,
                "message": "",
            }
            self._forget_oldest()
            self._on_change(dict(answer))
            return dict(answer)

    def answer(self, request_id: str) -> Answer | None:
        """Return the answer to a request, or None if the id is unknown."""
        with self._lock:
            known = self._answers.get(request_id)
            return None if known is None else dict(known)

    def begin(self, request: Request, *, step: int) -> None:
        """Note that the save for `request` has begun."""
        with self._lock:
            if self.waiting is not None and self.waiting.id == request.id:
                self.waiting = None
            self._change(request.id, state="saving", step=step, startedAt=format_time(utc_now()))

    def finish(self, request: Request, checkpoint: Checkpoint) -> None:
        """Note that the save for `request` is durable; to be called after the storage has said so."""
        uri = f"{self._uri}/{checkpoint.path.name}"
        manifest = {
            "uri": f"{uri}/{MANIFEST}",
            "sha256": checkpoint.manifest_sha256,
            "files": checkpoint.files,
            "bytes": checkpoint.bytes,
        }
        durable_at = format_time(utc_now())
        with self._lock:
            self._change(request.id, state="durable", uri=uri, manifest=manifest, durableAt=durable_at)

    def fail(self, request: Request, message: str) -> None:
        """Note that the save for `request` failed, and why."""
        with self._lock:
            self._fail(request.id, message)

    def _forget_oldest(self) -> None:
        ended = [key for key, answer in self._answers.items() if answer["state"] in ("durable", "failed")]
        for key in ended[: max(0, len(self._answers) - _REMEMBERED)]:
            del self._answers[key]

    def _fail(self, request_id: str, message: str) -> None:
        self._change(request_id, state="failed", message=message[:1024])

    def _change(self, request_id: str, **fields: Any) -> None:
        # A request that was forgotten, or taken from elsewhere, is nobody's to answer.
        answer = self._answers.get(request_id)
        if answer is not None:
            answer.update(fields)
            self._on_change(dict(answer))
