"""Orders from the same host: a socket on which the node's other programs inspect, quarantine and release.

One JSON object per line, one answer per line: {"order": "release", "uuid": ..., "key": ...} ─▶ {"ok": true, ...}.
Only root, or whoever runs the agent, can connect.
"""

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol

from gpubank.domain.errors import BankError, ConflictError, PolicyError

CONTROL_SOCKET: Final = "control.sock"
_LONGEST_LINE: Final = 64 * 1024

_log = logging.getLogger(__name__)


class Orders(Protocol):
    """What can be ordered."""

    def inspect(self) -> dict[str, Any]:
        """Everything that is known."""
        ...

    async def quarantine(self, uuid: str, by: str, reason: str, key: str = "") -> bool:
        """Take a GPU out."""
        ...

    async def release(self, uuid: str, key: str = "") -> bool:
        """Put a GPU back."""
        ...


@asynccontextmanager
async def listening(folder: Path, orders: Orders) -> AsyncIterator[Path]:
    """Listen for orders."""
    path = folder / CONTROL_SOCKET
    await asyncio.to_thread(_make_room, path)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(json.dumps(await answer(orders, line)).encode() + b"\n")
                await writer.drain()
        except (OSError, ValueError):
            pass  # whoever asked went away, or wrote a line without end
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    mask = os.umask(0o177)
    try:
        server = await asyncio.start_unix_server(serve, str(path), limit=_LONGEST_LINE)
    finally:
        os.umask(mask)
    try:
        yield path
    finally:
        server.close()
        await asyncio.to_thread(_make_room, path)


def _make_room(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)


async def answer(orders: Orders, line: bytes) -> dict[str, Any]:
    """Carry out one order; every failure is an answer."""
    try:
        return {"ok": True, **await _carried_out(orders, _order(line))}
    except ConflictError as error:
        return {"ok": False, "error": "conflict", "message": str(error)}
    except BankError as error:
        return {"ok": False, "error": "refused", "message": str(error)}
    except Exception:
        _log.exception("an order failed")
        return {"ok": False, "error": "internal", "message": "an error of the agent itself; its log says more"}


def _order(line: bytes) -> dict[str, str]:
    try:
        body = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise PolicyError(f"the order is no JSON: {error}; write one object per line") from error
    if not isinstance(body, dict) or not all(isinstance(value, str) for value in body.values()):
        raise PolicyError("the order is no object of texts; write order, uuid, by, reason, key")
    return body


async def _carried_out(orders: Orders, body: dict[str, str]) -> dict[str, Any]:
    known = {"inspect": (), "quarantine": ("uuid", "by", "reason"), "release": ("uuid",)}
    name = body.pop("order", "")
    if name not in known:
        raise PolicyError(f"order {name!r} is none; there are {', '.join(known)}")
    key = body.pop("key", "")
    if missing := [field for field in known[name] if not body.get(field)]:
        raise PolicyError(f"order {name!r} lacks {', '.join(missing)}; write it")
    if extra := sorted(set(body) - set(known[name])):
        raise PolicyError(f"order {name!r} has no {', '.join(extra)}; remove it")
    if name == "inspect":
        return {"node": orders.inspect()}
    if name == "quarantine":
        return {"changed": await orders.quarantine(body["uuid"], body["by"], body["reason"], key)}
    return {"changed": await orders.release(body["uuid"], key)}
