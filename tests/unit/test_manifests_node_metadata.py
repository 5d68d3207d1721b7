"""Whom the node agent meets: the controller's port for nodes, and the images that both come from."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from containers import locks
from gpubank.settings import Settings
from tests.support import kustomize
from tests.unit.test_manifests_nodeagent import (
    MANIFESTS,
    NAMESPACE,
    ROOT,
    Manifest,
    control_plane,
    daemonsets,
    overlay,
    service,
)


def controller() -> Manifest:
    (found,) = [
        body
        for body in control_plane()
        if (body["kind"], body["metadata"]["name"]) == ("Deployment", "gpubank-controller")
    ]
    spec: Manifest = found["spec"]["template"]["spec"]
    return spec


def test_the_controllers_port_for_nodes_is_served_let_through_and_named() -> None:
    (own,) = controller()["containers"]
    ports = {each["name"]: each["containerPort"] for each in own["ports"]}
    assert ports["metadata"] == 9413
    (port,) = service()["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (9413, "metadata")
    (policy,) = [
        body["spec"]
        for body in control_plane()
        if body["kind"] == "NetworkPolicy" and body["metadata"]["name"] == "gpubank-metadata"
    ]
    assert policy["podSelector"]["matchLabels"] == service()["spec"]["selector"]
    (rule,) = policy["ingress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": "metadata"}]
    (peer,) = rule["from"]
    assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": NAMESPACE}
    exporter = daemonsets(overlay("full"))["exporter"]["spec"]["template"]["metadata"]["labels"]
    assert peer["podSelector"]["matchLabels"].items() <= exporter.items()


def test_the_controllers_environment_are_settings_whose_files_are_mounted(monkeypatch: pytest.MonkeyPatch) -> None:
    (own,) = controller()["containers"]
    for each in own["env"]:
        if each["name"].startswith("GPUBANK_METADATA__"):
            monkeypatch.setenv(each["name"], each["value"])
    found = Settings.load().metadata
    mounts = [Path(each["mountPath"]) for each in own["volumeMounts"]]
    for file in (found.certificate, found.key, found.client_authorities, found.signing_key):
        assert file is not None
        assert any(file.is_relative_to(mount) for mount in mounts), file
    assert (found.address, found.shared_client_name) == ("0.0.0.0:9413", "gpubank-node")
    assert {each["name"] for each in own["volumeMounts"]} == {each["name"] for each in controller()["volumes"]}


def test_for_metadata_the_controller_may_watch_resource_slices_and_nothing_more() -> None:
    plain = {body["metadata"]["name"] for body in kustomize.build(MANIFESTS / "overlays" / "example")}
    added = [
        body for body in control_plane() if body["metadata"]["name"] not in plain and body["kind"] == "ClusterRole"
    ]
    assert [body["rules"] for body in added] == [
        [{"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices"], "verbs": ["list", "watch"]}]
    ]


# ---- the image


def test_the_nodes_image_holds_what_the_agent_imports_and_nothing_of_the_control_plane() -> None:
    text = (ROOT / "containers" / "nodeagent.lock").read_text()
    assert "--hash=sha256:" in text
    held = set(re.findall(r"^([a-z0-9-]+)==", text, re.MULTILINE))
    assert {"grpcio", "nvidia-ml-py", "prometheus-client", "protobuf", "pydantic", "pyyaml", "cryptography"} <= held
    assert not {"sqlalchemy", "psycopg", "lightkube", "aiohttp", "alembic", "fsspec", "typer", "rich"} & held
    assert set(locks.files()) == {"runtime.lock", "build.lock", "nodeagent.lock"}


def test_the_controllers_image_can_serve_nodes() -> None:
    assert re.search(r"^grpcio==", (ROOT / "containers" / "runtime.lock").read_text(), re.MULTILINE)


def test_every_process_of_the_node_can_be_imported_from_its_lock_alone() -> None:
    held = set(re.findall(r"^([a-z0-9-]+)==", (ROOT / "containers" / "nodeagent.lock").read_text(), re.MULTILINE))
    code = (
        "import sys\n"
        "import nodeagent.plugin.__main__, nodeagent.plugin.alive, pynvml\n"
        "import nodeagent.exporter.__main__, nodeagent.exporter.settings, nodeagent.reporter\n"
        "from importlib.metadata import packages_distributions\n"
        "known = packages_distributions()\n"
        "print(*{d.lower().replace('_', '-') for m in sys.modules for d in known.get(m.partition('.')[0], [])})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert set(done.stdout.split()) - {"gpubank", "setuptools"} <= held  # a .pth file imports the latter
