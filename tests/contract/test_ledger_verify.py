"""Contract of the ledger's proof: what was written by the bank passes, and every row touched by hand is named."""

import pytest

from gpubank.adapters.ledger import SqlLedger
from gpubank.adapters.ledger.verify import verify
from gpubank.domain.demand import DemandKind
from gpubank.domain.ledger import GENESIS, FindingKind, OrgUnit, WorkloadUse
from gpubank.domain.transaction import DemandOpening
from tests.plugins.ledger import CLUSTER, POOL, TEN, by_hand, job, lent, minutes, returned, tx

ENTRY = "postings local/h100-1/1/2026-03-01T11Z"
WRONG, MISSING, ORPHAN = FindingKind.WRONG_AMOUNT, FindingKind.MISSING_POSTING, FindingKind.ORPHAN_POSTING
UNBALANCED, BROKEN, ALTERED = FindingKind.UNBALANCED, FindingKind.BROKEN_CHAIN, FindingKind.ALTERED_ROW

TOUCHED = [
    # postings
    ("UPDATE postings SET gpu_ms = gpu_ms + 1 WHERE id = 3", UNBALANCED, ENTRY),
    ("UPDATE postings SET gpu_ms = gpu_ms * 2 WHERE id IN (3, 4)", WRONG, ENTRY),
    ("UPDATE postings SET account = 'c' WHERE id = 3", WRONG, ENTRY),
    ("UPDATE postings SET gpu_ms = -gpu_ms WHERE id IN (3, 4)", WRONG, ENTRY),
    ("DELETE FROM postings WHERE id = 4", UNBALANCED, ENTRY),
    ("DELETE FROM postings WHERE id IN (3, 4)", MISSING, ENTRY),
    ("UPDATE postings SET line_id = 'h100-9' WHERE id = 3", ORPHAN, ENTRY),
    ("UPDATE postings SET pool = 'a100' WHERE id = 3", ORPHAN, ENTRY),
    (
        "UPDATE postings SET span_id = 99 WHERE id IN (3, 4)",
        ORPHAN,
        "postings h100-1/1/2026-03-01T11Z",
    ),
    ("UPDATE postings SET hour = (SELECT offered_at FROM lines) WHERE id IN (3, 4)", MISSING, ENTRY),
    (
        "INSERT INTO postings (span_id, hour, attempt, reversal, half, entry, account, cluster, pool, line_id, gpu_ms,"
        " posted_at) SELECT span_id, hour, 1, reversal, half, entry || '/1', account, cluster, pool, line_id, gpu_ms,"
        " posted_at FROM postings WHERE id IN (3, 4)",
        WRONG,
        ENTRY,
    ),
    # what they are computed from
    ("UPDATE line_spans SET posted_until = started_at WHERE id = 1", ORPHAN, None),
    ("UPDATE line_spans SET gpus = 5 WHERE id = 1", WRONG, None),
    ("UPDATE line_spans SET lender = 'c' WHERE id = 1", ALTERED, "line_spans local/h100-1/1"),
    ("UPDATE line_spans SET ended_at = NULL WHERE id = 1", ALTERED, "line_spans local/h100-1/1"),
    ("DELETE FROM line_spans WHERE id = 1", ALTERED, "line_spans local/h100-1/1"),
    # the books
    ("UPDATE lines SET borrower = 'c' WHERE line_id = 'h100-1'", ALTERED, "lines local/h100-1"),
    ("DELETE FROM lines WHERE line_id = 'h100-1'", ALTERED, "lines local/h100-1"),
    (
        "UPDATE guarantees SET in_force = 9 WHERE business_group = 'a'",
        ALTERED,
        "guarantees local/h100/a",
    ),
    ("UPDATE pools SET capacity = 99", ALTERED, "pools local/h100"),
    ("UPDATE demands SET idle = 3", ALTERED, "demands local/d/6"),
    ("DELETE FROM demands", ALTERED, "demands local/d/6"),
    ("UPDATE uses SET gpus = 1", ALTERED, "uses local/u-1/1/h100"),
    (
        "UPDATE org SET department = 'robots'",
        ALTERED,
        "org a/2026-03-01T10:00:00.000000+00:00/2026-03-01T10:00:00.000000+00:00",
    ),
    ("DELETE FROM keys WHERE key = 'offer'", ALTERED, "keys local/h100/offer"),
    ("UPDATE keys SET key = 'other' WHERE key = 'n'", ALTERED, "keys note/other"),
    # the chain
    ("UPDATE audit SET actor = 'nobody' WHERE sequence = 3", BROKEN, "audit 3"),
    ("UPDATE audit SET action = 'x' WHERE sequence = 3", BROKEN, "audit 3"),
    ("UPDATE audit SET subject = 'x' WHERE sequence = 3", BROKEN, "audit 3"),
    ("UPDATE audit SET detail = '{}' WHERE sequence = 3", BROKEN, "audit 3"),
    ("UPDATE audit SET detail = 'x' WHERE sequence = 3", BROKEN, "audit 3"),
    ("UPDATE audit SET detail = '[]' WHERE sequence = 3", BROKEN, "audit 3"),
    ("""UPDATE audit SET detail = '{"rows": {"lines": [1, {}]}}' WHERE sequence = 3""", BROKEN, "audit 3"),
    (f"UPDATE audit SET digest = '{GENESIS}' WHERE sequence = 3", BROKEN, "audit 3"),
    (f"UPDATE audit SET previous = '{GENESIS}' WHERE sequence = 3", BROKEN, "audit 3"),
    (
        "UPDATE audit SET at = (SELECT max(posted_at) FROM postings) WHERE sequence = 3",
        BROKEN,
        "audit 3",
    ),
    ("DELETE FROM audit WHERE sequence = 3", BROKEN, "audit 4"),
    ("DELETE FROM audit WHERE sequence = 1", BROKEN, "audit 2"),
    ("DELETE FROM audit WHERE sequence = (SELECT max(sequence) FROM audit)", BROKEN, "audit_head 1"),
    ("UPDATE audit_head SET sequence = 1", BROKEN, "audit_head 1"),
    ("DELETE FROM audit_head", BROKEN, "audit_head 1"),
]


