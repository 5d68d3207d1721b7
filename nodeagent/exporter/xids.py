"""XIDs: the last one of every GPU, which sticks, and how often each came, which does not lie about repetitions."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from nodeagent.nvml.port import GpuLostError, NvmlError
from nodeagent.nvml.snapshot import ANY_INSTANCE, Event, EventKind

log = logging.getLogger(__name__)

MOST_XIDS: Final = 64
"""Different XIDs that are counted apart for one GPU; the rest are counted together as `other`."""

OTHER: Final = "other"
_WAIT_MS: Final = 1000
_PAUSE: Final = 5.0


@dataclass(frozen=True, slots=True)
class XidCount:
    """How often one XID came to one GPU, or to one GPU instance of it."""

    gpu: str
    gi: int | None
    """GPU instance; None for an XID of the whole GPU."""

    xid: str
    count: int


class XidBook:
    """Counts XIDs; written by the listener, read by the collector."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[str, int] = {}
        self._counts: dict[tuple[str, int | None, str], int] = {}

    def record(self, event: Event) -> None:
        """Take in an event; what is no XID, or of no GPU, is passed over."""
        if event.kind is not EventKind.XID or not event.uuid:
            return
        gi = None if event.gi == ANY_INSTANCE else event.gi
        with self._lock:
            self._last[event.uuid] = event.data
            key = (event.uuid, gi, str(event.data))
            if key not in self._counts and sum(known[0] == event.uuid for known in self._counts) >= MOST_XIDS:
                key = (event.uuid, None, OTHER)
            self._counts[key] = self._counts.get(key, 0) + 1

    def keep(self, uuids: Sequence[str]) -> None:
        """Forget GPUs that are gone."""
        with self._lock:
            self._last = {uuid: xid for uuid, xid in self._last.items() if uuid in uuids}
            self._counts = {key: count for key, count in self._counts.items() if key[0] in uuids}

    @property
    def last(self) -> Mapping[str, int]:
        """Last XID by GPU; GPUs that had none are left out."""
        with self._lock:
            return dict(self._last)

    @property
    def counts(self) -> Sequence[XidCount]:
        """Every count, in order."""
        with self._lock:
            counts = [XidCount(gpu, gi, xid, count) for (gpu, gi, xid), count in self._counts.items()]
        return sorted(counts, key=lambda each: (each.gpu, -1 if each.gi is None else each.gi, each.xid))


class EventSource(Protocol):
    """The part of NVML that tells events."""

    def listen(self, uuids: Sequence[str]) -> None:
        """Register for the events of these GPUs. Raises NvmlError."""
        ...

    def wait(self, timeout_ms: int) -> Event | None:
        """Wait for the next event. Raises NvmlError."""
        ...


class XidListener:
    """A thread that waits for events and writes them into the book."""

    def __init__(
        self, source: EventSource, book: XidBook, *, on_change: Callable[[], None] = lambda: None, pause: float = _PAUSE
    ) -> None:
        """`on_change` is called when GPUs or MIG devices may have come or gone."""
        self._source, self._book, self._on_change, self._pause = source, book, on_change, pause
        self._wanted: tuple[str, ...] = ()
        self._listening: tuple[str, ...] = ()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="xids", daemon=True)

    @property
    def listening(self) -> frozenset[str]:
        """GPUs whose XIDs are heard now."""
        return frozenset(self._listening)

    def watch(self, uuids: Sequence[str]) -> None:
        """Listen to these GPUs from now on."""
        self._wanted = tuple(uuids)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, unless it is stuck in the driver."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2 * _WAIT_MS / 1000)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._step()
            except NvmlError as error:
                # A lost GPU says so at every call: it is left alone for a while, and events are registered anew.
                lost = isinstance(error, GpuLostError)
                log.log(logging.DEBUG if lost else logging.INFO, "XIDs are not heard: %s", error)
                self._listening = ()
                self._stopped.wait(self._pause)

    def _step(self) -> None:
        wanted = self._wanted
        if not wanted:
            self._listening = ()
            self._stopped.wait(_WAIT_MS / 1000)
            return
        if wanted != self._listening:
            self._source.listen(wanted)
            self._listening = wanted
        event = self._source.wait(_WAIT_MS)
        if event is None:
            return
        self._book.record(event)
        if event.kind in (EventKind.MIG_CONFIG_CHANGE, EventKind.GPU_UNAVAILABLE):
            self._on_change()
