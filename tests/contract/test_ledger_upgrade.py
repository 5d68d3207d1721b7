"""Contract of the ledger's migrations, with a second one that is made here: old programs meet new schemas.

The new program is this process, with one migration more; the old one is a process of its own that writes all the time.
"""

import asyncio
import contextlib
import re
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from gpubank.adapters.ledger import SqlLedger, make_engine, migrate, schema
from gpubank.cli.checks.ledger import check_ledger
from gpubank.domain.contract import Side
from gpubank.domain.errors import BackendError
from tests.plugins.ledger import CLUSTER, POOL, by_hand, founding, lent, minutes, offer, only, returned, tx

OLD: Final = schema.head()
"""Revision of the program as it is."""

NUMBER: Final = schema.Revision.of(OLD).number + 1

FOR_OLD: Final = f"{NUMBER:04}_from_{schema.Revision.of(OLD).number:04}"
FOR_NEW: Final = f"{NUMBER:04}"

ADDS: Final = """
    op.add_column("lines", sa.Column("hint", sa.String(), nullable=True))
    op.create_table("hints", sa.Column("id", sa.Integer(), primary_key=True), sa.Column("text", sa.String()))
"""
FAILS: Final = f"""{ADDS}
    op.execute("INSERT INTO hints (id, text) VALUES (1, 'half-way')")
    op.execute("UPDATE no_such_table SET x = 1")
"""

Program = Callable[..., Path]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Make this process a program with one migration more."""

    def become(revision: str, does: str = ADDS) -> Path:
        scripts = tmp_path / f"migrations-{revision}"
        shutil.copytree(schema.SCRIPTS, scripts, ignore=shutil.ignore_patterns("__pycache__"))
        (scripts / "versions" / f"{NUMBER:04}_more.py").write_text(
            "import sqlalchemy as sa\nfrom alembic import op\n"
            f'revision = "{revision}"\ndown_revision = "{OLD}"\nbranch_labels = None\ndepends_on = None\n\n'
            f"def upgrade() -> None:{does}"
        )
        monkeypatch.setattr(schema, "SCRIPTS", scripts)
        return scripts

    return become


class Writer:
    """An old program that writes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def writes(self, times: int = 3) -> None:
        """See it write so often from now on; what it said before does not count."""
        assert self._process.stdout is not None
        with contextlib.suppress(TimeoutError):
            while await asyncio.wait_for(self._process.stdout.readline(), 0.01):
                pass
        for _ in range(times):
            assert (said := await self.says()).startswith("wrote"), said

    async def refused(self) -> str:
        """See it end, and return why."""
        while (said := await self.says()).startswith("wrote"):
            pass
        assert await self._process.wait() == 0
        return said

    async def says(self) -> str:
        assert self._process.stdout is not None
        return (await asyncio.wait_for(self._process.stdout.readline(), 60)).decode().strip()


