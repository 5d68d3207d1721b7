"""Engines: which driver, which transactions, and what is tried again.

Writing transactions hold a lock from their first statement (SQLite: BEGIN IMMEDIATE; PostgreSQL: the pool's row), so
that the books read in them are the books they change. Reading ones see one moment of the database. An attempt that
lost a lock, or whose connection broke, is made again: every write carries a key, so twice is once.
"""

import asyncio
import random
import sqlite3
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import psycopg
from sqlalchemy import Connection, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as NoConnectionError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from gpubank.domain.errors import BackendError, LedgerError, PolicyError

T = TypeVar("T")
Work: TypeAlias = Callable[[AsyncConnection], Awaitable[T]]

ATTEMPTS: Final = 6
"""How often a transaction is tried before its database counts as failed."""

BUSY_MS: Final = 3_000
"""Longest wait for one lock."""

_WRITES: Final = "gpubank_writes"
_DRIVERS: Final = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg"}
# serialization_failure, deadlock_detected, lock_not_available, and a server that is going down or coming up
_PASSING_STATES: Final = frozenset({"40001", "40P01", "55P03", "57P01", "57P02", "57P03", "53300"})


def engine_url(url: str | URL) -> URL:
    """Read a database URL, and choose the asynchronous driver; raises `PolicyError` for any other database."""
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise PolicyError(
            "database URL cannot be read; write sqlite:///<file> or postgresql://<user>@<host>/<name>"
        ) from error
    driver = _DRIVERS.get(parsed.get_backend_name())
    if driver is None:
        raise PolicyError(f"database {parsed.get_backend_name()!r} is not supported; use sqlite or postgresql")
    if driver.startswith("sqlite") and parsed.database in (None, "", ":memory:"):
        raise PolicyError("an in-memory database keeps no ledger; write sqlite:///<file>")
    return parsed.set(drivername=driver)


def require(url: str | URL) -> None:
    """Raise `BackendError` where `url` is a SQLite file that is not there, which connecting would make."""
    parsed = engine_url(url)
    if parsed.get_backend_name() == "sqlite" and parsed.database and not Path(parsed.database).is_file():
        raise BackendError(
            f"ledger {parsed.database!r} does not exist; start the bank, or run `gpubank ledger migrate`"
        )


def make_engine(url: str | URL) -> AsyncEngine:
    """Return an engine for a ledger; the folder of a SQLite file is made. Dispose of it when done."""
    parsed = engine_url(url)
    if parsed.get_backend_name() == "sqlite":
        assert parsed.database is not None
        Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
        engine = create_async_engine(parsed)
        event.listen(engine.sync_engine, "connect", _prepare_sqlite)
        event.listen(engine.sync_engine, "begin", _begin_sqlite)
        return engine
    engine = create_async_engine(parsed, pool_pre_ping=True)
    event.listen(engine.sync_engine, "begin", _begin_postgres)
    return engine


def _prepare_sqlite(connection: Any, _record: object) -> None:
    # The driver would begin transactions on its own, deferred; `_begin_sqlite` says which kind.
    connection.isolation_level = None
    cursor = connection.cursor()
    try:
        cursor.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute("PRAGMA synchronous = FULL")  # a committed loan survives a power cut
        cursor.execute("PRAGMA foreign_keys = ON")
    finally:
        cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get(_WRITES) else "BEGIN")


def _begin_postgres(connection: Connection) -> None:
    if connection.get_execution_options().get(_WRITES):
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {BUSY_MS}")
    else:
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")


class Database:
    """Transactions on one engine.

    Whoever is cancelled while it waits for a transaction leaves it to its end: a driver that is cut off between two
    statements keeps its locks, and nobody would know whether it committed.
    """

    def __init__(self, engine: AsyncEngine, guard: Work[None] | None = None) -> None:
        """Open transactions on `engine`; `guard` is awaited first in every writing one, and refuses it by raising."""
        self.engine = engine
        self._guard = guard
        # SQLite has one writer: waiting for it here is fair and costs no polling.
        self._turn = asyncio.Lock() if engine.dialect.name == "sqlite" else nullcontext()
        self._running: set[asyncio.Task[Any]] = set()

    async def write(self, work: Work[T]) -> T:
        """Run `work` in one writing transaction, which is tried again where a lock was lost.

        Raises `BackendError` where the database fails or stays locked, and `LedgerError` where it refuses a row.
        """
        return await self._whole(self._write(work))

    async def read(self, work: Work[T]) -> T:
        """Run `work` on one moment of the database; raises `BackendError` where it fails."""
        return await self._whole(self._read(work))

    async def close(self) -> None:
        """Wait for what is under way and close every connection."""
        if self._running:
            await asyncio.wait(self._running)
        await self.engine.dispose()

    async def _whole(self, transaction: Coroutine[Any, Any, T]) -> T:
        task = asyncio.create_task(transaction)
        self._running.add(task)
        task.add_done_callback(self._ended)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task])
            raise

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # taken note of, for its caller may be gone

    async def _write(self, work: Work[T]) -> T:
        attempt = 0
        while True:
            attempt += 1
            try:
                async with self._turn, self.engine.connect() as plain:
                    connection = await plain.execution_options(**{_WRITES: True})
                    async with connection.begin():
                        if self._guard is not None:
                            await self._guard(connection)
                        return await work(connection)
            except NoConnectionError as error:
                raise exhausted(error) from error
            except DBAPIError as error:
                if not passing(error) or attempt >= ATTEMPTS:
                    raise translated(error) from error
            await asyncio.sleep(0.01 * 2**attempt * random.uniform(0.5, 1.0))

    async def _read(self, work: Work[T]) -> T:
        try:
            async with self.engine.connect() as connection, connection.begin():
                return await work(connection)
        except NoConnectionError as error:
            raise exhausted(error) from error
        except DBAPIError as error:
            raise translated(error) from error


def exhausted(error: NoConnectionError) -> BackendError:
    """Return the error of a pool whose connections are all in use, as where the database hangs."""
    return BackendError(f"ledger: no connection is free ({error}); see whether the database answers")


def passing(error: DBAPIError) -> bool:
    """Whether the same transaction may pass a moment later."""
    cause = error.orig
    if isinstance(cause, sqlite3.Error):
        # the low byte of an extended code is its class: SQLITE_BUSY, SQLITE_LOCKED
        return (getattr(cause, "sqlite_errorcode", None) or 0) & 0xFF in (5, 6)
    if isinstance(cause, psycopg.Error):
        return error.connection_invalidated or cause.sqlstate in _PASSING_STATES
    return error.connection_invalidated


def fact_of(error: DBAPIError) -> str:
    """Return what a driver says, without the statement and its values."""
    return str(error.orig).strip().splitlines()[0] if str(error.orig).strip() else type(error.orig).__name__


def translated(error: DBAPIError) -> BackendError | LedgerError:
    """Put a driver's error into the bank's words; the statement and its values stay out of it."""
    fact = fact_of(error)
    if isinstance(error.orig, (sqlite3.IntegrityError, psycopg.IntegrityError, psycopg.DataError)):
        return LedgerError(f"ledger refuses a row: {fact}; nothing was written")
    return BackendError(f"ledger database: {fact}; see that it runs and try again")
