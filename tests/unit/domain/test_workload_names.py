"""What a Workload is called where people read it."""

import pytest

from gpubank.domain.loan import WorkloadKey


@pytest.mark.parametrize(
    ("job", "title", "short"),
    [
        pytest.param("Job/train", "Job/train", "ml/train", id="a job"),
        pytest.param("", "job-train-7", "ml/job-train-7", id="nothing but the Workload is known"),
    ],
)
def test_a_workload_is_called_by_its_job_where_that_is_known(job: str, title: str, short: str) -> None:
    key = WorkloadKey(uid="u", namespace="ml", name="job-train-7", job=job)
    assert (key.title, key.short) == (title, short)
