"""Ids and names that others hold for long: workflows that run, objects at the API server, a person's script."""

from datetime import UTC, datetime, timedelta

import pytest

from gpubank.domain import contract, failsafe, faults, incident, recall, sweep
from gpubank.domain.incident import IncidentWord
from gpubank.domain.incidentsteps import IncidentStep
from gpubank.domain.policy import OnCheckpointFailure
from gpubank.domain.recall import LoanState, RecallOrder


def test_a_workflow_is_found_again_by_what_it_is_about() -> None:
    assert recall.loan_id("east", "u-1") == "loan/east/u-1"
    assert recall.reclaim_id("east", "h100", "vision") == "reclaim/east/h100/vision"
    assert incident.incident_id("east", "node-7", "GPU-1") == "incident/east/node-7/GPU-1"
    assert failsafe.heartbeat_id("east", "h100") == "heartbeat/east/h100"
    assert sweep.sweep_schedule("east") == "sweep/east"


def test_a_sign_of_life_is_a_lease_whose_name_an_object_may_have() -> None:
    assert failsafe.heartbeat_lease("east", "h100") == "heartbeat-east-h100"
    assert failsafe.loop_lease("east", "h100") == "loop-east-h100"


def test_a_nodes_reporter_has_a_task_queue_of_its_own() -> None:
    assert incident.node_queue("east", "node-7") == "node-east-node-7"


def test_queues_and_cohort_are_named_by_group_and_pool() -> None:
    assert contract.own_queue("vision", "h100") == "vision.h100.own"
    assert contract.borrow_queue("vision", "h100") == "vision.h100.borrow"
    assert (contract.local_own_queue("h100"), contract.local_borrow_queue("h100")) == ("h100", "h100-borrow")
    assert contract.cohort_name("h100") == "gpubank-h100"


def test_a_beat_is_good_for_a_few_that_are_missed_and_for_seconds_where_beats_are_quick() -> None:
    slow = failsafe.HeartbeatInput(cluster="east", pool="h100", every=timedelta(seconds=10))
    quick = failsafe.HeartbeatInput(cluster="east", pool="h100", every=timedelta(milliseconds=100))
    assert (slow.lasts, quick.lasts) == (timedelta(seconds=45), timedelta(seconds=6))


@pytest.mark.parametrize("point", faults.FaultPoint)
@pytest.mark.parametrize("position", faults.Position)
def test_a_spot_reads_back_as_it_was_written(point: faults.FaultPoint, position: faults.Position) -> None:
    assert faults.Spot.of(str(faults.Spot(point, position))) == faults.Spot(point, position)


@pytest.mark.parametrize("text", ["", "plan", "plan.", "plan.later", "nowhere.before", "plan.before.after"])
def test_what_names_no_spot_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a valid"):
        faults.Spot.of(text)


def test_a_word_on_an_incident_says_who_spoke_and_whether_that_is_certain() -> None:
    assert IncidentWord(identity="pia", verified=True).said == "pia"
    assert IncidentWord(identity="pia", reason="burnt").said == "pia (unverified): burnt"


def test_a_step_of_another_incident_of_the_same_gpu_has_another_key() -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    step = IncidentStep(incident="incident/east/n/GPU-1", cluster="east", node="n", uuid="GPU-1", opened_at=noon)
    assert step.key("cordon") == "incident/east/n/GPU-1/20260101T120000.000000Z/cordon"
    later = step.model_copy(update={"opened_at": noon + timedelta(microseconds=1)})
    assert later.key("cordon") != step.key("cordon")


def order(reclaim: str, demand: str) -> RecallOrder:
    return RecallOrder(
        reclaim=reclaim,
        demand=demand,
        lender="b",
        kind="Workload",
        reason="own work waits",
        line_ids=("h100-1",),
        needs_checkpoint=False,
        on_checkpoint_failure=OnCheckpointFailure.PROTECT,
        deadline=datetime(2026, 1, 1, 12, tzinfo=UTC),
    )


def test_a_reclaim_of_two_demands_is_answered_once_and_a_person_by_no_reclaim() -> None:
    state = LoanState(orders=(order("r", "d1"), order("", "return/1"), order("r", "d2"), order("s", "d3")))
    assert state.reclaims == ("r", "s")
    assert state.order == state.orders[0]
    assert LoanState().order is None
