import pickle
from datetime import UTC, datetime, timedelta

from gpubank.domain.conditions import FROZEN, READY
from gpubank.domain.errors import IllegalTransitionError, InvalidObjectError, Problem
from gpubank.domain.meta import Condition, ConditionStatus, ObjectMeta, is_true, with_condition
from gpubank.domain.pool import GPUPool, GPUPoolSpec, GPUPoolStatus

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(minutes=5)


def ready(status: ConditionStatus, reason: str = "Applied") -> Condition:
    return Condition(type=READY, status=status, reason=reason)


def test_the_transition_time_stays_while_the_status_stays() -> None:
    first = with_condition((), ready(ConditionStatus.FALSE), NOON)
    second = with_condition(first, ready(ConditionStatus.FALSE, "NoShare"), LATER)
    assert second[0].last_transition_time == NOON
    assert second[0].reason == "NoShare"


def test_the_transition_time_moves_with_the_status() -> None:
    first = with_condition((), ready(ConditionStatus.FALSE), NOON)
    assert with_condition(first, ready(ConditionStatus.TRUE), LATER)[0].last_transition_time == LATER


def test_a_condition_takes_the_place_of_its_own_type_only() -> None:
    frozen = Condition(type=FROZEN, status=ConditionStatus.TRUE, reason="Ordered")
    both = with_condition(with_condition((), ready(ConditionStatus.FALSE), NOON), frozen, NOON)
    after = with_condition(both, ready(ConditionStatus.TRUE), LATER)
    assert [condition.type for condition in after] == [READY, FROZEN]
    assert is_true(after, READY)
    assert is_true(after, FROZEN)
    assert not is_true((), READY)


def test_an_object_of_the_api_server_is_read_and_written_without_its_bookkeeping() -> None:
    stored = {
        "apiVersion": "platform.aik8s.run/v1alpha1",
        "kind": "GPUPool",
        "metadata": {
            "name": "h100",
            "uid": "u",
            "generation": 2,
            "resourceVersion": "7",
            "creationTimestamp": "2026-01-01T12:00:00Z",
            "managedFields": [{"manager": "kubectl"}],
            "ownerReferences": [{"apiVersion": "v1", "kind": "X", "name": "x", "uid": "u"}],
        },
        "spec": {"capacity": 8},
        "status": {"allocatable": 8, "conditions": [], "fieldOfANewerVersion": 1},
    }
    pool = GPUPool.from_wire(stored)
    assert pool.metadata.generation == 2
    assert not pool.metadata.deleting
    assert pool.status == GPUPoolStatus(allocatable=8)
    assert "managedFields" not in pool.to_wire()["metadata"]
    assert GPUPool.from_wire(pool.to_wire()) == pool.model_copy(
        update={"metadata": pool.metadata.model_copy(update={"managed_fields": ()})}
    )


def test_a_new_object_is_written_without_empty_parts() -> None:
    body = GPUPool(metadata=ObjectMeta(name="h100"), spec=GPUPoolSpec(capacity=8)).to_wire()
    assert body["metadata"] == {"name": "h100"}
    assert "status" not in body


def test_errors_survive_pickling_whole() -> None:
    move = pickle.loads(pickle.dumps(IllegalTransitionError("loan 'l'", "GRANTED", "OFFERED")))
    assert str(move) == "loan 'l' is GRANTED: it cannot become OFFERED"
    invalid = pickle.loads(pickle.dumps(InvalidObjectError("x", [Problem("spec.a", "1", "must be 2", "write 2")])))
    assert str(invalid) == "x is refused: spec.a is 1: must be 2; write 2"
