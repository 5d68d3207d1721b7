"""Bringing a database to the current schema, and saying which programs may use it.

A revision is a number, and the oldest number whose programs go on with the schema as it stands after it:

    0003                only programs that know 0003
    0003_from_0002      programs of 0002 too: it adds what they neither read nor have to write

The database keeps the name, so that an old program knows what to do about a migration that was written after it.
"""

import asyncio
import random
import re
from pathlib import Path
from typing import Final, NamedTuple, Self

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gpubank.adapters.ledger.engine import ATTEMPTS, Database, fact_of, make_engine, passing
from gpubank.domain.errors import BackendError

_LOCK: Final = 0x6770_7562  # any number that every gpubank agrees on: the advisory lock of whoever migrates
_NAME: Final = re.compile(r"(\d{4})(?:_from_(\d{4}))?")
_STORED: Final = text("SELECT version_num FROM alembic_version")

SCRIPTS: Final = Path(__file__).with_name("migrations")
"""Folder of the migrations; a test that adds one names a folder of its own."""


class Revision(NamedTuple):
    """What the name of a schema's revision says."""

    number: int
    oldest: int
    """Lowest number whose programs may read and write this schema."""

    @classmethod
    def of(cls, name: str) -> Self:
        """Read a revision's name; raise `BackendError` where it is none of this ledger's."""
        found = _NAME.fullmatch(name)
        if found is None:
            raise BackendError(
                f"ledger schema {name!r} is no revision of a ledger; see that the URL names the right one"
            )
        number, oldest = found.groups()
        return cls(int(number), int(oldest or number))


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))
    return config


def revisions() -> tuple[str, ...]:
    """Return the revisions that this program knows, oldest first."""
    scripts = ScriptDirectory.from_config(_config()).walk_revisions()
    return tuple(reversed([script.revision for script in scripts]))


def head() -> str:
    """Revision of the schema that this program speaks."""
    return revisions()[-1]


def _admit(current: str | None, ours: str) -> str:
    """Return the database's revision where programs of `ours` may use it; raise `BackendError` where they may not."""
    mine = Revision.of(ours).number
    if current is None or (current != ours and Revision.of(current).number <= mine):
        raise BackendError(
            f"ledger schema is {current or 'absent'}, this program speaks {ours}; run `gpubank ledger migrate`"
        )
    oldest = Revision.of(current).oldest
    if oldest > mine:
        raise BackendError(
            f"ledger schema {current!r} is newer than this program's {ours!r}, and for programs of {oldest:04} or"
            " newer; update the program"
        )
    return current


async def migrate(url: str | URL) -> str:
    """Bring the database to the current schema and return its revision, which may be a newer one that it may use.

    All in one transaction and under a lock: processes that start at once wait for the first and find nothing to do.
    Raises `BackendError` where the database fails, or is of a newer schema that is not for this program.
    """
    engine = make_engine(url)
    try:
        return await upgrade(engine)
    finally:
        await engine.dispose()


async def upgrade(engine: AsyncEngine) -> str:
    """Do what `migrate` does on an engine at hand."""
    known = revisions()
    ours = known[-1]

    async def work(connection: AsyncConnection) -> str:
        if connection.dialect.name == "postgresql":
            # Waits as long as another process migrates or writes, not only as long as a row lock may take.
            await connection.exec_driver_sql("SET LOCAL lock_timeout = 0")
            await connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
        current = await connection.run_sync(_current)
        if current is not None and current not in known:
            return _admit(current, ours)
        if current != ours:
            try:
                await connection.run_sync(_upgrade)
            except DBAPIError as error:
                if passing(error):
                    raise
                raise BackendError(
                    f"ledger schema {current or 'absent'} cannot be brought to {ours}: {fact_of(error)}; nothing was"
                    " changed, and programs that ran go on: mend what it says and try again"
                ) from error
        return ours

    return await Database(engine).write(work)


async def check(engine: AsyncEngine) -> str:
    """Return the database's revision.

    Raises `BackendError` unless it is the current one, or a newer one that is for this program too.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            async with engine.connect() as connection:
                current = await connection.run_sync(_current)
        except DBAPIError as error:
            if not passing(error) or attempt == ATTEMPTS:
                raise BackendError(f"ledger database: {error.orig}; see that it runs and try again") from error
            await asyncio.sleep(0.01 * 2**attempt * random.uniform(0.5, 1.0))
            continue
        return _admit(current, head())
    raise AssertionError("unreachable: the last attempt returns or raises")


class Guard:
    """Keeps a program that runs while others migrate from writing to a schema that is not for it."""

    def __init__(self) -> None:
        """Remember what this program speaks."""
        self._ours = head()
        self._admitted = self._ours

    async def __call__(self, connection: AsyncConnection) -> None:
        """Begin a writing transaction: no migration ends before it does. Raises `BackendError` as `check` does."""
        if connection.dialect.name == "postgresql":
            await connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock_shared({_LOCK})")
        current = (await connection.execute(_STORED)).scalar_one_or_none()
        if current != self._admitted:
            self._admitted = _admit(current, self._ours)


def _current(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _upgrade(connection: Connection) -> None:
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
