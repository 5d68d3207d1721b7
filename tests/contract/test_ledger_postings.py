"""Contract of the ledger's postings: balanced, idempotent, caught up after outages, corrected by reversal."""

import asyncio
import itertools
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpubank.adapters.ledger import SqlLedger
from gpubank.controller import main as controller
from gpubank.controller.metrics import ControllerMetrics
from gpubank.domain.errors import BankError, LedgerError, PolicyError
from gpubank.domain.ledger import OrgUnit, imbalance
from gpubank.domain.loan import Line, LineState
from gpubank.domain.transaction import Reattach, Split, Swap, Transaction
from tests.plugins.ledger import CLUSTER, TEN, by_hand, founding, job, lent, minutes, move, offer, only, returned, tx
from tests.support.waiting import seen

HOUR_MS = 3_600_000


async def test_every_full_hour_is_posted_once_however_often_it_is_asked_for(ledger: SqlLedger) -> None:
    await lent(ledger, 4, after_ten=15)
    assert await ledger.post(until=minutes(59)) == 0
    assert await ledger.post(until=minutes(60)) == 1
    assert await ledger.post(until=minutes(60)) == 0
    assert await ledger.post(until=minutes(30)) == 0
    assert await ledger.post(until=minutes(179)) == 1
    amounts = [(posting.account, posting.gpu_ms, posting.hour) for posting in await ledger.postings()]
    assert amounts == [
        ("b", -4 * HOUR_MS, minutes(60)),
        ("a", 4 * HOUR_MS, minutes(60)),
        ("b", -3 * HOUR_MS, TEN),
        ("a", 3 * HOUR_MS, TEN),
    ]
    assert {posting.posted_at for posting in await ledger.postings()} == {minutes(120)}


async def test_the_last_part_of_an_ended_line_is_posted_at_once(ledger: SqlLedger) -> None:
    line = only(await lent(ledger, 4, after_ten=15))
    await returned(ledger, line, 75)
    assert await ledger.post(until=minutes(76)) == 2
    assert [posting.gpu_ms for posting in await ledger.postings(account="a")] == [4 * 15 * 60_000, 4 * 45 * 60_000]
    assert await ledger.post(until=minutes(600)) == 0
    assert (await ledger.verify()).findings == ()


async def test_a_long_outage_is_caught_up(ledger: SqlLedger) -> None:
    await lent(ledger, 2)
    assert await ledger.post(until=TEN + timedelta(days=10)) == 240
    assert (await ledger.verify()).findings == ()


async def test_a_loan_of_a_group_to_itself_is_posted_and_sums_to_zero_on_its_account(ledger: SqlLedger) -> None:
    await ledger.commit(founding())
    line = only(await ledger.commit(tx("offer", offers=(offer(3, lender="a"),))))
    await ledger.commit(tx("grant", moves=(move(line, LineState.GRANTED),)))
    await ledger.post(until=minutes(60))
    assert [posting.gpu_ms for posting in await ledger.postings(account="a")] == [-3 * HOUR_MS, 3 * HOUR_MS]


