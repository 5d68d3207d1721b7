"""Contract of the ledger's schema: migrated once, by whoever comes first, and refused where it is not ours."""

import asyncio
import sys

import pytest

from gpubank.adapters.ledger import SqlLedger, make_engine, migrate, schema
from gpubank.domain.errors import BackendError, PolicyError
from tests.plugins.ledger import by_hand, founding


async def test_processes_that_start_at_once_migrate_once(ledger_url: str) -> None:
    code = "import asyncio, sys; from gpubank.adapters.ledger import migrate; print(asyncio.run(migrate(sys.argv[1])))"
    started = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", code, ledger_url, stdout=asyncio.subprocess.PIPE)
        for _ in range(3)
    ]
    said = await asyncio.gather(*(process.communicate() for process in started))
    assert [output.strip() for output, _ in said] == [schema.head().encode()] * 3
    async with await SqlLedger.open(ledger_url, upgrade=False) as ledger:
        assert (await ledger.verify()).ok


async def test_tables_are_what_the_migrations_make_of_an_empty_database(ledger_url: str) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.runtime.migration import MigrationContext

    from gpubank.adapters.ledger.tables import metadata

    await migrate(ledger_url)
    target = make_engine(ledger_url)
    try:
        async with target.connect() as connection:
            difference = await connection.run_sync(
                lambda sync: compare_metadata(MigrationContext.configure(sync), metadata)
            )
    finally:
        await target.dispose()
    assert difference == []


async def test_a_database_of_another_schema_is_refused_with_what_to_do(ledger_url: str) -> None:
    with pytest.raises(BackendError, match="gpubank ledger migrate"):
        await SqlLedger.open(ledger_url, upgrade=False)
    await migrate(ledger_url)
    by_hand(ledger_url, "UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(BackendError, match="newer than this program's"):
        await SqlLedger.open(ledger_url)


@pytest.mark.parametrize("gone", ["DELETE FROM alembic_version", "UPDATE alembic_version SET version_num = '0000'"])
async def test_a_program_that_runs_and_one_that_starts_say_the_same_of_a_schema_that_is_gone(
    ledger_url: str, gone: str
) -> None:
    async with await SqlLedger.open(ledger_url) as running:
        by_hand(ledger_url, gone)
        said = []
        for attempt in (running.commit(founding(a=24)), SqlLedger.open(ledger_url, upgrade=False)):
            with pytest.raises(
                BackendError, match=r"ledger schema is (absent|0000), .* run `gpubank ledger migrate`"
            ) as e:
                await attempt
            said.append(str(e.value))
    assert said[0] == said[1]


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "mysql://host/db", "nonsense"])
def test_a_database_that_keeps_no_ledger_is_refused(url: str) -> None:
    with pytest.raises(PolicyError):
        make_engine(url)


async def test_a_server_that_does_not_answer_is_a_backend_error() -> None:
    with pytest.raises(BackendError, match="see that it runs"):
        await SqlLedger.open("postgresql://nobody@127.0.0.1:9/none")
