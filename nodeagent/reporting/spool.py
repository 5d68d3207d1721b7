"""Reports that wait for Temporal, on disk: one file per edge, whole or not at all, gone only when it was delivered.

    new edges ─▶ files, through to the disk ─▶ memory.json says that they were told
                   └─▶ delivered ─▶ file removed

Whatever ends the process in between, an edge is there at least once: it is written again under the same name, or
delivered again under the same id.
"""

import json
import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from pydantic import ValidationError

from gpubank.domain.incident import HealthEdge
from nodeagent.files import replace
from nodeagent.reporting.edges import Look, Memory, Told

MEMORY_FILE: Final = "memory.json"
_WAITING: Final = "waiting"
_BAD: Final = ".unreadable"
_VERSION: Final = 1

log = logging.getLogger(__name__)


class Waiting(NamedTuple):
    """One edge that has not been delivered."""

    path: Path
    uuid: str
    edge: HealthEdge


class Spool:
    """The folder."""

    def __init__(self, folder: Path, *, most: int = 1000) -> None:
        """Make the folder; raises OSError where that cannot be."""
        self._folder, self._waiting, self._most = folder, folder / _WAITING, most
        self._waiting.mkdir(parents=True, exist_ok=True)

    def memory(self) -> Memory:
        """Return what was told; nothing where that cannot be read, so that everything is told once more."""
        try:
            body = json.loads((self._folder / MEMORY_FILE).read_text(encoding="utf-8"))
            if body["version"] != _VERSION:
                return {}
            return {
                uuid: {cause: Told(float(first), float(last)) for cause, (first, last) in told.items()}
                for uuid, told in body["gpus"].items()
            }
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
            log.warning("what was told cannot be read (%s); everything is told once more", error)
            return {}

    def take(self, look: Look) -> int:
        """Keep new edges, then remember that they were told; return how many were kept. Raises OSError."""
        kept = 0
        room = self._most - sum(1 for _ in self._files())
        for uuid, edges in look.edges.items():
            for edge in edges:
                if edge.id in look.repeated and room <= 0:
                    log.warning("%d reports wait already: %s of %s is not told again", self._most, edge.cause, uuid)
                    continue
                name = f"{int(edge.first_at.timestamp() * 1000):015d}-{edge.id}.json"
                body = {"uuid": uuid, "edge": edge.model_dump(mode="json", by_alias=True)}
                replace(self._waiting / name, json.dumps(body).encode())
                kept, room = kept + 1, room - 1
        replace(self._folder / MEMORY_FILE, json.dumps({"version": _VERSION, "gpus": look.memory}).encode())
        return kept

    def waiting(self) -> list[Waiting]:
        """Return what has not been delivered, oldest fault first; a file that cannot be read is set aside."""
        return [found for path in self._files() if (found := self._read(path)) is not None]

    def delivered(self, waiting: Waiting) -> None:
        """Forget an edge that was delivered."""
        waiting.path.unlink(missing_ok=True)

    def _files(self) -> Iterator[Path]:
        return iter(sorted(self._waiting.glob("*.json")))

    def _read(self, path: Path) -> Waiting | None:
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
            return Waiting(path, str(body["uuid"]), HealthEdge.model_validate(body["edge"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, ValidationError, RecursionError, OverflowError) as error:
            log.error("report %s cannot be read and is set aside: %s", path, error)
            with suppress(OSError):
                path.rename(path.with_name(path.name + _BAD))
            return None
