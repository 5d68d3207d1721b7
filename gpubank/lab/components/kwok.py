"""kwok: plays the kubelets of any number of nodes, and the pods on them unless a runner does.

Its stages come from its own module. A pod that carries a command belongs to the lab's runner: kwok must neither call it
running nor let it go. No stage completes pods by itself, or every Job would end at once; a pod may ask for it with an
annotation that says after how long.
"""

import yaml

from gpubank.lab.access import MASTERS, Manifest, documents, look
from gpubank.lab.build import GoProgram, ModuleFiles
from gpubank.lab.components.base import Component, Context
from gpubank.lab.names import COMMAND, COMPLETE_AFTER, FAKE_NODE, FAKE_NODE_VALUE

MODULE = "sigs.k8s.io/kwok"
_STAGES = ("node/fast/node-initialize.yaml", "pod/fast/pod-ready.yaml", "pod/fast/pod-delete.yaml")

PROGRAM = GoProgram(
    name="kwok",
    version="0.8.0",
    wrapper="kwok",
    package=f"{MODULE}/cmd/kwok",
    assets=tuple(ModuleFiles(MODULE, f"kustomize/stage/{path}", path.replace("/", "-")) for path in _STAGES),
)


def stages(context: Context) -> list[Manifest]:
    """Return kwok's stages as the lab uses them."""
    found = [stage for file in _STAGES for stage in documents(context.assets("kwok") / file.replace("/", "-"))]
    for stage in found:
        if stage["spec"]["resourceRef"]["kind"] == "Pod":
            stage["spec"]["selector"]["matchExpressions"].append(_without_command())
    return [*found, _complete()]


def _without_command() -> Manifest:
    return {"key": f'.metadata.annotations["{COMMAND}"]', "operator": "DoesNotExist"}


def _complete() -> Manifest:
    after = f'.metadata.annotations["{COMPLETE_AFTER}"]'
    status = """\
{{ $now := Now }}
{{ $root := . }}
containerStatuses:
{{ range $index, $item := .spec.containers }}
{{ $origin := index $root.status.containerStatuses $index }}
- image: {{ $item.image | Quote }}
  name: {{ $item.name | Quote }}
  ready: false
  restartCount: 0
  started: false
  state:
    terminated:
      exitCode: 0
      finishedAt: {{ $now | Quote }}
      reason: Completed
      startedAt: {{ $origin.state.running.startedAt | Quote }}
{{ end }}
phase: Succeeded
"""
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": "pod-complete-after"},
        "spec": {
            "resourceRef": {"apiGroup": "v1", "kind": "Pod"},
            "selector": {
                "matchExpressions": [
                    {"key": ".metadata.deletionTimestamp", "operator": "DoesNotExist"},
                    {"key": ".status.phase", "operator": "In", "values": ["Running"]},
                    {"key": after, "operator": "Exists"},
                    _without_command(),
                ]
            },
            "delay": {"durationFrom": {"expressionFrom": after}, "durationMilliseconds": 0},
            "next": {"statusTemplate": status},
        },
    }


def _command(context: Context) -> list[str]:
    config = context.written("kwok.yaml", yaml.safe_dump_all(stages(context), sort_keys=False))
    return [
        f"--kubeconfig={context.kubeconfig('kwok', group=MASTERS)}",
        f"--config={config}",
        # Never all nodes: a real kubelet may join the lab.
        f"--manage-nodes-with-annotation-selector={FAKE_NODE}={FAKE_NODE_VALUE}",
        # Without leases the controller manager calls the nodes unreachable after 50 s.
        "--node-lease-duration-seconds=40",
        f"--server-address={context.address('kwok')}",
    ]


KWOK = Component(
    name="kwok",
    program=PROGRAM,
    command=_command,
    ready=lambda context: look(context.address("kwok"), "/healthz"),
    ports=("kwok",),
    depends_on=("kube-apiserver",),
)
