"""What a record says of itself."""

import pytest

from gpubank.domain.checkpoint import CheckpointAnswer, CheckpointRequest, CheckpointState
from gpubank.domain.demand import DemandState
from gpubank.domain.errors import IllegalTransitionError
from gpubank.domain.ledger import Finding, FindingKind, VerifyReport
from gpubank.domain.recall import LOAN_MOVES, LoanPhase, moved
from gpubank.domain.steps import CheckpointOutcome, DemandView
from tests.unit.domain.bookkeeping import TEN


def test_a_request_goes_out_under_the_names_of_the_contract() -> None:
    request = CheckpointRequest(id="loan/1", epoch=2, deadline=TEN, reason="own work waits")
    assert request.to_wire() == '{"id":"loan/1","epoch":2,"deadline":"2026-03-01T10:00:00Z","reason":"own work waits"}'


def test_only_durable_and_failed_are_the_last_word_of_a_trainer() -> None:
    final = {state for state in CheckpointState if CheckpointAnswer(state=state).is_final}
    assert final == {CheckpointState.DURABLE, CheckpointState.FAILED}


@pytest.mark.parametrize("said", [{"failure": "disk full"}, {"finished": True}, {"nothing_to_save": True}])
def test_an_outcome_is_the_last_once_nothing_more_can_come(said: dict[str, object]) -> None:
    assert CheckpointOutcome.model_validate(said).is_last
    assert not CheckpointOutcome(requested_at=TEN).is_last


def test_somebody_waits_for_a_demand_while_it_is_open_or_raised() -> None:
    assert {state for state in DemandState if DemandView(state=state).live} == {DemandState.OPEN, DemandState.RAISED}
    assert not DemandView().live


def test_a_ledger_is_well_if_nothing_was_found() -> None:
    bad = Finding(kind=FindingKind.UNBALANCED, row="postings/7", message="sums to 1 GPU-ms")
    report = VerifyReport(postings=2, lines=1, audit_events=1, head="ab")
    assert report.ok
    assert not report.model_copy(update={"findings": (bad,)}).ok


def test_a_phase_moves_only_as_its_table_says() -> None:
    assert moved("loan 'x'", LOAN_MOVES, LoanPhase.ACTIVE, LoanPhase.RECALLED) is LoanPhase.RECALLED
    with pytest.raises(IllegalTransitionError, match="loan 'x'"):
        moved("loan 'x'", LOAN_MOVES, LoanPhase.CLOSED, LoanPhase.ACTIVE)
