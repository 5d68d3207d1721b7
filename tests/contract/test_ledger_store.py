"""Contract of the ledger's store: one transaction is all or nothing, once per key, for any number of writers."""

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from gpubank.adapters.ledger import SqlLedger
from gpubank.domain.books import Books
from gpubank.domain.demand import DemandKind, DemandState
from gpubank.domain.errors import ConflictError, LedgerError
from gpubank.domain.ledger import WorkloadUse
from gpubank.domain.loan import LineState
from gpubank.domain.transaction import CapacityChange, DemandChange, DemandOpening, GuaranteeChange, Split, Swap
from tests.plugins.ledger import CLUSTER, POOL, TEN, founding, job, lent, minutes, move, offer, only, tx

# ---- books


async def test_a_pool_without_books_has_empty_ones(ledger: SqlLedger) -> None:
    assert await ledger.books(CLUSTER, POOL) == Books(cluster=CLUSTER, pool=POOL)
    assert await ledger.pools() == []


async def test_what_a_commit_returns_is_what_stands_in_the_books(ledger: SqlLedger) -> None:
    books = await ledger.commit(founding())
    transactions: list[dict[str, Any]] = [
        {"offers": (offer(4), offer(2, number=2), offer(2, lender="pool"))},
        {
            "openings": (
                DemandOpening(
                    demand_id="h100/b/Workload/u-9",
                    lender="b",
                    kind=DemandKind.WORKLOAD,
                    gpus=4,
                    pods=2,
                    workload=job(9),
                    idle=2,
                    due_at=minutes(60),
                    reason="own work waits",
                ),
            )
        },
    ]
    for number, writes in enumerate(transactions):
        books = await ledger.commit(tx(f"t/{number}", number, **writes))
        assert await ledger.books(CLUSTER, POOL) == books
    granted = tuple(move(line, LineState.GRANTED, reason="fenced") for line in books.lines)
    books = await ledger.commit(tx("grant", 2, moves=granted))
    assert await ledger.books(CLUSTER, POOL) == books
    assert books.revision == 4
    assert await ledger.pools() == [(CLUSTER, POOL)]


async def test_a_line_that_ended_leaves_the_books_and_stays_in_the_ledger(ledger: SqlLedger) -> None:
    await ledger.commit(founding())
    line = only(await ledger.commit(tx("offer", 1, offers=(offer(),))))
    books = await ledger.commit(tx("withdraw", 2, moves=(move(line, LineState.WITHDRAWN, reason="own job"),)))
    assert books.lines == ()
    (kept,) = await ledger.lines()
    assert (kept.line_id, kept.state, kept.ended_at, kept.reason) == (
        line.line_id,
        LineState.WITHDRAWN,
        minutes(2),
        "own job",
    )


async def test_lines_are_found_by_what_they_are_about_newest_first(ledger: SqlLedger) -> None:
    await ledger.commit(founding())
    await ledger.commit(founding("east"))
    for number in range(1, 9):
        await ledger.commit(tx(f"o/{number}", number / 2, offers=(offer(1, number=number, lender="pool"),)))
    await ledger.commit(tx("self", 30, offers=(offer(1, lender="b", borrower="b", number=20),)))
    await ledger.commit(tx("east", 40, cluster="east", offers=(offer(1, number=21),)))
    assert [line.workload.uid for line in await ledger.lines(limit=3)] == ["u-21", "u-20", "u-8"]
    assert [line.workload.uid for line in await ledger.lines(cluster="east")] == ["u-21"]
    assert [line.workload.uid for line in await ledger.lines(group="b")] == ["u-21", "u-20"]
    assert [line.line_id for line in await ledger.lines(workload_uid="u-3")] == ["h100-3"]
    newest = (await ledger.lines(cluster=CLUSTER, pool=POOL))[0]
    await ledger.commit(tx("end", 50, moves=(move(newest, LineState.WITHDRAWN),)))
    assert [line.workload.uid for line in await ledger.lines(cluster=CLUSTER, open_only=True, limit=1)] == ["u-8"]


