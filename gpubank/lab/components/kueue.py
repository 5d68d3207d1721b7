"""Kueue: admits jobs against quota, configured as the bank needs it, with its real webhooks.

Two things differ from an installation in a cluster. Its certificates come from the lab, so its own management of them
is off; with that off Kueue reads the certificate of its metrics port from a folder that is fixed in its source and that
only root can write, so that one literal becomes an environment variable. And its webhooks are called by URL, since the
API server of the lab reaches no services.
"""

import base64
import shutil
from pathlib import Path
from typing import Any, Final

import yaml

from gpubank.lab.access import MASTERS, Api, Manifest, documents, look, namespace, wait_until
from gpubank.lab.build import GoProgram, ModuleFiles, SourceEdit
from gpubank.lab.components.base import LOOPBACK, Component, Context
from gpubank.lab.errors import LabError

MODULE = "sigs.k8s.io/kueue"
NAMESPACE: Final = "kueue-system"
METRICS_CERTIFICATES: Final = "KUEUE_METRICS_CERTS"
WEBHOOKS: Final = frozenset({"job", "pod", "deployment", "workload", "clusterqueue", "cohort", "resourceflavor"})
"""Kinds whose webhooks are installed: of the other kinds of its manifest the lab has no CRDs."""
_BY_NAMESPACE: Final = frozenset({"pod", "deployment"})
"""Kinds that the system's own namespaces have too: Kueue's webhooks must not stand in their way."""
_MANAGED_NAMESPACES: Final = {
    "matchExpressions": [
        {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", NAMESPACE]}
    ]
}

PROGRAM = GoProgram(
    name="kueue",
    version="0.19.2",
    wrapper="kueue",
    package=f"{MODULE}/cmd/kueue",
    variables=((f"{MODULE}/pkg/version.GitVersion", "v0.19.2"),),
    edits=(
        SourceEdit(
            module=MODULE,
            file="cmd/kueue/main.go",
            old='"/etc/kueue/metrics/certs"',
            new=f'os.Getenv("{METRICS_CERTIFICATES}")',
        ),
    ),
    assets=(
        ModuleFiles(MODULE, "config/components/crd/bases", "crds"),
        ModuleFiles(MODULE, "config/components/webhook/manifests.yaml", "webhooks.yaml"),
    ),
)


def configuration(context: Context) -> dict[str, Any]:
    """Return Kueue's configuration; the comments say what the bank depends on."""
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": NAMESPACE,
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {
            "host": LOOPBACK,
            "port": context.port("kueue-webhook"),
            "certDir": str(_certificates(context)),
        },
        "metrics": {"bindAddress": context.address("kueue-metrics"), "enableClusterQueueResources": True},
        "health": {"healthProbeBindAddress": context.address("kueue-health")},
        "clientConnection": {"qps": 300, "burst": 500},
        "integrations": {"frameworks": ["batch/job", "pod", "deployment"]},
        # Since 0.19 it binds Jobs too, queue label or not: a Job in a namespace that does not match waits for ever.
        "managedJobsNamespaceSelector": _MANAGED_NAMESPACES,
        # Unset means 30 minutes and then evictions that the bank did not order.
        "waitForPodsReady": {"timeout": "24h"},
        # The first needs an aggregated API; the second costs seconds per quota edit with a thousand queues.
        "featureGates": {"VisibilityOnDemand": False, "MetricsForCohorts": False},
        # Else a queue that knows only GPUs refuses jobs that also ask for cpu.
        "resources": {"quotaCheckStrategy": "IgnoreUndeclared"},
    }


def webhooks(context: Context) -> list[Manifest]:
    """Return Kueue's webhook configurations, cut down to `WEBHOOKS` and called by URL."""
    authority = base64.b64encode(context.authority.certificate.read_bytes()).decode()
    found = documents(context.assets("kueue") / "webhooks.yaml")
    for configuration_ in found:
        configuration_["metadata"]["name"] = f"kueue-{configuration_['metadata']['name']}"
        kept = []
        for webhook in configuration_["webhooks"]:
            kind = webhook["name"].removesuffix(".kb.io")[1:]  # mjob.kb.io mutates, vjob.kb.io validates
            if kind not in WEBHOOKS:
                continue
            path = webhook["clientConfig"]["service"]["path"]
            url = f"https://{context.address('kueue-webhook')}{path}"
            webhook["clientConfig"] = {"url": url, "caBundle": authority}
            if kind in _BY_NAMESPACE:
                webhook["namespaceSelector"] = _MANAGED_NAMESPACES
            kept.append(webhook)
        configuration_["webhooks"] = kept
    return found


def _certificates(context: Context) -> Path:
    own, folder = context.certificate("kueue"), context.data("kueue-certificates")
    shutil.copyfile(own.certificate, folder / "tls.crt")
    shutil.copyfile(own.key, folder / "tls.key")
    (folder / "tls.key").chmod(0o600)
    return folder


def _command(context: Context) -> list[str]:
    config = context.written("kueue.yaml", yaml.safe_dump(configuration(context), sort_keys=False))
    return [
        f"--kubeconfig={context.kubeconfig('kueue', group=MASTERS)}",
        f"--config={config}",
        "--zap-log-level=info",
    ]


def _ready(context: Context) -> str | None:
    if missing := look(context.address("kueue-health"), "/readyz"):
        return missing
    # The root is no webhook's path, so any answer will do: it came over verified TLS.
    look(context.address("kueue-webhook"), "/", context=context.authority.client_context(context.certificate("kueue")))
    return None


def _prepare(context: Context) -> None:
    with context.access.client() as api:
        api.apply(namespace(NAMESPACE))
        api.apply_all(documents(context.assets("kueue") / "crds"))


def _settle(context: Context) -> None:
    with context.access.client() as api:
        api.apply_all(webhooks(context))
        # The API server learns of a webhook a moment after it is stored; a job in between would start unadmitted.
        # And one that was killed knows the kinds that its policies ask for half a minute later: until then it refuses.
        wait_until(lambda: _called(api), 60, "the API server's first call of Kueue's job webhook")


def _called(api: Api) -> bool:
    container = {"name": "probe", "image": "probe"}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"generateName": "webhook-probe-", "labels": {"kueue.x-k8s.io/queue-name": "probe"}},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [container]}}},
    }
    try:
        answer = api.request("POST", "/apis/batch/v1/namespaces/default/jobs", params={"dryRun": "All"}, json=job)
    except LabError as error:
        if "failed to configure policy" not in str(error):
            raise
        return False
    return answer["spec"].get("suspend") is True


KUEUE = Component(
    name="kueue",
    program=PROGRAM,
    command=_command,
    ready=_ready,
    ports=("kueue-webhook", "kueue-metrics", "kueue-health"),
    depends_on=("kube-apiserver",),
    environment=lambda context: {METRICS_CERTIFICATES: str(_certificates(context))},
    prepare=_prepare,
    settle=_settle,
    # On SIGTERM it waits for its caches longer than a lab that goes down wants to.
    stop_grace=1,
)
