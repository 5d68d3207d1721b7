"""`gpubank doctor` on a cluster: kinds, rights, Kueue's settings, pools."""

import json
from typing import Any, cast

from gpubank.adapters.kubernetes.connection import Connection
from gpubank.adapters.kubernetes.errors import ApiError, ApiNotFoundError
from gpubank.adapters.kubernetes.kinds import Kind
from gpubank.cli.checks.cluster import RIGHTS, check_cluster
from gpubank.cli.checks.finding import Level
from gpubank.cli.checks.pools import pool_checks
from gpubank.cli.cluster import KubernetesCluster
from gpubank.domain.errors import BackendError
from gpubank.domain.layout import LayoutProblem
from gpubank.schema import KINDS, crd
from gpubank.settings import Settings
from tests.unit.cli.findings import bad, pool, said


class FakeApi:
    """What the checks ask of an API server."""

    server = "https://127.0.0.1:6443"

    def __init__(self) -> None:
        self.version = {"gitVersion": "v1.37.0", "major": "1", "minor": "37+"}
        self.crds = {kind: _established(crd(kind)) for kind in KINDS.values()}
        self.denied: set[str] = set()
        self.user: dict[str, Any] | None = {"username": "eva", "groups": ["platform"]}
        self.pools = [pool(Ready="True")]
        self.crds_readable = True
        self.down = False

    async def call(self, method: str, path: str, *, body: Any = None, params: Any = None) -> Any:
        if self.down:
            raise BackendError(f"{method} {path} at {self.server}: refused; check that the API server is up")
        if path == "/version":
            return self.version
        if path.endswith("selfsubjectreviews"):
            if self.user is None:
                raise ApiNotFoundError("no such kind", {"code": 404})
            return {"status": {"userInfo": self.user}}
        if path.endswith("selfsubjectaccessreviews"):
            wanted = body["spec"]["resourceAttributes"]
            return {"status": {"allowed": f"{wanted['verb']} {wanted['resource']}" not in self.denied}}
        return {"items": []}

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Any:
        if kind.name == "Deployment":
            return {"spec": {"template": {"spec": {"containers": [{"name": "manager", "image": "x/kueue:v0.19.0"}]}}}}
        if not self.crds_readable:
            raise ApiError("forbidden", {"code": 403})
        return next((body for body in self.crds.values() if body and body["metadata"]["name"] == name), None)

    async def all(self, kind: Kind) -> Any:
        items = {
            "GPUPool": self.pools,
            "BusinessGroup": [{"metadata": {"name": "search"}, "spec": {"namespaces": ["team-b", "team-a"]}}],
        }
        return items.get(kind.name, [])


class CheckedCluster(KubernetesCluster):
    """A cluster whose Kueue answers as it is told."""

    problems: tuple[LayoutProblem, ...] = ()
    tried = ""

    async def check_settings(self, namespace: str | None) -> tuple[LayoutProblem, ...]:
        self.tried = namespace or ""
        return self.problems


def _established(body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "status": {"conditions": [{"type": "Established", "status": "True"}]}}


def a_cluster(api: FakeApi) -> CheckedCluster:
    return CheckedCluster(cast(Connection, api), cluster="local")


async def test_a_cluster_in_order_passes() -> None:
    cluster = a_cluster(FakeApi())
    checks = await check_cluster(cluster, Settings.load())
    assert said(checks) == [
        ("ok", "cluster", "Kubernetes v1.37.0 at https://127.0.0.1:6443"),
        ("ok", "identity", "eva, of platform"),
        ("ok", "kinds", "7 kinds of platform.aik8s.run/v1alpha1 are installed, as this program's"),
        ("ok", "rights", f"you may do everything that the command line does ({len(RIGHTS)} rights)"),
        ("ok", "kueue", "Kueue v0.19.0; every setting is as needed"),
        ("ok", "pools", "cluster 'local' has h100; every pool is ready"),
    ]
    assert cluster.tried == "team-a", "Kueue's webhooks are tried in a namespace of a group"


async def test_a_cluster_that_does_not_answer_is_one_failure() -> None:
    api = FakeApi()
    api.down = True
    (failed,) = await check_cluster(a_cluster(api), Settings.load())
    assert failed.message.endswith("check that the API server is up")


async def test_kinds_that_are_missing_old_or_changed_are_named_with_what_helps() -> None:
    api = FakeApi()
    pool, group, policy, *_ = KINDS.values()
    api.crds[pool] = {}
    api.crds[group]["spec"] = {**api.crds[group]["spec"], "versions": [{"name": "v1alpha0"}]}
    changed = json.loads(json.dumps(api.crds[policy]))
    changed["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["description"] = "older"
    api.crds[policy] = changed
    checks = bad(await check_cluster(a_cluster(api), Settings.load()))
    assert said(checks) == [
        ("FAIL", "kinds", "GPUPool is not installed"),
        ("FAIL", "kinds", "BusinessGroup is installed in v1alpha0, this program speaks v1alpha1"),
        ("warn", "kinds", "GPUQuotaPolicy is of another version than this program"),
    ]
    assert {check.remedy for check in checks} == {"kubectl apply --server-side -k manifests/crds"}


async def test_who_may_not_read_definitions_is_told_whether_kinds_are_served() -> None:
    api = FakeApi()
    api.crds_readable = False
    assert bad(await check_cluster(a_cluster(api), Settings.load())) == []


async def test_rights_that_are_missing_are_named_with_what_needs_them() -> None:
    api = FakeApi()
    api.denied = {"watch workloads", "update gpupools"}
    needed, other = bad(await check_cluster(a_cluster(api), Settings.load()))
    assert (needed.level, needed.message) == (Level.FAIL, "you may not watch workloads, which quota need")
    assert (other.level, other.message) == (Level.WARN, "you may not update gpupools, which freeze need")


async def test_kueues_settings_fail_and_unreadable_ones_warn() -> None:
    cluster = a_cluster(FakeApi())
    cluster.problems = (
        LayoutProblem(reason="KueueMisconfigured", message="set it to IgnoreUndeclared"),
        LayoutProblem(reason="KueueUnreadable", message="Kueue's settings cannot be checked"),
    )
    assert said(bad(await check_cluster(cluster, Settings.load()))) == [
        ("FAIL", "kueue", "set it to IgnoreUndeclared"),
        ("warn", "kueue", "Kueue's settings cannot be checked"),
    ]


async def test_an_old_cluster_and_an_unknown_identity_are_said() -> None:
    api = FakeApi()
    api.version = {"gitVersion": "v1.20.0", "major": "1", "minor": "20"}
    api.user = None
    old, unknown = bad(await check_cluster(a_cluster(api), Settings.load()))
    assert (old.level, old.message) == (Level.FAIL, "Kubernetes v1.20.0 at https://127.0.0.1:6443 is too old")
    assert (unknown.level, unknown.area) == (Level.WARN, "identity")


def test_pools_are_judged_by_their_conditions() -> None:
    assert said(pool_checks([pool(Ready="False", FailSafe="True", Shrunk="False")], "here")) == [
        ("FAIL", "pools", "pool 'h100' is not ready (Because): so it is"),
        ("warn", "pools", "pool 'h100' is FailSafe: so it is"),
    ]
    assert said(pool_checks([{"metadata": {"name": "h100"}}], "here")) == [
        ("FAIL", "pools", "pool 'h100' has not been judged yet")
    ]
    assert said(pool_checks([], "here")) == [("warn", "pools", "here has no pool")]
