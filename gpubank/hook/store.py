"""Checkpoints in a folder: complete or not there.

    .step-0000000042.partial/      being written; ignored by readers, removed at the next start
    step-0000000042-1f0c9a2e/      complete: every file and folder flushed, then manifest.json, then the rename

The rename is the moment of truth, so the storage must be a POSIX file system that renames folders atomically (local
disk, NFS, Lustre, CephFS; not an object store behind FUSE). The previous checkpoint is never touched before the next
one is complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from gpubank.hook.protocol import format_time, utc_now

MANIFEST = "manifest.json"
_PARTIAL = ".partial"
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint: all its files are there, as its manifest says."""

    path: Path
    id: str
    step: int
    request_id: str | None
    trainer_uid: str
    created_at: str
    files: int
    bytes: int
    manifest_sha256: str


class Store:
    """The checkpoints below one folder.

    `keep` complete ones are kept (at least two: the bank may still refuse the newest), and with them the newest one
    that was written on request, for the bank may be reading it.
    """

    def __init__(self, folder: Path, *, uid: str, keep: int = 2) -> None:
        if keep < 2:
            raise ValueError(f"keep is {keep}: at least 2 checkpoints must be kept, for the newest may prove unusable")
        self.folder = folder
        self._uid = uid
        self._keep = keep

    def clean(self) -> None:
        """Remove what an interrupted save or an interrupted removal left."""
        if self.folder.is_dir():
            for path in sorted(self.folder.iterdir()):
                if path.name.startswith(".step-") and path.name.endswith(_PARTIAL):
                    shutil.rmtree(path, ignore_errors=True)

    def open(self, step: int, *, fresh: bool = True) -> Path:
        """Return the folder that a save at `step` writes to; every rank gets the same.

        `fresh` empties it first; ranks that share it must not, for another may already be writing.
        """
        partial = self.folder / f".step-{step:010d}{_PARTIAL}"
        if fresh and partial.exists():
            shutil.rmtree(partial)
        _make_folder(self.folder)
        partial.mkdir(exist_ok=True)
        return partial

    def discard(self, partial: Path) -> None:
        """Throw an unfinished save away."""
        shutil.rmtree(partial, ignore_errors=True)

    def complete(self, partial: Path, *, step: int, request_id: str | None) -> Checkpoint:
        """Make the files in `partial` a checkpoint that survives a power cut from now on.

        Raises OSError if the storage fails and ValueError if `partial` cannot be a checkpoint.
        """
        sync_tree(partial)
        identity = f"step-{step:010d}-{uuid.uuid4().hex[:8]}"
        manifest = {
            "requestId": request_id,
            "id": identity,
            "step": step,
            "trainerUID": self._uid,
            "createdAt": format_time(utc_now()),
            "files": [_described(partial, path) for path in _files(partial)],
        }
        if not manifest["files"]:
            raise ValueError(f"the save at step {step} wrote no file; write into the folder that `saving` gives")
        _write_synced(partial / MANIFEST, json.dumps(manifest, indent=1).encode())
        _sync(partial)
        final = self.folder / identity
        os.rename(partial, final)
        _sync(self.folder)
        checkpoint = read_checkpoint(final, check_hashes=False)
        if checkpoint is None:
            raise OSError(f"checkpoint {str(final)!r} does not read back as it was written; check the storage")
        return checkpoint

    def latest(self, *, check_hashes: bool = True) -> Checkpoint | None:
        """Return the complete checkpoint with the highest step, or None.

        One whose manifest or files are damaged is passed over for the next older.
        """
        known = [read_checkpoint(path, check_hashes=False) for path in self._complete_folders()]
        for checkpoint in sorted(
            (one for one in known if one is not None), key=lambda one: (one.step, one.created_at), reverse=True
        ):
            if not check_hashes or read_checkpoint(checkpoint.path, check_hashes=True) is not None:
                return checkpoint
        return None

    def prune(self, newest: Checkpoint) -> None:
        """Remove complete checkpoints beyond those to keep; `newest` and the newest requested one always stay.

        A failure to remove is no failure of the save: what is left is taken at the next one.
        """
        found = [read_checkpoint(path, check_hashes=False) for path in self._complete_folders()]
        known = sorted((one for one in found if one is not None), key=lambda one: one.created_at, reverse=True)
        kept = {newest.path, *(one.path for one in known[: self._keep])}
        kept.update([one.path for one in known if one.request_id is not None][:1])
        for checkpoint in known:
            if checkpoint.path not in kept:
                doomed = self.folder / f".{checkpoint.path.name}{_PARTIAL}"
                try:
                    os.rename(checkpoint.path, doomed)
                except OSError:
                    continue
                shutil.rmtree(doomed, ignore_errors=True)

    def _complete_folders(self) -> list[Path]:
        if not self.folder.is_dir():
            return []
        return [path for path in self.folder.iterdir() if path.name.startswith("step-") and path.is_dir()]


