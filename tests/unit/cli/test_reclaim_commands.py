"""`gpubank reclaim ...`, `freeze` and `unfreeze`."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import Result

from gpubank.domain.errors import BackendError, PolicyError
from gpubank.domain.recall import Decision, LoanOutcome, ReclaimPhase
from tests.unit.cli.bench import Bench
from tests.unit.cli.records import DEMAND, RECLAIM, reclaim_state

Call = Callable[..., Result]
Golden = Callable[[str, str], None]


def test_recalls_are_listed_with_victims_due_time_and_who_must_approve(bench: Bench, call: Call) -> None:
    result = call("reclaim", "list")
    assert result.exit_code == 0, result.output
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["POOL", "LENDER", "PHASE", "GPUS", "DEMANDS", "VICTIMS", "DUE", "MUST", "APPROVE"],
        ["h100", "ads", "AwaitingApproval", "8", "1", "1", "2100-01-01", "00:00:00Z", "ben,eva"],
    ]


def test_a_wide_list_names_who_waits_and_whose_jobs_are_asked(bench: Bench, call: Call) -> None:
    row = call("reclaim", "list", "-o", "wide").stdout.splitlines()[1]
    assert row.split()[-3:] == [RECLAIM, "ads/serve", "search/tune=Checkpointing"]


def test_the_json_of_recalls_is_stable(bench: Bench, call: Call, golden: Golden) -> None:
    golden("reclaim-list", call("reclaim", "list", "-o", "json").stdout)
    golden("reclaim-show", call("reclaim", "show", "ads", "-o", "json").stdout)


def test_a_demand_that_no_recall_serves_is_waiting(bench: Bench, call: Call) -> None:
    bench.processes.reclaim_rows, bench.processes.reclaim_states = [], {}
    (item,) = json.loads(call("reclaim", "list", "-o", "json").stdout)["items"]
    assert (item["phase"], item["gpus"], item["needsApproval"]) == ("Waiting", 8, False)


def test_a_recall_that_has_ended_comes_with_all(bench: Bench, call: Call) -> None:
    (row,) = bench.processes.reclaim_rows
    ended = {"running": False, "phase": ReclaimPhase.MET, "lender": "search", "reclaim": "reclaim/local/h100/search"}
    bench.processes.reclaim_rows.append(row.model_copy(update=ended))
    assert len(call("reclaim", "list").stdout.splitlines()) == 2
    rows = [line.split()[1:3] for line in call("reclaim", "list", "--all").stdout.splitlines()[1:]]
    assert rows == [["ads", "AwaitingApproval"], ["search", "Met"]]


@pytest.mark.parametrize("name", ["ads", "h100/ads", RECLAIM])
def test_a_recall_is_shown_with_demands_victims_and_where_to_look(bench: Bench, call: Call, name: str) -> None:
    result = call("reclaim", "show", name)
    assert result.exit_code == 0, result.output
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "Approval: awaited of ben, eva" in lines
    assert "AwaitingApproval: 8 GPUs for ads/serve, due 2100-01-01 00:00:00Z" in lines
    assert "search/tune search 4 Checkpointing - -" in lines
    assert any(
        line.startswith("Temporal: http://127.0.0.1:8233/namespaces/default/workflows/reclaim%2F") for line in lines
    )


def test_what_a_victim_answered_is_shown(bench: Bench, call: Call) -> None:
    state = reclaim_state()
    (demand,) = state.demands
    (victim,) = demand.victims
    answered = victim.model_copy(update={"answer": LoanOutcome.PROTECTED, "reason": "its hook does not answer"})
    told = state.model_copy(update={"demands": (demand.model_copy(update={"victims": (answered,)}),)})
    bench.processes.reclaim_states[RECLAIM] = told
    text = " ".join(call("reclaim", "show", "ads").stdout.split())
    assert "search/tune search 4 Checkpointing Protected its hook does not answer" in text


def test_without_temporal_demands_are_shown_and_the_answer_is_not_whole(bench: Bench, call: Call) -> None:
    bench.processes.down = "Temporal does not answer"
    result = call("reclaim", "list")
    assert (result.exit_code, result.stderr) == (5, "gpubank: incomplete: Temporal does not answer\n")
    assert result.stdout.splitlines()[1].split()[:4] == ["h100", "ads", "Waiting", "8"]


def test_without_the_api_server_only_the_approvers_are_missing(
    bench: Bench, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def down(kind: str) -> Any:
        raise BackendError("the API server does not answer")

    monkeypatch.setattr(bench.cluster, "list", down)
    result = call("reclaim", "list", "-o", "json")
    assert result.exit_code == 5
    assert "who must approve is not known: the API server does not answer" in result.stderr
    (item,) = json.loads(result.stdout)["items"]
    assert (item["phase"], item["approvers"]) == ("AwaitingApproval", [])


def test_a_recall_that_nobody_has_is_not_found(bench: Bench, call: Call) -> None:
    result = call("reclaim", "show", "sales")
    assert result.exit_code == 3
    assert result.stderr == "gpubank: no recall is called 'sales'; `gpubank reclaim list` shows what there is\n"


# ---- decisions


def test_an_admin_whom_the_api_server_confirms_approves(bench: Bench, call: Call) -> None:
    bench.cluster.user = "eva"
    result = call("reclaim", "approve", "ads", "--reason", "go ahead")
    assert (result.exit_code, result.stdout) == (0, f"{RECLAIM}: {DEMAND} approved by eva\n")
    assert result.stderr == ""
    assert bench.processes.orders == [
        ("approve", RECLAIM, Decision(identity="eva", verified=True, reason="go ahead", demand=""))
    ]


def test_somebody_who_is_no_admin_decides_and_is_told_that_it_is_recorded(bench: Bench, call: Call) -> None:
    result = call("reclaim", "deny", "ads", "--reason", "not tonight", "--demand", DEMAND)
    assert result.stdout == f"{RECLAIM}: {DEMAND} denied by tester (unverified)\n"
    assert "tester (unverified) is none of ads's admins (ben, eva); it is recorded who decided" in result.stderr
    assert bench.processes.orders == [
        ("deny", RECLAIM, Decision(identity="tester", verified=False, reason="not tonight", demand=DEMAND))
    ]


def test_a_dry_run_decides_nothing(bench: Bench, call: Call) -> None:
    result = call("reclaim", "approve", "ads", "--dry-run", "-o", "json")
    item = json.loads(result.stdout)
    assert (item["decision"], item["demands"], item["dryRun"]) == ("approved", [DEMAND], True)
    assert bench.processes.orders == []


def test_what_waits_for_nobody_cannot_be_decided(bench: Bench, call: Call) -> None:
    other = call("reclaim", "approve", "ads", "--demand", "h100/ads/Limit/x")
    assert other.exit_code == 1
    assert f"demand 'h100/ads/Limit/x' of {RECLAIM!r} does not wait for approval; waiting: {DEMAND}" in other.stderr
    state = bench.processes.reclaim_states[RECLAIM]
    (demand,) = state.demands
    going_on = {"phase": ReclaimPhase.RECALLING}
    recalling = {**going_on, "demands": (demand.model_copy(update=going_on),)}
    bench.processes.reclaim_states[RECLAIM] = state.model_copy(update=recalling)
    result = call("reclaim", "approve", "ads")
    assert (result.exit_code, result.stderr) == (
        1,
        f"gpubank: reclaim {RECLAIM!r} is Recalling: nothing in it waits for approval\n",
    )


def test_what_the_recall_refuses_is_said_as_it_says_it(bench: Bench, call: Call) -> None:
    bench.processes.refusal = PolicyError(f"reclaim {RECLAIM!r} is Met: no demand waits for approval")
    result = call("reclaim", "approve", "ads")
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (
        1,
        f"gpubank: reclaim {RECLAIM!r} is Met: no demand waits for approval",
    )


def test_a_denial_needs_a_reason(bench: Bench, call: Call) -> None:
    result = call("reclaim", "deny", "ads")
    assert result.exit_code == 2
    assert "Missing option '--reason'" in result.stderr


# ---- freeze


def test_a_pool_is_frozen_by_whoever_asks_and_nothing_else_of_it_changes(bench: Bench, call: Call) -> None:
    bench.cluster.user = "eva"
    before = bench.cluster.objects[0]["spec"]
    result = call("freeze", "h100", "--reason", "fabric works", "--for", "2h")
    assert (result.exit_code, result.stdout) == (0, "gpupool/h100 frozen\n")
    (applied,) = bench.cluster.applied
    freeze = applied["spec"].pop("freeze")
    assert (freeze["by"], freeze["reason"], applied["spec"]) == ("eva", "fabric works", before)
    assert freeze["until"].endswith("Z")


def test_a_pool_is_unfrozen(bench: Bench, call: Call) -> None:
    bench.cluster.objects[0]["spec"]["freeze"] = {"by": "eva", "reason": "fabric works"}
    assert call("unfreeze", "--all").stdout == "gpupool/h100 unfrozen\n"
    assert "freeze" not in bench.cluster.applied[0]["spec"]


def test_nothing_is_frozen_if_one_of_the_pools_does_not_exist(bench: Bench, call: Call) -> None:
    result = call("freeze", "h100", "a100", "--reason", "x")
    assert (result.exit_code, bench.cluster.applied) == (3, [])
    assert "pool 'a100' does not exist" in result.stderr


def test_a_dry_run_freezes_nothing(bench: Bench, call: Call) -> None:
    assert call("freeze", "--all", "--reason", "x", "--dry-run").stdout == "gpupool/h100 frozen (dry run)\n"
    assert bench.cluster.applied == []


@pytest.mark.parametrize(
    "words", [("--reason", "x"), ("h100", "--all", "--reason", "x"), ("h100", "-r", "x", "--for", "0s")]
)
def test_a_freeze_of_nothing_or_for_no_time_is_a_usage_error(bench: Bench, call: Call, words: tuple[str, ...]) -> None:
    assert call("freeze", *words).exit_code == 2
