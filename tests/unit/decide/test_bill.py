"""What a line's life costs."""

from collections import defaultdict
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubank.decide.bill import Charge, charge, charges, due, entry, follow, hour_of, milliseconds, reach, reversal
from gpubank.domain.ledger import Span, imbalance
from gpubank.domain.loan import Line, LineState, WorkloadKey

TEN = datetime(2026, 3, 1, 10, tzinfo=UTC)
JOB = WorkloadKey(uid="u-1", namespace="team-a", name="job-1")
OTHER = WorkloadKey(uid="u-2", namespace="team-a", name="job-2")
HOUR_MS = 3_600_000


def at(minutes: float) -> datetime:
    return TEN + timedelta(minutes=minutes)


def span(start: float = 0, end: float | None = None, *, gpus: int = 4) -> Span:
    return Span(
        cluster="local",
        pool="h100",
        line_id="h100-7",
        ordinal=1,
        lender="b",
        borrower="a",
        gpus=gpus,
        workload=JOB,
        term=1,
        started_at=at(start),
        ended_at=None if end is None else at(end),
    )


def line(state: LineState = LineState.GRANTED, **update: Any) -> Line:
    plain = Line(
        line_id="h100-7",
        cluster="local",
        pool="h100",
        lender="b",
        borrower="a",
        gpus=4,
        workload=JOB,
        term=1,
        state=state,
        revision=1,
        offered_at=TEN,
        moved_at=TEN,
    )
    return plain.model_copy(update=update)


# ---- spans


@pytest.mark.parametrize("state", [LineState.OFFERED, LineState.WITHDRAWN])
def test_what_was_only_offered_costs_nothing(state: LineState) -> None:
    assert follow(None, line(state), at(5)) == ()


def test_a_span_begins_when_the_line_is_granted_and_lasts_until_it_is_returned() -> None:
    (begun,) = follow(None, line(), at(5))
    assert begun == span(5)
    for state in (LineState.GRANTED, LineState.RECALLED, LineState.CLOSING):
        assert follow(begun, line(state, version=9, demand="d", reason="wanted"), at(20)) == ()
    assert follow(begun, line(LineState.RETURNED), at(90)) == (span(5, 90),)


@pytest.mark.parametrize(
    "update",
    [
        pytest.param({"lender": "c"}, id="swap"),
        pytest.param({"gpus": 3}, id="split"),
        pytest.param({"workload": OTHER}, id="reattach"),
        pytest.param({"term": 2}, id="term"),
        pytest.param({"borrower": "c"}, id="borrower"),
    ],
)
def test_billing_follows_what_changes_in_mid_life(update: dict[str, Any]) -> None:
    ended, begun = follow(span(5), line(**update), at(20))
    assert ended == span(5, 20)
    assert begun == span(20).model_copy(update={**update, "ordinal": 2})


def test_a_clock_that_went_back_makes_a_span_empty_and_never_negative() -> None:
    ended, begun = follow(span(5), line(lender="c"), at(3))
    assert ended == span(5, 5)
    assert begun.started_at == at(5)
    assert [charge(ended, hour) for hour in (TEN, TEN + timedelta(hours=1))] == [0, 0]


# ---- hours


@pytest.mark.parametrize(
    ("piece", "want"),
    [
        pytest.param(span(15, 45), [(0, 30)], id="within-an-hour"),
        pytest.param(span(0, 60), [(0, 60)], id="exactly-an-hour-touches-no-second"),
        pytest.param(span(59, 181), [(0, 1), (1, 60), (2, 60), (3, 1)], id="over-four-hours"),
        pytest.param(span(60, 60), [], id="empty"),
    ],
)
def test_a_span_is_billed_once_per_hour_that_it_touches(piece: Span, want: list[tuple[int, int]]) -> None:
    assert list(charges(piece, piece.started_at, at(600))) == [
        Charge(at(60 * hour), 4 * minutes * 60_000) for hour, minutes in want
    ]


def test_hours_are_those_of_utc_whatever_the_offset_of_an_instant_is() -> None:
    nepal = datetime(2026, 3, 1, 16, 0, tzinfo=timezone(timedelta(hours=5, minutes=45)))
    assert hour_of(nepal) == TEN
    assert list(charges(span(15, 20), nepal, at(60))) == [Charge(TEN, 4 * 5 * 60_000)]


@given(
    cuts=st.lists(st.integers(0, 10**11), min_size=2, max_size=8).map(sorted),
    gpus=st.integers(1, 1_000_000),
)
def test_the_parts_of_a_line_add_up_to_the_whole_of_it(cuts: list[int], gpus: int) -> None:
    instants = [TEN + timedelta(microseconds=cut) for cut in cuts]
    total = 0
    for start, end in pairwise(instants):
        piece = span(gpus=gpus).model_copy(update={"started_at": start, "ended_at": end})
        total += sum(part.gpu_ms for part in charges(piece, start, end + timedelta(hours=1)))
    assert total == gpus * (milliseconds(instants[-1]) - milliseconds(instants[0]))


# ---- what is due


