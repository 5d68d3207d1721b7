"""The bank's processes beside a lab under service accounts of their own, with the rights that the manifests grant.

manifests/base/*/{serviceaccount,rbac}.yaml, components/node-metadata/rbac.yaml ─▶ lab
TokenRequest ─▶ kubeconfig ─▶ settings file ─▶ process          audit log ─▶ what each one asked for
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from gpubank.lab import Lab
from gpubank.lab.access import documents, namespace
from gpubank.lab.bank import SYSTEM_NAMESPACE, BankProcess, LabBank
from gpubank.simulation.processes import free_port
from tests.fakes.certificates import Certificates

BASE: Final = Path(__file__).parents[2] / "manifests" / "base"
COMPONENTS: Final = {"controller": ("node-metadata",), "worker": ("incidents",)}
"""Components whose rights a process has too, for it does what they are for."""

KUEUE_METRICS: Final = BASE.parent / "components" / "kueue-metrics" / "rbac.yaml"
PROCESSES: Final = ("worker", "controller", "watchdog")
TOKEN: Final = "token"
_TOKEN_SECONDS: Final = 24 * 3600


class Right(NamedTuple):
    """One verb on one resource; `namespace` is empty where a ClusterRole grants it, `name` where it is for all."""

    process: str
    group: str
    resource: str
    verb: str
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        place = f" in {self.namespace}" if self.namespace else ""
        name = f" {self.name}" if self.name else ""
        return f"{self.process}: {self.verb} {self.resource}{'.' if self.group else ''}{self.group}{name}{place}"


class Call(NamedTuple):
    """One call of the audit log."""

    process: str
    group: str
    resource: str
    verb: str
    namespace: str
    name: str
    code: int


def manifests(process: str) -> list[dict[str, Any]]:
    """Return the service account of a process and its rights."""
    files = [BASE / process / file for file in ("serviceaccount.yaml", "rbac.yaml")]
    files += [BASE.parent / "components" / each / "rbac.yaml" for each in COMPONENTS.get(process, ())]
    return [body for file in files for body in documents(file)]


def restrict(lab: Lab, bank: LabBank, *, read_seconds: float | None = 1) -> None:
    """Grant what the manifests grant and have worker and controller run with that and nothing else.

    They read Kueue's metrics every so many seconds; as in production where None.
    """
    lab.apply([namespace("kueue-system"), *(body for process in PROCESSES for body in manifests(process))])
    lab.apply(documents(KUEUE_METRICS))
    bank.worker, bank.controller = (
        BankProcess(name, _settings(lab, bank, name, kubeconfig(lab, name, bank.folder / name), read_seconds))
        for name in ("worker", "controller")
    )


def watchdog(lab: Lab, bank: LabBank) -> BankProcess:
    """Return a watchdog of a restricted bank, with its own rights; whoever starts it stops it."""
    return BankProcess(
        "watchdog", _settings(lab, bank, "watchdog", kubeconfig(lab, "watchdog", bank.folder / "watchdog"))
    )


def kubeconfig(lab: Lab, process: str, folder: Path) -> Path:
    """Write a kubeconfig with a token of the process's service account, and the token beside it."""
    path = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/serviceaccounts/gpubank-{process}/token"
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": _TOKEN_SECONDS},
    }
    with lab.api() as api:
        token = api.request("POST", path, json=body)["status"]["token"]
    config = yaml.safe_load(lab.kubeconfig.read_text())
    config["users"] = [{"name": process, "user": {"token": token}}]
    config["contexts"][0]["context"]["user"] = process
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    written = folder / "kubeconfig"
    written.write_text(yaml.safe_dump(config))
    (folder / TOKEN).write_text(token)
    return written


def _settings(lab: Lab, bank: LabBank, process: str, config: Path, read_seconds: float | None = None) -> Path:
    settings = yaml.safe_load(bank.settings.read_text())
    settings["cluster"]["kubeconfig"] = str(config)
    settings["observability"] = {"port": free_port()}
    if process == "controller":
        settings["metadata"] = _metadata(config.with_name("metadata"))
    settings["kueue"] = {
        "metrics_url": f"https://{lab.url('kueue-metrics')}/metrics",
        "authorities": str(lab.authorities),
        "token": str(config.with_name(TOKEN)),
    } | ({"read_seconds": read_seconds} if read_seconds is not None else {})
    written = config.with_name("gpubank.yaml")
    written.write_text(yaml.safe_dump(settings))
    return written


def _metadata(folder: Path) -> dict[str, str]:
    """Return settings by which the controller tells nodes whose pods they run, on a port of its own choice."""
    folder.mkdir()
    tls = Certificates(folder).issue("localhost")
    signing = folder / "signing.pem"
    key = Ed25519PrivateKey.generate()
    signing.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return {
        "address": "127.0.0.1:0",
        "certificate": str(tls.certificate),
        "key": str(tls.key),
        "client_authorities": str(tls.authorities),
        "signing_key": str(signing),
    }


def port(bank: LabBank, process: str) -> int:
    """Return the port at which a restricted process answers to probes."""
    settings = yaml.safe_load((bank.folder / process / "gpubank.yaml").read_text())
    return int(settings["observability"]["port"])


# ---- granted and used


def granted(process: str) -> set[Right]:
    """Return every right that the manifests grant a process."""
    return {
        Right(process, group, resource, verb, body["metadata"].get("namespace", ""), name)
        for body in manifests(process)
        if body["kind"] in ("Role", "ClusterRole")
        for rule in body["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }


def calls(lab: Lab) -> Iterator[Call]:
    """Read what the bank's service accounts asked for, from the API server's audit log."""
    prefix = f"system:serviceaccount:{SYSTEM_NAMESPACE}:gpubank-"
    with lab.log("audit").open(encoding="utf-8") as lines:
        for line in lines:
            event = json.loads(line)
            user = event["user"]["username"]
            if user.startswith(prefix) and "objectRef" in event:
                yield _call(user.removeprefix(prefix), event)


def _call(process: str, event: Mapping[str, Any]) -> Call:
    about = event["objectRef"]
    resource = "/".join(part for part in (about["resource"], about.get("subresource")) if part)
    return Call(
        process,
        about.get("apiGroup", ""),
        resource,
        event["verb"],
        about.get("namespace", ""),
        about.get("name", ""),
        int((event.get("responseStatus") or {}).get("code", 0)),
    )


def covers(right: Right, call: Call) -> bool:
    """Whether a call may be made by this very right."""
    return (
        (call.process, call.group, call.resource, call.verb) == (right.process, right.group, right.resource, right.verb)
        and (not right.namespace or call.namespace == right.namespace)
        and (not right.name or call.name == right.name)
    )
