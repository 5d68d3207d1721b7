"""The node agent's manifests: no more of the host than is named here, no rights, and settings that are settings."""

import importlib.util
import os
import re
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from gpubank.lab.bank import SYSTEM_NAMESPACE
from nodeagent import settings as agent_settings
from nodeagent.exporter import settings as exporter_settings
from nodeagent.exporter.quantities import Dialect
from nodeagent.plugin import alive
from nodeagent.reporting import settings as reporter_settings
from tests.support import kustomize

ROOT: Final = Path(__file__).parents[2]
MANIFESTS: Final = ROOT / "manifests"
NODEAGENT: Final = MANIFESTS / "nodeagent"
OVERLAYS: Final = tuple(sorted(path.name for path in (NODEAGENT / "overlays").iterdir()))
COMPONENTS: Final = tuple(sorted(path.name for path in (NODEAGENT / "components").iterdir()))
NAMESPACE: Final = "gpubank-nodes"
HOST: Final = {
    "device-plugin": {
        "/var/lib/kubelet/device-plugins": "rw",
        "/var/lib/kubelet/plugins_registry": "ro",
        "/var/lib/gpubank/nodeagent": "rw",
    },
    "exporter": {
        "/var/lib/kubelet/pod-resources": "ro",
        "/var/lib/kubelet/pods-api": "ro",
        "/var/lib/kubelet/device-plugins": "ro",
        "/var/lib/gpubank/exporter": "rw",
    },
    "reporter": {
        "/var/lib/gpubank/nodeagent": "ro",
        "/var/lib/kubelet/pod-resources": "ro",
        "/var/lib/gpubank/reporter": "rw",
    },
}
"""Every folder of the host that a process sees, and how."""

Manifest = dict[str, Any]


@cache
def overlay(name: str) -> list[Manifest]:
    """Return an overlay, and `full` with the reporter too."""
    bodies = kustomize.build(NODEAGENT / "overlays" / name.removesuffix("+reporter"))
    if name.endswith("+reporter"):
        bodies = kustomize.added(bodies, NODEAGENT / "components" / "reporter")
    return bodies


def with_component(name: str, *components: str) -> list[Manifest]:
    """Return an overlay as if it named these components too."""
    bodies = overlay(name)
    for component in components:
        bodies = kustomize.added(bodies, NODEAGENT / "components" / component)
    return bodies


def daemonsets(bodies: list[Manifest]) -> dict[str, Manifest]:
    """By component."""
    found = [body for body in bodies if body["kind"] == "DaemonSet"]
    return {body["metadata"]["labels"]["app.kubernetes.io/component"]: body for body in found}


def pod(bodies: list[Manifest], component: str) -> Manifest:
    spec: Manifest = daemonsets(bodies)[component]["spec"]["template"]["spec"]
    return spec


def container(bodies: list[Manifest], component: str) -> Manifest:
    (found,) = pod(bodies, component)["containers"]
    assert isinstance(found, dict)
    return found


def host_folders(spec: Manifest, own: Manifest) -> dict[str, str]:
    """Folder of the host to `rw` or `ro`."""
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume}
    return {
        paths[mount["name"]]: "ro" if mount.get("readOnly") else "rw"
        for mount in own["volumeMounts"]
        if mount["name"] in paths
    }


PAIRS: Final = [(name, component) for name in (*OVERLAYS, "full+reporter") for component in daemonsets(overlay(name))]


def test_there_is_an_overlay_for_every_way_to_use_it() -> None:
    assert {name: set(daemonsets(overlay(name))) for name in OVERLAYS} == {
        "attribution-only": {"exporter"},
        "dcgm47": {"device-plugin", "exporter"},
        "full": {"device-plugin", "exporter"},
    }


# ---- the host


