"""Proof of the whole ledger, from one moment of the database.

1. The chain: every link's digest, number and predecessor, and the head.
2. The rows: each is what the chain says was written last, none is missing, none is extra.
3. The postings: every entry balances, and bills what its span costs in its hour; none is missing, none is extra.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from sqlalchemy import RowMapping, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gpubank.adapters.ledger import chain, rows
from gpubank.adapters.ledger.tables import IMAGED, audit, audit_head, line_spans, postings
from gpubank.decide.bill import charges, entry_name
from gpubank.domain.ledger import GENESIS, Finding, FindingKind, Span, VerifyReport, audit_digest

_BATCH: Final = 1000
"""Rows held in memory at once."""


class _Findings:
    """The first bad row of each kind."""

    def __init__(self) -> None:
        self._found: dict[FindingKind, Finding] = {}

    def add(self, kind: FindingKind, row: str, message: str) -> None:
        self._found.setdefault(kind, Finding(kind=kind, row=row, message=message))

    def all(self) -> tuple[Finding, ...]:
        return tuple(self._found[kind] for kind in FindingKind if kind in self._found)


async def verify(connection: AsyncConnection) -> VerifyReport:
    """Check everything; a ledger that was only written by the bank has no findings."""
    findings = _Findings()
    links, head, images = await _check_chain(connection, findings)
    line_count = await _check_rows(connection, images, findings)
    posted = await _check_postings(connection, findings)
    return VerifyReport(postings=posted, lines=line_count, audit_events=links, head=head, findings=findings.all())


# ---- the chain


async def _check_chain(connection: AsyncConnection, findings: _Findings) -> tuple[int, str, dict[str, bytes]]:
    """Walk the chain; return how many links it has, its last digest, and the last image of every row."""
    images: dict[str, bytes] = {}
    previous, count = GENESIS, 0
    async with connection.stream(
        select(audit).order_by(audit.c.sequence).execution_options(yield_per=_BATCH)
    ) as result:
        async for row in result.mappings():
            count += 1
            where = f"audit {row['sequence']}"
            detail = _detail(row["detail"])
            if row["sequence"] != count:
                findings.add(FindingKind.BROKEN_CHAIN, where, f"link {count} is missing before it")
                count = int(row["sequence"])
            elif row["previous"] != previous:
                findings.add(FindingKind.BROKEN_CHAIN, where, "it does not point to the link before it")
            elif row["digest"] != _digest(row, detail):
                findings.add(FindingKind.BROKEN_CHAIN, where, "its content does not match its digest")
            previous = row["digest"]
            images.update(_images(detail))
    kept = (await connection.execute(select(audit_head))).mappings().one_or_none()
    if kept is None:
        findings.add(FindingKind.BROKEN_CHAIN, "audit_head 1", "it is gone")
    elif (kept["sequence"], kept["digest"]) != (count, previous):
        message = f"it says that link {kept['sequence']} is the last one; link {count} is, or its digest differs"
        findings.add(FindingKind.BROKEN_CHAIN, "audit_head 1", message)
    return count, previous, images


def _detail(text: str) -> dict[str, Any]:
    """Read a link's detail; what no bank wrote is empty, and its digest will not fit."""
    try:
        detail = json.loads(text)
    except ValueError:
        return {}
    return detail if isinstance(detail, dict) else {}