async def test_two_clusters_with_pools_of_one_name_keep_their_books_apart(ledger: SqlLedger) -> None:
    one, other = await lent(ledger, 4), await lent(ledger, 3, cluster="east")
    assert [only(books).line_id for books in (one, other)] == ["h100-1", "h100-1"]
    assert await ledger.books(CLUSTER, POOL) == one
    assert await ledger.books("east", POOL) == other
    assert (await ledger.verify()).findings == ()


async def test_a_demand_that_waits_again_is_a_new_row_and_no_old_version_fits_it(ledger: SqlLedger) -> None:
    def opening(after_ten: float) -> DemandOpening:
        return DemandOpening(
            demand_id="d", lender="b", kind=DemandKind.LIMIT, gpus=1, due_at=minutes(after_ten + 60), reason="limit"
        )

    await ledger.commit(founding())
    first = (await ledger.commit(tx("open", 1, openings=(opening(1),)))).demands[0]
    met = DemandChange(demand_id="d", version=first.version, state=DemandState.MET)
    assert (await ledger.commit(tx("met", 2, demands=(met,)))).demands == ()
    second = (await ledger.commit(tx("again", 3, openings=(opening(3),)))).demands[0]
    assert (await ledger.books(CLUSTER, POOL)).demands == (second,)
    with pytest.raises(ConflictError, match="version"):
        await ledger.commit(tx("late", 4, demands=(met,)))
    assert (await ledger.verify()).findings == ()


async def test_instants_come_back_aware_and_in_utc_whatever_offset_they_had(ledger: SqlLedger) -> None:
    local = datetime(2026, 3, 1, 15, 45, 0, 123456, tzinfo=timezone(timedelta(hours=5, minutes=45)))
    await ledger.commit(founding())
    await ledger.commit(tx("offer", offers=(offer(),)).model_copy(update={"at": local}))
    (line,) = await ledger.lines()
    assert line.offered_at == local
    assert line.offered_at.isoformat() == "2026-03-01T10:00:00.123456+00:00"


async def test_amounts_of_a_pool_of_the_largest_size_are_exact(ledger: SqlLedger) -> None:
    await ledger.commit(founding(capacity=1_000_000, a=0, b=1_000_000))
    line = only(await ledger.commit(tx("offer", offers=(offer(1_000_000),))))
    await ledger.commit(tx("grant", 0.00005, moves=(move(line, LineState.GRANTED),)))
    assert await ledger.post(until=TEN + timedelta(days=60)) == 60 * 24
    assert (await ledger.postings(account="a", limit=1))[0].gpu_ms == 3_600_000_000_000
    assert sum(posting.gpu_ms for posting in await ledger.postings(account="a", limit=9999)) == (
        1_000_000 * (60 * 24 * 3_600_000 - 3)
    )
    assert (await ledger.verify()).ok


# ---- keys, refusals, conflicts


async def test_a_key_that_was_committed_before_writes_nothing(ledger: SqlLedger) -> None:
    books = await lent(ledger)
    again = await ledger.commit(tx("offer", 9, offers=(offer(2), offer(2))))
    assert again == books
    assert len(await ledger.lines()) == 1
    assert len({audit.sequence for audit in await ledger.audit()}) == (await ledger.verify()).audit_events


async def test_one_key_may_stand_in_the_books_of_two_pools(ledger: SqlLedger) -> None:
    await ledger.commit(founding())
    assert (await ledger.commit(founding("east"))).capacity == 24


@pytest.mark.parametrize(
    ("writes", "error"),
    [
        pytest.param({"offers": (offer(9),)}, LedgerError, id="lends-more-than-there-is"),
        pytest.param(
            {"guarantees": (GuaranteeChange(group="a", version=7, in_force=1),)}, ConflictError, id="stale-version"
        ),
    ],
)
async def test_a_refused_transaction_leaves_no_trace(
    ledger: SqlLedger, writes: dict[str, Any], error: type[Exception]
) -> None:
    await ledger.commit(founding())
    before = await ledger.books(CLUSTER, POOL), await ledger.audit()
    with pytest.raises(error):
        await ledger.commit(tx("bad", 1, **writes))
    assert (await ledger.books(CLUSTER, POOL), await ledger.audit()) == before
    await ledger.commit(tx("bad", 1, offers=(offer(1),)))
    assert len(await ledger.lines()) == 1, "the refused key was not used up"


