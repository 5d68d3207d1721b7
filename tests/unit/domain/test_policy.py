from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gpubank.domain.lease import CapacityLease, CapacityLeaseSpec, term_problem
from gpubank.domain.meta import Condition, ConditionStatus, ObjectMeta
from gpubank.domain.policy import GPUQuotaPolicySpec, PreemptClass
from gpubank.domain.pool import GPUPoolSpec, PoolLimits, Share

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def spec(
    guaranteed: int = 8, borrow: int | None = None, lend: int | None = None, most: int | None = None
) -> GPUQuotaPolicySpec:
    return GPUQuotaPolicySpec(
        business_group="a",
        resource_pool="p",
        guaranteed=guaranteed,
        borrow_limit=borrow,
        lending_limit=lend,
        max_capacity=most,
    )


@pytest.mark.parametrize(
    ("policy", "borrow", "lend", "most"),
    [
        pytest.param(spec(8), 0, 8, 8, id="only-a-guarantee-borrows-nothing-and-lends-all"),
        pytest.param(spec(8, most=12), 4, 8, 12, id="maxCapacity-alone-gives-the-borrow-limit"),
        pytest.param(spec(8, borrow=3), 3, 8, 11, id="borrowLimit-alone-gives-the-capacity"),
        pytest.param(spec(8, borrow=2, lend=0, most=12), 2, 0, 12, id="what-is-said-stands"),
        pytest.param(spec(0, most=4), 4, 0, 4, id="a-group-may-only-borrow"),
    ],
)
def test_absent_limits_have_a_meaning(policy: GPUQuotaPolicySpec, borrow: int, lend: int, most: int) -> None:
    assert policy.effective_borrow_limit == borrow
    assert policy.effective_lending_limit == lend
    assert policy.effective_max_capacity == most


@pytest.mark.parametrize(
    ("limits", "beyond", "rule"),
    [
        ({"lend": 8}, {"lend": 9}, "must not exceed guaranteed .*write at most 8"),
        ({"most": 8}, {"most": 7}, "must be at least guaranteed"),
        ({"borrow": 4, "most": 12}, {"borrow": 5, "most": 12}, "must not exceed maxCapacity .*write at most 4,"),
    ],
)
def test_a_limit_may_reach_what_bounds_it_and_not_exceed_it(
    limits: dict[str, int], beyond: dict[str, int], rule: str
) -> None:
    spec(8, **limits)
    with pytest.raises(ValidationError, match=rule):
        spec(8, **beyond)


LIMIT = st.none() | st.integers(0, 40)


@given(guaranteed=st.integers(0, 40), borrow=LIMIT, lend=LIMIT, most=LIMIT)
def test_an_accepted_policy_keeps_its_order_of_limits_and_survives_the_wire(
    guaranteed: int, borrow: int | None, lend: int | None, most: int | None
) -> None:
    impossible = (
        (lend is not None and lend > guaranteed)
        or (most is not None and guaranteed > most)
        or (most is not None and borrow is not None and guaranteed + borrow > most)
    )
    if impossible:
        with pytest.raises(ValidationError):
            spec(guaranteed, borrow, lend, most)
        return
    policy = spec(guaranteed, borrow, lend, most)
    assert 0 <= policy.effective_lending_limit <= guaranteed
    assert guaranteed + policy.effective_borrow_limit <= policy.effective_max_capacity
    assert GPUQuotaPolicySpec.from_wire(policy.to_wire()) == policy


def test_unsaveable_work_is_stopped_only_where_a_policy_names_it() -> None:
    assert PreemptClass.UNSAVEABLE not in spec().reclaim_policy.only_preempt
    assert len(spec().reclaim_policy.only_preempt) == 3


def test_the_defaults_of_a_pool_leave_time_for_a_recall() -> None:
    limits = PoolLimits()
    assert limits.min_run_time + limits.max_grace_period <= limits.max_time_to_return


def test_a_pool_may_promise_more_than_it_has_for_that_is_a_condition_and_no_refusal() -> None:
    pool = GPUPoolSpec(
        capacity=8, shares=(Share(business_group="a", guaranteed=6), Share(business_group="b", guaranteed=6))
    )
    assert pool.guaranteed_by_shares == 12


def lease(until: datetime, *, approved: ConditionStatus = ConditionStatus.TRUE, judged: int = 1) -> CapacityLease:
    made = CapacityLease(
        metadata=ObjectMeta(name="l", namespace="n", generation=1, creation_timestamp=NOON),
        spec=CapacityLeaseSpec(pool="p", gpus=1, until=until, reason="r"),
    )
    condition = Condition(type="Approved", status=approved, reason="Agreed", observed_generation=judged)
    return made.model_copy(update={"status": made.status.model_copy(update={"conditions": (condition,)})})


def test_a_lease_is_approved_only_as_it_stands() -> None:
    until = NOON + timedelta(hours=1)
    assert lease(until).approved
    assert not lease(until, approved=ConditionStatus.FALSE).approved
    assert not lease(until, judged=0).approved


@pytest.mark.parametrize(
    ("hours", "limit", "fine"),
    [(1, 24, True), (24, 24, True), (25, 24, False), (25, 48, False), (5, 4, False), (0, 24, False)],
)
def test_a_lease_ends_within_a_day_and_within_its_pools_limit(hours: int, limit: int, fine: bool) -> None:
    until = NOON + timedelta(hours=hours)
    problem = term_problem(lease(until), now=NOON + timedelta(hours=9), max_lease=timedelta(hours=limit))
    assert (problem is None) == fine
