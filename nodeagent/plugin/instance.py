"""One agent on a node: a second one would replace the first one's registration at the kubelet without a word."""

import fcntl
import os
from pathlib import Path
from typing import Final, Self

from gpubank.domain.errors import ConflictError

LOCK_FILE: Final = "agent.lock"


class Instance:
    """Holds the node for as long as the process lives; the kernel lets go of it whatever ends the process."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOCK_FILE
        self._file = -1

    def __enter__(self) -> Self:
        """Take the node. Raises ConflictError if another agent has it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(file, 32).decode(errors="replace").strip()
            os.close(file)
            raise ConflictError(
                f"this node has an agent already: process {holder or '?'} holds {str(self._path)!r}; stop it first"
            ) from error
        os.ftruncate(file, 0)
        os.write(file, f"{os.getpid()}\n".encode())
        self._file = file
        return self

    def __exit__(self, *reason: object) -> None:
        os.close(self._file)