async def test_a_refused_first_transaction_makes_no_pool(ledger: SqlLedger) -> None:
    with pytest.raises(LedgerError):
        await ledger.commit(tx("first", offers=(offer(1),)))
    assert await ledger.pools() == []


# ---- spans follow lines


async def test_spans_follow_splits_and_swaps(ledger: SqlLedger) -> None:
    await ledger.commit(founding())
    books = await ledger.commit(tx("offer", offers=(offer(4), offer(1, lender="pool", number=2))))
    books = await ledger.commit(tx("grant", moves=tuple(move(line, LineState.GRANTED) for line in books.lines)))
    one, two = books.lines
    books = await ledger.commit(tx("split", 10, splits=(Split(line_id=one.line_id, version=one.version, gpus=1),)))
    cut = books.line("h100-3")
    assert cut is not None
    swap = Swap(line_id=cut.line_id, version=cut.version, other_id=two.line_id, other_version=two.version)
    await ledger.commit(tx("swap", 30, swaps=(swap,)))
    await ledger.post(until=minutes(60))
    billed = {
        (posting.entry, posting.account): posting.gpu_ms // 60_000 for posting in await ledger.postings(limit=100)
    }
    hour = "2026-03-01T10Z"
    assert {key: amount for key, amount in billed.items() if key[1] != "a"} == {
        (f"h100-1/1/{hour}", "b"): -4 * 10,
        (f"h100-1/2/{hour}", "b"): -3 * 50,
        (f"h100-2/1/{hour}", "pool"): -1 * 30,
        (f"h100-2/2/{hour}", "b"): -1 * 30,
        (f"h100-3/1/{hour}", "b"): -1 * 20,
        (f"h100-3/2/{hour}", "pool"): -1 * 30,
    }
    assert sum(amount for key, amount in billed.items() if key[1] == "a") == 5 * 60
    assert (await ledger.verify()).findings == ()


# ---- use, notes


async def test_a_workloads_use_is_only_added_to(ledger: SqlLedger) -> None:
    admitted = WorkloadUse(
        workload=job(), cluster=CLUSTER, pool=POOL, group="a", gpus=4, term=1, admitted_at=minutes(1)
    )
    await ledger.use(admitted)
    await ledger.use(admitted.model_copy(update={"admitted_at": minutes(2), "gpus": 3}))
    gone = admitted.model_copy(update={"gone_at": minutes(90)})
    await ledger.use(gone)
    await ledger.use(gone.model_copy(update={"gone_at": minutes(95)}))
    await ledger.use(gone.model_copy(update={"term": 2}))
    assert sorted(await ledger.uses(), key=lambda use: use.term) == [gone, gone.model_copy(update={"term": 2})]
    assert [audit.action for audit in await ledger.audit(subject="u-1")] == ["Gone", "Gone", "Admitted"]
    assert (await ledger.verify()).findings == ()


async def test_a_note_is_kept_as_it_was_said(ledger: SqlLedger) -> None:
    detail = {"gpus": 2**53 + 1, "share": 1e2, "reason": "Grüße \u0000 ☃", "list": [1, None, True], "z": {"a": {}}}
    await ledger.note(key="k", at=TEN, actor="ann", subject="h100", action="Frozen", detail=detail)
    (audit,) = await ledger.audit()
    assert audit.detail.pop("rows") == {
        "keys": [{"scope": "note", "key": "k", "at": "2026-03-01T10:00:00.000000+00:00"}]
    }
    assert (audit.detail, audit.actor, audit.at, audit.sequence) == (detail, "ann", TEN, 1)
    assert (await ledger.verify()).head == audit.digest
    with pytest.raises(LedgerError, match="not JSON"):
        await ledger.note(key="l", at=TEN, actor="ann", subject="h100", action="x", detail={"at": TEN})
    assert (await ledger.verify()).audit_events == 1


async def test_capacity_follows_its_change(ledger: SqlLedger) -> None:
    await ledger.commit(founding())
    assert (await ledger.commit(tx("shrink", capacity=CapacityChange(capacity=8)))).surplus == -8
