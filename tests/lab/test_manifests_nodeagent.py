"""The node agent on a real API server: its manifests are taken as they stand, and its account may do nothing."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from gpubank.lab import Lab, LabError
from gpubank.lab.access import Api
from gpubank.lab.bank import SYSTEM_NAMESPACE, install
from tests.support import kustomize
from tests.support.waiting import until

MANIFESTS: Final = Path(__file__).parents[2] / "manifests"
NODEAGENT: Final = MANIFESTS / "nodeagent"
NAMESPACE: Final = "gpubank-nodes"
STRICT: Final = {"dryRun": "All", "fieldValidation": "Strict", "fieldManager": "test", "force": "true"}
APPLY: Final = {"content-type": "application/apply-patch+yaml"}
USER: Final = f"system:serviceaccount:{NAMESPACE}:gpubank-nodeagent"
GROUPS: Final = ("system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}", "system:authenticated")

Manifest = dict[str, Any]


def overlay(name: str, *components: str) -> list[Manifest]:
    bodies = kustomize.build(NODEAGENT / "overlays" / name)
    for component in components:
        bodies = kustomize.added(bodies, NODEAGENT / "components" / component)
    return bodies


@pytest.fixture(scope="module")
def nodes(lab: Lab) -> Iterator[str]:
    """Install the agent's namespace and account for real."""
    install(lab)
    lab.apply([body for body in overlay("full") if body["kind"] in ("Namespace", "ServiceAccount")])
    yield NAMESPACE
    with lab.api() as api:
        api.request("DELETE", f"/api/v1/namespaces/{NAMESPACE}")


@pytest.mark.parametrize(
    ("name", "components"),
    [
        ("full", ()),
        ("full", ("mig", "nvidia-runtime-class", "tls", "reporter")),
        ("dcgm47", ("hardened-toolkit",)),
        ("attribution-only", ()),
    ],
)
def test_the_api_server_takes_every_overlay_as_it_stands(
    api: Api, nodes: str, name: str, components: tuple[str, ...]
) -> None:
    for body in overlay(name, *components):
        api.request("PATCH", api.path_of(body), params=STRICT, content=json.dumps(body), headers=APPLY)


def test_the_api_server_takes_the_controllers_side_too(api: Api, nodes: str) -> None:
    plain = kustomize.build(MANIFESTS / "overlays" / "example")
    for body in kustomize.added(plain, MANIFESTS / "components" / "node-metadata"):
        if body not in plain:
            api.request("PATCH", api.path_of(body), params=STRICT, content=json.dumps(body), headers=APPLY)


def pods() -> list[Manifest]:
    """Return a pod for every DaemonSet."""
    found = [body["spec"]["template"]["spec"] for body in overlay("full", "reporter") if body["kind"] == "DaemonSet"]
    specs = [{**spec, "serviceAccountName": "default"} for spec in found]
    return [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe"}, "spec": spec} for spec in specs]


def test_its_pods_are_let_into_their_own_namespace_and_not_into_one_that_is_restricted(api: Api, nodes: str) -> None:
    accounts = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
    until(lambda: len(api.request("GET", accounts)["items"]) >= 2, "the namespace's accounts")
    (own,) = [body for body in kustomize.build(MANIFESTS / "base" / "namespace") if body["kind"] == "Namespace"]
    strict = {**own, "metadata": {"name": "gpubank-nodes-strict", "labels": own["metadata"]["labels"]}}
    api.apply(strict)
    try:
        assert len(pods()) == 3
        for pod in pods():
            api.request("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", params={"dryRun": "All"}, json=pod)
            with pytest.raises(LabError, match="hostPath"):
                api.request("POST", "/api/v1/namespaces/gpubank-nodes-strict/pods", params={"dryRun": "All"}, json=pod)
    finally:
        api.request("DELETE", "/api/v1/namespaces/gpubank-nodes-strict")


def may(api: Api, verb: str, resource: str, namespace: str = "", group: str = "") -> bool:
    """Ask the API server whether the agent's account may do something, as `kubectl auth can-i` does."""
    resource, _, subresource = resource.partition("/")
    attributes = {"verb": verb, "resource": resource, "namespace": namespace, "group": group}
    attributes |= {"subresource": subresource} if subresource else {}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": USER, "groups": [*GROUPS], "resourceAttributes": attributes},
    }
    answer = api.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", json=review)
    return bool(answer["status"]["allowed"])


def test_nothing_on_a_node_may_read_secrets_or_write_pods(api: Api, nodes: str) -> None:
    asked = [
        *((verb, "secrets") for verb in ("get", "list", "watch", "create", "delete")),
        *((verb, "pods") for verb in ("get", "list", "watch", "create", "update", "patch", "delete")),
        *(("create", sub) for sub in ("pods/exec", "pods/binding", "pods/eviction", "serviceaccounts/token")),
        *((verb, "nodes") for verb in ("get", "list", "patch", "update")),
        ("get", "nodes/proxy"),
        ("patch", "nodes/status"),
        *((verb, "configmaps") for verb in ("get", "list", "create")),
    ]
    places = ("", NAMESPACE, SYSTEM_NAMESPACE, "default", "kube-system")
    assert [(verb, what, place) for place in places for verb, what in asked if may(api, verb, what, place)] == []
    for resource in ("gpupools", "businessgroups", "gpuquotapolicies"):
        assert not may(api, "list", resource, group="platform.aik8s.run")
    assert may(api, "create", "selfsubjectaccessreviews", group="authorization.k8s.io"), "the question itself is sound"


def test_its_account_is_granted_what_everybody_is_and_nothing_besides(api: Api, nodes: str) -> None:
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": NAMESPACE},
    }
    path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
    answers = [
        api.request("POST", path, json=review, headers={"Impersonate-User": user, "Impersonate-Group": GROUPS[-1]})
        for user in (USER, "somebody")
    ]
    agent, anybody = (
        sorted(json.dumps(rule, sort_keys=True) for rule in answer["status"]["resourceRules"]) for answer in answers
    )
    assert agent == anybody
    resources = {name for rule in answers[0]["status"]["resourceRules"] for name in rule["resources"]}
    assert all(name.startswith("selfsubject") for name in resources), resources
