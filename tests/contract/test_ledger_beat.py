"""A beat of the ledger: a write that changes nothing, and that only a ledger that takes writes can make."""

from pathlib import Path

import pytest

from gpubank.adapters.ledger import SqlLedger
from gpubank.domain.errors import BackendError, BankError
from tests.plugins.ledger import CLUSTER, POOL, by_hand, founding


async def test_a_beat_changes_nothing_that_anybody_can_see(ledger: SqlLedger) -> None:
    await ledger.beat(CLUSTER, POOL)  # also where there are no books yet
    books = await ledger.commit(founding())
    events = await ledger.audit()
    for _ in range(3):
        await ledger.beat(CLUSTER, POOL)
    assert await ledger.books(CLUSTER, POOL) == books
    assert await ledger.audit() == events
    assert (await ledger.verify()).ok


async def test_a_ledger_that_lost_its_tables_does_not_beat(ledger: SqlLedger, ledger_url: str) -> None:
    await ledger.commit(founding())
    by_hand(ledger_url, "ALTER TABLE pools RENAME TO elsewhere")
    with pytest.raises(BackendError):
        await ledger.beat(CLUSTER, POOL)


async def test_a_ledger_that_can_only_be_read_does_not_beat(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    async with await SqlLedger.open(f"sqlite:///{file}") as ledger:
        await ledger.commit(founding())
        refuse = "BEGIN SELECT RAISE(ABORT, 'read only'); END"
        by_hand(f"sqlite:///{file}", f"CREATE TRIGGER refuse BEFORE UPDATE ON pools {refuse}")
        with pytest.raises(BankError, match="read only"):
            await ledger.beat(CLUSTER, POOL)
