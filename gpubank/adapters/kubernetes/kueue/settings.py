"""Whether Kueue is configured as the bank needs it: read where its ConfigMap may be read, else tried out.

| setting                         | else                                                        |
|---------------------------------|-------------------------------------------------------------|
| resources.quotaCheckStrategy    | a queue that counts only GPUs refuses jobs that ask for cpu |
| waitForPodsReady.timeout        | evictions after 30 minutes that nobody ordered              |
| waitForPodsReady.blockAdmission | one job that starts slowly holds up every other             |
| integrations.frameworks         | work of a kind runs past the quota                          |
"""

import asyncio
import uuid
from collections.abc import Collection, Mapping
from typing import Any, Final

import yaml

from gpubank.adapters.kubernetes.connection import Connection
from gpubank.adapters.kubernetes.errors import ApiError
from gpubank.adapters.kubernetes.kinds import CLUSTER_QUEUE, CONFIG_MAP, JOB, POD, Kind, Object
from gpubank.adapters.kubernetes.kueue.view import View
from gpubank.domain.contract import QUEUE_LABEL
from gpubank.domain.errors import BackendError
from gpubank.domain.layout import LayoutProblem

NAMESPACE: Final = "kueue-system"
CONFIG_NAME: Final = "kueue-manager-config"
CONFIG_KEY: Final = "controller_manager_config.yaml"
NEEDED_FRAMEWORKS: Final = ("batch/job", "pod", "deployment")

_REASON: Final = "KueueMisconfigured"
_GATE: Final = "kueue.x-k8s.io/admission"


async def check_settings(connection: Connection, view: View, namespace: str | None = None) -> tuple[LayoutProblem, ...]:
    """Return what is not as needed; `namespace` is one of a group's, to try Kueue's webhooks in without a trace."""
    try:
        served, config = await asyncio.gather(_is_served(connection), _config(connection))
    except BackendError as error:
        return (LayoutProblem(reason="KueueUnreadable", message=f"Kueue's settings cannot be checked: {error}"),)
    if not served:
        message = f"the cluster serves no {CLUSTER_QUEUE.api_version}: install Kueue 0.19 or later"
        return (LayoutProblem(reason="KueueMissing", message=message),)
    messages = config_problems(config) if config is not None else _seen_problems(view)
    if namespace is not None:
        messages += await _tried_problems(connection, namespace)
    return tuple(LayoutProblem(reason=_REASON, message=message) for message in messages)


def config_problems(config: Mapping[str, Any]) -> list[str]:
    """Return what is not as needed in Kueue's Configuration."""
    found = []
    strategy = (config.get("resources") or {}).get("quotaCheckStrategy")
    if strategy != "IgnoreUndeclared":
        found.append(
            f"resources.quotaCheckStrategy of Kueue is {strategy!r}, so a queue that counts only GPUs refuses jobs that"
            " ask for cpu: set it to IgnoreUndeclared"
        )
    waiting = config.get("waitForPodsReady")
    if not isinstance(waiting, Mapping) or not waiting.get("timeout"):
        found.append(
            "waitForPodsReady.timeout of Kueue is unset, so it evicts what is not ready in 30 minutes: set it to what"
            " jobs may take to start, as in 24h"
        )
    elif waiting.get("blockAdmission"):
        found.append(
            "waitForPodsReady.blockAdmission of Kueue is true, so one job that starts slowly holds up every other:"
            " set it to false"
        )
    frameworks: Collection[str] = (config.get("integrations") or {}).get("frameworks") or ()
    if missing := [name for name in NEEDED_FRAMEWORKS if name not in frameworks]:
        found.append(
            f"integrations.frameworks of Kueue lacks {', '.join(missing)}, whose work would run past every quota:"
            " add what is in use"
        )
    return found


async def _is_served(connection: Connection) -> bool:
    try:
        await connection.call("GET", CLUSTER_QUEUE.path(), params={"limit": "1"})
    except ApiError as error:
        if error.code == 404:
            return False
        raise
    return True


async def _config(connection: Connection) -> Mapping[str, Any] | None:
    """Return Kueue's Configuration, or None where it is not for us to read."""
    try:
        found = await connection.get(CONFIG_MAP, CONFIG_NAME, NAMESPACE)
    except ApiError as error:
        if error.code == 403:
            return None
        raise
    text = ((found or {}).get("data") or {}).get(CONFIG_KEY)
    if text is None:
        return None
    try:
        config = yaml.safe_load(text)
    except yaml.YAMLError:
        return None
    return config if isinstance(config, Mapping) else None


def _seen_problems(view: View) -> list[str]:
    """Return what waiting and evicted Workloads give away."""
    found = []
    for entry in view.workloads:
        quota, evicted = entry.conditions.get("QuotaReserved"), entry.conditions.get("Evicted")
        name = f"'{entry.namespace}/{entry.name}'"
        if quota and not quota.status and "unavailable in ClusterQueue" in quota.message:
            found.append(
                f"Workload {name} waits with {quota.message!r}: if the resource is not the pool's, set Kueue's"
                " resources.quotaCheckStrategy to IgnoreUndeclared"
            )
            break
        if evicted and evicted.status and evicted.reason == "PodsReadyTimeout":
            found.append(
                f"Workload {name} was evicted because its pods were not ready in time: set Kueue's"
                " waitForPodsReady.timeout to what jobs may take to start"
            )
            break
    return found


async def _tried_problems(connection: Connection, namespace: str) -> list[str]:
    """Submit a Job and a pod for show (nothing is stored) and look what Kueue's webhooks make of them."""
    pod_spec = {"restartPolicy": "Never", "containers": [{"name": "probe", "image": "probe"}]}
    job, pod = await asyncio.gather(
        _shown(connection, JOB, namespace, {"template": {"spec": pod_spec}}),
        _shown(connection, POD, namespace, pod_spec),
    )
    found = []
    if job is not None and job["spec"].get("suspend") is not True:
        found.append(
            f"a Job with a queue starts unsuspended in namespace {namespace!r}, past every quota: enable batch/job in"
            " Kueue's integrations.frameworks and let its webhooks into the namespace"
        )
    if pod is not None and not any(gate["name"] == _GATE for gate in pod["spec"].get("schedulingGates") or ()):
        found.append(
            f"a pod with a queue is not held back in namespace {namespace!r}, so replicas run past every quota: enable"
            " pod in Kueue's integrations.frameworks and let its webhooks into the namespace"
        )
    return found


async def _shown(connection: Connection, kind: Kind, namespace: str, spec: Object) -> Object | None:
    """Return what would be stored; None where the attempt itself is not allowed, which proves nothing."""
    name = f"gpubank-probe-{uuid.uuid4().hex[:8]}"
    body: Object = {
        "apiVersion": kind.api_version,
        "kind": kind.name,
        "metadata": {"name": name, "namespace": namespace, "labels": {QUEUE_LABEL: "gpubank-probe"}},
        "spec": spec,
    }
    try:
        return await connection.call("POST", kind.path("", namespace), body=body, params={"dryRun": "All"})
    except ApiError:
        return None
