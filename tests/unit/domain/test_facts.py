"""What the facts of a Workload say of it."""

from datetime import UTC, datetime

import pytest

from gpubank.domain.base import MAX_GPUS, bounded
from gpubank.domain.contract import Side
from gpubank.domain.facts import PodFacts, WorkloadFacts
from gpubank.domain.loan import WorkloadKey

NOW = datetime(2026, 11, 2, tzinfo=UTC)
RUNS = PodFacts(uid="r", name="r", gpus=8, node="n", running=True)
STARTS = PodFacts(uid="s", name="s", gpus=8, node="n")
ENDS = PodFacts(uid="e", name="e", gpus=8, node="n", running=True, terminating=True)


@pytest.mark.parametrize(
    ("pods", "works"), [((), False), ((STARTS,), False), ((ENDS,), False), ((ENDS, STARTS, RUNS), True)]
)
def test_a_workload_works_while_a_pod_runs_that_is_not_being_ended(pods: tuple[PodFacts, ...], works: bool) -> None:
    workload = WorkloadFacts(
        key=WorkloadKey(uid="w", namespace="team", name="w"),
        group="a",
        kind=Side.BORROW,
        gpus=8,
        created_at=NOW,
        waiting_since=NOW,
        pod_facts=pods,
    )
    assert workload.works is works


def test_amounts_are_bounded_on_both_sides() -> None:
    assert [bounded(gpus) for gpus in (-1, 0, 7, MAX_GPUS, MAX_GPUS + 1)] == [0, 0, 7, MAX_GPUS, MAX_GPUS]
