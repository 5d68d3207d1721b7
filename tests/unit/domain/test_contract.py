from datetime import timedelta

import pytest

from gpubank.domain import contract
from gpubank.domain.contract import CheckpointHook, ReclaimClass, Side, Transport, WorkloadContract
from gpubank.domain.policy import PreemptClass

TYPE, RETRY, ROLE = contract.WORKLOAD_TYPE_LABEL, contract.RETRYABLE_LABEL, contract.CAPACITY_ROLE_LABEL
HOOK = {
    contract.CHECKPOINT_TRANSPORT_ANNOTATION: "http",
    contract.CHECKPOINT_STORAGE_ANNOTATION: "s3://bucket/run",
    contract.CHECKPOINT_ENDPOINT_ANNOTATION: ":8080",
}


@pytest.mark.parametrize(
    ("labels", "annotations", "want"),
    [
        pytest.param({}, {}, ReclaimClass.UNSAVEABLE, id="says-nothing"),
        pytest.param({TYPE: "training"}, {}, ReclaimClass.UNSAVEABLE, id="training-alone"),
        pytest.param({TYPE: "batch"}, {}, ReclaimClass.UNSAVEABLE, id="batch-is-not-yet-retryable"),
        pytest.param({RETRY: "true"}, {}, ReclaimClass.RETRYABLE, id="retryable"),
        pytest.param({RETRY: "false"}, HOOK, ReclaimClass.CHECKPOINTABLE, id="hook"),
        pytest.param({RETRY: "true"}, HOOK, ReclaimClass.RETRYABLE, id="retryable-is-cheaper-than-a-hook"),
        pytest.param({TYPE: "notebook"}, {}, ReclaimClass.NOTEBOOK, id="notebook"),
        pytest.param({TYPE: "notebook"}, HOOK, ReclaimClass.CHECKPOINTABLE, id="notebook-with-hook"),
        pytest.param(
            {TYPE: "inference", RETRY: "true"}, HOOK, ReclaimClass.INFERENCE, id="inference-is-never-a-victim"
        ),
        pytest.param({ROLE: "serving-floor", RETRY: "true"}, {}, ReclaimClass.INFERENCE, id="a-role-is-never-a-victim"),
    ],
)
def test_a_workload_has_the_cheapest_class_it_qualifies_for(
    labels: dict[str, str], annotations: dict[str, str], want: ReclaimClass
) -> None:
    read = WorkloadContract.of(labels, annotations)
    assert read.reclaim_class is want
    assert not read.problems


@pytest.mark.parametrize(
    ("labels", "annotations", "field"),
    [
        ({TYPE: "serving"}, {}, TYPE),
        ({RETRY: "yes"}, {}, RETRY),
        ({}, {contract.EXPECTED_DURATION_ANNOTATION: "soon"}, contract.EXPECTED_DURATION_ANNOTATION),
        ({}, HOOK | {contract.CHECKPOINT_TRANSPORT_ANNOTATION: "ftp"}, contract.CHECKPOINT_TRANSPORT_ANNOTATION),
        ({}, HOOK | {contract.CHECKPOINT_STORAGE_ANNOTATION: "bucket"}, contract.CHECKPOINT_STORAGE_ANNOTATION),
        ({}, {contract.CHECKPOINT_STORAGE_ANNOTATION: "s3://b"}, contract.CHECKPOINT_TRANSPORT_ANNOTATION),
        (
            {},
            {contract.CHECKPOINT_TRANSPORT_ANNOTATION: "exec", contract.CHECKPOINT_STORAGE_ANNOTATION: "s3://b"},
            contract.CHECKPOINT_ENDPOINT_ANNOTATION,
        ),
    ],
)
def test_what_is_malformed_is_named_and_never_makes_a_workload_easier_to_stop(
    labels: dict[str, str], annotations: dict[str, str], field: str
) -> None:
    read = WorkloadContract.of(labels, annotations)
    assert [field in problem.field for problem in read.problems] == [True]
    assert read.reclaim_class is ReclaimClass.UNSAVEABLE
    assert not read.reclaim_class.may_borrow


def test_a_contract_survives_the_way_through_a_workflow() -> None:
    read = WorkloadContract.of({RETRY: "true"}, HOOK | {contract.EXPECTED_DURATION_ANNOTATION: "90m"})
    assert read.expected_duration == timedelta(minutes=90)
    assert read.checkpoint == CheckpointHook(transport=Transport.HTTP, storage="s3://bucket/run", endpoint=":8080")
    assert WorkloadContract.model_validate_json(read.model_dump_json()) == read


def test_every_class_but_inference_has_a_name_in_policies() -> None:
    named = {reclaim.preempt_class for reclaim in ReclaimClass}
    assert named == {*PreemptClass, None}
    assert ReclaimClass.INFERENCE.preempt_class is None


def test_queue_names_come_apart_again() -> None:
    assert contract.queue_parts(contract.own_queue("search", "h100")) == ("search", "h100", Side.OWN)
    assert contract.queue_parts(contract.borrow_queue("search", "h100")) == ("search", "h100", Side.BORROW)
    for foreign in ("search", "search.h100", "a.b.c", ".h100.own", "a.b.c.own"):
        assert contract.queue_parts(foreign) is None


def test_the_borrow_queue_of_the_longest_pool_name_fits_a_label() -> None:
    assert len(contract.local_borrow_queue("p" * 56)) == 63
