"""A worker under measurement, small: its process is asked, answers, and does what a recall needs."""

import pytest

from benchmarks.worker import measure


@pytest.mark.temporal
async def test_loans_of_a_worker_in_its_own_process_idle_are_recalled_and_end() -> None:
    report = await measure(["sqlite"], loans=10, recalls=2)
    figures = report.figures["sqlite"]
    assert [loans for loans, _ in figures["mb_by_loans"]] == [5, 5, 6, 6, 7, 8, 8, 9, 10]
    assert figures["recalls_per_second"] > 0
    assert figures["cores_while_recalling"].keys() == {"worker", "temporal"}
    assert figures["loan_life_events"]["max"] < 100
    assert not [name for name in report.figures if name.endswith("_ratio")], "there is nothing to compare with"
