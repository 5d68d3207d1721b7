"""`gpubank loan ...` and `gpubank quota`."""

import json
from collections.abc import Callable
from datetime import timedelta

import pytest
import yaml
from typer.testing import Result

from gpubank.domain.errors import PolicyError
from gpubank.domain.recall import Decision, Extension
from tests.unit.cli.bench import Bench
from tests.unit.cli.records import at, loan

Call = Callable[..., Result]
Golden = Callable[[str, str], None]


def cells(result: Result) -> list[list[str]]:
    assert result.exit_code == 0, result.output
    return [line.split() for line in result.stdout.splitlines()]


def test_loans_are_listed_with_lenders_and_phases_and_parked_ones_too(bench: Bench, call: Call) -> None:
    assert cells(call("loan", "list")) == [
        ["WORKLOAD", "GROUP", "POOL", "GPUS", "LENDERS", "TERM", "PHASE", "SINCE"],
        ["search/next", "search", "h100", "2", "search:2", "1", "Offered", "2026-05-04", "09:32:00Z"],
        ["search/sweep", "search", "h100", "4", "-", "1", "Parked", "2026-05-04", "08:50:30Z"],
        ["search/train", "search", "h100", "12", "ads:8,pool:4", "1", "Active", "2026-05-04", "09:00:06Z"],
        ["search/tune", "search", "h100", "4", "ads:4", "1", "Checkpointing", "2026-05-04", "09:31:00Z"],
    ]


def test_a_wide_list_adds_uid_lines_deadline_and_checkpoint(bench: Bench, call: Call) -> None:
    (tune,) = [row for row in cells(call("loan", "list", "-o", "wide")) if row[0] == "search/tune"]
    assert tune[-5:] == ["u-tune", "h100-5", "2026-05-04", "09:41:00Z", "4200"]


def test_ended_loans_come_with_all(bench: Bench, call: Call) -> None:
    (probe,) = [row for row in cells(call("loan", "list", "--all")) if row[0] == "search/probe"]
    assert probe[3:7] == ["2", "ads:2", "1", "Closed"]


def test_loans_can_be_those_of_one_group_on_either_side(bench: Bench, call: Call) -> None:
    lent = {row[0] for row in cells(call("loan", "list", "--group", "ads"))[1:]}
    assert lent == {"search/train", "search/tune"}
    assert call("loan", "list", "--group", "nobody").stderr == "there is no loan\n"


def test_the_json_of_loans_is_stable(bench: Bench, call: Call, golden: Golden) -> None:
    golden("loan-list", call("loan", "list", "--all", "-o", "json").stdout)


@pytest.mark.parametrize("name", ["tune", "sweep", "probe", "next"])
def test_the_json_of_one_loan_is_stable(bench: Bench, call: Call, golden: Golden, name: str) -> None:
    golden(f"loan-show-{name}", call("loan", "show", name, "-o", "json").stdout)


def test_yaml_says_what_json_says_and_names_are_ids(bench: Bench, call: Call) -> None:
    whole = json.loads(call("loan", "list", "-o", "json").stdout)
    assert yaml.safe_load(call("loan", "list", "-o", "yaml").stdout) == whole
    assert call("loan", "list", "-o", "name").stdout.split() == [item["loan"] for item in whole["items"]]


@pytest.mark.parametrize("name", ["u-tune", "loan/local/u-tune", "search/tune", "tune"])
def test_a_loan_is_found_by_id_uid_and_job(bench: Bench, call: Call, name: str) -> None:
    result = call("loan", "show", name)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("Loan:       loan/local/u-tune\n")