async def test_an_end_that_comes_in_late_reverses_what_was_posted_as_full(ledger: SqlLedger) -> None:
    line = only(await lent(ledger, 4))
    await ledger.post(until=minutes(180))
    await returned(ledger, line, 70)
    assert (await ledger.verify()).findings == (), "what is not posted yet is no error"
    assert await ledger.post(until=minutes(190)) == 3
    assert [(posting.entry, posting.gpu_ms // 60_000) for posting in await ledger.postings(account="a")] == [
        ("h100-1/1/2026-03-01T12Z/reversal", -240),
        ("h100-1/1/2026-03-01T11Z/1", 40),
        ("h100-1/1/2026-03-01T11Z/reversal", -240),
        ("h100-1/1/2026-03-01T12Z", 240),
        ("h100-1/1/2026-03-01T11Z", 240),
        ("h100-1/1/2026-03-01T10Z", 240),
    ]
    assert await ledger.post(until=minutes(400)) == 0
    assert (await ledger.verify()).findings == ()


async def test_posters_that_run_at_once_post_every_hour_once(ledger: SqlLedger, ledger_url: str) -> None:
    await lent(ledger, 4)
    async with await SqlLedger.open(ledger_url) as other:
        counts = await asyncio.gather(*((ledger, other)[n % 2].post(until=TEN + timedelta(days=4)) for n in range(4)))
    assert sum(counts) == 96
    assert (await ledger.verify()).findings == ()


async def test_a_pool_that_does_not_balance_is_left_alone_and_holds_up_no_other(
    ledger: SqlLedger, ledger_url: str
) -> None:
    await lent(ledger, 4, cluster="east")
    await lent(ledger, 4, cluster="west")
    await ledger.post(until=minutes(60))
    line = only(await ledger.books("east", "h100"))
    by_hand(ledger_url, "UPDATE postings SET gpu_ms = gpu_ms + 1 WHERE cluster = 'east' AND half = 'borrower'")
    await returned(ledger, line, 40)
    with pytest.raises(LedgerError, match="sums to 1 GPU-ms, not 0"):
        await ledger.post(until=minutes(120))
    assert len(await ledger.postings(cluster="east")) == 2
    assert len(await ledger.postings(cluster="west")) == 4


async def test_an_hour_that_does_not_balance_takes_no_more_postings(ledger: SqlLedger, ledger_url: str) -> None:
    await ledger.commit(founding())
    books = await ledger.commit(tx("offer", offers=(offer(2), offer(1, number=2))))
    one, two = (
        await ledger.commit(tx("grant", moves=tuple(move(line, LineState.GRANTED) for line in books.lines)))
    ).lines
    await returned(ledger, one, 20)
    assert await ledger.post(until=minutes(30)) == 1
    by_hand(ledger_url, "UPDATE postings SET gpu_ms = gpu_ms + 1 WHERE half = 'borrower'")
    await returned(ledger, two, 40)
    with pytest.raises(LedgerError, match="in hour 2026-03-01T10Z sum to 1 GPU-ms, not 0"):
        await ledger.post(until=minutes(50))
    assert len(await ledger.postings()) == 2


async def test_the_controllers_gauge_shows_what_somebody_has_changed_by_hand(
    ledger: SqlLedger, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "BALANCE_EVERY", 0.01)
    metrics = ControllerMetrics(lambda: TEN)

    def shown() -> float | None:
        return metrics.registry.get_sample_value("gpubank_ledger_imbalance_gpu_ms")

    for cluster in ("east", "west"):
        await lent(ledger, 4, cluster=cluster)
    await ledger.post(until=minutes(120))
    watch = asyncio.create_task(controller._balance(ledger, metrics))
    try:
        await seen(lambda: shown() == 0, "a gauge that shows that it balances")
        changed = "UPDATE postings SET gpu_ms = gpu_ms {} WHERE half = 'borrower' AND cluster = '{}'"
        assert by_hand(ledger_url, changed.format("+ 7", "east"), changed.format("- 7", "west")) == 2
        await seen(lambda: shown() == 28, "a gauge that shows by how much each pool does not")
    finally:
        watch.cancel()


_runs = itertools.count()
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("post"), st.integers(0, 400)),
        st.tuples(
            st.sampled_from(["offer", "grant", "close", "recall", "split", "swap", "reattach"]), st.integers(0, 9)
        ),
    ),
    min_size=4,
    max_size=20,
)


@settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=_steps, skews=st.lists(st.integers(-90, 90), min_size=1, max_size=5))
async def test_any_interleaving_and_repetition_of_postings_sums_to_zero(
    ledger: SqlLedger, steps: list[tuple[str, int]], skews: list[int]
) -> None:
    """Every example is a cluster of its own; clocks of writers differ by up to an hour and a half."""
    cluster, now = f"c-{next(_runs)}", 100
    await ledger.commit(founding(cluster, capacity=20, a=6, b=6))
    for number, (what, which) in enumerate([*steps, ("post", 10_000), ("post", 10_000)]):
        now += 17
        if what == "post":
            await ledger.post(until=minutes(which))
            await ledger.post(until=minutes(which))
        else:
            books = await ledger.books(cluster, "h100")
            line = books.lines[which % len(books.lines)] if books.lines else None
            other = books.lines[-1 - which % len(books.lines)] if books.lines else None
            after_ten = now + skews[number % len(skews)]
            plain = tx(f"{number}", after_ten, cluster=cluster)
            try:
                await ledger.commit(plain.model_copy(update=_writes(what, which, line, other)))
            except BankError:
                continue  # not possible as the books stand; nothing was written
        balance = await ledger.postings(cluster=cluster, limit=100_000)
        assert imbalance(balance) == 0
    running = [line for line in await ledger.lines(cluster=cluster, limit=1000) if line.granted_at and line.is_open]
    accounts = {posting.account for posting in await ledger.postings(cluster=cluster, limit=100_000)}
    assert accounts <= {"a", "b", "pool"}
    assert bool(running) <= bool(accounts), "who runs until the end of time is billed"
    assert (await ledger.verify()).findings == ()


