"""Changes in the kubelet's folder: told by the kernel, and looked for as well, for a watch may miss what it replaced.

A kubelet that restarts removes every socket of the folder and makes its own anew: a new inode at the same path.
"""

import asyncio
import ctypes
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

_EVENTS: Final = 0x100 | 0x200 | 0x40 | 0x80 | 0x400 | 0x800  # created, deleted, moved from, moved to, folder itself
_SETTLE: Final = 0.01
"""Seconds in which a burst of changes becomes one."""


class Identity(NamedTuple):
    """Tells a file from another one at the same path."""

    device: int
    inode: int
    made_ns: int


def identity(path: Path) -> Identity | None:
    """What stands at the path now; None if nothing does."""
    try:
        found = path.lstat()
    except OSError:
        return None
    # The inode alone may be used again at once. A socket's mtime is when it was made; its ctime moves with its labels.
    return Identity(found.st_dev, found.st_ino, found.st_mtime_ns)


class FolderWatch:
    """Says when something in a folder was made or went away; never misses the last change."""

    def __init__(self, poll_seconds: float, changed: asyncio.Event) -> None:
        self._poll = poll_seconds
        self._changed = changed

    async def wait(self) -> None:
        """Return after the next change, or after the interval, for somebody to look anyway."""
        try:
            # No wait_for: before Python 3.12 it swallows a cancellation that comes with the change.
            async with asyncio.timeout(self._poll):
                await self._changed.wait()
        except TimeoutError:
            return
        await asyncio.sleep(_SETTLE)
        self._changed.clear()


@asynccontextmanager
async def watching(folder: Path, poll_seconds: float, changed: asyncio.Event) -> AsyncIterator[FolderWatch]:
    """Watch a folder; where the kernel's watch cannot be had, looking at intervals remains.

    `changed` may also be set by others who want somebody to look.
    """
    watch = FolderWatch(poll_seconds, changed)
    loop = asyncio.get_running_loop()
    descriptor = _inotify(folder)
    if descriptor is None:
        yield watch
        return

    def ready() -> None:
        try:
            while os.read(descriptor, 64 * 1024):
                changed.set()
        except BlockingIOError:
            pass

    loop.add_reader(descriptor, ready)
    try:
        yield watch
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _inotify(folder: Path) -> int | None:
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    except AttributeError:
        return None
    if descriptor < 0:
        return None
    if libc.inotify_add_watch(descriptor, os.fsencode(folder), ctypes.c_uint32(_EVENTS)) < 0:
        os.close(descriptor)
        return None
    return descriptor