def test_a_loan_is_shown_with_terms_lines_audit_trail_and_where_to_look(bench: Bench, call: Call) -> None:
    text = call("loan", "show", "sweep").stdout
    assert "Temporal:   http://127.0.0.1:8233/namespaces/default/workflows/loan%2Flocal%2Fu-sweep\n" in text
    assert "ads waits for 4 GPUs  step 4200 s3://ckpt/tune/manifest.json" in text
    assert "Recalled/sweep" in text, "the audit trail tells of the recall"
    wanted = call("loan", "show", "tune").stdout
    assert (
        "Wanted by:  ads, notice ends 2026-05-04 09:41:00Z: ads waits for 8 GPUs (h100/ads/Workload/u-serve)" in wanted
    )
    assert "by: 5m; identity: mia" in wanted


def test_a_name_that_fits_no_loan_is_not_found(bench: Bench, call: Call) -> None:
    result = call("loan", "show", "nothing")
    assert result.exit_code == 3
    assert result.stderr == "gpubank: no loan is called 'nothing'; `gpubank loan list --all` shows what there is\n"


def test_a_name_that_fits_two_loans_lists_them(bench: Bench, call: Call) -> None:
    twin = bench.processes.rows[2].model_copy(update={"loan": loan("other"), "workload": "ads/sweep"})
    bench.processes.rows.append(twin)
    result = call("loan", "show", "sweep")
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        "gpubank: 'sweep' may be any of 2 loans; name one by its id:",
        "  loan/local/u-other  ads/sweep  search  Parked",
        "  loan/local/u-sweep  search/sweep  search  Parked",
    ]


# ---- when something does not answer


def test_without_temporal_the_ledger_is_shown_and_the_answer_is_not_whole(bench: Bench, call: Call) -> None:
    bench.processes.down = "Temporal at '127.0.0.1:7233' does not answer: start it"
    result = call("loan", "list")
    assert result.exit_code == 5
    assert result.stderr == "gpubank: incomplete: Temporal at '127.0.0.1:7233' does not answer: start it\n"
    phases = {row.split()[0]: row.split()[6] for row in result.stdout.splitlines()[1:]}
    assert phases == {"search/next": "Offered", "search/train": "Active", "search/tune": "Recalled"}


def test_without_a_worker_phases_are_those_of_the_list(bench: Bench, call: Call) -> None:
    bench.processes.workers_down = True
    result = call("loan", "list", "-o", "json")
    assert result.exit_code == 5
    phases = {item["workload"]: item["phase"] for item in json.loads(result.stdout)["items"]}
    assert phases["search/tune"] == "Checkpointing"
    assert "no worker" in result.stderr


def test_one_loan_is_shown_from_the_ledger_alone(bench: Bench, call: Call) -> None:
    bench.processes.down = "Temporal does not answer"
    result = call("loan", "show", "train", "-o", "json")
    assert result.exit_code == 5
    assert [line["lineId"] for line in json.loads(result.stdout)["lines"]] == ["h100-3", "h100-4"]


# ---- orders


def test_a_loan_is_returned_for_the_os_user_who_is_unverified(bench: Bench, call: Call) -> None:
    result = call("loan", "return", "train", "--reason", "maintenance")
    assert result.exit_code == 0, result.output
    assert result.stdout == (
        "search/train is being saved and stopped, its 12 GPUs go back; `gpubank loan show u-train --watch` follows it\n"
    )
    assert bench.processes.orders == [
        ("return", loan("train"), Decision(identity="tester", verified=False, reason="maintenance"))
    ]


def test_an_identity_that_the_api_server_confirms_is_verified(bench: Bench, call: Call) -> None:
    bench.cluster.user = "mia@example.com"
    item = json.loads(call("loan", "return", "train", "--reason", "maintenance", "-o", "json").stdout)
    assert (item["identity"], item["verified"], item["dryRun"]) == ("mia@example.com", True, False)


