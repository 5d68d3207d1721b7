"""The real API server on leases: who may approve, and what is signed."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from gpubank.adapters.kubernetes.connection import Connection
from gpubank.cli.cluster import KubernetesCluster
from gpubank.cli.identity import Identity, identity_of
from gpubank.cli.leasebook import approved, revoked
from gpubank.cli.leases import Decide
from gpubank.domain.base import API_VERSION
from gpubank.domain.errors import PolicyError
from gpubank.domain.lease import CapacityLease
from gpubank.lab import Lab, LabError
from gpubank.lab.access import ADMIN, Api, namespace, wait_until
from gpubank.schema import crds, lease_policies
from gpubank.schema.leases import APPROVE, APPROVER_ROLE
from tests.contract.judged import Body, warnings_of
from tests.contract.test_api_server import a_pool

NAMESPACE = "lease-test"
LEASES = f"/apis/platform.aik8s.run/v1alpha1/namespaces/{NAMESPACE}/capacityleases"
PIA, MIA, UMA, EVE = "pia@platform", "mia@search", "uma@search", "eve@elsewhere"
"""Of the platform; owner and member of the group, and given the approver's role by mistake; nobody's."""

NOW = datetime(2026, 11, 2, 9, tzinfo=UTC)


@pytest.fixture(scope="module")
def api(lab: Lab) -> Iterator[Api]:
    """A client of a server with our CRDs and policies, a group, and people with the approver's role."""
    group = {
        "apiVersion": API_VERSION,
        "kind": "BusinessGroup",
        "metadata": {"name": "lease-test-search"},
        "spec": {
            "owner": MIA,
            "namespaces": [NAMESPACE],
            "subjects": [{"kind": "Group", "name": "search-people"}],
        },
    }
    everything = [a_pool("listed"), group, *people(), *lease_policies()]
    with lab.api() as client:
        client.apply_all([namespace(NAMESPACE), *crds(), *everything])
        try:
            client.apply(a_lease("probe"))
            wait_until(lambda: "may not approve" in str(said(client, "probe", EVE)), 30, "the lease policies in force")
            wait_until(lambda: "of business group" in str(said(client, "probe", MIA)), 30, "four eyes in force")
            yield client
        finally:
            for manifest in everything:
                client.request("DELETE", client.path_of(manifest))


def people() -> list[Body]:
    """Give the approver's role to everybody but Eve, who may write statuses and nothing else."""
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole"}
    writer = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "lease-test-writer"},
        "rules": [
            {
                "apiGroups": ["platform.aik8s.run"],
                "resources": ["capacityleases", "capacityleases/status"],
                "verbs": ["get", "create", "update", "patch", "delete"],
            }
        ],
    }

    def bind(name: str, what: str, *users: str) -> Body:
        return {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {**role, "name": what},
            "subjects": [{"apiGroup": role["apiGroup"], "kind": "User", "name": user} for user in users],
        }

    return [
        writer,
        bind("lease-test-approvers", APPROVER_ROLE, PIA, MIA, UMA),
        bind("lease-test-writers", "lease-test-writer", MIA, EVE),
    ]


def a_lease(name: str) -> Body:
    return {
        "apiVersion": API_VERSION,
        "kind": "CapacityLease",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"pool": "listed", "gpus": 2, "until": "2100-01-01T00:00:00Z", "reason": "release week"},
    }


def said(
    api: Api,
    name: str,
    user: str,
    *,
    groups: tuple[str, ...] = (),
    by: str | None = None,
    status: str = "True",
    ahead: int = 0,
    dry: bool = True,
    **more: Any,
) -> str | None:
    """Have a user approve or revoke a lease; return what the server says against it, or None."""
    body = api.request("GET", f"{LEASES}/{name}")
    condition = {
        "type": "Approved",
        "status": status,
        "reason": "Approved",
        "observedGeneration": body["metadata"]["generation"] + ahead,
        "message": "",
    }
    signature = "approvedBy" if status == "True" else "revokedBy"
    body["status"] = {
        **body.get("status", {}),
        signature: user if by is None else by,
        "conditions": [condition],
        **more,
    }
    return put(api, body, user, groups, dry=dry)


def put(api: Api, body: Body, user: str, groups: tuple[str, ...] = (), *, dry: bool = True) -> str | None:
    """Replace the status of a lease as a user; return what the server says against it, or None."""
    headers = [("content-type", "application/json"), ("Impersonate-User", user)]
    headers += [("Impersonate-Group", group) for group in groups]
    try:
        api.request(
            "PUT",
            f"{LEASES}/{body['metadata']['name']}/status",
            params={"dryRun": "All"} if dry else {},
            content=json.dumps(body),
            headers=headers,
        )
    except LabError as error:
        return str(error)
    return None


@pytest.fixture
def lease(api: Api) -> Iterator[str]:
    """A lease that nobody has approved."""
    name = "release"
    api.apply(a_lease(name))
    yield name
    api.request("DELETE", f"{LEASES}/{name}")


def test_somebody_of_the_platform_approves_and_revokes(api: Api, lease: str) -> None:
    assert said(api, lease, PIA, dry=False) is None
    stored = api.request("GET", f"{LEASES}/{lease}")
    assert stored["status"]["approvedBy"] == PIA
    assert said(api, lease, PIA, status="False", dry=False) is None


