"""A lock between processes: a file that one of them holds at a time, for as long as it lives."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock at `path`; wait for whoever holds it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    while True:
        with path.open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Whoever cleans a lab away removes its lock too; what was waited for is then no longer the lock.
            if path.exists() and os.path.samestat(os.fstat(lock.fileno()), path.stat()):
                yield
                return