@pytest.mark.parametrize(("name", "component"), PAIRS)
def test_a_process_sees_of_the_host_exactly_what_it_needs(name: str, component: str) -> None:
    spec, own = pod(overlay(name), component), container(overlay(name), component)
    assert host_folders(spec, own) == HOST[component]
    assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers", "dnsPolicy"} & set(spec)
    assert own["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "privileged": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec["securityContext"] == {
        "runAsUser": 0,
        "runAsGroup": 0,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert not [port for port in own.get("ports", ()) if "hostPort" in port]
    assert {mount["name"] for mount in own["volumeMounts"]} == {volume["name"] for volume in spec["volumes"]}


def test_a_socket_below_a_mount_that_is_read_only_can_be_connected_to(tmp_path: Path) -> None:
    """As the kernel has it: a folder of the kubelet's that only holds sockets need not be writable."""
    (tmp_path / "host").mkdir()
    (tmp_path / "pod").mkdir()
    with socket.socket(socket.AF_UNIX) as kubelet:
        kubelet.bind(str(tmp_path / "host" / "kubelet.sock"))
        kubelet.listen()
        code = (
            "import errno, pathlib, socket\n"
            "try: pathlib.Path('pod/written').touch()\n"
            "except OSError as error: assert error.errno == errno.EROFS\n"
            "else: raise AssertionError('the mount is writable')\n"
            "socket.socket(socket.AF_UNIX).connect('pod/kubelet.sock')\n"
        )
        mounts = 'mount --bind host pod && mount -o remount,ro,bind pod && exec "$0" -c "$1"'
        apart = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
        if subprocess.run([*apart, "mount", "--bind", tmp_path, tmp_path], capture_output=True, check=False).returncode:
            pytest.skip("this machine lets nobody mount, not even in a namespace of its own")
        command = [*apart, "sh", "-c", mounts, sys.executable, code]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        kubelet.settimeout(1)
        kubelet.accept()[0].close()


def test_the_installation_page_lists_every_folder_of_the_host_and_every_component() -> None:
    text = (ROOT / "docs" / "how-to" / "install-node-agent.md").read_text()
    columns = ("device-plugin", "exporter", "reporter")
    rows = re.findall(r"^\| `(/var/[^`]+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", text, re.MULTILINE)
    said = {component: {row[0] for row in rows if row[place] != "–"} for place, component in enumerate(columns, 1)}
    assert said == {component: set(folders) for component, folders in HOST.items()}
    for component in COMPONENTS:
        assert f"| `{component}` |" in text


@pytest.mark.parametrize(("name", "component"), PAIRS)
def test_a_process_has_no_token_of_the_api_server(name: str, component: str) -> None:
    spec = pod(overlay(name), component)
    assert spec["automountServiceAccountToken"] is False
    assert spec["serviceAccountName"] == "gpubank-nodeagent"
    assert not [volume for volume in spec["volumes"] if "projected" in volume]
    (account,) = [body for body in overlay(name) if body["kind"] == "ServiceAccount"]
    assert account["automountServiceAccountToken"] is False
    assert (account["metadata"]["name"], account["metadata"]["namespace"]) == ("gpubank-nodeagent", NAMESPACE)


def test_nothing_anywhere_grants_the_node_agent_a_right() -> None:
    folders = [path.parent for path in MANIFESTS.rglob(kustomize.FILE)]
    bound = set()
    for folder in folders:
        for entry in kustomize.kustomization(folder).get("resources") or ():
            path = folder / entry
            for body in yaml.safe_load_all(path.read_text()) if path.is_file() else ():
                if body and body["kind"] in ("RoleBinding", "ClusterRoleBinding"):
                    bound |= {(each["kind"], each.get("namespace"), each["name"]) for each in body["subjects"]}
                if body and body["kind"] in ("Role", "ClusterRole"):
                    assert "nodeagent" not in folder.parts
    assert bound
    assert {(kind, place) for kind, place, _ in bound} == {("ServiceAccount", SYSTEM_NAMESPACE)}
    assert {name for _, _, name in bound} == {"gpubank-worker", "gpubank-controller", "gpubank-watchdog"}


def test_its_namespace_is_its_own_for_what_it_mounts_is_forbidden_in_the_banks() -> None:
    for name in OVERLAYS:
        (space,) = [body for body in overlay(name) if body["kind"] == "Namespace"]
        assert space["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"
        places = {body["metadata"].get("namespace") for body in overlay(name) if body["kind"] != "Namespace"}
        assert places == {space["metadata"]["name"]} == {NAMESPACE}


# ---- running


@pytest.mark.parametrize(("name", "component"), PAIRS)
def test_a_process_stays_where_gpus_are_and_is_replaced_a_few_nodes_at_a_time(name: str, component: str) -> None:
    body, spec = daemonsets(overlay(name))[component], pod(overlay(name), component)
    assert spec["priorityClassName"] == "system-node-critical"
    assert spec["tolerations"] == [{"operator": "Exists"}], "a node in repair still has GPUs to report"
    assert body["spec"]["updateStrategy"]["rollingUpdate"]["maxSurge"] == 0, "two of them on a node would fight"
    assert spec["enableServiceLinks"] is False
    labels = body["spec"]["template"]["metadata"]["labels"]
    assert body["spec"]["selector"]["matchLabels"].items() <= labels.items()
    own = container(overlay(name), component)
    assert set(own["resources"]["requests"]) == {"cpu", "memory"}
    assert set(own["resources"]["limits"]) == {"memory"}


def test_the_plugin_goes_only_where_a_label_gives_it_the_gpus() -> None:
    assert pod(overlay("full"), "device-plugin")["nodeSelector"]["accelerator.aik8s.run/provider"] == "gpubank"


@pytest.mark.parametrize(("name", "component"), PAIRS)
def test_a_process_runs_a_module_that_exists_from_the_overlays_image(name: str, component: str) -> None:
    own = container(overlay(name), component)
    flag, module, *_ = own["args"]
    assert flag == "-m"
    assert importlib.util.find_spec(module) is not None
    (image,) = kustomize.kustomization(NODEAGENT / "overlays" / "full")["images"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", image["newTag"])
    assert own["image"] in (image["name"], f"{image['newName']}:{image['newTag']}")


def test_the_probes_ask_what_answers_them() -> None:
    own = container(overlay("full"), "exporter")
    (port,) = own["ports"]
    assert port["containerPort"] == exporter_settings.ExporterSettings().listen.port
    for probe, path in (("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert own[probe]["httpGet"] == {"path": path, "port": port["name"]}
    plugin = container(overlay("full"), "device-plugin")
    for probe in ("startupProbe", "livenessProbe"):
        assert plugin[probe]["exec"]["command"][1:] == ["-m", "nodeagent.plugin.alive"]
    assert agent_settings.AgentSettings().state_directory == alive.STATE
    assert str(alive.STATE) in HOST["device-plugin"]


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_exporters_settings_are_settings_and_name_files_that_are_mounted(name: str, tmp_path: Path) -> None:
    (text,) = [body["data"]["exporter.yaml"] for body in overlay(name) if "exporter.yaml" in body.get("data", {})]
    (tmp_path / "exporter.yaml").write_text(text)
    found = exporter_settings.load(tmp_path)
    assert found.show.measure == ("attribution" if name == "attribution-only" else "all")
    assert found.show.dialect == (Dialect.DCGM47 if name == "dcgm47" else Dialect.CLASSIC)
    mounts = [Path(each["mountPath"]) for each in container(overlay(name), "exporter")["volumeMounts"]]
    metadata, kubelet = found.metadata, found.kubelet
    files = [metadata.certificate, metadata.key, metadata.authorities, *metadata.public_keys, metadata.file]
    files += [found.rules, found.holders, kubelet.checkpoint, kubelet.pods_socket, kubelet.pod_resources_socket]
    for file in files:
        assert file is not None
        assert any(file.is_relative_to(mount) for mount in mounts), file
    assert metadata.address == f"{service()['metadata']['name']}.{SYSTEM_NAMESPACE}.svc:9413"


def test_the_plugins_settings_are_settings_and_name_files_that_are_mounted(tmp_path: Path) -> None:
    (text,) = [body["data"]["nodeagent.yaml"] for body in overlay("full") if "nodeagent.yaml" in body.get("data", {})]
    (tmp_path / "nodeagent.yaml").write_text(text)
    found = agent_settings.load(tmp_path)
    mounts = [Path(each["mountPath"]) for each in container(overlay("full"), "device-plugin")["volumeMounts"]]
    for file in (found.rules, found.plugin_directory, found.registry_directory, found.state_directory):
        assert file is not None
        assert any(file.is_relative_to(mount) for mount in mounts), file
    names = {body["metadata"]["name"] for body in overlay("full") if body["kind"] == "ConfigMap"}
    for component in ("device-plugin", "exporter"):
        volumes = pod(overlay("full"), component)["volumes"]
        wanted = {each["configMap"]["name"] for each in volumes if "configMap" in each}
        assert wanted <= names | {"gpubank-metadata-keys"}


def test_the_reporters_settings_are_settings_and_name_files_that_are_mounted(tmp_path: Path) -> None:
    bodies = overlay("full+reporter")
    (text,) = [body["data"]["reporter.yaml"] for body in bodies if "reporter.yaml" in body.get("data", {})]
    (tmp_path / "reporter.yaml").write_text(text)
    found = reporter_settings.load(tmp_path)
    mounts = [Path(each["mountPath"]) for each in container(bodies, "reporter")["volumeMounts"]]
    for file in (found.plugin_directory, found.spool_directory, found.pod_resources_socket):
        assert any(file.is_relative_to(mount) for mount in mounts), file
    (policy,) = [
        body["spec"]
        for body in bodies
        if (body["kind"], body["metadata"]["name"]) == ("NetworkPolicy", "gpubank-reporter")
    ]
    assert found.temporal.address.rpartition(":")[2] == str(policy["egress"][1]["ports"][0]["port"])
    assert "ingress" not in policy


# ---- components


def named(name: str) -> set[str]:
    """Components that an overlay names, itself or through another."""
    said = kustomize.kustomization(NODEAGENT / "overlays" / name)
    below = [each for entry in said.get("resources", ()) if "full" in entry for each in named("full")]
    return {*(Path(each).name for each in said.get("components", ())), *below}


ADDABLE: Final = [
    (name, component)
    for name in OVERLAYS
    for component in COMPONENTS
    if component not in named(name) and component != "metadata-host-certificate"  # it stands for `metadata`
]


@pytest.mark.parametrize(("name", "component"), ADDABLE)
def test_a_component_can_be_added_to_every_overlay_and_repeats_no_name(name: str, component: str) -> None:
    for spec in (pod(with_component(name, component), each) for each in daemonsets(overlay(name))):
        (own,) = spec["containers"]
        for names in (
            [each["name"] for each in own["env"]],
            [each["name"] for each in spec["volumes"]],
            [each["mountPath"] for each in own["volumeMounts"]],
        ):
            assert len(names) == len(set(names))


def test_mig_takes_one_capability_more_and_nothing_else_of_the_host() -> None:
    bodies = with_component("full", "mig")
    for component in ("device-plugin", "exporter"):
        own = container(bodies, component)
        assert own["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["SYS_ADMIN"]}
        assert own["securityContext"]["privileged"] is False
        assert host_folders(pod(bodies, component), own) == HOST[component]
        assert {"name": "NVIDIA_MIG_MONITOR_DEVICES", "value": "all"} in own["env"]


def test_a_hardened_toolkit_is_asked_by_a_mount_and_not_by_a_variable() -> None:
    for component in ("device-plugin", "exporter"):
        own = container(with_component("full", "hardened-toolkit"), component)
        asked = [each["value"] for each in own["env"] if each["name"] == "NVIDIA_VISIBLE_DEVICES"]
        assert asked == ["/var/run/nvidia-container-devices"]
        assert "/var/run/nvidia-container-devices/all" in {each["mountPath"] for each in own["volumeMounts"]}


def test_over_tls_the_probes_go_over_tls_too() -> None:
    own = container(with_component("full", "tls"), "exporter")
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert own[probe]["httpGet"]["scheme"] == "HTTPS"


def test_the_two_certificates_for_metadata_are_found_in_the_same_place() -> None:
    base = [body for body in kustomize.build(NODEAGENT / "exporter") if body["kind"] == "DaemonSet"]
    places = []
    for component in ("metadata", "metadata-host-certificate"):
        (body,) = kustomize.added(base, NODEAGENT / "components" / component)
        spec = body["spec"]["template"]["spec"]
        mounts = {
            each["name"]: (each["mountPath"], each["readOnly"]) for each in spec["containers"][0]["volumeMounts"][6:]
        }
        places.append(mounts)
    assert places[0] == places[1]
    assert {name for name, _ in places[0].items()} == {"metadata-tls", "metadata-keys"}


def test_nothing_goes_over_the_network_but_scrapes_and_metadata() -> None:
    policies = {body["metadata"]["name"]: body["spec"] for body in overlay("full") if body["kind"] == "NetworkPolicy"}
    assert policies.pop("gpubank-deny") == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    assert [spec["podSelector"]["matchLabels"] for spec in policies.values()] == [
        {"app.kubernetes.io/name": "gpubank-exporter"}
    ]
    (spec,) = policies.values()
    ports = [port["port"] for rule in (*spec["ingress"], *spec["egress"]) for port in rule["ports"]]
    assert ports == ["metrics", 53, 53, 9413]


# ---- the controller's side


@cache
def control_plane() -> list[Manifest]:
    return kustomize.added(
        kustomize.build(MANIFESTS / "overlays" / "example"), MANIFESTS / "components" / "node-metadata"
    )


def service() -> Manifest:
    (found,) = [body for body in control_plane() if body["kind"] == "Service"]
    return found
