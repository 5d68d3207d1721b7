"""The words of the checkpoint contract, as the training side reads and writes them.

A request is `{id, epoch, deadline, reason}`: save now, durably, and go on. `id` is the idempotency key, `epoch` the
ordinal of the recall. Unknown fields are ignored, for an old hook meets a new bank.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

MAX_REQUEST_BYTES = 16_384
"""Longest request body that is read."""

_MAX_ID = 256
_MAX_REASON = 4_096
_MAX_EPOCH = 2**53 - 1  # the largest integer that every JSON reader keeps exact
_RFC3339 = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?([Zz]|[+-]\d\d:\d\d)")


class RequestRefusedError(Exception):
    """The hook does not take a request; `status` is the HTTP status that says why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Request:
    """What the bank asks for."""

    id: str
    epoch: int
    deadline: datetime
    reason: str


def parse_request(body: bytes) -> Request:
    """Read a request; raise `RequestRefusedError` with the field and the rule it breaks."""
    if len(body) > MAX_REQUEST_BYTES:
        raise RequestRefusedError(413, f"the request has {len(body)} bytes; at most {MAX_REQUEST_BYTES} are read")
    try:
        fields = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise RequestRefusedError(400, "the request is not JSON in UTF-8") from error
    if not isinstance(fields, dict):
        raise RequestRefusedError(400, "the request is not a JSON object; send {id, epoch, deadline, reason}")
    return Request(
        id=_text(fields, "id", longest=_MAX_ID),
        epoch=_epoch(fields.get("epoch")),
        deadline=_deadline(fields.get("deadline")),
        reason=_text(fields, "reason", longest=_MAX_REASON) if fields.get("reason") else "",
    )


def parse_time(text: str) -> datetime:
    """Read an RFC 3339 time; raise ValueError for anything else. (`fromisoformat` before 3.11 knows no `Z`.)"""
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not an RFC 3339 time with a zone, as in '2026-03-01T12:00:00Z'")
    day, clock, fraction, zone = match.groups()
    zone = "+00:00" if zone in "Zz" else zone
    return datetime.fromisoformat(f"{day}T{clock}.{(fraction or '0')[:6].ljust(6, '0')}{zone}")


def format_time(moment: datetime) -> str:
    """Write a time as RFC 3339 in UTC."""
    return moment.astimezone(timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")


def utc_now() -> datetime:
    """Return the time now, in UTC."""
    return datetime.now(timezone.utc)


def _text(fields: Mapping[str, Any], name: str, *, longest: int) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not 1 <= len(value) <= longest or not value.isprintable():
        raise RequestRefusedError(400, f"{name}: must be a string of 1 to {longest} printable characters")
    return value


def _epoch(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_EPOCH:
        raise RequestRefusedError(400, f"epoch: must be an integer from 0 to {_MAX_EPOCH}")
    return value


def _deadline(value: object) -> datetime:
    if not isinstance(value, str):
        raise RequestRefusedError(400, "deadline: must be a string with an RFC 3339 time")
    try:
        return parse_time(value)
    except ValueError as error:
        raise RequestRefusedError(400, f"deadline: {error}") from error