def _writes(what: str, which: int, line: Line | None, other: Line | None) -> dict[str, object]:
    if what == "offer":
        return {"offers": (offer(1 + which % 3, lender=("b", "pool", "a")[which % 3], number=which),)}
    if line is None or other is None:
        return {}
    match what:
        case "grant":
            return {"moves": (move(line, LineState.GRANTED),)}
        case "close":
            target = LineState.CLOSING if line.state is LineState.GRANTED else LineState.RETURNED
            return {"moves": (move(line, target),)}
        case "recall":
            return {"moves": (move(line, LineState.RECALLED),)}
        case "split":
            return {"splits": (Split(line_id=line.line_id, version=line.version, gpus=1),)}
        case "swap":
            swap = Swap(line_id=line.line_id, version=line.version, other_id=other.line_id, other_version=other.version)
            return {"swaps": (swap,)}
        case _:
            change = Reattach(line_id=line.line_id, version=line.version, gpus=1, workload=job(which + 50), term=2)
            return {"reattachments": (change,)}


# ---- the organisation


def unit(department: str, start: float, end: float | None = None, *, known: float) -> OrgUnit:
    return OrgUnit(
        business_group="a",
        cost_center="4711",
        department=department,
        valid_from=minutes(start),
        valid_to=None if end is None else minutes(end),
        recorded_at=minutes(known),
    )


async def test_history_keeps_its_old_department(ledger: SqlLedger) -> None:
    await ledger.assign(unit("vision", 0, known=0), actor="ann")
    await ledger.assign(unit("robots", 100, known=90), actor="ann")
    # A correction that came in late: from 40 to 60 the group was on loan to another department.
    await ledger.assign(unit("speech", 40, 60, known=200), actor="bob")

    async def department(at: float, known_at: float | None = None) -> str | None:
        found = await ledger.unit("a", at=minutes(at), known_at=None if known_at is None else minutes(known_at))
        return None if found is None else found.department

    assert [await department(at) for at in (-1, 0, 39, 40, 59, 60, 99, 100, 500)] == (
        [None, "vision", "vision", "speech", "speech", "vision", "vision", "robots", "robots"]
    )
    assert await department(50, known_at=150) == "vision"
    assert await department(120, known_at=80) == "vision"
    assert await ledger.unit("b", at=TEN) is None
    assert [row.department for row in await ledger.units("a")] == ["vision", "robots", "speech"]
    assert (await ledger.verify()).findings == ()


async def test_a_unit_is_recorded_once_and_never_replaced(ledger: SqlLedger) -> None:
    await asyncio.gather(*(ledger.assign(unit("vision", 0, known=0), actor="ann") for _ in range(3)))
    assert len(await ledger.units()) == 1
    with pytest.raises(PolicyError, match="recorded otherwise"):
        await ledger.assign(unit("robots", 0, known=0), actor="ann")
    with pytest.raises(PolicyError, match="end after the start"):
        await ledger.assign(unit("robots", 5, 5, known=1), actor="ann")


async def test_a_novated_hour_is_billed_once(ledger: SqlLedger) -> None:
    await ledger.commit(founding())
    old = only(await ledger.commit(tx("offer", offers=(offer(2),))))
    old = only(await ledger.commit(tx("grant", moves=(move(old, LineState.GRANTED),))))
    books = await ledger.commit(tx("novate", 10, offers=(offer(2, lender="pool", replaces=old.line_id),)))
    new = next(line for line in books.lines if line.line_id != old.line_id)
    moves = (move(old, LineState.RETURNED), move(new, LineState.GRANTED))
    await ledger.commit(Transaction(key="cut", cluster=CLUSTER, pool="h100", at=minutes(25), actor="c", moves=moves))
    await ledger.post(until=minutes(60))
    assert [(posting.account, posting.gpu_ms // 60_000) for posting in await ledger.postings()] == [
        ("pool", -70),
        ("a", 70),
        ("b", -50),
        ("a", 50),
    ]