@asynccontextmanager
async def old_program(url: str) -> AsyncIterator[Writer]:
    """Run an old program that writes to the ledger, until the block ends."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.contract.ledger_writer", url, stdout=asyncio.subprocess.PIPE
    )
    try:
        writer = Writer(process)
        await writer.writes(1)
        yield writer
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.communicate()


async def _asked(url: str, question: str) -> Any:
    engine = make_engine(url)
    try:
        async with engine.connect() as connection:
            return (await connection.execute(text(question))).scalar_one_or_none()
    finally:
        await engine.dispose()


async def test_an_old_program_writes_on_while_two_new_ones_add_what_it_need_not_know(
    ledger_url: str, program: Program
) -> None:
    await migrate(ledger_url)
    async with old_program(ledger_url) as writer:
        scripts = program(FOR_OLD)
        code = (
            "import asyncio, pathlib, sys; from gpubank.adapters.ledger import migrate, schema;"
            "schema.SCRIPTS = pathlib.Path(sys.argv[2]); print(asyncio.run(migrate(sys.argv[1])))"
        )
        started = [
            await asyncio.create_subprocess_exec(
                sys.executable, "-c", code, ledger_url, str(scripts), stdout=asyncio.subprocess.PIPE
            )
            for _ in range(2)
        ]
        said = await asyncio.gather(*(process.communicate() for process in started))
        assert [output.decode().strip() for output, _ in said] == [FOR_OLD] * 2
        await writer.writes()
    async with await SqlLedger.open(ledger_url) as new:
        assert (await new.verify()).ok
    assert await _asked(ledger_url, "SELECT count(*) FROM hints WHERE id = 0") == 0


async def test_an_old_program_starts_on_a_newer_schema_that_is_for_it_too(
    ledger_url: str, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(FOR_OLD)
    assert await migrate(ledger_url) == FOR_OLD
    monkeypatch.undo()
    assert schema.head() == OLD
    assert await migrate(ledger_url) == FOR_OLD
    for upgrade in (True, False):
        async with await SqlLedger.open(ledger_url, upgrade=upgrade) as old:
            await old.commit(founding())
            assert (await old.verify()).ok
    assert await _asked(ledger_url, "SELECT version_num FROM alembic_version") == FOR_OLD
    said = [check.message for check in await check_ledger(ledger_url)]
    assert any(f"schema {FOR_OLD}, newer than this program's {OLD}, which may use it" in message for message in said)


async def test_an_old_program_that_runs_writes_nothing_to_a_schema_that_is_not_for_it(
    ledger_url: str, program: Program
) -> None:
    await migrate(ledger_url)
    async with old_program(ledger_url) as writer:
        program(FOR_NEW)
        async with await SqlLedger.open(ledger_url) as new:
            revision = (await new.books(CLUSTER, POOL)).revision
            said = await writer.refused()
            assert re.search(rf"'{FOR_NEW}' is newer than .*'{OLD}'.*programs of {NUMBER:04} or newer; update", said)
            assert (await new.books(CLUSTER, POOL)).revision == revision  # not one more, from the moment it was there
            await new.commit(tx("after", 1))
            assert (await new.verify()).ok


async def test_a_migration_that_fails_changes_nothing_and_the_old_program_writes_on(
    ledger_url: str, program: Program
) -> None:
    await migrate(ledger_url)
    async with old_program(ledger_url) as writer:
        program(FOR_OLD, FAILS)
        with pytest.raises(
            BackendError, match=rf"cannot be brought to {FOR_OLD}: .*no_such_table.* nothing was changed"
        ):
            await migrate(ledger_url)
        assert await _asked(ledger_url, "SELECT version_num FROM alembic_version") == OLD
        for there in ("SELECT hint FROM lines", "SELECT id FROM hints"):
            with pytest.raises(DBAPIError, match=r"no such (column|table)|does not exist"):
                await _asked(ledger_url, there)
        await writer.writes()


@pytest.mark.parametrize("name", ["9d1e2c", "0003-from-0002", "3"])
async def test_a_database_with_somebody_elses_revision_is_refused(ledger_url: str, name: str) -> None:
    await migrate(ledger_url)
    by_hand(ledger_url, f"UPDATE alembic_version SET version_num = '{name}'")
    with pytest.raises(BackendError, match=f"'{name}' is no revision of a ledger"):
        await SqlLedger.open(ledger_url)


async def test_a_ledger_of_the_first_schema_is_migrated_with_everything_in_it(ledger_url: str) -> None:
    async with await SqlLedger.open(ledger_url) as ledger:
        ended = await lent(ledger)
        await returned(ledger, only(ended), 90)
        running = await ledger.commit(tx("again", 100, offers=(offer(3, number=2),)))
        await ledger.post(until=minutes(120))
        before = await ledger.postings()
    by_hand(ledger_url, "ALTER TABLE lines DROP COLUMN side", "UPDATE alembic_version SET version_num = '0001'")
    assert await migrate(ledger_url) == OLD
    async with await SqlLedger.open(ledger_url) as ledger:
        assert await ledger.books(CLUSTER, POOL) == running
        assert await ledger.postings() == before
        assert [line.side for line in await ledger.lines()] == [Side.BORROW] * 2
        assert (await ledger.verify()).findings == ()


def test_numbers_count_up_and_what_a_schema_asks_of_programs_never_falls() -> None:
    named = [schema.Revision.of(name) for name in schema.revisions()]
    assert [revision.number for revision in named] == list(range(1, len(named) + 1))
    assert all(revision.oldest <= revision.number for revision in named)
    assert [revision.oldest for revision in named] == sorted(revision.oldest for revision in named)
    assert all(len(name) <= 32 for name in schema.revisions())  # alembic's column holds no more