def _images(detail: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Fingerprints of the rows that a link holds, by name; what has not their shape was not written by a bank."""
    images = detail.get(chain.ROWS)
    if not isinstance(images, dict):
        return
    for table in IMAGED:
        for values in images.get(table.name, ()):
            if isinstance(values, dict) and values.keys() >= {*chain.key_columns(table)}:
                yield chain.row_key(table, values), chain.fingerprint(values)


def _digest(row: RowMapping, detail: Mapping[str, Any]) -> str:
    return audit_digest(
        row["previous"],
        sequence=row["sequence"],
        at=chain.instant(row["at"]),
        actor=row["actor"],
        subject=row["subject"],
        action=row["action"],
        detail=detail,
    )


# ---- the rows


async def _check_rows(connection: AsyncConnection, images: dict[str, bytes], findings: _Findings) -> int:
    """Compare every row with its last image; return the number of lines."""
    line_count = 0
    for table in IMAGED:
        order = [table.c[name] for name in chain.key_columns(table)]
        async with connection.stream(select(table).order_by(*order).execution_options(yield_per=_BATCH)) as result:
            async for row in result.mappings():
                line_count += table.name == "lines"
                values = chain.image(table, dict(row))
                key = chain.row_key(table, values)
                written = images.pop(key, None)
                if written is None:
                    findings.add(FindingKind.ALTERED_ROW, key, "the audit chain knows no such row")
                elif written != chain.fingerprint(values):
                    findings.add(FindingKind.ALTERED_ROW, key, "it is not what the audit chain says was written")
    for key in sorted(images)[:1]:
        findings.add(FindingKind.ALTERED_ROW, key, "the audit chain says it was written, and it is gone")
    return line_count


# ---- the postings


class _Row(NamedTuple):
    """One posting, with what it is checked by."""

    span_id: int
    hour: datetime
    attempt: int
    reversal: bool
    half: str
    entry: str
    account: str
    place: tuple[str, str, str]
    gpu_ms: int


async def _check_postings(connection: AsyncConnection, findings: _Findings) -> int:
    """Recompute every amount from the spans; return how many postings there are."""
    last = -1
    while True:
        query = select(line_spans).where(line_spans.c.id > last).order_by(line_spans.c.id).limit(_BATCH // 10)
        found = (await connection.execute(query)).mappings().all()
        if not found:
            break
        last = found[-1]["id"]
        posted = await _postings(connection, [row["id"] for row in found])
        for row in found:
            _check_span(rows.span_of(row), row["posted_until"], posted.get(row["id"], ()), findings)
    orphan = (
        select(postings.c.entry, postings.c.span_id)
        .outerjoin(line_spans, line_spans.c.id == postings.c.span_id)
        .where(line_spans.c.id.is_(None))
        .order_by(postings.c.id)
        .limit(1)
    )
    for gone in await connection.execute(orphan):
        findings.add(
            FindingKind.ORPHAN_POSTING, f"postings {gone.entry}", f"it bills span {gone.span_id}, which is gone"
        )
    total = (await connection.execute(select(func.count(), func.sum(postings.c.gpu_ms)))).one()
    if total[1]:
        findings.add(FindingKind.UNBALANCED, "postings", f"they sum to {int(total[1])} GPU-ms, not 0")
    return int(total[0])


async def _postings(connection: AsyncConnection, span_ids: Sequence[int]) -> dict[int, list[_Row]]:
    query = select(postings).where(postings.c.span_id.in_(span_ids)).order_by(postings.c.hour, postings.c.id)
    posted: dict[int, list[_Row]] = defaultdict(list)
    for row in (await connection.execute(query)).mappings():
        place = (row["cluster"], row["pool"], row["line_id"])
        posted[row["span_id"]].append(
            _Row(**{name: row[name] for name in _Row._fields if name != "place"}, place=place)
        )
    return posted


def _check_span(span: Span, posted_until: datetime | None, posted: Sequence[_Row], findings: _Findings) -> None:
    """Check every hour of one span against what is posted of it."""
    if posted_until is None:
        should = {}
    else:
        # An end that came in late is posted by the next round; until then the hours stand as of a running span.
        late = span.ended_at is not None and span.ended_at < posted_until
        seen = span.model_copy(update={"ended_at": None}) if late else span
        should = dict(charges(seen, span.started_at, posted_until))
    hours: dict[datetime, list[_Row]] = defaultdict(list)
    for row in posted:
        hours[row.hour].append(row)
    for hour in sorted(should.keys() | hours.keys()):
        where = f"postings {span.cluster}/{entry_name(span, hour)}"
        if not hours[hour]:
            message = f"{should[hour]} GPU-ms are due and not posted"
            findings.add(FindingKind.MISSING_POSTING, where, message)
            continue
        _check_hour(span, hour, should.get(hour, 0), hours[hour], findings)


def _check_hour(span: Span, hour: datetime, should: int, posted: Sequence[_Row], findings: _Findings) -> None:
    where = f"postings {span.cluster}/{entry_name(span, hour)}"
    entries: dict[tuple[int, bool], list[_Row]] = defaultdict(list)
    for row in posted:
        entries[row.attempt, row.reversal].append(row)
        name = entry_name(span, hour, row.attempt) + ("/reversal" if row.reversal else "")
        if row.place != (span.cluster, span.pool, span.line_id) or row.entry != name:
            findings.add(
                FindingKind.ORPHAN_POSTING,
                f"postings {row.place[0]}/{row.entry}",
                f"it says {'/'.join(row.place)}, and bills {span.cluster}/{span.pool}, entry {name}",
            )
        owner = span.borrower if row.half == "borrower" else span.lender
        if row.account != owner:
            message = f"the {row.half} is {owner!r}, and {row.account!r} is billed"
            findings.add(FindingKind.WRONG_AMOUNT, f"postings {span.cluster}/{row.entry}", message)
    for halves in entries.values():
        total = sum(row.gpu_ms for row in halves)
        if total or len(halves) != 2:
            message = f"its {len(halves)} halves sum to {total} GPU-ms, not 0"
            findings.add(FindingKind.UNBALANCED, f"postings {span.cluster}/{halves[0].entry}", message)
    billed = sum(row.gpu_ms for row in posted if row.half == "borrower")
    owed = -sum(row.gpu_ms for row in posted if row.half == "lender")
    if not should and (billed or owed):
        findings.add(FindingKind.ORPHAN_POSTING, where, f"{billed} GPU-ms are posted of a span that owes none then")
    elif (billed, owed) != (should, should):
        message = f"{should} GPU-ms are due; {billed} are billed to the borrower and {owed} credited to the lender"
        findings.add(FindingKind.WRONG_AMOUNT, where, message)
