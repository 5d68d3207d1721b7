"""A real kubelet beside kwok's fake nodes: pods on its node are containers, with real devices and addresses.

Its folder is /var/lib/kubelet, which its source fixes for device plugins, so a machine has one such lab at a time
(`gpubank.lab.machine`).
"""

from pathlib import Path
from typing import Any

import yaml

from gpubank.lab.access import Api, Manifest, look, wait_until
from gpubank.lab.components.base import LOOPBACK, Component, Context
from gpubank.lab.components.containerd import SOCKET
from gpubank.lab.components.kubernetes import program
from gpubank.lab.names import NODE_ADDRESS, POOL_LABEL, REAL_NODE, REAL_POOL

NODES = "system:nodes"
"""The group of all kubelets."""


def configuration(context: Context) -> dict[str, Any]:
    """Return the kubelet's configuration."""
    own = context.certificate(REAL_NODE)
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": NODE_ADDRESS,
        "port": context.port("kubelet"),
        "readOnlyPort": 0,
        "healthzBindAddress": LOOPBACK,
        "healthzPort": context.port("kubelet-health"),
        "tlsCertFile": str(own.certificate),
        "tlsPrivateKeyFile": str(own.key),
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(context.authority.certificate)},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        "podLogsDir": str(_pod_logs(context)),
        "volumePluginDir": str(context.data("kubelet-volume-plugins")),
        # A machine with cgroups of version 1 will do, and so will one that is a container itself: no group per pod.
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
        "failSwapOn": False,
        "localStorageCapacityIsolation": False,
        "oomScoreAdj": 0,
        # The machine is not the lab's: what else fills it must not evict the lab's pods, nor remove their image.
        "evictionHard": dict.fromkeys(("memory.available", "nodefs.available", "nodefs.inodesFree"), "0%"),
        "imageGCHighThresholdPercent": 100,
        "makeIPTablesUtilChains": False,
        "resolvConf": "",
        # The default is 10 s; whoever waits for a GPU to turn healthy waits for this.
        "nodeStatusUpdateFrequency": "1s",
        "maxPods": 110,
    }


def _pod_logs(context: Context) -> Path:
    folder = context.log("kubelet").parent / "pods" / REAL_NODE
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _prepare(context: Context) -> None:
    with context.access.client() as api:
        api.apply(_rights())


def _rights() -> Manifest:
    """Return the binding that the node authorizer makes unnecessary elsewhere."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "gpubank-lab-nodes"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:node"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": NODES}],
    }


def _command(context: Context) -> list[str]:
    config = context.written("kubelet.yaml", yaml.safe_dump(configuration(context), sort_keys=False))
    return [
        f"--config={config}",
        f"--kubeconfig={context.kubeconfig(f'system:node:{REAL_NODE}', group=NODES)}",
        f"--hostname-override={REAL_NODE}",
        f"--node-ip={NODE_ADDRESS}",
        f"--node-labels={POOL_LABEL}={REAL_POOL}",
    ]


def _settle(context: Context) -> None:
    with context.access.client() as api:
        wait_until(lambda: _node_ready(api), 60, f"readiness of node {REAL_NODE!r}")


def _node_ready(api: Api) -> bool:
    for item in api.request("GET", "/api/v1/nodes")["items"]:
        if item["metadata"]["name"] == REAL_NODE:
            return any(
                each["type"] == "Ready" and each["status"] == "True" for each in item["status"].get("conditions", ())
            )
    return False


KUBELET = Component(
    name="kubelet",
    program=program("kubelet"),
    command=_command,
    ready=lambda context: look(context.address("kubelet-health"), "/healthz"),
    ports=("kubelet", "kubelet-health"),
    depends_on=("kube-apiserver", "containerd"),
    prepare=_prepare,
    settle=_settle,
    # What it would wait for is cleared away with containerd.
    stop_grace=2,
)
