"""What a scrape gets: one collection, written once per format, never changed afterwards.

text or OpenMetrics, plain or gzip ── written when the first scrape asks for it, or at once if the page before was
                                      asked for it, so that no scrape pays for it
+ a few lines as of now ── ages grow also while nothing is collected
"""

import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from nodeagent.exporter import exposition
from nodeagent.exporter.exposition import Family

_LEVEL: Final = 1
"""Of gzip: label-heavy text shrinks tenfold at any level."""

_GZIP_HEAD: Final = b"\x1f\x8b\x08" + bytes(5) + b"\x04\xff"
"""RFC 1952, section 2.3: deflate, no name, no time, fastest, system unknown."""


class Form(NamedTuple):
    """How an answer is written."""

    openmetrics: bool = False
    compressed: bool = False


class _Written(NamedTuple):
    """The part of an answer that does not change: as sent, with the plain text's sum and size for gzip's trailer."""

    sent: bytes
    crc: int
    size: int


Live = Callable[[], Iterable[Family]]


class Page:
    """One collection, ready to be sent."""

    def __init__(self, families: Sequence[Family], live: Live, forms: Iterable[Form] = ()) -> None:
        """Write `forms` at once."""
        self._families = tuple(families)
        self._live = live
        self._written: dict[Form, _Written] = {}
        self._lock = threading.Lock()
        for form in forms:
            self._body(form)

    @property
    def forms(self) -> frozenset[Form]:
        """Forms that were asked for."""
        return frozenset(self._written)

    def answer(self, form: Form) -> bytes:
        """Return the whole answer in a form."""
        body, live = self._body(form), _text(self._live(), form, last=True)
        if not form.compressed:
            return body.sent + live
        # One member: readers that stop after the first of several are common, and would miss these lines.
        trailer = struct.pack("<II", zlib.crc32(live, body.crc), (body.size + len(live)) & 0xFFFFFFFF)
        return _GZIP_HEAD + body.sent + _deflated(live, zlib.Z_FINISH) + trailer

    def _body(self, form: Form) -> _Written:
        found = self._written.get(form)
        if found is None:
            with self._lock:
                found = self._written.get(form)
                if found is None:
                    plain = _text(self._families, form, last=False)
                    # Ends on a whole byte and is not the last block, so that another stream's blocks may follow.
                    sent = _deflated(plain, zlib.Z_FULL_FLUSH) if form.compressed else plain
                    found = self._written[form] = _Written(sent, zlib.crc32(plain), len(plain))
        return found


def _text(families: Iterable[Family], form: Form, *, last: bool) -> bytes:
    if form.openmetrics:
        return (exposition.openmetrics(families) + (exposition.END if last else "")).encode()
    return exposition.text(families).encode()


def _deflated(plain: bytes, flush: int) -> bytes:
    stream = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return stream.compress(plain) + stream.flush(flush)
