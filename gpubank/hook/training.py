"""What a training script embeds.

    hook = Hook.from_env()
    with hook:
        latest = hook.latest()                     # resume from here, if it is not None
        for step in range(start, steps):
            ...                                    # train one step
            if request := hook.requested(step + 1):
                with hook.saving(request, step=step + 1) as save:
                    ...                            # write files below save.path
            if hook.stopping:
                break                              # SIGTERM came; leave at the step boundary

A step is counted as done: after the first step of a fresh run it is 1. Nothing is saved in a signal handler, for there
a half-updated model would be written.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from gpubank.hook.desk import Answer, Desk
from gpubank.hook.protocol import Request
from gpubank.hook.responder import RequestFile, Responder, StatusFile
from gpubank.hook.store import Checkpoint, Store, local_folder, sync_tree


@dataclass(frozen=True)
class Save:
    """A checkpoint that is being written."""

    path: Path
    """An empty folder for the files; every rank gets the same."""
    step: int

    def sync(self) -> None:
        """Flush what was written so far; a rank other than 0 calls it before the barrier that ends a save."""
        sync_tree(self.path)


class Hook:
    """Answers the bank's requests for checkpoints and writes them durably.

    Without a storage the hook is off: nothing is asked, nothing listens, `latest()` is None.
    """

    def __init__(
        self,
        storage: str | os.PathLike[str] | None = None,
        *,
        uri: str | None = None,
        uid: str = "",
        host: str = "127.0.0.1",
        port: int | None = None,
        address_file: str | os.PathLike[str] | None = None,
        request_file: str | os.PathLike[str] | None = None,
        status_file: str | os.PathLike[str] | None = None,
        on_status: Callable[[Answer], None] | None = None,
        keep: int = 2,
        rank: int = 0,
        world_size: int = 1,
        poll_seconds: float = 1.0,
    ) -> None:
        """Set the hook up; nothing listens before `with`.

        Args:
            storage: folder of the checkpoints (a path or a `file://` URI); None turns the hook off.
            uri: how the bank names that folder; by default its `file://` URI.
            uid: uid of the pod, by which the bank tells this trainer from an earlier one.
            host: address to listen on; the pod's own in a cluster.
            port: port to listen on, 0 for any free one; None for no HTTP responder.
            address_file: file that gets the responder's URL once it listens.
            request_file: file with the request annotation, as a downward-API volume projects it.
            status_file: file that always holds the latest answer, for a sidecar to publish.
            on_status: called with every answer as it changes; must be quick.
            keep: complete checkpoints to keep, at least 2.
            rank: rank of this process; only rank 0 answers and completes checkpoints.
            world_size: number of ranks.
            poll_seconds: how often `request_file` is read.

        """
        self.enabled = storage is not None
        self.rank = rank
        self.world_size = world_size
        self.stopping = False
        """Whether SIGTERM came: leave the loop at this step boundary."""
        folder = local_folder(storage) if storage is not None else Path()
        self._store = Store(folder, uid=uid, keep=keep)
        self._status = StatusFile(Path(status_file)) if status_file is not None else None
        self._on_status = on_status
        where = uri or (f"file://{folder.as_posix()}" if storage is not None else "")
        self._desk = Desk(uid=uid, world_size=world_size, uri=where, on_change=self._tell)
        self._host = host
        self._port = port
        self._address_file = Path(address_file) if address_file is not None else None
        self._request_file = Path(request_file) if request_file is not None else None
        self._poll_seconds = poll_seconds
        self._responder: Responder | None = None
        self._watcher: RequestFile | None = None
        self._previous_handler: Any = None

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None, **overrides: Any) -> Hook:
        """Set the hook up from `GPUBANK_HOOK_*` and torchrun's RANK and WORLD_SIZE; `overrides` win.

        `GPUBANK_HOOK_STORAGE`, `_URI`, `_UID`, `_HOST`, `_PORT`, `_ADDRESS_FILE`, `_REQUEST_FILE`, `_STATUS_FILE` and
        `_KEEP` mean what the arguments of the same name mean. Raises ValueError naming a variable that is no number.
        """
        env = os.environ if env is None else env
        values: dict[str, Any] = {}
        for name in ("storage", "uri", "uid", "host", "address_file", "request_file", "status_file"):
            value = env.get(f"GPUBANK_HOOK_{name.upper()}")
            if value:
                values[name] = value
        for name, variable in (
            ("port", "GPUBANK_HOOK_PORT"),
            ("keep", "GPUBANK_HOOK_KEEP"),
            ("rank", "RANK"),
            ("world_size", "WORLD_SIZE"),
        ):
            if env.get(variable):
                values[name] = _number(variable, env[variable])
        return cls(**{**values, **overrides})

    @property
    def address(self) -> str | None:
        """Base URL of the HTTP responder while it listens."""
        return None if self._responder is None else self._responder.address

    def __enter__(self) -> Hook:
        """Clean up after an interrupted save, listen, and note SIGTERM from now on.

        Raises OSError if the address cannot be listened on: better at the start than at the first recall.
        """
        if threading.current_thread() is threading.main_thread():
            self._previous_handler = signal.signal(signal.SIGTERM, self._note_stop)
        try:
            if self.enabled and self.rank == 0:
                self._store.clean()
                self._listen()
        except BaseException:
            self._restore_signal()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._watcher is not None:
            self._watcher.stop()
        if self._responder is not None:
            self._responder.stop()
        self._watcher = self._responder = None
        self._restore_signal()

    def requested(self, step: int) -> Request | None:
        """Say that `step` steps are done; return the request that waits for a save, if one does.

        Costs two attribute accesses, so call it at every step boundary. Only rank 0 ever gets a request.
        """
        self._desk.step = step
        return self._desk.waiting

    @contextmanager
    def saving(self, request: Request | None = None, *, step: int) -> Iterator[Save]:
        """Give a folder to write to; the checkpoint is complete and durable when the block ends.

        `request` is None for a checkpoint of the trainer's own. If the block raises, or the storage fails (OSError),
        the unfinished checkpoint is thrown away, the bank is told, and the error goes on to the caller. On ranks
        other than 0 the block only writes: rank 0 completes the checkpoint, so every rank must have written and
        flushed before rank 0 leaves the block.
        """
        if not self.enabled:
            raise ValueError("the hook has no storage to save to; set GPUBANK_HOOK_STORAGE or pass `storage`")
        if self.rank != 0:
            yield Save(self._store.open(step, fresh=False), step)
            return
        if request is not None:
            self._desk.begin(request, step=step)
        partial: Path | None = None
        try:
            partial = self._store.open(step, fresh=self.world_size == 1)
            yield Save(partial, step)
            checkpoint = self._store.complete(partial, step=step, request_id=None if request is None else request.id)
        except BaseException as error:
            if partial is not None:
                self._store.discard(partial)
            if request is not None:
                self._desk.fail(request, f"the save at step {step} failed: {type(error).__name__}: {error}")
            raise
        if request is not None:
            self._desk.finish(request, checkpoint)
        self._store.prune(checkpoint)

    def save(self, step: int, write: Callable[[Path], object], request: Request | None = None) -> bool:
        """Save through `write`, which gets the folder; False if the storage failed, and training can go on.

        The bank is told of the failure, and the previous checkpoint is still there.
        """
        try:
            with self.saving(request, step=step) as save:
                write(save.path)
        except OSError as error:
            sys.stderr.write(f"gpubank hook: no checkpoint at step {step}: {error}\n")
            return False
        return True

    def latest(self, *, check_hashes: bool = True) -> Checkpoint | None:
        """Return the newest complete and undamaged checkpoint, or None.

        `check_hashes` reads every file once more; without it only sizes are compared.
        """
        checkpoint = self._store.latest(check_hashes=check_hashes) if self.enabled else None
        if checkpoint is not None:
            self._desk.step = max(self._desk.step, checkpoint.step)
        return checkpoint

    def _listen(self) -> None:
        if self._port is not None:
            self._responder = Responder(self._desk, host=self._host, port=self._port)
            self._responder.start()
            if self._address_file is not None:
                scratch = self._address_file.with_name(f".{self._address_file.name}.tmp")
                scratch.write_text(self._responder.address + "\n", encoding="utf-8")
                os.replace(scratch, self._address_file)
        if self._request_file is not None:
            self._watcher = RequestFile(self._desk, self._request_file, every=self._poll_seconds, tell=self._tell)
            self._watcher.start()

    def _tell(self, answer: Answer) -> None:
        if self._status is not None:
            self._status.write(answer)
        if self._on_status is not None:
            self._on_status(answer)

    def _note_stop(self, signum: int, frame: FrameType | None) -> None:
        # Only a plain attribute: a lock or an Event taken here could be held by the very thread that is interrupted.
        self.stopping = True

    def _restore_signal(self) -> None:
        if self._previous_handler is not None:
            signal.signal(signal.SIGTERM, self._previous_handler)
            self._previous_handler = None


def _number(variable: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise ValueError(f"{variable} is {text!r}: it must be an integer") from error
