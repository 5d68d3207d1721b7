"""Signs of life: when the bank may give one, and what the watchdog makes of what it sees of them."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubank.decide.demand import TRY_AGAIN
from gpubank.decide.heartbeat import UNSERVED, Pulse, looked, promises, unserved, waiting_lenders
from gpubank.domain.books import Books, Guarantee
from gpubank.domain.demand import Demand, DemandKind, DemandState
from gpubank.domain.failsafe import Beat
from gpubank.domain.pool import Freeze
from tests.unit.decide.parts import CLUSTER, NOW, POOL, group_terms, pool_terms

TERMS = pool_terms(group_terms("a", 8), group_terms("b", 8), capacity=16)
SECOND = timedelta(seconds=1)
AFTER = timedelta(seconds=300)


def books(state: DemandState = DemandState.OPEN, *, age: timedelta, moved: timedelta | None = None) -> Books:
    """Books with one demand of b that was opened `age` ago and last moved `moved` ago."""
    demand = Demand(
        demand_id="d",
        cluster=CLUSTER,
        pool=POOL,
        lender="b",
        kind=DemandKind.WORKLOAD,
        gpus=8,
        state=state,
        opened_at=NOW - age,
        due_at=NOW,
        moved_at=NOW - (age if moved is None else moved),
    )
    return Books(cluster=CLUSTER, pool=POOL, demands=(demand,))


def beat(number: int, seconds: float = 45) -> Beat:
    return Beat(holder="gpubank", renewed_at=str(number), duration=timedelta(seconds=seconds))


# ---- the bank's side


@pytest.mark.parametrize(
    ("state", "age", "served"),
    [
        (DemandState.OPEN, UNSERVED, True),
        (DemandState.OPEN, UNSERVED + SECOND, False),
        (DemandState.RAISED, UNSERVED + SECOND, False),
        (DemandState.PARTIAL, UNSERVED + SECOND, True),
        (DemandState.PARTIAL, TRY_AGAIN + UNSERVED, True),
        (DemandState.PARTIAL, TRY_AGAIN + UNSERVED + SECOND, False),
    ],
)
def test_a_demand_may_be_without_its_reclaim_for_a_minute_or_until_its_restart_is_due(
    state: DemandState, age: timedelta, served: bool
) -> None:
    assert (unserved(books(state, age=age), TERMS, (), NOW) == ()) is served
    assert waiting_lenders(books(state, age=age), TERMS, NOW) == (() if served else ("b",))


def test_a_running_reclaim_serves_its_own_lender_and_no_other() -> None:
    late = books(age=timedelta(hours=1))
    assert unserved(late, TERMS, ("b",), NOW) == ()
    assert unserved(late, TERMS, ("a",), NOW) == late.demands


def test_a_demand_that_was_opened_anew_has_its_minute_again() -> None:
    assert unserved(books(age=timedelta(hours=1), moved=SECOND), TERMS, (), NOW) == ()


def test_in_a_frozen_pool_nobody_has_to_be_served() -> None:
    frozen = TERMS.model_copy(update={"freeze": Freeze(by="ops", reason="an incident")})
    assert unserved(books(age=timedelta(hours=1)), frozen, (), NOW) == ()


def test_only_what_differs_from_the_policies_is_promised() -> None:
    rows = tuple(Guarantee(group=name, in_force=gpus) for name, gpus in (("a", 8), ("b", 12), ("gone", 4)))
    known = Books(cluster=CLUSTER, pool=POOL, guarantees=rows)
    assert promises(known, TERMS) == {"b": 12, "gone": 4}


# ---- the watchdog's side


def seen(*looks: tuple[float, Beat | None]) -> Pulse:
    """The pulse after looks at these moments."""
    pulse: Pulse | None = None
    for at, found in looks:
        pulse = looked(pulse, found, at)
    assert pulse is not None
    return pulse


def test_a_lease_is_stale_when_it_did_not_change_for_so_long() -> None:
    assert not seen((0, beat(1)), (300, beat(1))).is_stale(AFTER)
    assert seen((0, beat(1)), (300.1, beat(1))).is_stale(AFTER)
    assert not seen((0, beat(1)), (300.1, beat(2))).is_stale(AFTER)


def test_a_missing_lease_is_stale_like_one_that_does_not_change() -> None:
    assert not seen((0, None), (299, None)).is_stale(AFTER)
    assert seen((0, None), (301, None)).is_stale(AFTER)
    assert seen((0, beat(1)), (10, None), (301, None)).is_stale(AFTER), "its deletion is no sign of life"
    assert seen((0, beat(1)), (10, None), (301, beat(1))).is_stale(AFTER), "nor is the old one's return"


def test_a_watchdog_that_has_just_started_knows_nothing() -> None:
    first = seen((1e6, beat(1)))
    assert not first.is_stale(AFTER)
    assert not first.is_well(AFTER)


def test_time_in_which_nobody_could_look_proves_nothing() -> None:
    pulse = looked(seen((0, beat(1)), (100, beat(1))), beat(1), 4000, blind=True)
    assert not pulse.is_stale(AFTER)
    assert looked(pulse, beat(1), 4201).is_stale(AFTER), "but what was seen before counts"


def test_the_way_back_needs_unbroken_renewals_for_as_long() -> None:
    looks = [(float(at), beat(at)) for at in range(0, 331, 30)]
    assert seen(*looks).chain() == 300
    assert seen(*looks).is_well(AFTER)
    assert not seen(*looks[:-1]).is_well(AFTER)


def test_one_gap_longer_than_a_renewal_lasts_breaks_the_chain() -> None:
    looks = [(float(at), beat(at)) for at in range(0, 301, 30)]
    late = [(float(at), beat(at)) for at in range(346, 400, 30)]
    assert seen(*looks, *late).chain() == 30
    assert seen(*looks, (310, None), (320, beat(999))).chain() == 0
    assert not seen(*looks, (346, beat(300))).is_well(AFTER), "and is seen before the next renewal"


@given(
    st.lists(
        st.tuples(st.floats(0.1, 400), st.sampled_from(["same", "next", "gone"]), st.booleans()),
        min_size=1,
        max_size=30,
    )
)
def test_a_pulse_is_never_stale_and_well_at_once_and_never_counts_time_that_has_not_passed(
    looks: list[tuple[float, str, bool]],
) -> None:
    now, number = 0.0, 0
    pulse = looked(None, beat(0), 0.0)
    renewed: list[float] = []
    for wait, kind, blind in looks:
        now += wait
        number += kind == "next"
        if kind == "next":
            renewed.append(now)
        pulse = looked(pulse, None if kind == "gone" else beat(number), now, blind=blind)
        assert 0 <= pulse.silence() <= now - max(renewed, default=0.0) + 1e-6
        assert 0 <= pulse.chain() <= now - min(renewed, default=now) + 1e-6
        assert not (pulse.is_stale(AFTER) and pulse.is_well(AFTER))
        if kind == "gone":
            assert pulse.chain() == 0
