"""The manifests on a real API server: every field is known and taken, and the pods pass its restricted profile."""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from gpubank.lab import Lab, LabError
from gpubank.lab.access import Api, namespace
from gpubank.lab.bank import install
from tests.support import kustomize
from tests.support.waiting import until

MANIFESTS: Final = Path(__file__).parents[2] / "manifests"
STRICT: Final = {"dryRun": "All", "fieldValidation": "Strict", "fieldManager": "test", "force": "true"}
APPLY: Final = {"content-type": "application/apply-patch+yaml"}

Manifest = dict[str, Any]


@pytest.fixture(scope="module")
def installation() -> list[Manifest]:
    """Return what the example overlay installs, and the components that it leaves out."""
    parts = ("checkpoint-annotation", "checkpoint-exec")
    extra = [body for part in parts for body in kustomize.build(MANIFESTS / "components" / part)]
    return [*kustomize.build(MANIFESTS / "overlays" / "example"), *extra]


def test_the_api_server_takes_everything_as_it_stands(lab: Lab, api: Api, installation: list[Manifest]) -> None:
    install(lab, ["kueue-system"])
    for body in installation:
        path = api.path_of(body)
        api.request("PATCH", path, params=STRICT, content=json.dumps(body), headers=APPLY)


def test_a_field_that_is_misspelt_would_be_found(lab: Lab, api: Api, installation: list[Manifest]) -> None:
    install(lab)
    body = next(each for each in installation if each["kind"] == "PodDisruptionBudget")
    wrong = body | {"spec": body["spec"] | {"minAvailabel": 1}}
    with pytest.raises(LabError, match="minAvailabel"):
        api.request("PATCH", api.path_of(body), params=STRICT, content=json.dumps(wrong), headers=APPLY)


@pytest.fixture
def restricted_namespace(api: Api, installation: list[Manifest]) -> Iterator[str]:
    """Make a namespace that enforces what the bank's own enforces."""
    (own,) = [body for body in installation if body["kind"] == "Namespace"]
    name = f"restricted-{uuid.uuid4().hex[:6]}"
    api.apply(namespace(name, own["metadata"]["labels"]))
    accounts = f"/api/v1/namespaces/{name}/serviceaccounts"
    until(lambda: api.request("GET", accounts)["items"], "the namespace's own account")
    yield name
    api.request("DELETE", f"/api/v1/namespaces/{name}")


def test_every_pod_passes_the_restricted_profile(
    api: Api, installation: list[Manifest], restricted_namespace: str
) -> None:
    for priority in (body for body in installation if body["kind"] == "PriorityClass"):
        api.apply(priority)
    pods = f"/api/v1/namespaces/{restricted_namespace}/pods"
    deployments = [body for body in installation if body["kind"] == "Deployment"]
    assert len(deployments) == 3
    for deployment in deployments:
        spec = deployment["spec"]["template"]["spec"] | {"serviceAccountName": "default"}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe"}, "spec": spec}
        api.request("POST", pods, params={"dryRun": "All"}, json=pod)
    loose = pod | {"spec": spec | {"hostNetwork": True}}
    with pytest.raises(LabError, match="restricted"):
        api.request("POST", pods, params={"dryRun": "All"}, json=loose)
