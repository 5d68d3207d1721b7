"""The collector: every few seconds one look at hardware and attribution, and one page for the scrapes that follow.

It is the only one that asks anybody anything. However long a collection takes, the page before it is served meanwhile,
with its age.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Final, Protocol

from nodeagent.attribution.attributor import Attributor, Source
from nodeagent.attribution.inventory import Inventory
from nodeagent.attribution.mapping import Attribution
from nodeagent.attribution.store import SnapshotStore
from nodeagent.exporter import names
from nodeagent.exporter.exposition import Family
from nodeagent.exporter.hardware import Hardware
from nodeagent.exporter.naming import Naming
from nodeagent.exporter.page import Page
from nodeagent.exporter.sheet import Collected, Options, families
from nodeagent.exporter.xids import XidBook, XidListener
from nodeagent.nvml.snapshot import NodeSnapshot

log = logging.getLogger(__name__)

INTERVAL: Final = 10.0
"""Seconds between two collections."""

_LATE: Final = 3
"""Intervals without a collection after which the exporter says that it is not ready."""

Classes = Callable[[NodeSnapshot], Mapping[str, Mapping[str, str]]]
"""Labels of every device's class, by UUID of the GPU or MIG device."""


class Stream(Protocol):
    """The stream from the control plane."""

    connected: bool


class Collector:
    """Collects and keeps the newest page."""

    def __init__(
        self,
        naming: Naming,
        options: Options,
        *,
        hardware: Hardware | None = None,
        attributor: Attributor | None = None,
        classes: Classes | None = None,
        xids: XidBook | None = None,
        listener: XidListener | None = None,
        store: SnapshotStore | None = None,
        stream: Stream | None = None,
        interval: float = INTERVAL,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._naming, self._options = naming, options
        self._hardware, self._attributor, self._classes = hardware, attributor, classes
        self._xids, self._listener, self._store, self._stream = xids, listener, store, stream
        self._interval, self._clock = interval, clock
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="collector", daemon=True)
        self._collections = 0
        self._collected_at: float | None = None
        self._crashes = 0
        self._known: tuple[NodeSnapshot, Inventory, Mapping[str, Mapping[str, str]]] | None = None
        self._scrapes = 0
        self._scrape_lock = threading.Lock()
        self.page = Page((), self._live)
        """The newest page; replaced as a whole."""

    # ---- for scrapes, which take it as it is

    def scraped(self) -> Page:
        """Return the newest page, and count the scrape."""
        with self._scrape_lock:
            self._scrapes += 1
        return self.page

    @property
    def alive(self) -> bool:
        """Whether the collector goes on."""
        return self._thread.is_alive()

    @property
    def age(self) -> float | None:
        """Seconds since the last collection ended; None before the first."""
        return self._clock() - self._collected_at if self._collected_at is not None else None

    @property
    def ready(self) -> bool:
        """Whether what is shown is not too old."""
        age = self.age
        return age is not None and age <= max(_LATE * self._interval, 30.0)

    # ---- collecting

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the collection that is on its way; one that hangs is left behind."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10)

    def collect(self) -> None:
        """Collect once and turn the page."""
        started = self._clock()
        snapshot = self._hardware.look() if self._hardware is not None else NodeSnapshot()
        inventory, classes = self._known_of(snapshot)
        readings = self._hardware.measure(snapshot.gpus) if self._hardware is not None else {}
        attribution = self._attributor.collect(inventory) if self._attributor is not None else Attribution()
        self._collections += 1
        seen = Collected(
            gpus=snapshot.gpus,
            unreadable=snapshot.unreadable,
            driver=snapshot.driver,
            readings=readings,
            attribution=attribution,
            classes=classes,
            last_xids=self._xids.last if self._xids is not None else {},
            xid_counts=self._xids.counts if self._xids is not None else (),
            listening=self._listener.listening if self._listener is not None else frozenset(),
            sources=self._attributor.sources if self._attributor is not None else {},
            collections=self._collections,
            failures=self._failures(),
            seconds=self._clock() - started,
            at=time.time(),
        )
        page = Page(families(seen, self._naming, self._options), self._live, self.page.forms)
        self.page, self._collected_at = page, self._clock()

    def _run(self) -> None:
        while not self._stopped.is_set():
            started = self._clock()
            try:
                self.collect()
            except Exception:
                # Whatever it was, the page before is still true of its time, and the next collection may succeed.
                self._crashes += 1
                log.exception("collection failed; what was collected before is served on")
            self._stopped.wait(max(self._interval - (self._clock() - started), 0.1))

    def _known_of(self, snapshot: NodeSnapshot) -> tuple[Inventory, Mapping[str, Mapping[str, str]]]:
        """Return what follows from the list of GPUs, worked out anew only when the list is new."""
        if self._known is None or self._known[0] is not snapshot:
            uuids = [gpu.uuid for gpu in snapshot.gpus]
            if self._listener is not None:
                self._listener.watch(uuids)
            if self._xids is not None:
                self._xids.keep(uuids)
            classes = self._classes(snapshot) if self._classes is not None else {}
            self._known = (snapshot, Inventory.of(snapshot), classes)
        return self._known[1], self._known[2]

    def _failures(self) -> Mapping[str, int]:
        found = dict(self._hardware.failures) if self._hardware is not None else {}
        if self._attributor is not None:
            found.update({str(source): state.failures for source, state in self._attributor.sources.items()})
            found["holders_file"] = self._attributor.unsaved
        found["collection"] = self._crashes
        if self._store is not None:
            found["snapshot_file"] = self._store.unsaved
        return found

    # ---- as of the scrape

    def _live(self) -> Iterator[Family]:
        yield from _single(names.COLLECTION_AGE, self.age)
        if self._attributor is not None:
            answered = self._attributor.sources[Source.POD_RESOURCES].answered_at
            yield from _single(names.ATTRIBUTION_AGE, None if answered is None else self._clock() - answered)
        if self._store is not None:
            current = self._store.current
            yield from _single(names.METADATA_AGE, self._store.age(datetime.now(UTC)))
            yield from _single(names.METADATA_PODS, len(current.pods) if current is not None else None)
            yield from _single(names.METADATA_REJECTED, self._store.rejected)
        if self._stream is not None:
            yield from _single(names.METADATA_CONNECTED, int(self._stream.connected))
        yield from _single(names.SCRAPES, self._scrapes)


def _single(name: names.Name, value: float | None) -> Iterator[Family]:
    if value is not None:
        family = Family(*name)
        family.add("", value)
        yield family
