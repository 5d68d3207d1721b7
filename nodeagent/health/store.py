"""The marks on disk: written before anybody acts on them, read at the start, never lost in silence.

A file that cannot be read is no reason to call every GPU sound: the file before it is tried, and without that one the
agent does not start.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gpubank.domain.errors import PolicyError
from nodeagent.files import replace
from nodeagent.health.book import HealthBook
from nodeagent.health.marks import Mark
from nodeagent.health.policy import Policy

STATE_FILE: Final = "health.json"
_VERSION: Final = 1


class HealthStore:
    """The state file and the one before it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / STATE_FILE
        self.previous = folder / f"{STATE_FILE}.previous"

    def load(self, policy: Policy) -> HealthBook:
        """Read the book; an empty one where there never was a file. Raises PolicyError if it cannot be read."""
        for path in (self.path, self.previous):
            try:
                text = path.read_text(encoding="utf-8")
            except FileNotFoundError:
                continue
            except (OSError, UnicodeDecodeError):
                text = ""
            book = _book(text, policy)
            if book is not None:
                return book
        if self.path.exists() or self.previous.exists():
            raise PolicyError(
                f"health file {str(self.path)!r} cannot be read, and so it is not known which GPUs are unfit; look at"
                " the node's GPUs, then remove it and its '.previous'"
            )
        return HealthBook(policy)

    def save(self, book: HealthBook) -> None:
        """Write the book whole, through to the disk. Raises OSError."""
        body = {
            "version": _VERSION,
            "gpus": {uuid: [mark.to_json() for mark in marks.values()] for uuid, marks in sorted(book.marks.items())},
            "keys": book.keys,
        }
        replace(self.path, json.dumps(body, indent=1).encode(), previous=self.previous)


def _book(text: str, policy: Policy) -> HealthBook | None:
    try:
        body = json.loads(text)
        if not isinstance(body, Mapping) or body["version"] != _VERSION:
            return None
        marks = {str(uuid): _marks(entries) for uuid, entries in body["gpus"].items()}
        keys = [str(key) for key in body["keys"]]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return HealthBook(policy, marks={uuid: found for uuid, found in marks.items() if found}, keys=keys)


def _marks(entries: Any) -> dict[str, Mark]:
    return {mark.cause: mark for mark in map(Mark.from_json, entries)}
