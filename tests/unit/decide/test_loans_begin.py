"""How many loans begin at a time: each takes some writes and a fence, and hundreds would keep each other."""

from datetime import timedelta

import pytest

from gpubank.domain.contract import Side
from tests.unit.decide.model import Model
from tests.unit.decide.parts import NOW, group_terms, pool_terms

BORROW = Side.BORROW


def test_only_some_loans_begin_at_a_time_and_all_come_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpubank.decide.lend.MOST_BEGINNING", 3)
    model = Model(
        pool_terms(group_terms("a", 0), group_terms("b", 24), capacity=24), {f"node-{i}": 8 for i in range(3)}
    )
    model.settle()
    for number in range(8):
        model.submit(f"x-{number}", "a", BORROW, 1, created_at=NOW + timedelta(seconds=number))
    most = 0
    for _ in range(60):
        model.round()
        model.now += timedelta(milliseconds=300)
        beginning = [uid for uid, job in model.jobs.items() if model.books.lines_of(uid) and not job.reserved]
        most = max(most, len(beginning))
    assert most == 3
    assert all(job.reserved for job in model.jobs.values())