def read_checkpoint(folder: Path, *, check_hashes: bool) -> Checkpoint | None:
    """Read the checkpoint in `folder`; None if its manifest or a file is missing, damaged or of another size."""
    try:
        raw = (folder / MANIFEST).read_bytes()
        manifest = json.loads(raw)
        files = manifest["files"]
        for file in files:
            if not _is_as_described(folder, file, check_hash=check_hashes):
                return None
        return Checkpoint(
            path=folder,
            id=str(manifest["id"]),
            step=int(manifest["step"]),
            request_id=manifest["requestId"],
            trainer_uid=str(manifest["trainerUID"]),
            created_at=str(manifest["createdAt"]),
            files=len(files),
            bytes=sum(file["size"] for file in files),
            manifest_sha256=hashlib.sha256(raw).hexdigest(),
        )
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def sync_tree(folder: Path) -> None:
    """Flush every file and folder below `folder`, and `folder` itself, to the storage."""
    for path in _files(folder):
        _sync(path)
    for parent, _, _ in os.walk(folder, topdown=False):
        _sync(Path(parent))


def local_folder(storage: str | os.PathLike[str]) -> Path:
    """Return the folder that a path or a `file://` URI names; raise ValueError for any other URI."""
    text = os.fspath(storage)
    parts = urlsplit(text)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return Path(text[len("file://") + len(parts.netloc) :])  # as it stands: nothing decodes %20 on the bank's side
    if "://" in text:
        raise ValueError(f"storage {text!r} is not a folder; mount it, and name the mount point or its file:// URI")
    return Path(text).absolute()


def _files(folder: Path) -> Iterator[Path]:
    """Yield the regular files below `folder`, in order; anything else cannot be kept and is an error."""
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in [*folders, *sorted(names)]:
            path = Path(parent, name)
            mode = path.lstat().st_mode
            if stat.S_ISREG(mode):
                yield path
            elif not stat.S_ISDIR(mode):
                raise ValueError(f"{str(path)!r} is neither a file nor a folder; a checkpoint holds nothing else")


def _described(folder: Path, path: Path) -> dict[str, Any]:
    relative = path.relative_to(folder).as_posix()
    if relative == MANIFEST:
        raise ValueError(f"{MANIFEST!r} is the name of the manifest; give the file another name")
    return {"path": relative, "size": path.stat().st_size, "sha256": _sha256(path)}


def _is_as_described(folder: Path, file: dict[str, Any], *, check_hash: bool) -> bool:
    relative = PurePosixPath(file["path"])
    if relative.is_absolute() or ".." in relative.parts:
        return False
    path = folder / relative
    if path.stat().st_size != file["size"]:
        return False
    return not check_hash or _sha256(path) == file["sha256"]


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _write_synced(path: Path, content: bytes) -> None:
    scratch = path.with_name(f".{path.name}.tmp")
    with scratch.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.rename(scratch, path)


def _make_folder(folder: Path) -> None:
    """Create `folder`; each folder above that gets an entry is flushed, else a power cut could lose the whole tree."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync(folder.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
