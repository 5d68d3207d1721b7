"""The commands that no test runs as they stand: each with its reason, and with what is run in its place."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Why(StrEnum):
    """The only reasons there are."""

    IMAGE = "builds or pushes a container image, which needs a container engine and a registry"
    ITSELF = "is the command that runs this very test"
    HOURS = "plays the crash matrix on a lab of its own, for minutes to hours, and rewrites the page of its results"
    KUBELET = "needs containers under a real kubelet, which takes root and the whole machine"


@dataclass(frozen=True)
class Exemption:
    """What stands for a command that is not run."""

    why: Why
    instead: str
    """A command that is run in its place, and shows that the page does not speak of things that are not there."""


EXEMPT: Final[Mapping[tuple[str, str], Exemption]] = {
    ("README.md", "make test"): Exemption(Why.ITSELF, "make --dry-run test"),
    ("docs/crash-matrix.md", "make matrix"): Exemption(Why.HOURS, "make --dry-run matrix"),
    ("docs/crash-matrix.md", ".venv/bin/python -m tests.matrix worker+kueue@stop.after"): Exemption(
        Why.HOURS, "python -c 'from tests.matrix.cells import Cell; Cell.of(\"worker+kueue@stop.after\")'"
    ),
    ("docs/crash-matrix.md", ".venv/bin/python -m tests.matrix --failed"): Exemption(
        Why.HOURS, "python -m tests.matrix --help | grep -e --failed"
    ),
    (
        "docs/how-to/install.md",
        "podman build -f containers/Containerfile -t registry.example.com/platform/gpubank:0.1.0 .",
    ): Exemption(Why.IMAGE, "grep ^FROM containers/Containerfile"),
    ("docs/how-to/install.md", "podman push registry.example.com/platform/gpubank:0.1.0"): Exemption(
        Why.IMAGE,
        "grep 'newName: registry.example.com/platform/gpubank ' manifests/overlays/example/kustomization.yaml",
    ),
    (
        "docs/how-to/install-node-agent.md",
        "podman build -f containers/nodeagent.Containerfile -t registry.example.com/platform/gpubank-nodeagent:0.1.0 .",
    ): Exemption(Why.IMAGE, "grep ^FROM containers/nodeagent.Containerfile"),
    ("docs/how-to/evaluate-with-the-lab.md", "sudo gpubank lab up --with kubelet"): Exemption(
        Why.KUBELET, "gpubank lab up --help | grep -e --with"
    ),
    (
        "docs/how-to/install-node-agent.md",
        "kubectl -n gpubank-nodes exec ds/gpubank-exporter -- /opt/gpubank/bin/python -c \\\n"
        "    \"import urllib.request as r; print(r.urlopen('http://127.0.0.1:9410/readyz').read())\"",
    ): Exemption(
        Why.KUBELET,
        "grep /opt/gpubank/bin/python containers/nodeagent.Containerfile"
        " && kubectl -n gpubank-nodes get ds/gpubank-exporter -o jsonpath='{..ports}{..readinessProbe}'"
        " | grep 9410.*/readyz",
    ),
}

NAMED: Final = frozenset(
    {
        "kubectl apply",
        "kubectl describe",
        "kubectl exec",
        "kubectl gpubank",
        "kubectl logs",
        "temporal workflow terminate",
    }
)
"""Commands that pages name in their text without saying of what; they are asked for their help instead."""
