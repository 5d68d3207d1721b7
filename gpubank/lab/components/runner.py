"""The runner: our own process that gives pods with a command a local process."""

import sys
from pathlib import Path

from gpubank.lab.access import MASTERS
from gpubank.lab.components.base import Component, Context
from gpubank.lab.names import PODS, RUNNER_READY


def _ready_file(context: Context) -> Path:
    return context.data("runner") / RUNNER_READY


def _prepare(context: Context) -> None:
    # A runner that was killed leaves it behind, and its successor would seem ready before it looked.
    _ready_file(context).unlink(missing_ok=True)


def _command(context: Context) -> list[str]:
    kubeconfig = context.kubeconfig("runner", group=MASTERS)
    logs = context.log("runner").parent / PODS
    return [sys.executable, "-m", "gpubank.lab.runner", str(kubeconfig), str(context.data("runner")), str(logs)]


RUNNER = Component(
    name="runner",
    command=_command,
    ready=lambda context: None if _ready_file(context).exists() else "has not seen the pods yet",
    depends_on=("kube-apiserver",),
    prepare=_prepare,
    stop_grace=5,
)
