"""Bringing a database to the current schema."""

import asyncio
import random
from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gpubank.adapters.ledger.engine import ATTEMPTS, Database, make_engine, passing
from gpubank.domain.errors import BackendError

_LOCK: Final = 0x6770_7562  # any number that every gpubank agrees on: the advisory lock of whoever migrates


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")))
    return config


def head() -> str:
    """Revision of the schema that this program speaks."""
    revision = ScriptDirectory.from_config(_config()).get_current_head()
    assert revision is not None
    return revision


async def migrate(url: str | URL) -> str:
    """Bring the database to the current schema and return its revision.

    All in one transaction and under a lock: processes that start at once wait for the first and find nothing to do.
    Raises `BackendError` where the database fails, or is of a newer schema than this program's.
    """
    engine = make_engine(url)
    try:
        return await upgrade(engine)
    finally:
        await engine.dispose()


async def upgrade(engine: AsyncEngine) -> str:
    """Do what `migrate` does on an engine at hand."""

    async def work(connection: AsyncConnection) -> str:
        if connection.dialect.name == "postgresql":
            # Waits as long as another process migrates, not only as long as a row lock may take.
            await connection.exec_driver_sql("SET LOCAL lock_timeout = 0")
            await connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
        current = await connection.run_sync(_current)
        known = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
        if current is not None and current not in known:
            raise BackendError(f"ledger schema {current!r} is newer than this program's {head()!r}; update the program")
        if current != head():
            await connection.run_sync(_upgrade)
        return head()

    return await Database(engine).write(work)


async def check(engine: AsyncEngine) -> None:
    """Raise `BackendError` unless the database has the current schema."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            async with engine.connect() as connection:
                current = await connection.run_sync(_current)
        except DBAPIError as error:
            if not passing(error) or attempt == ATTEMPTS:
                raise BackendError(f"ledger database: {error.orig}; see that it runs and try again") from error
            await asyncio.sleep(0.01 * 2**attempt * random.uniform(0.5, 1.0))
            continue
        if current != head():
            raise BackendError(
                f"ledger schema is {current or 'absent'}, this program speaks {head()}; run `gpubank ledger migrate`"
            )
        return


def _current(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _upgrade(connection: Connection) -> None:
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