@pytest.mark.parametrize(
    ("piece", "until", "want"),
    [
        pytest.param(span(15), at(59), at(15), id="no-full-hour-yet"),
        pytest.param(span(15), at(60), at(60), id="full-hour"),
        pytest.param(span(15), at(119), at(60), id="running-hour-waits"),
        pytest.param(span(15, 75), at(70), at(60), id="end-ahead"),
        pytest.param(span(15, 75), at(75), at(75), id="ended"),
        pytest.param(span(90), at(30), at(90), id="begins-ahead"),
    ],
)
def test_a_span_is_billed_up_to_its_end_or_the_last_full_hour(piece: Span, until: datetime, want: datetime) -> None:
    assert reach(piece, until) == want


def test_after_an_outage_every_hour_is_caught_up_in_bounded_steps() -> None:
    posted: datetime | None = None
    hours: list[Charge] = []
    for _ in range(3):
        plan = due(span(15), posted, at(600), most=4)
        assert len(plan.billed) <= 4
        posted, hours = plan.reach, [*hours, *plan.billed]
    assert posted == at(600)
    assert [part.hour for part in hours] == [at(60 * n) for n in range(10)]


def test_every_hour_is_due_once_and_all_of_them_where_no_bound_is_set() -> None:
    plan = due(span(15), None, at(200))
    assert ([part.hour for part in plan.billed], plan.reach) == ([at(0), at(60), at(120)], at(180))
    assert due(span(15), plan.reach, at(239)) == ((), (), at(180))


def test_what_is_billed_and_what_is_reversed_sum_to_nothing() -> None:
    halves = [*entry(span(15), Charge(at(60), HOUR_MS), posted_at=at(120))]
    assert imbalance(halves) == 0
    assert imbalance(halves[:1]) != 0


def test_an_end_that_comes_in_late_corrects_the_hours_that_were_posted_as_full() -> None:
    plan = due(span(15, 70), at(180), at(200))
    assert plan.corrected == (Charge(at(60), 4 * 10 * 60_000), Charge(at(120), 0))
    assert (plan.billed, plan.reach) == ((), at(70))


def test_an_end_ahead_of_the_posting_clock_corrects_nothing() -> None:
    plan = due(span(15, 170), at(180), at(165))
    assert (plan.corrected, plan.billed, plan.reach) == ((), (), at(180))


@given(
    start=st.integers(0, 500),
    length=st.none() | st.integers(0, 500),
    rounds=st.lists(st.tuples(st.integers(0, 1200), st.booleans()), max_size=12),
    most=st.integers(1, 5),
)
def test_any_rounds_of_posting_bill_each_hour_rightly_and_sum_to_zero(
    start: int, length: int | None, rounds: list[tuple[int, bool]], most: int
) -> None:
    """The end becomes known at any round, also long after hours beyond it were posted."""
    running, ended = span(start), span(start, None if length is None else start + length)
    known, posted_until = running, None
    standing: dict[datetime, int] = {}
    written: dict[datetime, list[int]] = defaultdict(list)
    halves = []
    for until, tell in [*rounds, *[(1200, True)] * 40]:
        known = ended if tell else known
        plan = due(known, posted_until, at(until), most=most)
        for should in plan.corrected:
            was = standing.pop(should.hour, None)
            if was is not None:
                old = entry(known, Charge(should.hour, was), posted_at=at(until))
                halves += [*reversal(old, posted_at=at(until))]
                written[should.hour].append(-was)
            if should.gpu_ms:
                halves += [*entry(known, should, posted_at=at(until))]
                standing[should.hour] = should.gpu_ms
                written[should.hour].append(should.gpu_ms)
        for part in plan.billed:
            assert part.hour not in standing, "an hour is billed once"
            halves += [*entry(known, part, posted_at=at(until))]
            standing[part.hour] = part.gpu_ms
            written[part.hour].append(part.gpu_ms)
        posted_until = plan.reach
        assert imbalance(halves) == 0
    assert standing == dict(charges(ended, ended.started_at, reach(ended, at(1200))))
    assert {hour: sum(amounts) for hour, amounts in written.items() if sum(amounts)} == standing


# ---- entries


def test_an_entry_debits_the_borrower_and_credits_the_lender() -> None:
    pair = entry(span(), Charge(TEN, 4 * HOUR_MS), posted_at=at(61))
    assert [(half.account, half.gpu_ms) for half in pair] == [("a", 4 * HOUR_MS), ("b", -4 * HOUR_MS)]
    assert {half.entry for half in pair} == {"h100-7/1/2026-03-01T10Z"}


def test_a_loan_of_a_group_to_itself_leaves_a_pair_on_one_account() -> None:
    own = span().model_copy(update={"lender": "a"})
    pair = entry(own, Charge(TEN, 5), posted_at=at(61))
    assert [(half.account, half.gpu_ms) for half in pair] == [("a", 5), ("a", -5)]


def test_a_reversal_takes_back_both_halves_under_a_name_of_its_own() -> None:
    pair = entry(span(), Charge(TEN, 7), posted_at=at(61), attempt=2)
    back = reversal(pair, posted_at=at(90))
    assert [(half.entry, half.account, half.gpu_ms) for half in back] == [
        ("h100-7/1/2026-03-01T10Z/2/reversal", "a", -7),
        ("h100-7/1/2026-03-01T10Z/2/reversal", "b", 7),
    ]
    assert {half.posted_at for half in back} == {at(90)}
