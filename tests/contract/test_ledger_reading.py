"""Contract of reading books: what is read by what changed is what is read whole, whoever wrote it."""

import itertools
import sqlite3
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpubank.adapters.ledger import SqlLedger
from gpubank.domain.books import Books
from gpubank.domain.errors import BankError
from gpubank.domain.transaction import Offer
from tests.contract.ledger_draw import drawn
from tests.plugins.ledger import CLUSTER, POOL, founding, job, tx

_pools = itertools.count(1)


async def whole(url: str, pool: str) -> Books:
    """Read books as a process does that has never seen them."""
    async with await SqlLedger.open(url, upgrade=False) as ledger:
        return await ledger.books(CLUSTER, pool)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
async def test_books_that_are_followed_are_the_books_that_are_read_whole(
    ledger: SqlLedger, ledger_url: str, data: st.DataObject
) -> None:
    pool = f"{POOL}-{next(_pools)}"
    async with await SqlLedger.open(ledger_url, upgrade=False) as other:
        await ledger.commit(founding().model_copy(update={"pool": pool}))
        for number in range(25):
            writer, reader = (ledger, other) if data.draw(st.booleans()) else (other, ledger)
            decided_on = await writer.books(CLUSTER, pool)
            try:
                await writer.commit(tx(f"k{number}", number, pool=pool, **drawn(data, decided_on)))
            except BankError:
                assert await writer.books(CLUSTER, pool) == decided_on
            if data.draw(st.integers(0, 3)) == 0:
                expected = await whole(ledger_url, pool)
                assert await reader.books(CLUSTER, pool) == expected
                assert await writer.books(CLUSTER, pool) == expected
        expected = await whole(ledger_url, pool)
        assert await ledger.books(CLUSTER, pool) == await other.books(CLUSTER, pool) == expected
    assert (await ledger.verify()).ok


async def test_books_that_nobody_wrote_to_are_not_read_again(ledger: SqlLedger) -> None:
    await ledger.commit(founding())
    books = await ledger.books(CLUSTER, POOL)
    assert await ledger.books(CLUSTER, POOL) is books


async def test_a_backup_that_came_back_is_read_whole_although_its_revision_has_been_reached_again(
    tmp_path: Path,
) -> None:
    live, backup = tmp_path / "ledger.db", tmp_path / "backup.db"
    async with await SqlLedger.open(f"sqlite:///{live}") as ledger:
        await ledger.commit(founding())
        copy(live, backup)
        lost = Offer(lender="b", borrower="a", gpus=4, workload=job(1), term=1)
        await ledger.commit(tx("lost", offers=(lost,)))
        assert [line.gpus for line in (await ledger.books(CLUSTER, POOL)).lines] == [4]
        copy(backup, live)
        async with await SqlLedger.open(f"sqlite:///{live}") as other:
            kept = Offer(lender="b", borrower="a", gpus=2, workload=job(2), term=1)
            await other.commit(tx("kept", offers=(kept,)))
            await other.commit(tx("more", offers=(kept,)))
        assert [line.gpus for line in (await ledger.books(CLUSTER, POOL)).lines] == [2, 2]


def copy(source: Path, target: Path) -> None:
    """Put one database in the place of another, as a restore does."""
    one, other = sqlite3.connect(source), sqlite3.connect(target)
    try:
        one.backup(other)
    finally:
        one.close()
        other.close()
