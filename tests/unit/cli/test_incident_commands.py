"""`gpubank incident ...`."""

import json
from collections.abc import Callable

import pytest
from typer.testing import Result

from gpubank.domain.errors import PolicyError
from gpubank.domain.incident import Asks, IncidentWord
from tests.unit.cli.bench import Bench
from tests.unit.cli.incident_records import ASKING, DRAINING, ENDED

Call = Callable[..., Result]
Golden = Callable[[str, str], None]


def test_incidents_are_listed_with_cause_phase_and_who_must_act(bench: Bench, call: Call) -> None:
    result = call("incident", "list")
    assert result.exit_code == 0, result.output
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["POOL", "NODE", "GPU", "PHASE", "CAUSE", "SINCE", "APPROVAL"],
        ["h100", "n1", "GPU-a", "Cordoned", "xid", "79", "2026-05-04", "09:00:00Z", "-"],
        ["h100", "n2", "GPU-b", "Suspect", "lost", "2026-05-04", "09:05:00Z", "AWAITED"],
    ]


def test_a_list_can_be_narrowed_and_widened(bench: Bench, call: Call) -> None:
    assert call("incident", "list", "--node", "n1", "-o", "name").stdout == f"{DRAINING}\n"
    assert call("incident", "list", "--all", "-o", "name").stdout.split() == [DRAINING, ASKING, ENDED]
    assert call("incident", "list", "--pool", "h100", "-o", "name").stdout.split() == [DRAINING, ASKING]
    empty = call("incident", "list", "--node", "n9")
    assert (empty.exit_code, empty.stdout, empty.stderr) == (0, "", "no GPU is known to be broken\n")


def test_the_json_of_incidents_is_stable(bench: Bench, call: Call, golden: Golden) -> None:
    golden("incident-list", call("incident", "list", "-o", "json").stdout)
    golden("incident-show", call("incident", "show", "n1", "-o", "json").stdout)


@pytest.mark.parametrize("name", [DRAINING, "n1/GPU-a", "GPU-a", "n1"])
def test_an_incident_is_shown_by_any_name_that_means_it(bench: Bench, call: Call, name: str) -> None:
    result = call("incident", "show", name)
    assert result.exit_code == 0, result.output
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "Cordoned: the whole node" in lines
    assert "Cause: xid 79: the machine must be restarted or opened" in lines
    assert "Waiting: pod ads/serve-0 may not be evicted yet: it would violate its budget" in lines
    assert "xid 79 hardware RESTART_BM 2026-05-04 09:00:00Z 2026-05-04 09:00:09Z 1" in lines
    assert "ads/serve-0 4 asked to leave" in lines


def test_a_name_that_means_nothing_or_two_things_is_said(bench: Bench, call: Call) -> None:
    missing = call("incident", "show", "n9")
    assert missing.exit_code == 3
    assert "no incident is called 'n9'" in missing.stderr
    bench.processes.incident_rows.append(
        bench.processes.incident_rows[1].model_copy(update={"incident": "incident/local/n2/GPU-d"})
    )
    twice = call("incident", "show", "n2")
    assert twice.exit_code == 2
    assert "fits 2 incidents" in twice.stderr


def test_what_runs_goes_before_what_has_ended(bench: Bench, call: Call) -> None:
    assert json.loads(call("incident", "show", "n2", "-o", "json").stdout)["incident"] == ASKING
    assert json.loads(call("incident", "show", "GPU-c", "-o", "json").stdout)["phase"] == "Recovered"


@pytest.mark.parametrize(
    ("words", "verb", "target", "word", "done"),
    [
        (
            ("repaired", "n1", "--reason", "new riser"),
            "repaired",
            DRAINING,
            IncidentWord(identity="eva", verified=True, reason="new riser"),
            "said to be repaired by eva",
        ),
        (
            ("retire", "GPU-a", "-r", "burnt", "--keep-cordon"),
            "retire",
            DRAINING,
            IncidentWord(identity="eva", verified=True, reason="burnt", keep_cordon=True),
            "retired by eva",
        ),
        (("approve", "GPU-b"), "approve", ASKING, IncidentWord(identity="eva", verified=True), "approved by eva"),
    ],
)
def test_a_person_decides_in_their_own_name(
    bench: Bench, call: Call, words: tuple[str, ...], verb: str, target: str, word: IncidentWord, done: str
) -> None:
    bench.cluster.user = "eva"
    result = call("incident", *words)
    assert (result.exit_code, result.stdout) == (0, f"{target}: {done}\n")
    assert bench.processes.orders == [(verb, target, word)]


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("repaired", "n1"), 0, "would be said to be repaired by tester (unverified) (dry run)"),
        (("approve", "GPU-b"), 0, "would be approved by tester (unverified) (dry run)"),
        (("repaired", "GPU-b"), 1, "it is Suspect: only what is cordoned and not yet repaired"),
        (("approve", "n1"), 1, "it is Cordoned: nothing waits for approval"),
        (("retire", "GPU-c", "--reason", "x"), 1, "it is Recovered: it cannot be retired any more"),
    ],
)
def test_a_dry_run_says_what_would_be_and_orders_nothing(
    bench: Bench, call: Call, words: tuple[str, ...], code: int, text: str
) -> None:
    result = call("incident", *words, "--dry-run")
    assert result.exit_code == code
    assert text in result.output
    assert bench.processes.orders == []


@pytest.mark.parametrize("words", [("repaired", "n1"), ("approve", "n1"), ("retire", "n1", "--reason", "x")])
def test_a_dry_run_knows_that_a_person_has_the_gpu_retired(bench: Bench, call: Call, words: tuple[str, ...]) -> None:
    retired = {"retired": IncidentWord(identity="ann", verified=True), "asks": Asks.PODS}
    states = bench.processes.incident_states
    states[DRAINING] = states[DRAINING].model_copy(update=retired)
    result = call("incident", *words, "--dry-run")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "it is Cordoned: ann has it retired, and no other word counts" in result.stderr


def test_what_the_incident_refuses_is_said_as_it_says_it(bench: Bench, call: Call) -> None:
    bench.processes.refusal = PolicyError("incident 'x': it is Repaired")
    result = call("incident", "repaired", "n1")
    assert (result.exit_code, result.stderr) == (1, "gpubank: incident 'x': it is Repaired\n")


def test_without_temporal_there_is_no_answer(bench: Bench, call: Call) -> None:
    bench.processes.down = "Temporal does not answer"
    result = call("incident", "list")
    assert (result.exit_code, result.stderr) == (5, "gpubank: Temporal does not answer\n")
