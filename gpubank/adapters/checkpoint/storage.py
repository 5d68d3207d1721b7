"""Checkpoints where they lie, read through fsspec: local folders, memory, and every object store fsspec knows.

The storage prefix is what a job's annotation says, so the schemes are an allow-list, local paths are followed to
where they really lead, and only plain files are opened: a link out of the prefix, a pipe or a device is an `Escape`.
"""

import asyncio
import hashlib
import os
import stat
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from fsspec.core import url_to_fs  # type: ignore[import-untyped]

from gpubank.decide.attest import Escape, is_under
from gpubank.domain.checkpoint import FileFact
from gpubank.domain.errors import BackendError

DEFAULT_SCHEMES: Final = frozenset({"file", "memory", "s3", "gs", "gcs", "abfs", "abfss", "az"})
"""Schemes that are read unless the operator says otherwise; each but the first two needs its fsspec driver."""

_CHUNK: Final = 1 << 20
_LONGEST_PART: Final = 1000
"""Files that are looked at in one go; between two of them a look that took too long ends."""

Found = bytes | FileFact | Escape | None
Reader = Callable[[BinaryIO, threading.Event], bytes | FileFact]


class FsspecStorage:
    """A `CheckpointStorage` over fsspec, in threads of its own so that a hanging storage holds nobody else up."""

    def __init__(
        self,
        *,
        schemes: frozenset[str] = DEFAULT_SCHEMES,
        timeout: timedelta = timedelta(seconds=30),
        hash_timeout: timedelta = timedelta(minutes=10),
        threads: int = 8,
    ) -> None:
        """Read from `schemes` only.

        Args:
            schemes: schemes of the prefixes that are read; all others are refused.
            timeout: for reading a manifest, and for looking at a checkpoint's files without hashes.
            hash_timeout: for reading all files of a checkpoint.
            threads: files that are looked at in parallel.

        """
        self._schemes = schemes
        self._timeout = timeout
        self._hash_timeout = hash_timeout
        self._threads = threads
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="checkpoint-storage")

    async def read_manifest(self, uri: str, *, prefix: str, max_bytes: int) -> bytes | Escape | None:
        """Return what lies at `uri`, or its first `max_bytes` + 1 bytes; None if nothing does."""

        def read(file: BinaryIO, stop: threading.Event) -> bytes:
            parts: list[bytes] = []
            left = max_bytes + 1
            while left > 0 and not stop.is_set() and (part := file.read(min(left, _CHUNK))):
                parts.append(part)
                left -= len(part)
            return b"".join(parts)

        [found] = await self._visit([uri], prefix, read, self._timeout)
        return cast(bytes | Escape | None, found)

    async def look_at(self, uris: Sequence[str], *, prefix: str, hashes: bool) -> Sequence[FileFact | Escape | None]:
        """Return size, and with `hashes` the sha256, of every file in order; None for one that is not there."""

        def look(file: BinaryIO, stop: threading.Event) -> FileFact:
            digest = hashlib.sha256()
            read = 0
            while not stop.is_set() and (part := file.read(_CHUNK)):
                digest.update(part)
                read += len(part)
            return FileFact(size=read, sha256=digest.hexdigest())

        timeout = self._hash_timeout if hashes else self._timeout
        found = await self._visit(uris, prefix, look if hashes else None, timeout)
        return cast(Sequence[FileFact | Escape | None], found)

    def close(self) -> None:
        """Let the threads end; one that hangs in a storage is left behind."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _visit(
        self,
        uris: Sequence[str],
        prefix: str,
        read: Reader | None,
        timeout: timedelta,
    ) -> list[Found]:
        scheme = prefix.partition("://")[0]
        if scheme not in self._schemes:
            escape = Escape(detail=f"storage {prefix!r} has a scheme that is not read here ({scheme!r})")
            return [escape for _ in uris]
        loop = asyncio.get_running_loop()
        stop = threading.Event()
        try:
            async with asyncio.timeout(timeout.total_seconds()):
                source = await loop.run_in_executor(self._pool, _source, prefix)
                visited = await asyncio.gather(
                    *(
                        loop.run_in_executor(self._pool, source.visit_all, part, read, stop)
                        for part in _parts(uris, self._threads)
                    )
                )
                return [found for part in visited for found in part]
        except TimeoutError as error:
            raise BackendError(f"storage {prefix!r} did not answer within {timeout}; is it reachable?") from error
        except BackendError:
            raise
        except Exception as error:
            # Whatever a driver raises; which types there are depends on the driver.
            raise BackendError(f"storage {prefix!r} cannot be read: {type(error).__name__}: {error}"[:500]) from error
        finally:
            stop.set()


class _Source:
    """A file system and the prefix on it that must not be left."""

    def __init__(self, file_system: Any, prefix: str) -> None:
        self._file_system = file_system
        self._prefix = prefix

    def visit_all(self, uris: Sequence[str], read: Reader | None, stop: threading.Event) -> list[Found]:
        """Visit some files one after the other."""
        return [self.visit(uri, read, stop) for uri in uris]

    def visit(self, uri: str, read: Reader | None, stop: threading.Event) -> Found:
        if stop.is_set():
            return None
        if not is_under(uri, self._prefix):
            return Escape(detail=f"{uri!r} is not under {self._prefix!r}")
        return self._visit(self._file_system._strip_protocol(uri), read, stop)

    def _visit(self, path: str, read: Reader | None, stop: threading.Event) -> Found:
        try:
            # Never a cached listing: the file may be a second old.
            self._file_system.invalidate_cache()
            info = self._file_system.info(path)
            if info["type"] != "file":
                return Escape(detail=f"{path!r} is a {info['type']}, not a file")
            if read is None:
                return FileFact(size=info["size"])
            with self._file_system.open(path, "rb") as file:
                return read(cast(BinaryIO, file), stop)
        except FileNotFoundError:
            return None


class _LocalSource(_Source):
    """Local folders: links are followed by us, and what is no plain file is never opened for reading."""

    def _visit(self, path: str, read: Reader | None, stop: threading.Event) -> Found:
        root = Path(self._file_system._strip_protocol(self._prefix)).resolve()
        try:
            real = Path(path).resolve(strict=True)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except RuntimeError:
            return Escape(detail=f"{path!r} is a link to itself")
        if not real.is_relative_to(root):
            return Escape(detail=f"{path!r} leads out of the storage")
        # A pipe would block an ordinary open for ever; a link put there since resolve() is not followed.
        descriptor = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                return Escape(detail=f"{path!r} is not a plain file")
            if read is None:
                return FileFact(size=found.st_size)
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                return read(file, stop)
        finally:
            os.close(descriptor)


def _parts(uris: Sequence[str], threads: int) -> list[Sequence[str]]:
    """Cut the work into some parts for each thread: a manifest may name a million files, and each part costs."""
    size = min(max(1, len(uris) // (4 * threads)), _LONGEST_PART)
    return [uris[start : start + size] for start in range(0, len(uris), size)]


def _source(prefix: str) -> _Source:
    file_system, _ = url_to_fs(prefix, skip_instance_cache=True, use_listings_cache=False)
    return (_LocalSource if prefix.startswith("file://") else _Source)(file_system, prefix)
