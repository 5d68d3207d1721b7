"""Posting what spans cost, idempotently and balanced.

Every pool is posted in small transactions under its lock, so that no span changes meanwhile and a long outage is
caught up without holding up the bank. What is posted twice hits the unique key; what was posted too much before a
late end came in is reversed and posted anew.
"""

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, and_, func, insert, or_, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from gpubank.adapters.ledger import chain, rows
from gpubank.adapters.ledger.chain import Link
from gpubank.adapters.ledger.tables import line_spans, postings
from gpubank.decide.bill import Charge, Due, Entry, due, entry, hour_of, reversal
from gpubank.domain.errors import LedgerError
from gpubank.domain.ledger import Span, imbalance

ACTOR: Final = "ledger"
_SPANS: Final = 100
_HOURS: Final = 48
"""A transaction posts at most this many spans, and this many hours of each."""

BORROWER: Final = "borrower"
LENDER: Final = "lender"


def _unposted(until: datetime) -> ColumnElement[bool]:
    """Spans of which something may be posted at `until`."""
    ended, posted, full = line_spans.c.ended_at, line_spans.c.posted_until, hour_of(until)
    return and_(
        # word for word the condition of the index
        text("(ended_at IS NULL OR posted_until IS NULL OR posted_until <> ended_at)"),
        or_(
            and_(ended.is_not(None), ended <= until),
            and_(
                or_(ended.is_(None), ended > until),
                line_spans.c.started_at < full,
                or_(posted.is_(None), posted < full),
            ),
        ),
    )


async def post_some(
    connection: AsyncConnection, cluster: str, pool: str, *, until: datetime, posted_at: datetime
) -> tuple[int, bool]:
    """Post one transaction's worth of a pool whose row is locked.

    Returns how many entries were written, and whether there may be more. Raises `LedgerError`, and the transaction
    must be given up, where the hours that were written do not balance.
    """
    query = (
        select(line_spans)
        .where(line_spans.c.cluster == cluster, line_spans.c.pool == pool, _unposted(until))
        .order_by(line_spans.c.id)
        .limit(_SPANS)
    )
    found = (await connection.execute(query)).mappings().all()
    values: list[dict[str, Any]] = []
    for row in found:
        span = rows.span_of(row)
        plan = due(span, row["posted_until"], until, most=_HOURS)
        for hour in plan.corrected:
            values += await _corrected(connection, row["id"], span, hour, posted_at)
        for hour in plan.billed:
            values += _halves(row["id"], entry(span, hour, posted_at=posted_at), hour.hour, 0)
        await _advance(connection, row["id"], plan)
    if values:
        await connection.execute(insert(postings), values)
        await _check(connection, cluster, pool, {value["hour"] for value in values})
        link = Link(posted_at, ACTOR, f"{cluster}/{pool}", "Posted", _summary(values, until))
        await chain.append(connection, [link])
    return len(values) // 2, bool(found)


async def _advance(connection: AsyncConnection, span_id: int, plan: Due) -> None:
    await connection.execute(update(line_spans).where(line_spans.c.id == span_id).values(posted_until=plan.reach))


def _halves(span_id: int, pair: Entry, hour: datetime, attempt: int, *, back: bool = False) -> list[dict[str, Any]]:
    return [
        {
            "span_id": span_id,
            "hour": hour,
            "attempt": attempt,
            "reversal": back,
            "half": half,
            "entry": posting.entry,
            "account": posting.account,
            "cluster": posting.cluster,
            "pool": posting.pool,
            "line_id": posting.line_id,
            "gpu_ms": posting.gpu_ms,
            "posted_at": posting.posted_at,
        }
        for half, posting in ((BORROWER, pair.debit), (LENDER, pair.credit))
    ]


async def _corrected(
    connection: AsyncConnection, span_id: int, span: Span, should: Charge, posted_at: datetime
) -> list[dict[str, Any]]:
    """Reverse what stands for an hour, and post what should; nothing where it stands rightly."""
    query = (
        select(postings)
        .where(postings.c.span_id == span_id, postings.c.hour == should.hour)
        .order_by(postings.c.attempt.desc(), postings.c.reversal.desc(), postings.c.half)
    )
    standing = (await connection.execute(query)).mappings().all()
    attempt = 0
    values: list[dict[str, Any]] = []
    if standing:
        attempt = int(standing[0]["attempt"]) + 1
        last = [row for row in standing if row["attempt"] == attempt - 1]
        if not any(row["reversal"] for row in last):
            halves = {row["half"]: rows.posting_of(row) for row in last}
            pair = Entry(halves[BORROWER], halves[LENDER])
            if imbalance(pair):
                raise LedgerError(
                    f"entry {pair.debit.entry!r} of pool {span.pool!r} sums to {imbalance(pair)} GPU-ms, not 0;"
                    " nothing was posted; `gpubank ledger verify` names the row"
                )
            if pair.debit.gpu_ms == should.gpu_ms:
                return []
            values += _halves(span_id, reversal(pair, posted_at=posted_at), should.hour, attempt - 1, back=True)
    if should.gpu_ms:
        values += _halves(span_id, entry(span, should, posted_at=posted_at, attempt=attempt), should.hour, attempt)
    return values


async def _check(connection: AsyncConnection, cluster: str, pool: str, hours: Iterable[datetime]) -> None:
    """Every hour that was written to balances, with all that stood in it before."""
    query = (
        select(postings.c.hour, func.sum(postings.c.gpu_ms))
        .where(postings.c.cluster == cluster, postings.c.pool == pool, postings.c.hour.in_(sorted(set(hours))))
        .group_by(postings.c.hour)
        .having(func.sum(postings.c.gpu_ms) != 0)
        .order_by(postings.c.hour)
    )
    for hour, total in await connection.execute(query):
        raise LedgerError(
            f"postings of pool {pool!r} in hour {hour:%Y-%m-%dT%H}Z sum to {int(total)} GPU-ms, not 0;"
            " nothing was posted; `gpubank ledger verify` names the row"
        )


def _summary(values: Iterable[dict[str, Any]], until: datetime) -> dict[str, Any]:
    """What the audit trail keeps of a round of postings: how much each account was charged."""
    accounts: dict[str, int] = defaultdict(int)
    count = 0
    for value in values:
        accounts[value["account"]] += value["gpu_ms"]
        count += 1
    return {"entries": count // 2, "until": chain.instant(until), "gpuMs": dict(accounts)}