def test_a_dry_run_orders_nothing_and_says_what_would_be_refused(bench: Bench, call: Call) -> None:
    fine = call("loan", "return", "train", "--reason", "x", "--dry-run")
    assert (fine.exit_code, bench.processes.orders) == (0, [])
    assert fine.stdout == "search/train would be saved, stopped and its 12 GPUs would go back (dry run)\n"
    for name, what in (("tune", "recalled already"), ("sweep", "Parked")):
        refused = call("loan", "return", name, "--reason", "x", "--dry-run")
        assert refused.exit_code == 1
        assert f"is {what}: only one that runs can be returned" in refused.stderr


def test_what_the_loan_refuses_is_said_as_it_says_it(bench: Bench, call: Call) -> None:
    bench.processes.refusal = PolicyError("loan 'loan/local/u-train' is Parked: only one that runs can be returned")
    result = call("loan", "return", "train", "--reason", "x")
    assert result.exit_code == 1
    assert result.stderr == "gpubank: loan 'loan/local/u-train' is Parked: only one that runs can be returned\n"


def test_a_notice_is_extended(bench: Bench, call: Call) -> None:
    result = call("loan", "extend", "tune", "--by", "10m", "--reason", "nearly done")
    assert result.stdout == "search/tune: notice ends 2026-05-04 09:51:00Z, 10m later\n"
    extension = Extension(by=timedelta(minutes=10), identity="tester", verified=False, reason="nearly done")
    assert bench.processes.orders == [("extend", loan("tune"), extension)]


def test_a_dry_run_of_an_extension_judges_it_by_the_pools_limit(bench: Bench, call: Call) -> None:
    fine = json.loads(call("loan", "extend", "tune", "--by", "20m", "--dry-run", "-o", "json").stdout)
    assert fine["deadline"] == at(61).isoformat().replace("+00:00", "Z")
    late = call("loan", "extend", "tune", "--by", "21m", "--dry-run")
    assert late.exit_code == 1
    assert "allows it until 2026-05-04 10:01:00 UTC: 21m more is too much" in late.stderr
    idle = call("loan", "extend", "train", "--by", "1m", "--dry-run")
    assert "is Active: only the notice of a recall can be extended" in idle.stderr
    assert bench.processes.orders == []


@pytest.mark.parametrize("span", ["soon", "-3m", "0s", ""])
def test_a_span_that_is_none_is_a_usage_error(bench: Bench, call: Call, span: str) -> None:
    result = call("loan", "extend", "tune", "--by", span)
    assert result.exit_code == 2
    assert "as in 10m or 1h30m" in " ".join(result.stderr.split())


def test_an_endless_reason_is_refused(bench: Bench, call: Call) -> None:
    result = call("loan", "return", "train", "--reason", "x" * 2000)
    assert result.exit_code == 1
    assert "the reason has 2000 characters; shorten it to 1024" in result.stderr


# ---- quota


def test_quota_shows_who_has_what(bench: Bench, call: Call) -> None:
    assert cells(call("quota"))[1:] == [
        ["h100", "ads", "24", "4", "0", "12", "0", "8"],
        ["h100", "search", "8", "3", "16", "0", "3", "0"],
    ]


def test_the_json_of_quotas_is_stable(bench: Bench, call: Call, golden: Golden) -> None:
    golden("quota", call("quota", "-o", "json").stdout)


def test_a_pool_that_does_not_exist_is_not_found(bench: Bench, call: Call) -> None:
    for words in (("quota",), *((what, "list") for what in ("loan", "reclaim", "incident", "lease"))):
        result = call(*words, "--pool", "a100")
        assert (result.exit_code, result.stderr) == (3, "gpubank: pool 'a100' does not exist; have: h100\n")


def test_a_pool_that_the_scheduler_does_not_know_makes_the_answer_incomplete(bench: Bench, call: Call) -> None:
    bench.cluster.broken = True
    result = call("quota", "-o", "json")
    assert (result.exit_code, json.loads(result.stdout)) == (5, {"items": []})
    assert result.stderr == "gpubank: incomplete: pool 'h100': pool 'h100' has no flavor; wait for the controller\n"
