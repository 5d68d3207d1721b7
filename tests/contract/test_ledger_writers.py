"""Contract of the ledger's store: many writers, crashes between any two statements, lost connections and locks."""

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from gpubank.adapters.ledger import SqlLedger, engine
from gpubank.domain.demand import DemandKind
from gpubank.domain.errors import BackendError, ConflictError, LedgerError
from gpubank.domain.loan import LineState
from gpubank.domain.transaction import DemandOpening, GuaranteeChange, Split
from tests.plugins.ledger import CLUSTER, POOL, TEN, by_hand, founding, lent, minutes, move, offer, only, tx


async def test_many_writers_lose_no_update_and_every_revision_is_one_transaction(
    ledger: SqlLedger, ledger_url: str
) -> None:
    await ledger.commit(founding(capacity=100))
    others = [await SqlLedger.open(ledger_url) for _ in range(2)]
    revisions: list[int] = []

    async def raise_by_one(number: int) -> None:
        store = (ledger, *others)[number % 3]
        for attempt in range(100):
            seen = (await store.books(CLUSTER, POOL)).guarantee("a")
            change = GuaranteeChange(group="a", version=seen.version, in_force=seen.in_force + 1)
            try:
                after = await store.commit(tx(f"raise/{number}/{attempt}", number, guarantees=(change,)))
            except ConflictError:
                continue
            revisions.append(after.revision)
            return
        raise AssertionError("a writer was starved")

    try:
        await asyncio.gather(*(raise_by_one(number) for number in range(18)))
        books = await ledger.books(CLUSTER, POOL)
        assert books.guarantee("a").in_force == 8 + 18
        assert sorted(revisions) == list(range(2, 20))
        assert books.revision == 19
        assert (await others[0].verify()).findings == ()
    finally:
        for other in others:
            await other.aclose()


async def test_a_database_without_a_free_connection_is_no_answer_and_no_surprise(ledger_url: str) -> None:
    async def nothing(connection: AsyncConnection) -> None:
        """Use the connection for nothing."""

    few = create_async_engine(engine.engine_url(ledger_url), pool_size=1, max_overflow=0, pool_timeout=0.1)
    try:
        async with few.connect():
            for call in (engine.Database(few).read, engine.Database(few).write):
                with pytest.raises(BackendError, match="no connection is free"):
                    await call(nothing)
    finally:
        await few.dispose()


async def test_one_key_from_many_writers_at_once_is_applied_once(ledger: SqlLedger, ledger_url: str) -> None:
    async with await SqlLedger.open(ledger_url) as other:
        stores = (ledger, other)
        founded = await asyncio.gather(*(stores[n % 2].commit(founding()) for n in range(8)))
        assert {books.revision for books in founded} == {1}
        same = tx("offer", offers=(offer(),))
        await asyncio.gather(*(stores[n % 2].commit(same) for n in range(8)))
        notes = (
            stores[n % 2].note(key="n", at=TEN, actor="ann", subject="h100", action="Frozen", detail={"why": "ü"})
            for n in range(8)
        )
        await asyncio.gather(*notes)
    assert len(await ledger.lines()) == 1
    assert len(await ledger.audit(subject="h100")) == 1
    assert (await ledger.verify()).findings == ()


async def test_pools_are_written_at_once_and_share_one_chain(ledger: SqlLedger) -> None:
    await asyncio.gather(*(lent(ledger, cluster=f"c-{n}") for n in range(6)))
    report = await ledger.verify()
    assert (report.findings, report.lines) == ((), 6)
    sequences = [audit.sequence for audit in await ledger.audit()]
    assert sequences == list(range(report.audit_events, 0, -1))


# ---- crashes


class _CrashError(Exception):
    pass


@contextmanager
def _crash_at(ledger: SqlLedger, statement: int) -> Iterator[None]:
    """Fail before the n-th statement of a transaction."""
    count = 0

    def crash(*_: object) -> None:
        nonlocal count
        count += 1
        if count == statement:
            raise _CrashError

    target = ledger._database.engine.sync_engine
    event.listen(target, "before_cursor_execute", crash)
    try:
        yield
    finally:
        event.remove(target, "before_cursor_execute", crash)


