"""What people may order about a loan, and what they are told where they may not."""

from datetime import UTC, datetime, timedelta

import pytest

from gpubank.domain.notice import extension_refusal, return_refusal
from gpubank.domain.policy import OnCheckpointFailure
from gpubank.domain.recall import LoanPhase, LoanState, RecallOrder

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def recalled(*latest: timedelta | None, overdue: bool = False, phase: LoanPhase = LoanPhase.CHECKPOINTING) -> LoanState:
    """A loan whose notice ends at noon, recalled by one order for each latest end after noon."""
    orders = tuple(
        RecallOrder(
            reclaim=f"r{number}",
            demand=f"d{number}",
            lender="b",
            kind="Workload",
            reason="own work waits",
            line_ids=("h100-1",),
            needs_checkpoint=False,
            on_checkpoint_failure=OnCheckpointFailure.PROTECT,
            deadline=NOON,
            latest_deadline=None if each is None else NOON + each,
            overdue=overdue,
        )
        for number, each in enumerate(latest)
    )
    return LoanState(phase=phase, orders=orders, deadline=NOON)


@pytest.mark.parametrize("phase", [LoanPhase.RECALLED, LoanPhase.CHECKPOINTING])
def test_a_notice_that_runs_is_extended_up_to_the_pools_limit_and_no_further(phase: LoanPhase) -> None:
    state = recalled(5 * MINUTE, phase=phase)
    assert extension_refusal("loan/x", state, 5 * MINUTE) == ""
    assert extension_refusal("loan/x", state, 5 * MINUTE + timedelta(seconds=1)) == (
        "loan 'loan/x' has notice until 2026-01-01 12:00:00 UTC, and the pool's maxGracePeriod allows it until"
        " 2026-01-01 12:05:00 UTC: 5m1s more is too much"
    )


def test_of_several_recalls_the_strictest_limits_the_notice() -> None:
    state = recalled(9 * MINUTE, None, 2 * MINUTE)
    assert extension_refusal("loan/x", state, 2 * MINUTE) == ""
    assert "until 2026-01-01 12:02:00 UTC" in extension_refusal("loan/x", state, 3 * MINUTE)


def test_a_recall_that_allows_no_extension_gets_none() -> None:
    assert "allows it until –" in extension_refusal("loan/x", recalled(None), MINUTE)


@pytest.mark.parametrize(
    "state",
    [
        LoanState(phase=LoanPhase.ACTIVE),
        recalled(9 * MINUTE, phase=LoanPhase.STOPPING),
        LoanState(phase=LoanPhase.RECALLED, deadline=NOON),
        recalled(9 * MINUTE).model_copy(update={"deadline": None}),
    ],
    ids=["runs", "is stopping", "no recall", "no notice"],
)
def test_where_no_notice_runs_there_is_nothing_to_extend(state: LoanState) -> None:
    assert extension_refusal("loan/x", state, MINUTE).endswith("only the notice of a recall can be extended")


def test_a_loan_that_is_overdue_gets_no_more_time() -> None:
    assert extension_refusal("loan/x", recalled(9 * MINUTE, overdue=True), MINUTE) == (
        "loan 'loan/x' is overdue: its notice is over; return it"
    )


def test_a_loan_that_runs_and_that_nobody_wants_back_can_be_returned_once() -> None:
    state = LoanState(phase=LoanPhase.ACTIVE)
    assert return_refusal("loan/x", state) == ""
    assert "is recalled already" in return_refusal("loan/x", state, asked=True)


@pytest.mark.parametrize(
    ("state", "what"),
    [
        (recalled(None, phase=LoanPhase.ACTIVE), "recalled already"),
        (LoanState(phase=LoanPhase.PARKED), str(LoanPhase.PARKED)),
        (LoanState(phase=LoanPhase.ACTIVE, finished=True), str(LoanPhase.ACTIVE)),
    ],
)
def test_a_loan_that_does_not_run_freely_cannot_be_returned(state: LoanState, what: str) -> None:
    assert return_refusal("loan/x", state) == f"loan 'loan/x' is {what}: only one that runs can be returned"
