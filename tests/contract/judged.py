"""Admission policies on the lab's API server: bound to one test's namespace, and asked in dry runs."""

import json
from collections.abc import Iterable
from typing import Any

from gpubank.lab import LabError
from gpubank.lab.access import Api, wait_until
from gpubank.schema import KINDS, Scope

Body = dict[str, Any]
APPS = "/apis/apps/v1"
API = "/apis/platform.aik8s.run/v1alpha1"


def only_in(namespace: str, manifest: Body) -> Body:
    """Bind a policy to one namespace alone: the lab is everybody's."""
    if not manifest["kind"].endswith("Binding"):
        return manifest
    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    return {**manifest, "spec": {**manifest["spec"], "matchResources": here}}


def path_in(namespace: str, kind: str) -> str:
    """Return where objects of a kind are, in a namespace if they have one."""
    ours = KINDS.get(kind)
    where = {"Pod": "/api/v1", "Job": "/apis/batch/v1", "Deployment": APPS, "StatefulSet": APPS}.get(kind, API)
    plural = ours.plural if ours else f"{kind.lower()}s"
    return f"{where}{'' if ours and ours.scope is Scope.CLUSTER else f'/namespaces/{namespace}'}/{plural}"


def posted(api: Api, namespace: str, body: Body) -> str | None:
    """Create the object in a dry run; return what the server says against it, or None."""
    try:
        api.request(
            "POST",
            path_in(namespace, body["kind"]),
            params={"dryRun": "All", "fieldValidation": "Strict"},
            content=json.dumps(body),
            headers={"content-type": "application/json"},
        )
    except LabError as error:
        return str(error)
    return None


def warnings_of(api: Api, policies: Iterable[Body]) -> list[Body]:
    """Return what the server's type checker finds in the policies' expressions, once it has looked at each."""
    found: list[Body] = []
    for policy in policies:
        if policy["kind"] != "ValidatingAdmissionPolicy" or "other-kinds" in policy["metadata"]["name"]:
            continue  # the other kinds' CRDs are not here to check against

        def checked(path: str = api.path_of(policy)) -> bool:
            return "typeChecking" in api.request("GET", path).get("status", {})

        wait_until(checked, 30, f"type check of {policy['metadata']['name']}")
        found += api.request("GET", api.path_of(policy))["status"]["typeChecking"].get("expressionWarnings", [])
    return found
