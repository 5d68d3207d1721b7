"""`gpubank lease ...`."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import Result

from gpubank.domain import conditions
from gpubank.domain.lease import CapacityLease
from tests.unit.cli.bench import Bench
from tests.unit.cli.records import POOL

Call = Callable[..., Result]
Golden = Callable[[str, str], None]

JOB = {"workloadRef": {"apiVersion": "batch/v1", "kind": "Job", "name": "train"}}
END = "2100-01-01T12:00:00Z"
MADE = "2100-01-01T00:00:00Z"
"""A lease is at most 24 h long, and no test waits for its end."""


def lease(name: str, spec: dict[str, Any], *, namespace: str = "search", status: Any = None) -> dict[str, Any]:
    return {
        "apiVersion": "platform.aik8s.run/v1alpha1",
        "kind": "CapacityLease",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"u-{name}",
            "generation": 2,
            "resourceVersion": "7",
            "creationTimestamp": MADE,
        },
        "spec": {"until": END, "reason": "release week", **spec},
        "status": status or {},
    }


def approval(by: str, *, status: str = "True", generation: int = 2) -> dict[str, Any]:
    said = {"type": "Approved", "status": status, "reason": "Approved", "observedGeneration": generation}
    return {"approvedBy": by, "approvedAt": MADE, "conditions": [said]}


@pytest.fixture
def leases(bench: Bench) -> Bench:
    """One lease that waits, one that protects, one that was edited since, one that never can."""
    bench.cluster.objects += [
        lease("asked", JOB),
        lease("wide", {"pool": POOL, "gpus": 4}, status=approval("pia")),
        lease("edited", {"pool": POOL, "gpus": 2}, status=approval("pia", generation=1)),
        lease("greedy", {"pool": POOL, "gpus": 30}, namespace="ads"),
    ]
    return bench


def stored(bench: Bench, name: str) -> CapacityLease:
    return CapacityLease.from_wire(next(body for body in bench.cluster.objects if body["metadata"]["name"] == name))


def test_leases_are_listed_with_what_they_are_for_and_whether_they_protect(leases: Bench, call: Call) -> None:
    result = call("lease", "list")
    assert result.exit_code == 0, result.output
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["NAMESPACE", "NAME", "GROUP", "FOR", "UNTIL", "STATE", "APPROVED", "BY"],
        ["ads", "greedy", "ads", "30", "GPUs", "of", "h100", "2100-01-01", "12:00:00Z", "BeyondLimit", "-"],
        ["search", "asked", "search", "Job/train", "2100-01-01", "12:00:00Z", "AwaitingApproval", "-"],
        ["search", "edited", "search", "2", "GPUs", "of", "h100", "2100-01-01", "12:00:00Z", "AwaitingApproval", "pia"],
        ["search", "wide", "search", "4", "GPUs", "of", "h100", "2100-01-01", "12:00:00Z", "Protecting", "pia"],
    ]


def test_a_list_can_be_of_one_namespace_or_one_pool(leases: Bench, call: Call) -> None:
    assert call("lease", "list", "-n", "ads", "-o", "name").stdout == "ads/greedy\n"
    assert call("lease", "list", "--pool", POOL, "-o", "name").stdout.splitlines() == [
        "ads/greedy",
        "search/edited",
        "search/wide",
    ]


def test_no_lease_is_said_and_no_error(bench: Bench, call: Call) -> None:
    result = call("lease", "list")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "there is no lease\n")


def test_the_json_of_leases_is_stable(leases: Bench, call: Call, golden: Golden) -> None:
    golden("lease-list", call("lease", "list", "-o", "json").stdout)
    golden("lease-show", call("lease", "show", "wide", "-o", "json").stdout)


def test_a_lease_is_shown_with_whom_it_protects_and_who_agreed(leases: Bench, call: Call) -> None:
    result = call("lease", "show", "wide")
    assert result.exit_code == 0, result.output
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "For: 4 GPUs of h100" in lines
    assert "Reason: release week" in lines
    assert "State: Protecting" in lines
    assert "Approved: by pia at 2100-01-01 00:00:00Z" in lines
    assert "Protects: nobody now" in lines, "none of the group's borrowed work runs"


def test_what_the_scheduler_does_not_tell_is_missing_from_the_answer(leases: Bench, call: Call) -> None:
    leases.cluster.broken = True
    result = call("lease", "show", "wide")
    assert (result.exit_code, "incomplete: pool 'h100' has no flavor" in result.stderr) == (5, True)


def test_a_lease_is_approved_for_the_spec_as_it_stands(leases: Bench, call: Call) -> None:
    result = call("lease", "approve", "asked", "-n", "search", "--by", "pia", "--reason", "goes live")
    assert result.exit_code == 0, result.output
    assert result.stdout == ("capacitylease/asked approved by pia (unverified): Job/train until 2100-01-01 12:00:00Z\n")
    found = stored(leases, "asked")
    condition = found.status.condition(conditions.APPROVED)
    assert found.approved
    assert condition is not None
    assert (condition.observed_generation, condition.message) == (2, "approved by pia (unverified): goes live")
    assert found.status.approved_by == "pia"
    assert found.status.approved_at is not None


def test_a_lease_that_was_edited_since_can_be_approved_anew(leases: Bench, call: Call) -> None:
    assert call("lease", "approve", "edited", "--by", "pia").exit_code == 0
    assert stored(leases, "edited").approved


@pytest.mark.parametrize("member", ["mia"])
def test_nobody_of_the_group_approves_its_own_lease(leases: Bench, call: Call, member: str) -> None:
    result = call("lease", "approve", "asked", "--by", member)
    assert result.exit_code == 1
    assert "no group approves its own lease; ask somebody of the platform team" in result.stderr
    assert not stored(leases, "asked").approved


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("approve", "greedy"), 1, "borrows at most"),
        (("approve", "wide"), 1, "is approved already, by pia"),
        (("approve", "nothing"), 3, "no CapacityLease is called 'nothing'"),
        (("revoke", "asked", "--reason", "x"), 1, "there is nothing to take back"),
        (("revoke", "wide"), 2, "Missing option"),
        (("approve", "asked", "--reason", "x" * 1025), 1, "shorten it"),
    ],
    ids=lambda value: "-".join(value[:2]) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_decided_says_why(
    leases: Bench, call: Call, words: tuple[str, ...], code: int, said: str
) -> None:
    result = call("lease", *words)
    assert result.exit_code == code, result.output
    assert said in result.stderr


def test_a_name_in_two_namespaces_needs_one_to_be_said(leases: Bench, call: Call) -> None:
    leases.cluster.objects.append(lease("asked", {"pool": POOL, "gpus": 1}, namespace="ads"))
    result = call("lease", "approve", "asked", "--by", "pia")
    assert (result.exit_code, "(ads, search)" in result.stderr) == (2, True)


def test_a_revoked_lease_protects_no_more_and_can_be_approved_again(leases: Bench, call: Call) -> None:
    assert call("lease", "revoke", "wide", "--by", "quinn", "--reason", "needed back").exit_code == 0
    found = stored(leases, "wide")
    assert not found.approved
    assert found.status.revoked_by == "quinn"
    (row,) = [
        each for each in json.loads(call("lease", "list", "-o", "json").stdout)["items"] if each["name"] == "wide"
    ]
    assert row["state"] == "Revoked"
    assert "taken back by quinn" in row["message"]
    assert call("lease", "approve", "wide", "--by", "pia").exit_code == 0
    assert stored(leases, "wide").status.revoked_by == ""


@pytest.mark.parametrize("verb", ["approve", "revoke"])
def test_a_dry_run_decides_nothing_and_says_what_it_would(leases: Bench, call: Call, verb: str) -> None:
    name = "asked" if verb == "approve" else "wide"
    before = json.dumps(leases.cluster.objects)
    result = call("lease", verb, name, "--by", "pia", "--reason", "x", "--dry-run", "-o", "json")
    item = json.loads(result.stdout)
    assert (item["dryRun"], item["identity"], item["verified"], item["lease"]) == (True, "pia", False, f"search/{name}")
    assert json.dumps(leases.cluster.objects) == before


def test_nobody_decides_under_another_name_where_the_api_server_knows_better(leases: Bench, call: Call) -> None:
    leases.cluster.user = "pia@example.com"
    result = call("lease", "approve", "asked", "--by", "quinn")
    assert (result.exit_code, "knows you as 'pia@example.com'" in result.stderr) == (1, True)
    assert call("lease", "approve", "asked").exit_code == 0
    assert stored(leases, "asked").status.approved_by == "pia@example.com"


def test_a_lease_that_moved_on_meanwhile_is_a_conflict(
    leases: Bench, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def whoami() -> str:
        leases.cluster.objects[-4]["metadata"]["resourceVersion"] = "8"  # edited between the look and the write
        return "pia"

    monkeypatch.setattr(leases.cluster, "whoami", whoami)
    result = call("lease", "approve", "asked")
    assert (result.exit_code, "read again, decide again" in result.stderr) == (4, True)
