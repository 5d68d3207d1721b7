"""The worlds that decisions are measured on: sound, of the size that was asked for, and at rest."""

import pytest

from benchmarks.decide import main
from benchmarks.worlds import NOW, SIZE, Size, with_demand, world
from gpubank.decide.compile import writes
from gpubank.decide.recall import plan_recall
from gpubank.decide.step import SignalKind, step
from gpubank.domain.loan import SURPLUS


def test_a_world_holds_as_much_as_was_asked_for_and_every_quota_is_written() -> None:
    at = world(Size(groups=7, loans=40, own=10, waiting=6, slack=SIZE))
    assert (len(at.terms.groups), len(at.books.lines), len(at.facts.workloads)) == (7, 40, 56)
    assert not writes(at.books, at.facts)
    assert min(at.books.own_nominal(group) for group in at.books.groups) >= 0
    assert at.books.surplus == 0
    assert not at.books.lent(SURPLUS)


def test_a_world_is_at_rest_and_every_loan_of_it_runs() -> None:
    at = world(Size(groups=7, loans=40, own=10))
    decided = step(at.facts, at.books, at.terms, NOW)
    assert not decided.transactions
    assert [signal.kind for signal in decided.signals] == [SignalKind.GRANTED] * 40


def test_the_demand_of_a_world_is_met_by_as_many_victims_as_it_has_pods() -> None:
    demanding, demand = with_demand(world(Size(groups=5, loans=40, own=5)), 4 * SIZE)
    plan = plan_recall(demanding.facts, demanding.books, demanding.terms, demand, now=NOW)
    assert plan.complete
    assert len(plan.victims) == 4


def test_every_decision_is_measured_at_every_size(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--loans", "20", "40", "--groups", "5", "--repeats", "1"])
    said = capsys.readouterr().out
    assert all(name in said for name in ("step", "recall", "transaction", "compile", "grows as loans^"))
