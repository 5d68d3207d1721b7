"""The cluster: API server, identity, kinds, rights, Kueue."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from gpubank.adapters.kubernetes.connection import Connection
from gpubank.adapters.kubernetes.errors import ApiError
from gpubank.adapters.kubernetes.kinds import (
    BANK_KINDS,
    CLUSTER_QUEUE,
    COHORT,
    CONFIG_MAP,
    LOCAL_QUEUE,
    NODE,
    POD,
    RESOURCE_FLAVOR,
    WORKLOAD,
    Kind,
)
from gpubank.adapters.kubernetes.kueue.settings import NAMESPACE as KUEUE_NAMESPACE
from gpubank.cli.checks.finding import Check, fail, ok, warn
from gpubank.cli.checks.pools import pool_checks
from gpubank.cli.cluster import KubernetesCluster
from gpubank.domain.base import GROUP, VERSION
from gpubank.domain.errors import BackendError, BankError
from gpubank.schema import KINDS, crd
from gpubank.settings import Settings

AREA: Final = "cluster"
OLDEST_KUBERNETES: Final = (1, 30)
"""Of the admission policies that guard the borrow queues (v1)."""

CRD: Final = Kind("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", False)
DEPLOYMENT: Final = Kind("apps", "v1", "Deployment", "deployments")
_REVIEW: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_APPLY: Final = "kubectl apply --server-side -k manifests/crds"


class Right(NamedTuple):
    """Something that the caller must be allowed to do."""

    verb: str
    kind: Kind
    use: str
    """What of the command line needs it."""

    needed: bool = True
    """Whether looking at the bank needs it; else it is for changing something."""

    namespace: str = ""

    def __str__(self) -> str:
        return f"{self.verb} {self.kind.plural}"


_READ: Final = "quota, loan and reclaim"
RIGHTS: Final = (
    *(Right("list", kind, _READ) for kind in BANK_KINDS.values()),
    *(
        Right(verb, kind, "quota")
        for kind in (CLUSTER_QUEUE, COHORT, LOCAL_QUEUE, RESOURCE_FLAVOR, WORKLOAD, NODE, POD)
        for verb in ("list", "watch")
    ),
    Right("update", BANK_KINDS["GPUPool"], "freeze", needed=False),
    *(Right("create", kind, "apply", needed=False) for kind in BANK_KINDS.values()),
    *(Right("delete", kind, "delete", needed=False) for kind in BANK_KINDS.values()),
    Right("get", CONFIG_MAP, "doctor, to read Kueue's settings", needed=False, namespace=KUEUE_NAMESPACE),
)
"""What the command line does with the caller's own rights."""


async def check_cluster(cluster: KubernetesCluster, settings: Settings) -> list[Check]:
    """Ask the API server; where it does not answer nothing else can be said."""
    try:
        checks = [await _server(cluster.connection), await _identity(cluster)]
    except BackendError as error:
        return [fail(AREA, str(error))]
    parts = (_kinds(cluster.connection), _rights(cluster.connection), _kueue(cluster), _pools(cluster, settings))
    for found in await asyncio.gather(*parts, return_exceptions=True):
        if isinstance(found, BankError):
            checks.append(fail(AREA, str(found)))
        elif isinstance(found, BaseException):
            raise found
        else:
            checks += found
    return checks


async def _server(connection: Connection) -> Check:
    info = await connection.call("GET", "/version")
    version = str(info.get("gitVersion", "unknown"))
    numbers = tuple(int(str(info.get(name, "0")).rstrip("+") or 0) for name in ("major", "minor"))
    if numbers < OLDEST_KUBERNETES:
        oldest = ".".join(map(str, OLDEST_KUBERNETES))
        return fail(AREA, f"Kubernetes {version} at {connection.server} is too old", f"update it to {oldest} or later")
    return ok(AREA, f"Kubernetes {version} at {connection.server}")


async def _identity(cluster: KubernetesCluster) -> Check:
    name, groups = await cluster.identity()
    if name is None:
        return warn("identity", "the API server does not say who you are; decisions are recorded as unverified")
    return ok("identity", f"{name}{', of ' + ', '.join(groups) if groups else ''}")


# ---- kinds


async def _kinds(connection: Connection) -> list[Check]:
    results = await asyncio.gather(*(_kind(connection, name) for name in KINDS))
    bad = [check for check in results if check is not None]
    return bad or [ok("kinds", f"{len(KINDS)} kinds of {GROUP}/{VERSION} are installed, as this program's")]


