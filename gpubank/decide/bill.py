"""What a line's life costs: spans, hours, and the balanced entries that bill them.

    line     OFFERED ─ GRANTED ───── swap ──────── RECALLED ─ RETURNED
    spans              └── span 1 ───┴── span 2 ──────────────┘
    hours       10:00 ────── 11:00 ────── 12:00 ────── 13:00

A line runs from GRANTED to RETURNED. Every span is billed once per UTC hour that it touches: the borrower is debited
and the lender credited with GPUs x milliseconds. Instants are cut to whole milliseconds before anything is counted,
so that the parts of a line always add up to the whole of it.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from gpubank.domain.ledger import Posting, Span
from gpubank.domain.loan import Line, LineState

RUNNING: Final = frozenset({LineState.GRANTED, LineState.CLOSING, LineState.RECALLED})
"""States in which a line is billed."""


def is_billed(line: Line) -> bool:
    """Whether somebody owes somebody for the line now; nobody does for one on the own side."""
    return line.state in RUNNING and not line.is_own


HOUR: Final = timedelta(hours=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


class Charge(NamedTuple):
    """What one span costs in one hour."""

    hour: datetime
    """Start of the UTC hour."""

    gpu_ms: int
    """GPU-milliseconds, never negative."""


def hour_of(at: datetime) -> datetime:
    """Return the start of the UTC hour that `at` falls into."""
    return at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def milliseconds(at: datetime) -> int:
    """Whole milliseconds since 1970, cut down."""
    return (at - _EPOCH) // _MILLISECOND


# ---- spans


def follow(span: Span | None, line: Line, at: datetime) -> tuple[Span, ...]:
    """Return the spans to write now that `line` stands as it does; `span` is the line's open one.

    Nothing where nothing changed; otherwise the span that ends, the one that begins, or both. A clock that went back
    ends a span where it began: no span is ever longer than none at all.
    """
    if not is_billed(line):
        return () if span is None else (_ended(span, at),)
    if span is None:
        return (_begun(line, at, 1),)
    if _bears(span, line):
        return ()
    ended = _ended(span, at)
    return ended, _begun(line, max(at, span.started_at), span.ordinal + 1)


def _bears(span: Span, line: Line) -> bool:
    return (span.lender, span.borrower, span.gpus, span.workload, span.term) == (
        line.lender,
        line.borrower,
        line.gpus,
        line.workload,
        line.term,
    )


def _ended(span: Span, at: datetime) -> Span:
    return span.model_copy(update={"ended_at": max(at, span.started_at)})


def _begun(line: Line, at: datetime, ordinal: int) -> Span:
    return Span(
        cluster=line.cluster,
        pool=line.pool,
        line_id=line.line_id,
        ordinal=ordinal,
        lender=line.lender,
        borrower=line.borrower,
        gpus=line.gpus,
        workload=line.workload,
        term=line.term,
        started_at=at,
    )


# ---- hours


def charge(span: Span, hour: datetime) -> int:
    """GPU-milliseconds of `span` in the UTC hour that begins at `hour`; a span without an end fills the hour."""
    start = max(milliseconds(span.started_at), milliseconds(hour))
    end = milliseconds(hour + HOUR)
    if span.ended_at is not None:
        end = min(end, milliseconds(span.ended_at))
    return span.gpus * max(end - start, 0)


def charges(span: Span, start: datetime, end: datetime) -> Iterator[Charge]:
    """Every hour from the one that holds `start` up to `end` in which `span` costs anything."""
    hour = hour_of(max(start, span.started_at))
    while hour < end:
        if gpu_ms := charge(span, hour):
            yield Charge(hour, gpu_ms)
        hour += HOUR


def reach(span: Span, until: datetime) -> datetime:
    """How far `span` may be billed at `until`: to its end, else to the last full hour, never before its start."""
    if span.ended_at is not None and span.ended_at <= until:
        return span.ended_at
    return max(span.started_at, hour_of(until))


class Due(NamedTuple):
    """What must be written so that a span is billed up to `reach`."""

    corrected: tuple[Charge, ...]
    """Hours that were billed before the span's end was known, with what they should have been, nothing included."""

    billed: tuple[Charge, ...]
    reach: datetime
    """How far the span is billed once this is written."""


def due(span: Span, posted_until: datetime | None, until: datetime, *, most: int | None = None) -> Due:
    """Return the postings that a span lacks at `until`, given how far it is posted.

    A full hour is posted as soon as it is over. If then an end comes in that lies before what is posted (a late
    commit, clocks that differ), those hours are corrected: reversed, and posted anew. At most `most` hours are billed
    at once, so that a long outage is caught up in small transactions.
    """
    posted = posted_until or span.started_at
    goal = reach(span, until)
    if goal == posted:
        return Due((), (), goal)
    if goal < posted:
        if span.ended_at is None or span.ended_at > until:
            return Due((), (), posted)
        hours: list[Charge] = []
        hour = hour_of(span.ended_at)
        while hour < posted:
            hours.append(Charge(hour, charge(span, hour)))
            hour += HOUR
        return Due(tuple(hours), (), goal)
    if most is not None:
        goal = min(goal, hour_of(posted) + most * HOUR)
    return Due((), tuple(charges(span, posted, goal)), goal)


# ---- entries


def entry_name(span: Span, hour: datetime, attempt: int = 0) -> str:
    """Name of the entry that bills `span` for `hour`; a second posting of a corrected hour is attempt 1."""
    name = f"{span.line_id}/{span.ordinal}/{hour:%Y-%m-%dT%H}Z"
    return f"{name}/{attempt}" if attempt else name


class Entry(NamedTuple):
    """One balanced entry: what the borrower owes and what the lender is owed."""

    debit: Posting
    credit: Posting


def entry(span: Span, billed: Charge, *, posted_at: datetime, attempt: int = 0) -> Entry:
    """Debit the borrower, credit the lender; a group's loan to itself is both, so that its use can be told."""

    def half(account: str, gpu_ms: int) -> Posting:
        return Posting(
            entry=entry_name(span, billed.hour, attempt),
            account=account,
            cluster=span.cluster,
            pool=span.pool,
            line_id=span.line_id,
            gpu_ms=gpu_ms,
            hour=billed.hour,
            posted_at=posted_at,
        )

    return Entry(half(span.borrower, billed.gpu_ms), half(span.lender, -billed.gpu_ms))


def reversal(entry: Entry, *, posted_at: datetime) -> Entry:
    """Return the entry that takes `entry` back."""

    def back(half: Posting) -> Posting:
        return half.model_copy(
            update={"entry": f"{half.entry}/reversal", "gpu_ms": -half.gpu_ms, "posted_at": posted_at}
        )

    return Entry(back(entry.debit), back(entry.credit))