def test_whoever_has_no_right_to_approve_is_refused_even_with_rights_on_the_status(api: Api, lease: str) -> None:
    refusal = str(said(api, lease, EVE))
    assert f"{EVE} may not approve leases" in refusal
    assert APPROVER_ROLE in refusal
    assert said(api, lease, PIA, dry=False) is None
    assert "may not approve leases, nor take an approval back" in str(said(api, lease, EVE, status="False"))


def test_whoever_has_no_rights_on_the_status_cannot_even_try(api: Api, lease: str) -> None:
    assert "cannot update resource" in str(said(api, lease, "mallory@search"))


@pytest.mark.parametrize(
    ("user", "groups", "who"),
    [
        pytest.param(MIA, (), MIA, id="owner"),
        pytest.param(UMA, ("search-people",), UMA, id="of-a-group-of-users"),
    ],
)
def test_a_group_never_approves_its_own_lease(
    api: Api, lease: str, user: str, groups: tuple[str, ...], who: str
) -> None:
    refusal = str(said(api, lease, user, groups=groups))
    assert f"{who} is of business group lease-test-search, and no group approves its own lease" in refusal


def test_somebody_of_no_group_of_users_that_the_group_names_is_of_the_platform(api: Api, lease: str) -> None:
    assert said(api, lease, UMA) is None


def test_a_group_may_take_back_what_protects_it(api: Api, lease: str) -> None:
    assert said(api, lease, PIA, dry=False) is None
    assert said(api, lease, MIA, status="False") is None


def test_an_approval_is_signed_with_the_name_that_the_server_knows(api: Api, lease: str) -> None:
    assert f"write {PIA} in status.approvedBy" in str(said(api, lease, PIA, by="quinn@platform"))
    assert "status.approvedBy" in str(said(api, lease, PIA, by=""))
    assert said(api, lease, PIA, dry=False) is None
    assert "status.revokedBy" in str(said(api, lease, PIA, by="quinn@platform", status="False"))


@pytest.mark.parametrize("ahead", [-1, 1])
def test_an_approval_is_of_the_spec_as_it_stands(api: Api, lease: str, ahead: int) -> None:
    assert "an approval is of the spec as it stands" in str(said(api, lease, PIA, ahead=ahead))


def test_an_approval_cannot_be_carried_over_to_an_edited_spec(api: Api, lease: str) -> None:
    assert said(api, lease, PIA, dry=False) is None
    edited = a_lease(lease)
    edited["spec"]["gpus"] = 8
    api.apply(edited)
    body = api.request("GET", f"{LEASES}/{lease}")
    body["status"]["conditions"][0]["observedGeneration"] = body["metadata"]["generation"]
    assert "may not approve leases" in str(put(api, body, EVE))


def test_whoever_says_something_else_of_a_lease_needs_no_right_to_approve(api: Api, lease: str) -> None:
    assert said(api, lease, PIA, dry=False) is None
    body = api.request("GET", f"{LEASES}/{lease}")
    body["status"]["conditions"].append({"type": "Ready", "status": "True", "reason": "Applied"})
    body["status"]["conditions"][0].pop("message", None)
    body["status"]["observedGeneration"] = 1
    assert put(api, body, EVE) is None


def test_a_status_that_comes_with_a_new_lease_is_dropped(api: Api) -> None:
    body = a_lease("forged")
    body["status"] = {"approvedBy": PIA, "conditions": [{"type": "Approved", "status": "True", "reason": "Approved"}]}
    stored = api.request("POST", LEASES, params={"dryRun": "All"}, json=body, headers={"Impersonate-User": MIA})
    assert "status" not in stored or "approvedBy" not in stored["status"]


def test_the_verb_is_all_that_rbac_says_of_approving(api: Api) -> None:
    def may(user: str) -> bool:
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": user,
                "resourceAttributes": {
                    "group": "platform.aik8s.run",
                    "resource": "capacityleases",
                    "verb": APPROVE,
                    "namespace": NAMESPACE,
                },
            },
        }
        return bool(
            api.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", json=review)["status"]["allowed"]
        )

    assert (may(PIA), may(EVE)) == (True, False)


async def test_what_the_command_line_writes_is_taken_and_a_forged_signature_is_a_refusal_in_words(
    api: Api, lab: Lab, lease: str
) -> None:
    async with Connection.open(lab.kubeconfig) as connection:
        cluster = KubernetesCluster(connection, cluster="lab")
        who = await identity_of(cluster)
        assert who == (ADMIN, True)

        async def decide(how: Decide, by: Identity, *, dry_run: bool = False) -> None:
            found = CapacityLease.from_wire(await cluster.get("CapacityLease", lease, NAMESPACE) or {})
            status = how(found, by, "", NOW).model_dump(mode="json", by_alias=True, exclude_none=True)
            seen = found.metadata.resource_version
            await cluster.patch_status("CapacityLease", lease, NAMESPACE, status, seen=seen, dry_run=dry_run)

        for dry_run in (True, False):
            with pytest.raises(PolicyError, match="an approval is signed by whoever gives it"):
                await decide(approved, Identity("quinn", verified=False), dry_run=dry_run)
        await decide(approved, who, dry_run=True)
        assert not CapacityLease.from_wire(api.request("GET", f"{LEASES}/{lease}")).approved
        await decide(approved, who)
        assert CapacityLease.from_wire(api.request("GET", f"{LEASES}/{lease}")).approved
        await decide(revoked, who)
        assert not CapacityLease.from_wire(api.request("GET", f"{LEASES}/{lease}")).approved


def test_the_servers_type_checker_finds_nothing_in_the_policies(api: Api) -> None:
    assert warnings_of(api, lease_policies()) == []