async def _kind(connection: Connection, name: str) -> Check | None:
    """Return what is wrong with one kind's definition."""
    wanted = crd(KINDS[name])
    try:
        found = await connection.get(CRD, wanted["metadata"]["name"])
    except ApiError as error:
        if error.code != 403:
            raise
        return await _served(connection, name)
    if found is None:
        return fail("kinds", f"{name} is not installed", _APPLY)
    conditions = {each["type"]: each["status"] for each in (found.get("status") or {}).get("conditions") or ()}
    if conditions.get("Established") != "True":
        return fail("kinds", f"{name} is installed and not served; its status says why", _APPLY)
    versions = {version["name"]: version for version in found["spec"]["versions"]}
    if VERSION not in versions:
        return fail("kinds", f"{name} is installed in {', '.join(versions)}, this program speaks {VERSION}", _APPLY)
    ours = wanted["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    if versions[VERSION]["schema"]["openAPIV3Schema"] != ours:
        return warn("kinds", f"{name} is of another version than this program", _APPLY)
    return None


async def _served(connection: Connection, name: str) -> Check | None:
    """Whether a kind is served, for a caller who may not read definitions."""
    try:
        await connection.call("GET", BANK_KINDS[name].path(), params={"limit": "1"})
    except ApiError as error:
        if error.code == 404:
            return fail("kinds", f"{name} is not installed", _APPLY)
        if error.code != 403:
            raise
    return None


# ---- rights


async def _rights(connection: Connection) -> list[Check]:
    allowed = await asyncio.gather(*(_may(connection, right) for right in RIGHTS))
    missing = [right for right, granted in zip(RIGHTS, allowed, strict=True) if not granted]
    checks = []
    if needed := [right for right in missing if right.needed]:
        remedy = "have it granted cluster-wide, as by a ClusterRole"
        checks.append(fail("rights", f"you may not {_listed(needed)}, which {_uses(needed)} need", remedy))
    if others := [right for right in missing if not right.needed]:
        remedy = "have it granted if you are to do that"
        checks.append(warn("rights", f"you may not {_listed(others)}, which {_uses(others)} need", remedy))
    return checks or [ok("rights", f"you may do everything that the command line does ({len(RIGHTS)} rights)")]


async def _may(connection: Connection, right: Right) -> bool:
    wanted = {
        "verb": right.verb,
        "group": right.kind.group,
        "resource": right.kind.plural,
        "namespace": right.namespace,
    }
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": wanted},
    }
    answer = await connection.call("POST", _REVIEW, body=body)
    return bool((answer.get("status") or {}).get("allowed"))


def _listed(rights: Iterable[Right]) -> str:
    return ", ".join(str(right) for right in rights)


def _uses(rights: Iterable[Right]) -> str:
    return ", ".join(dict.fromkeys(right.use for right in rights))


# ---- Kueue and pools


async def _kueue(cluster: KubernetesCluster) -> list[Check]:
    namespaces = [
        namespace
        for group in await cluster.list("BusinessGroup")
        for namespace in group.get("spec", {}).get("namespaces") or ()
    ]
    version = await _kueue_version(cluster.connection)
    problems = await cluster.check_settings(min(namespaces, default=None))
    if not problems:
        return [ok("kueue", f"{version}; every setting is as needed")]
    return [(warn if problem.reason == "KueueUnreadable" else fail)("kueue", problem.message) for problem in problems]


async def _kueue_version(connection: Connection) -> str:
    """Kueue's version by its image, where that may be read; else the API version that it serves."""
    try:
        found = await connection.get(DEPLOYMENT, "kueue-controller-manager", KUEUE_NAMESPACE)
    except ApiError:
        found = None
    for container in _at(found or {}, "spec", "template", "spec", "containers") or ():
        if container.get("name") == "manager":
            return f"Kueue {str(container.get('image', '')).rpartition(':')[2]}"
    return f"Kueue, serving {CLUSTER_QUEUE.api_version}"


async def _pools(cluster: KubernetesCluster, settings: Settings) -> list[Check]:
    pools = await cluster.list("GPUPool")
    return pool_checks(pools, f"cluster {settings.cluster.name!r}")


def _at(body: Mapping[str, Any], *path: str) -> Any:
    found: Any = body
    for name in path:
        found = (found or {}).get(name)
    return found
