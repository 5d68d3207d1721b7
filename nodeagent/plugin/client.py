"""Asking a node's running agent, from another program on the same host; standard library only."""

import json
import socket
from pathlib import Path
from typing import Any, Final

from gpubank.domain.errors import BackendError, ConflictError, PolicyError
from nodeagent.plugin.control import CONTROL_SOCKET

_SECONDS: Final = 30.0


def ask(folder: Path, **order: str) -> dict[str, Any]:
    """Send one order to the agent whose state folder this is, and return its answer.

    Raises BackendError if no agent answers, PolicyError or ConflictError with the agent's words if it refuses.
    """
    path = folder / CONTROL_SOCKET
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_SECONDS)
            connection.connect(str(path))
            connection.sendall(json.dumps(order).encode() + b"\n")
            with connection.makefile("rb") as lines:
                answer: dict[str, Any] = json.loads(lines.readline())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error or "no answer"
        raise BackendError(
            f"the agent of this node does not answer on {str(path)!r} ({reason}); see that it runs and you may ask it"
        ) from error
    if answer.get("ok"):
        return answer
    message = str(answer.get("message", "the agent refused"))
    if answer.get("error") == "conflict":
        raise ConflictError(message)
    if answer.get("error") == "internal":
        raise BackendError(message)
    raise PolicyError(message)
