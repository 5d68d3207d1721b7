"""Fake GPU nodes: kwok plays their kubelets, so a lab may have as many as a data center."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from gpubank.lab.access import Api, Manifest
from gpubank.lab.names import FABRIC_LABEL, FAKE_NODE, FAKE_NODE_VALUE, GPU_RESOURCE, MODEL_LABEL, POOL_LABEL

DEFAULT_POOL: Final = "h100-pool"
_AT_ONCE: Final = 16


def node(
    name: str,
    *,
    pool: str = DEFAULT_POOL,
    gpus: int = 8,
    resource: str = GPU_RESOURCE,
    model: str = "h100-80gb",
    fabric: str = "infiniband",
    labels: Mapping[str, str] | None = None,
) -> Manifest:
    """Return the manifest of one fake node of `pool` with `gpus` of `resource`."""
    capacity = {"cpu": "128", "memory": "1Ti", "pods": "256", "ephemeral-storage": "1Ti", resource: str(gpus)}
    own = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "type": "kwok",
        POOL_LABEL: pool,
        MODEL_LABEL: model,
        FABRIC_LABEL: fabric,
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "annotations": {FAKE_NODE: FAKE_NODE_VALUE}, "labels": own | dict(labels or {})},
        "status": {"allocatable": capacity, "capacity": capacity},
    }


def add_nodes(
    api: Api,
    pool: str,
    count: int,
    gpus: int = 8,
    labels: Mapping[str, str] | None = None,
    *,
    resource: str = GPU_RESOURCE,
    model: str = "h100-80gb",
    fabric: str = "infiniband",
) -> list[str]:
    """Create `count` more nodes of `pool` and return their names, `<pool>-<number>`."""
    selector = {"labelSelector": f"{POOL_LABEL}={pool}"}
    taken = {item["metadata"]["name"] for item in api.request("GET", "/api/v1/nodes", params=selector)["items"]}
    free = (name for number in range(count + len(taken)) if (name := f"{pool}-{number}") not in taken)
    names = [next(free) for _ in range(count)]

    def create(name: str) -> None:
        manifest = node(name, pool=pool, gpus=gpus, resource=resource, model=model, fabric=fabric, labels=labels)
        api.request("POST", "/api/v1/nodes", json=manifest)

    # One alone takes some 20 ms, nearly all of it waiting.
    with ThreadPoolExecutor(_AT_ONCE) as pool_of_threads:
        list(pool_of_threads.map(create, names))
    return names


def all_ready(api: Api, names: list[str]) -> bool:
    """Tell whether kwok calls every named node ready."""
    ready = {
        item["metadata"]["name"]
        for item in api.request("GET", "/api/v1/nodes")["items"]
        if any(each["type"] == "Ready" and each["status"] == "True" for each in item["status"].get("conditions", []))
    }
    return ready.issuperset(names)
