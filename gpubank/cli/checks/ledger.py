"""The ledger's database: whether it answers, and whether its schema is this program's."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from gpubank.adapters.ledger import SqlLedger, schema
from gpubank.adapters.ledger.engine import engine_url, make_engine, translated
from gpubank.cli.checks.finding import Check, fail, ok
from gpubank.domain.errors import BankError

AREA: Final = "ledger"


async def check_ledger(url: str) -> list[Check]:
    """Look at the database without changing it."""
    try:
        parsed = engine_url(url)
        place = parsed.render_as_string(hide_password=True)
        if parsed.get_backend_name() == "sqlite" and not _is_file(parsed.database):
            return [fail(AREA, f"{place} does not exist", "`gpubank up` or `gpubank ledger migrate` makes it")]
        engine = make_engine(parsed)
    except (BankError, OSError) as error:
        return [fail(AREA, str(error))]
    try:
        return [ok(AREA, f"{await _version(engine)} at {place}"), *await _schema(engine, url)]
    except (BankError, OSError) as error:
        return [fail(AREA, f"{place}: {error}")]
    finally:
        await engine.dispose()


def _is_file(name: str | None) -> bool:
    """Whether the file is there; opening a SQLite database would make it."""
    return name is not None and Path(name).is_file()


async def _version(engine: AsyncEngine) -> str:
    try:
        async with engine.connect() as connection:
            numbers = connection.dialect.server_version_info or ()
    except DBAPIError as error:
        raise translated(error) from error
    name = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}.get(engine.dialect.name, engine.dialect.name)
    return f"{name} {'.'.join(map(str, numbers))}"


async def _schema(engine: AsyncEngine, url: str) -> Iterator[Check]:
    try:
        current = await schema.check(engine)
    except BankError as error:
        return iter([fail(AREA, str(error))])
    async with await SqlLedger.open(url, upgrade=False) as ledger:
        pools = await ledger.pools()
    ours = schema.head()
    whose = "as this program's" if current == ours else f"newer than this program's {ours}, which may use it"
    return iter([ok(AREA, f"schema {current}, {whose}; pools with books: {len(pools)}")])
