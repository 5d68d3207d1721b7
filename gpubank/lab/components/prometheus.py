"""Prometheus: scrapes the lab's servers, and whatever a target file names; promtool is built beside it.

    config/prometheus/targets/*.yaml   targets, as `file_sd_configs` wants them; found as soon as the file is there
    config/prometheus/rules/*.yaml     rule files, read at the start and after a POST to /-/reload

The lab's servers are scraped over their own TLS. A service account of its own, with a token and with the right to read
`/metrics` and nothing else, is what they believe; etcd wants a client certificate.

Prometheus's pages are not part of its Go module: this one answers its API, and shows nothing to a browser.
"""

from pathlib import Path
from typing import Any, Final

import yaml

from gpubank.lab.access import Manifest, look, namespace
from gpubank.lab.build import GoProgram
from gpubank.lab.components.base import Component, Context
from gpubank.lab.state import write_whole

MODULE: Final = "github.com/prometheus/prometheus"
VERSION: Final = "3.16.0"
"""The release; its Go module calls itself 0.316.0."""

NAME: Final = "prometheus"
NAMESPACE: Final = "gpubank-lab"
"""Where its service account is."""

INTERVAL: Final = "5s"
"""How often the lab's own servers are scraped: the API server alone has thousands of series."""
TARGETS_INTERVAL: Final = "1s"
"""How often the targets of files are scraped."""

_TOKEN_SECONDS: Final = 365 * 24 * 3600
# Every other discovery is left out: with all of them it takes a third longer to compile, and every cloud's SDK.
_TAGS: Final = ("remove_all_sd", "enable_static_sd", "enable_file_sd", "enable_kubernetes_sd")


def _program(name: str) -> GoProgram:
    return GoProgram(
        name=name,
        version=VERSION,
        wrapper="prometheus",
        package=f"{MODULE}/cmd/{name}",
        variables=(("github.com/prometheus/common/version.Version", VERSION),),
        tags=_TAGS,
    )


PROGRAM: Final = _program("prometheus")
PROMTOOL: Final = _program("promtool")


def folder(lab: Path) -> Path:
    """Return the folder, below a lab's, of what Prometheus is told by files."""
    return lab / "config" / NAME


def targets(lab: Path) -> Path:
    """Return the folder in which a file `NAME.yaml` adds targets: `[{targets: ["127.0.0.1:9412"], labels: {...}}]`."""
    return folder(lab) / "targets"


def rules(lab: Path) -> Path:
    """Return the folder of rule files."""
    return folder(lab) / "rules"


def configuration(context: Context) -> dict[str, Any]:
    """Return Prometheus's configuration."""
    servers = ["kube-apiserver", "kube-controller-manager", "kube-scheduler"]
    return {
        "global": {"scrape_interval": INTERVAL, "scrape_timeout": INTERVAL, "evaluation_interval": TARGETS_INTERVAL},
        "rule_files": [str(rules(context.folder) / "*.yaml")],
        "scrape_configs": [
            {
                "job_name": "targets",
                "scrape_interval": TARGETS_INTERVAL,
                "scrape_timeout": TARGETS_INTERVAL,
                # A node's exporter says whose a GPU is in `pod` and `namespace`: its word, and not the target's.
                "honor_labels": True,
                "file_sd_configs": [{"files": [str(targets(context.folder) / "*.yaml")], "refresh_interval": "5s"}],
            },
            *(_secured(context, name, name) for name in servers),
            _secured(context, "kueue", "kueue-metrics"),
            {
                "job_name": "etcd",
                "scheme": "https",
                "tls_config": _trust(context)
                | {
                    "cert_file": str(context.certificate(NAME).certificate),
                    "key_file": str(context.certificate(NAME).key),
                },
                "static_configs": [{"targets": [context.address("etcd")]}],
            },
            {"job_name": "kwok", "static_configs": [{"targets": [context.address("kwok")]}]},
            {"job_name": NAME, "static_configs": [{"targets": [context.address(NAME)]}]},
        ],
    }


def _secured(context: Context, job: str, port: str) -> dict[str, Any]:
    """Return a job for a server that asks the API server who scrapes it."""
    return {
        "job_name": job,
        "scheme": "https",
        "tls_config": _trust(context),
        "authorization": {"credentials_file": str(_token(context))},
        "static_configs": [{"targets": [context.address(port)]}],
    }


def _trust(context: Context) -> dict[str, str]:
    return {"ca_file": str(context.authority.certificate)}


def _token(context: Context) -> Path:
    return context.data(NAME) / "token"


def account() -> list[Manifest]:
    """Return the service account that scrapes, and its one right."""
    subject = {"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "gpubank-lab-metrics"}
    rbac, metadata = {"apiVersion": "rbac.authorization.k8s.io/v1"}, {"metadata": {"name": role["name"]}}
    return [
        namespace(NAMESPACE),
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": NAME, "namespace": NAMESPACE}},
        {**rbac, "kind": "ClusterRole", **metadata, "rules": [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]},
        {**rbac, "kind": "ClusterRoleBinding", **metadata, "roleRef": role, "subjects": [subject]},
    ]


def _prepare(context: Context) -> None:
    for each in (targets(context.folder), rules(context.folder)):
        each.mkdir(mode=0o700, parents=True, exist_ok=True)
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": _TOKEN_SECONDS},
    }
    with context.access.client() as api:
        api.apply_all(account())
        answer = api.request("POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{NAME}/token", json=body)
    write_whole(_token(context), answer["status"]["token"])


def _command(context: Context) -> list[str]:
    config = context.written("prometheus.yaml", yaml.safe_dump(configuration(context), sort_keys=False))
    return [
        f"--config.file={config}",
        f"--storage.tsdb.path={context.data(NAME) / 'tsdb'}",
        "--storage.tsdb.retention.time=1d",
        f"--web.listen-address={context.address(NAME)}",
        "--web.enable-lifecycle",
        "--log.level=warn",
    ]


PROMETHEUS = Component(
    name=NAME,
    program=PROGRAM,
    tools=(PROMTOOL,),
    command=_command,
    ready=lambda context: look(context.address(NAME), "/-/ready"),
    ports=(NAME,),
    depends_on=("kube-apiserver",),
    prepare=_prepare,
    # What it has in memory goes with the lab.
    stop_grace=1,
)