async def test_a_crash_before_any_statement_leaves_the_ledger_as_it_was(ledger: SqlLedger) -> None:
    books = await lent(ledger, 4)
    before = books, await ledger.audit()
    recall = tx(
        "recall",
        30,
        splits=(Split(line_id=only(books).line_id, version=only(books).version, gpus=1),),
        openings=(
            DemandOpening(demand_id="d", lender="b", kind=DemandKind.LIMIT, gpus=4, due_at=minutes(60), reason="limit"),
        ),
        moves=(move(only(books), LineState.RECALLED, demand="d"),),
    )
    crashed = 0
    for statement in range(1, 100):
        try:
            with _crash_at(ledger, statement):
                after = await ledger.commit(recall)
        except _CrashError:
            crashed += 1
            assert (await ledger.books(CLUSTER, POOL), await ledger.audit()) == before
        else:
            break
    assert crashed > 12, "every statement was tried"
    assert after.revision == books.revision + 1
    assert (await ledger.verify()).findings == ()


async def test_a_cancelled_commit_is_whole_or_absent_and_holds_up_nobody(
    ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock that a cancelled transaction left behind would fail the next one, which is tried only once here."""
    monkeypatch.setattr(engine, "ATTEMPTS", 1)
    monkeypatch.setattr(engine, "BUSY_MS", 200)
    async with await SqlLedger.open(ledger_url) as ledger:
        await ledger.commit(founding(capacity=1000))
        for ticks in range(1, 50):
            task = asyncio.create_task(ledger.commit(tx(f"o/{ticks}", offers=(offer(1, lender="pool"),))))
            for _ in range(ticks):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            books = await ledger.commit(tx(f"n/{ticks}", offers=(offer(1, lender="pool"),)))
            assert len(books.lines) == books.revision - 1 == books.next_line - 1
        assert (await ledger.verify()).findings == ()


async def test_a_commit_survives_the_loss_of_its_connections(postgres_url: str) -> None:
    async with await SqlLedger.open(postgres_url) as ledger:
        await ledger.commit(founding())
        count = 0

        def cut(*_: object) -> None:
            nonlocal count
            count += 1
            if count == 6:
                with psycopg.connect(postgres_url, autocommit=True) as admin:
                    admin.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                    )

        target = ledger._database.engine.sync_engine
        event.listen(target, "before_cursor_execute", cut)
        try:
            books = await ledger.commit(tx("offer", offers=(offer(),)))
        finally:
            event.remove(target, "before_cursor_execute", cut)
        assert count > 6
        assert (len(books.lines), books.revision) == (1, 2)
        assert (await ledger.verify()).findings == ()


# ---- locks


async def test_a_database_that_stays_locked_is_a_backend_error_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "ATTEMPTS", 2)
    monkeypatch.setattr(engine, "BUSY_MS", 20)
    file = tmp_path / "ledger.db"
    async with await SqlLedger.open(f"sqlite:///{file}") as ledger:
        await ledger.commit(founding())
        holder = sqlite3.connect(file, isolation_level=None)
        try:
            holder.execute("BEGIN IMMEDIATE")
            with pytest.raises(BackendError, match="locked"):
                await ledger.commit(tx("offer", offers=(offer(),)))
            assert (await ledger.books(CLUSTER, POOL)).lines == (), "readers are not held up"
            holder.execute("ROLLBACK")
        finally:
            holder.close()
        assert len((await ledger.commit(tx("offer", offers=(offer(),)))).lines) == 1


async def test_a_row_that_somebody_else_changed_in_place_is_refused(ledger: SqlLedger, ledger_url: str) -> None:
    books = await lent(ledger)
    by_hand(ledger_url, "DELETE FROM line_spans")
    with pytest.raises(LedgerError, match="runs without a span"):
        await ledger.commit(tx("recall", 5, moves=(move(only(books), LineState.RECALLED),)))
