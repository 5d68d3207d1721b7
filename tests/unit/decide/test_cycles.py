"""How long admission cycles last, from a scheduler's histogram: never less than they did."""

from math import ceil, inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubank.decide.cycles import NOTHING, SHARE, WINDOW, CycleCounts, Cycles, longest

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

durations = st.lists(st.floats(min_value=0.0, max_value=60.0), max_size=60)


def counts(*seconds: float) -> CycleCounts:
    """Return the histogram of cycles that lasted so long."""
    buckets = tuple((bound, float(sum(each <= bound for each in seconds))) for bound in (*BOUNDS, inf))
    return CycleCounts(buckets, sum(seconds))


def at_rank(seconds: list[float]) -> float:
    """Return the 99th percentile itself."""
    return sorted(seconds)[ceil(SHARE * len(seconds)) - 1]


# ---- one histogram


def test_no_cycle_has_no_length() -> None:
    assert longest(counts()) is None
    assert longest(NOTHING) is None


def test_a_cycle_counts_as_long_as_its_bucket_allows() -> None:
    assert longest(counts(0.003)) == 0.005
    assert longest(counts(0.03, 0.06)) == 0.1


def test_one_slow_cycle_in_a_thousand_is_beyond_the_99th_percentile_and_one_in_fifty_is_not() -> None:
    assert longest(counts(*[0.003] * 999, 4.0)) == 0.005
    assert longest(counts(*[0.003] * 49, 4.0)) == 5.0


def test_beyond_the_last_bound_the_sum_of_all_says_how_long_it_was_at_most() -> None:
    assert longest(counts(30.0)) == pytest.approx(30.0)
    assert longest(counts(0.3, 30.0)) == pytest.approx(30.3 - 0.25)
    assert longest(counts(11.0, 12.0)) == pytest.approx(13.0)


@given(durations.filter(bool))
def test_it_is_never_less_than_the_true_99th_percentile(seconds: list[float]) -> None:
    found = longest(counts(*seconds))
    assert found is not None
    assert found >= at_rank(seconds) - 1e-6


# ---- readings that follow each other


def test_until_anything_is_known_the_assumed_length_holds() -> None:
    cycles = Cycles(0.125)
    assert cycles.p99 == 0.125
    assert cycles.read({}, 0.0) == 0.125
    assert cycles.read({"1": counts()}, 30.0) == 0.125
    assert cycles.read({"1": counts(0.003)}, 60.0) == 0.005


def test_the_first_reading_counts_what_there_was_before_it() -> None:
    assert Cycles().read({"1": counts(0.3)}, 1e6) == 0.5


def test_what_is_older_than_the_window_does_not_count_any_more() -> None:
    cycles = Cycles()
    cycles.read({"1": counts(2.0)}, 0.0)
    assert cycles.read({"1": counts(2.0, 0.02)}, WINDOW / 2) == 2.5
    assert cycles.read({"1": counts(2.0, 0.02, 0.06)}, WINDOW) == 0.1


def test_a_scheduler_at_rest_keeps_its_last_value() -> None:
    cycles = Cycles()
    cycles.read({"1": counts(0.3)}, 0.0)
    for turn in range(1, 100):
        assert cycles.read({"1": counts(0.3)}, turn * WINDOW / 10) == 0.5


def test_a_scheduler_that_started_anew_counts_from_its_start() -> None:
    cycles = Cycles()
    cycles.read({"1": counts(*[2.0] * 10)}, 0.0)
    assert cycles.read({"1": counts(0.02)}, 30.0) == 0.025


def test_of_several_processes_the_slowest_counts_also_while_another_answers() -> None:
    cycles = Cycles()
    cycles.read({"leader": counts(0.3)}, 0.0)
    assert cycles.read({"follower": counts()}, 30.0) == 0.5
    assert cycles.read({"next": counts(0.02)}, 60.0) == 0.5
    assert cycles.read({"next": counts(0.02, 0.02)}, WINDOW + 30.0) == 0.025, "the leader has not been heard of since"


@given(st.lists(durations, min_size=1, max_size=8))
def test_within_the_window_it_is_never_less_than_the_true_99th_percentile(steps: list[list[float]]) -> None:
    cycles, lasted = Cycles(), list[float]()
    for turn, more in enumerate(steps):
        lasted += more
        p99 = cycles.read({"1": counts(*lasted)}, turn * WINDOW / 10)
    if lasted:
        assert p99 >= at_rank(lasted) - 1e-6


@given(durations, durations)
def test_what_came_since_is_what_was_counted_since(before: list[float], after: list[float]) -> None:
    grown = counts(*before, *after).since(counts(*before))
    assert grown is not None
    assert grown.buckets == counts(*after).buckets
    assert grown.seconds == pytest.approx(sum(after), abs=1e-6)


def test_other_buckets_are_another_process() -> None:
    assert counts(1.0).since(CycleCounts(((1.0, 0.0), (inf, 0.0)), 0.0)) is None
