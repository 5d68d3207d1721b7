"""What a scrape gets: one collection, written once per format, never changed afterwards.

text or OpenMetrics, plain or gzip ── written when the first scrape asks for it, or at once if the page before was
                                      asked for it, so that no scrape pays for it
+ a few lines as of now ── ages grow also while nothing is collected
"""

import gzip
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from nodeagent.exporter import exposition
from nodeagent.exporter.exposition import Family

_LEVEL: Final = 1
"""Of gzip: label-heavy text shrinks tenfold at any level."""


class Form(NamedTuple):
    """How an answer is written."""

    openmetrics: bool = False
    compressed: bool = False


Live = Callable[[], Iterable[Family]]


class Page:
    """One collection, ready to be sent."""

    def __init__(self, families: Sequence[Family], live: Live, forms: Iterable[Form] = ()) -> None:
        """Write `forms` at once."""
        self._families = tuple(families)
        self._live = live
        self._written: dict[Form, bytes] = {}
        self._lock = threading.Lock()
        for form in forms:
            self._body(form)

    @property
    def forms(self) -> frozenset[Form]:
        """Forms that were asked for."""
        return frozenset(self._written)

    def answer(self, form: Form) -> bytes:
        """Return the whole answer in a form."""
        return self._body(form) + _write(self._live(), form, last=True)

    def _body(self, form: Form) -> bytes:
        found = self._written.get(form)
        if found is None:
            with self._lock:
                found = self._written.get(form)
                if found is None:
                    found = self._written[form] = _write(self._families, form, last=False)
        return found


def _write(families: Iterable[Family], form: Form, *, last: bool) -> bytes:
    if form.openmetrics:
        text = exposition.openmetrics(families) + (exposition.END if last else "")
    else:
        text = exposition.text(families)
    # Two gzip members after one another are one stream to every reader.
    raw = text.encode()
    return gzip.compress(raw, _LEVEL, mtime=0) if form.compressed else raw
