"""Fixtures over the ledger: every test that takes `ledger` or `ledger_url` runs on SQLite and on PostgreSQL."""

import sqlite3
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from gpubank.adapters.ledger import SqlLedger
from gpubank.domain.books import Books
from gpubank.domain.loan import Line, LineState, WorkloadKey
from gpubank.domain.transaction import CapacityChange, GuaranteeChange, Move, Offer, Transaction

TEN = datetime(2026, 3, 1, 10, tzinfo=UTC)
CLUSTER, POOL = "local", "h100"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of an empty database."""
    return database_url(request, tmp_path)


def database_url(request: pytest.FixtureRequest, folder: Path) -> str:
    """URL of an empty database of the kind that a fixture's parameter names."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{folder / 'ledger.db'}"


@pytest.fixture
async def ledger(ledger_url: str) -> AsyncIterator[SqlLedger]:
    """An open, empty ledger whose postings are made at noon."""
    async with await SqlLedger.open(ledger_url, clock=lambda: TEN + timedelta(hours=2)) as opened:
        yield opened


def minutes(after_ten: float) -> datetime:
    """An instant, counted from ten o'clock."""
    return TEN + timedelta(minutes=after_ten)


def job(number: int = 1) -> WorkloadKey:
    """A Workload of group a."""
    return WorkloadKey(uid=f"u-{number}", namespace="team-a", name=f"job-{number}", job=f"Job/job-{number}")


def tx(key: str, after_ten: float = 0, *, cluster: str = CLUSTER, pool: str = POOL, **writes: Any) -> Transaction:
    """A transaction at ten o'clock and so many minutes."""
    return Transaction(key=key, cluster=cluster, pool=pool, at=minutes(after_ten), actor="controller", **writes)


def founding(cluster: str = CLUSTER, *, capacity: int = 24, **guarantees: int) -> Transaction:
    """The transaction that begins a pool's books: groups a and b with 8 GPUs each, where nothing else is said."""
    return tx(
        "founding",
        cluster=cluster,
        capacity=CapacityChange(capacity=capacity),
        guarantees=tuple(
            GuaranteeChange(group=group, version=0, in_force=gpus)
            for group, gpus in (guarantees or {"a": 8, "b": 8}).items()
        ),
    )


def offer(gpus: int = 4, *, lender: str = "b", borrower: str = "a", number: int = 1, **fields: Any) -> Offer:
    """An offer to one of the jobs."""
    return Offer(lender=lender, borrower=borrower, gpus=gpus, workload=job(number), term=1, **fields)


def move(line: Line, state: LineState, **fields: Any) -> Move:
    """A move from where the line stands."""
    return Move(line_id=line.line_id, version=line.version, from_state=line.state, to_state=state, **fields)


def only(books: Books) -> Line:
    """The only open line."""
    (line,) = books.lines
    return line


async def lent(ledger: SqlLedger, gpus: int = 4, *, after_ten: float = 0, cluster: str = CLUSTER) -> Books:
    """Found the books and grant one line of b to a."""
    await ledger.commit(founding(cluster))
    books = await ledger.commit(tx("offer", after_ten, cluster=cluster, offers=(offer(gpus),)))
    return await ledger.commit(tx("grant", after_ten, cluster=cluster, moves=(move(only(books), LineState.GRANTED),)))


async def returned(ledger: SqlLedger, line: Line, after_ten: float) -> Books:
    """Recall a granted line and return it."""
    recalled = tx(f"recall/{line.line_id}", after_ten, cluster=line.cluster, moves=(move(line, LineState.RECALLED),))
    standing = (await ledger.commit(recalled)).line(line.line_id)
    assert standing is not None
    ended = (move(standing, LineState.RETURNED),)
    return await ledger.commit(tx(f"return/{line.line_id}", after_ten, cluster=line.cluster, moves=ended))


def by_hand(url: str, *statements: str) -> int:
    """Run SQL past the bank, with no constraint in its way; return how many rows the last statement touched."""
    touched = 0
    if url.startswith("sqlite:///"):
        file = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        try:
            for statement in statements:
                touched = file.execute(statement).rowcount
        finally:
            file.close()
        return touched
    with psycopg.connect(url, autocommit=True) as server:
        server.execute("SET session_replication_role = replica")
        for statement in statements:
            touched = server.execute(statement.encode()).rowcount
    return touched
