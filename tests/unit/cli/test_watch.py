"""`--watch`: what is appended, and what is drawn anew."""

import json
from collections.abc import Callable

import pytest
from typer.testing import Result

from gpubank.cli import watch
from gpubank.domain.recall import LoanPhase
from tests.unit.cli.bench import Bench
from tests.unit.cli.records import loan

Call = Callable[..., Result]
Act = Callable[[], None]


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Do something between two looks each, and interrupt after the last."""

    def plan(*acts: Act) -> None:
        left = iter(acts)

        async def pause() -> None:
            act = next(left, None)
            if act is None:
                raise KeyboardInterrupt
            act()

        monkeypatch.setattr(watch, "pause", pause)

    return plan


def nothing() -> None:
    """No change."""


def test_only_what_changes_is_appended_with_its_time(bench: Bench, call: Call, between: Callable[..., None]) -> None:
    def park() -> None:
        parked = bench.processes.states[loan("train")].model_copy(update={"phase": LoanPhase.RECALLED})
        bench.processes.states[loan("train")] = parked
        row = bench.processes.rows[1].model_copy(update={"phase": LoanPhase.RECALLED})
        bench.processes.rows[1] = row

    def end() -> None:
        del bench.processes.rows[2]

    between(nothing, park, nothing, end, nothing)
    result = call("loan", "list", "--watch")
    assert result.exit_code == 130
    rows = [line.split() for line in result.stdout.splitlines()]
    assert rows[0][:3] == ["TIME", "WORKLOAD", "GROUP"]
    assert [row[1] for row in rows[1:]] == [
        "search/next",
        "search/sweep",
        "search/train",
        "search/tune",
        "search/train",
        "search/sweep",
    ]
    assert rows[5][7] == "Recalled"
    assert rows[6][-1] == "(gone)"
    assert all(len(row[0]) == len("09:00:00Z") and row[0].endswith("Z") for row in rows[1:])


def test_as_json_changes_come_one_per_line(bench: Bench, call: Call, between: Callable[..., None]) -> None:
    between(nothing)
    result = call("quota", "--watch", "-o", "json")
    events = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(event["type"], event["object"]["group"]) for event in events] == [("ADDED", "ads"), ("ADDED", "search")]


def test_as_names_whoever_goes_is_not_named(bench: Bench, call: Call, between: Callable[..., None]) -> None:
    between(lambda: bench.processes.rows.clear())
    result = call("loan", "list", "--watch", "-o", "name")
    before = ["next", "sweep", "train", "tune"]
    # Of tune less is known without its process; sweep, which has no line, is gone.
    assert result.stdout.split() == [loan(name) for name in (*before, "tune")]


def test_one_loan_and_one_recall_can_be_followed(bench: Bench, call: Call, between: Callable[..., None]) -> None:
    between(nothing)
    one = call("loan", "show", "tune", "--watch", "-o", "json")
    assert json.loads(one.stdout)["object"]["phase"] == "Checkpointing"
    between(nothing)
    recall = call("reclaim", "show", "ads", "--watch")
    assert recall.stdout.splitlines()[1].split()[1:4] == ["h100", "ads", "AwaitingApproval"]


def test_what_is_missing_is_said_once_and_the_watch_goes_on(
    bench: Bench, call: Call, between: Callable[..., None]
) -> None:
    def back() -> None:
        bench.processes.down = ""

    bench.processes.down = "Temporal does not answer"
    between(nothing, nothing, back)
    result = call("loan", "list", "--watch")
    assert result.stderr == "gpubank: incomplete: Temporal does not answer\n"
    assert "Parked" in result.stdout, "it is seen again as soon as Temporal answers"


def test_a_terminal_shows_one_table(
    bench: Bench, call: Call, between: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    between(nothing, nothing)
    monkeypatch.setattr(watch, "on_terminal", lambda: True)
    result = call("quota", "--watch")
    assert result.exit_code == 130
    assert result.stdout.count("GUARANTEED") >= 1
    assert "TIME" not in result.stdout