async def _lived_in(ledger: SqlLedger) -> None:
    """A ledger with a row in every table: a line from 10:15 to 13:10, posted, and all that goes with it."""
    (line,) = (await lent(ledger, 4, after_ten=15)).lines
    await ledger.post(until=minutes(120))
    await returned(ledger, line, 190)
    await ledger.post(until=minutes(200))
    opening = DemandOpening(demand_id="d", lender="b", kind=DemandKind.LIMIT, gpus=1, due_at=minutes(600))
    await ledger.commit(tx("open", 200, openings=(opening,)))
    admitted = minutes(15)
    await ledger.use(
        WorkloadUse(workload=job(), cluster=CLUSTER, pool=POOL, group="a", gpus=4, term=1, admitted_at=admitted)
    )
    unit = OrgUnit(business_group="a", cost_center="1", department="vision", valid_from=TEN, recorded_at=TEN)
    await ledger.assign(unit, actor="ann")
    await ledger.note(key="n", at=TEN, actor="ann", subject=POOL, action="Frozen", detail={"reason": "drill"})


async def test_what_only_the_bank_has_written_passes(ledger: SqlLedger) -> None:
    empty = await ledger.verify()
    assert (empty.ok, empty.postings, empty.lines, empty.audit_events, empty.head) == (True, 0, 0, 0, GENESIS)
    await _lived_in(ledger)
    report = await ledger.verify()
    assert report.findings == ()
    assert (report.postings, report.lines) == (8, 1)
    assert report.head == (await ledger.audit(limit=1))[0].digest


async def test_every_row_touched_by_hand_is_found_and_named(ledger: SqlLedger, subtests: pytest.Subtests) -> None:
    """Each row is touched in a transaction of its own, which is judged and then rolled back."""
    await _lived_in(ledger)
    engine = ledger._database.engine
    past = (
        "PRAGMA defer_foreign_keys = ON"
        if engine.dialect.name == "sqlite"
        else "SET session_replication_role = replica"
    )
    async with engine.connect() as plain:
        connection = await plain.execution_options(gpubank_writes=True)
        for statement, kind, row in TOUCHED:
            with subtests.test(statement):
                async with connection.begin() as transaction:
                    await connection.exec_driver_sql(past)
                    assert (await connection.exec_driver_sql(statement)).rowcount > 0
                    report = await verify(connection)
                    await transaction.rollback()
                found = {finding.kind: finding.row for finding in report.findings}
                assert not report.ok
                assert kind in found
                assert row in (None, found[kind])
    assert (await ledger.verify()).ok


async def test_the_first_bad_row_of_each_kind_is_named(ledger: SqlLedger, ledger_url: str) -> None:
    await _lived_in(ledger)
    by_hand(
        ledger_url,
        "DELETE FROM postings WHERE id IN (1, 2, 5, 6)",
        "UPDATE postings SET gpu_ms = gpu_ms + 7 WHERE id IN (4, 8)",
        "UPDATE audit SET actor = 'x' WHERE sequence > 4",
    )
    findings = {finding.kind: finding for finding in (await ledger.verify()).findings}
    assert findings.keys() == {
        FindingKind.UNBALANCED,
        FindingKind.BROKEN_CHAIN,
        FindingKind.MISSING_POSTING,
        FindingKind.WRONG_AMOUNT,
    }
    assert findings[FindingKind.MISSING_POSTING].row == "postings local/h100-1/1/2026-03-01T10Z"
    assert findings[FindingKind.MISSING_POSTING].message == "10800000 GPU-ms are due and not posted"
    assert findings[FindingKind.UNBALANCED].row == ENTRY
    assert findings[FindingKind.WRONG_AMOUNT].row == ENTRY
    assert findings[FindingKind.BROKEN_CHAIN].row == "audit 5"


async def test_a_chain_cut_off_at_its_end_shows_in_the_rows_that_were_written_since(
    ledger: SqlLedger, ledger_url: str
) -> None:
    """Even where the head is put back too; only rows cut off as well need a published head."""
    await _lived_in(ledger)
    last = (await ledger.audit(limit=2))[1]
    by_hand(
        ledger_url,
        f"DELETE FROM audit WHERE sequence > {last.sequence}",
        f"UPDATE audit_head SET sequence = {last.sequence}, digest = '{last.digest}'",
    )
    (finding,) = (await ledger.verify()).findings
    assert (finding.kind, finding.row) == (FindingKind.ALTERED_ROW, "keys note/n")
