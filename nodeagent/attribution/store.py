"""The node's own copy of its snapshot: as it came, signed, replaced by rename, checked again whenever it is loaded.

With it an agent that starts while the control plane is away knows at once whose pods these are, and how long ago it
was told so.
"""

import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from gpubank.domain.attribution import NodeMetadata
from gpubank.domain.errors import BankError
from gpubank.metadata.seal import LARGEST, Opener
from nodeagent.files import replace

log = logging.getLogger(__name__)


class SnapshotStore:
    """Holds the newest snapshot that was believed; safe to be read from any thread."""

    def __init__(self, path: Path, opener: Opener, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._path, self._opener, self._now = path, opener, now
        self._current: NodeMetadata | None = None
        self._lock = threading.Lock()
        self.rejected = 0
        """Snapshots that were not believed, from the wire or from disk."""
        self.unsaved = 0
        """Snapshots that were believed and could not be kept on disk."""

    @property
    def current(self) -> NodeMetadata | None:
        """The newest snapshot, or None if there never was one."""
        return self._current

    def age(self, now: datetime) -> float | None:
        """Seconds since the control plane last knew the snapshot to be so; None without one."""
        current = self._current
        return max((now - current.issued_at).total_seconds(), 0.0) if current is not None else None

    def load(self) -> bool:
        """Load the copy on the host; False, with a line in the log, if there is none that can be believed."""
        try:
            with self._path.open("rb") as file:
                sealed = file.read(LARGEST + 1)
        except FileNotFoundError:
            return False
        except OSError as error:
            log.warning("snapshot %s cannot be read: %s", self._path, error.strerror)
            return False
        return self._believe(sealed, str(self._path))

    def accept(self, sealed: bytes) -> bool:
        """Take a snapshot from the control plane and keep it on the host; False if it is not believed."""
        if not self._believe(sealed, "the control plane's snapshot"):
            return False
        try:
            replace(self._path, sealed)
        except OSError as error:
            self.unsaved += 1
            log.warning("snapshot %s cannot be written: %s; a restart forgets it", self._path, error.strerror)
        return True

    def _believe(self, sealed: bytes, what: str) -> bool:
        with self._lock:
            newest = self._current.issued_at if self._current is not None else None
            try:
                self._current = self._opener.open(sealed, now=self._now(), newest=newest)
            except BankError as error:
                self.rejected += 1
                log.warning("%s is not believed: %s", what, error)
                return False
            return True
