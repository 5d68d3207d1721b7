"""Ways into a lab: kubeconfigs for every user, a client for the lab's own set-up, one look at a health endpoint."""

import base64
import http.client
import json
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx2
import yaml

from gpubank.lab.errors import LabError
from gpubank.lab.pki import Authority
from gpubank.lab.state import write_whole

ADMIN: Final = "gpubank-lab-admin"
MASTERS: Final = "system:masters"
"""The group that RBAC binds to cluster-admin from the start."""
FIELD_MANAGER: Final = "gpubank-lab"

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Access:
    """How to reach the API server of a lab as a user of its authority."""

    authority: Authority
    server: str

    def kubeconfig(self, path: Path, user: str, *, group: str | None = None) -> Path:
        """Write a self-contained kubeconfig for `user` to `path` unless it is there, and return the path."""
        if path.exists():
            return path
        client = self.authority.issue(user, group=group)
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "lab",
            "clusters": [
                {
                    "name": "lab",
                    "cluster": {
                        "server": self.server,
                        "certificate-authority-data": _base64(self.authority.certificate),
                    },
                }
            ],
            "users": [
                {
                    "name": user,
                    "user": {
                        "client-certificate-data": _base64(client.certificate),
                        "client-key-data": _base64(client.key),
                    },
                }
            ],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": user, "namespace": "default"}}],
        }
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, yaml.safe_dump(config, sort_keys=False))
        return path

    def client(self) -> "Api":
        """Return a client with all rights."""
        return Api(self.server, self.authority.client_context(self.authority.issue(ADMIN, group=MASTERS)))


class Api:
    """The few calls that setting up a lab takes, on manifests as they are: nothing in a CRD is lost on the way."""

    def __init__(self, server: str, context: ssl.SSLContext) -> None:
        # trust_env off: a proxy or CA of the environment is for the outside.
        self._http = httpx2.Client(base_url=server, verify=context, trust_env=False, timeout=30)
        self._plurals: dict[tuple[str, str], tuple[str, bool]] = {}

    def __enter__(self) -> "Api":
        return self

    def __exit__(self, *exc: object) -> None:
        self._http.close()

    def apply(self, manifest: Manifest) -> Manifest:
        """Apply one manifest on the server's side and return what is stored."""
        response = self._http.patch(
            self.path_of(manifest),
            params={"fieldManager": FIELD_MANAGER, "force": "true"},
            content=json.dumps(manifest),
            headers={"content-type": "application/apply-patch+yaml"},
        )
        return self._checked(response, f"apply {manifest['kind']} {manifest['metadata']['name']!r}")

    def apply_all(self, manifests: Iterable[Manifest]) -> None:
        """Apply manifests in their order; a CRD is served before the next other kind is applied, and on return."""
        fresh: list[Manifest] = []
        for manifest in manifests:
            if manifest["kind"] != "CustomResourceDefinition":
                self._await_served(fresh)
            self.apply(manifest)
            if manifest["kind"] == "CustomResourceDefinition":
                fresh.append(manifest)
        self._await_served(fresh)

    def request(self, method: str, path: str, **arguments: Any) -> Manifest:
        """Send one request and return the JSON of the answer; raise LabError on a refusal."""
        return self._checked(self._http.request(method, path, **arguments), f"{method} {path}")

    def text(self, path: str) -> str:
        """Return the text at a path, such as a pod's log; raise LabError on a refusal."""
        response = self._http.get(path)
        if response.is_error:
            self._checked(response, f"GET {path}")
        return response.text

    def path_of(self, manifest: Manifest) -> str:
        """Return the path of the object that `manifest` describes."""
        plural, namespaced = self._resource(manifest["apiVersion"], manifest["kind"])
        namespace = f"/namespaces/{manifest['metadata'].get('namespace', 'default')}" if namespaced else ""
        return f"{_root(manifest['apiVersion'])}{namespace}/{plural}/{manifest['metadata']['name']}"

    def _resource(self, version: str, kind: str) -> tuple[str, bool]:
        if (version, kind) not in self._plurals:
            for found in self.request("GET", _root(version))["resources"]:
                if "/" not in found["name"]:
                    self._plurals[version, found["kind"]] = (found["name"], found["namespaced"])
        try:
            return self._plurals[version, kind]
        except KeyError:
            raise LabError(f"the API server knows no {kind} in {version}; apply its CRD first") from None

    def _await_served(self, fresh: list[Manifest]) -> None:
        while fresh:
            crd = fresh.pop()
            wait_until(partial(self._served, crd), 30, f"CRD {crd['metadata']['name']!r}")
            self._plurals.clear()

    def _served(self, crd: Manifest) -> bool:
        stored = self.request("GET", self.path_of(crd))
        conditions = {each["type"]: each["status"] for each in stored.get("status", {}).get("conditions") or ()}
        return conditions.get("Established") == "True"

    @staticmethod
    def _checked(response: httpx2.Response, what: str) -> Manifest:
        if response.is_error:
            raise LabError(f"{what}: the API server says {response.status_code}: {response.text[:2000]}")
        answer: Manifest = response.json()
        return answer


def look(address: str, path: str = "/", *, context: ssl.SSLContext | None = None) -> str | None:
    """Ask a health endpoint once: None when it answers 200, else what it said."""
    host, _, port = address.partition(":")
    connection = (
        http.client.HTTPSConnection(host, int(port), timeout=2, context=context)
        if context
        else http.client.HTTPConnection(host, int(port), timeout=2)
    )
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return None if response.status == http.client.OK else f"{path} says {response.status}"
    finally:
        connection.close()


def wait_until(check: Callable[[], bool], timeout: float, what: str) -> None:
    """Poll `check` until it holds; raise LabError, saying `what`, after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not check():
        if time.monotonic() > deadline:
            raise LabError(f"{what} did not come about within {timeout:g} s")
        time.sleep(0.02)


def documents(path: Path) -> list[Manifest]:
    """Return the manifests in a YAML file, or in every YAML file of a folder in the order of their names."""
    files = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [found for file in files for found in yaml.load_all(file.read_text(), Loader=loader) if found]


def _root(version: str) -> str:
    return f"/apis/{version}" if "/" in version else f"/api/{version}"


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def namespace(name: str, labels: Mapping[str, str] | None = None) -> Manifest:
    """Return a Namespace manifest."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": dict(labels or {})}}
