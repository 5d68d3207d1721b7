"""What connects the bank to PostgreSQL and Temporal: authorities, certificates, and the Job that migrates."""

from pathlib import Path, PurePosixPath
from typing import Any, Final

import pytest

from gpubank.settings import Settings
from tests.support import kustomize

ROOT: Final = Path(__file__).parents[2]
MANIFESTS: Final = ROOT / "manifests"
EXAMPLE: Final = MANIFESTS / "overlays" / "example"
CONNECTED: Final = ("gpubank-controller", "gpubank-worker")
"""Deployments that speak to PostgreSQL and Temporal."""

Manifest = dict[str, Any]


def pods(*components: str) -> dict[str, Manifest]:
    """Return the pods of the example's Deployments, with these components."""
    bodies = kustomize.build(EXAMPLE)
    for component in components:
        bodies = kustomize.added(bodies, MANIFESTS / "components" / component)
    return {
        body["metadata"]["name"]: body["spec"]["template"]["spec"] for body in bodies if body["kind"] == "Deployment"
    }


def migration() -> dict[str, Manifest]:
    """Return the objects of manifests/migrate, by their kind."""
    return {body["kind"]: body for body in kustomize.build(MANIFESTS / "migrate")}


def files(pod: Manifest) -> dict[PurePosixPath, str]:
    """Return the files that a pod's container finds, of Secrets whose keys are named, and the Secret of each."""
    volumes = {each["name"]: each["secret"] for each in pod["volumes"] if "secret" in each}
    return {
        PurePosixPath(mount["mountPath"]) / item["path"]: volumes[mount["name"]]["secretName"]
        for mount in pod["containers"][0]["volumeMounts"]
        for item in volumes.get(mount["name"], {}).get("items", ())
    }


def documented_authorities() -> PurePosixPath:
    """Return the file that the ledger's URL on the page names."""
    text = (ROOT / "docs" / "how-to" / "install.md").read_text()
    (url,) = [word for word in text.split() if word.startswith("--from-literal=url=")]
    name = url.removesuffix("'").partition("sslrootcert=")[2]
    return PurePosixPath(name)


@pytest.mark.parametrize("component", ["ledger-ca", "temporal-tls"])
def test_a_component_touches_what_connects_and_nothing_else(component: str) -> None:
    before, after = pods(), pods(component)
    assert sorted(name for name in before if before[name] != after[name]) == sorted(CONNECTED)


@pytest.mark.parametrize("name", CONNECTED)
def test_the_ledgers_authorities_are_where_the_pages_url_says(name: str) -> None:
    assert files(pods("ledger-ca")[name]) == {documented_authorities(): "gpubank-ledger-ca"}


@pytest.mark.parametrize("name", CONNECTED)
def test_temporals_certificates_are_settings_whose_files_are_mounted(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = pods("temporal-tls", "node-metadata")[name]
    (own,) = pod["containers"]
    for each in own["env"]:
        if each["name"].startswith("GPUBANK_TEMPORAL__") and "value" in each:
            monkeypatch.setenv(each["name"], each["value"])
    found = Settings.load().temporal
    (mount,) = [each for each in own["volumeMounts"] if each["name"] == "temporal-tls"]
    (volume,) = [each for each in pod["volumes"] if each["name"] == "temporal-tls"]
    named = {
        str(path.relative_to(mount["mountPath"]))
        for path in (found.server_ca, found.client_cert, found.client_key)
        if path
    }
    assert named == {"ca.crt", "tls.crt", "tls.key"}
    assert volume["secret"] == {"secretName": "gpubank-temporal-tls", "defaultMode": 0o440}
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]


def test_the_job_migrates_the_clusters_ledger_as_confined_as_the_processes() -> None:
    pod, process = migration()["Job"]["spec"]["template"]["spec"], pods("ledger-ca")["gpubank-controller"]
    (own,), (other,) = pod["containers"], process["containers"]
    assert own["args"] == ["-m", "gpubank.cli.main", "ledger", "migrate"]
    assert {"name": "GPUBANK_MODE", "value": "cluster"} in own["env"]
    (url,) = [each for each in own["env"] if each["name"] == "GPUBANK_LEDGER__URL"]
    assert url in other["env"]
    assert files(pod) == files(process)
    assert own["securityContext"] == other["securityContext"]
    assert pod["securityContext"] == process["securityContext"]
    assert pod["automountServiceAccountToken"] is False


def test_the_job_is_let_through_to_the_ledger_and_is_no_replica_of_a_process() -> None:
    labels = migration()["Job"]["spec"]["template"]["metadata"]["labels"]
    policy = migration()["NetworkPolicy"]["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert {"protocol": "TCP", "port": 5432} in [port for rule in policy["egress"] for port in rule["ports"]]
    assert labels["app.kubernetes.io/name"] not in pods()


def test_the_job_runs_the_overlays_image() -> None:
    (ours,), (theirs,) = (kustomize.kustomization(folder)["images"] for folder in (MANIFESTS / "migrate", EXAMPLE))
    assert ours == theirs
    assert migration()["Job"]["spec"]["template"]["spec"]["containers"][0]["image"] == ours["name"]
