"""What a pod asks of the runner, what the runner remembers of it, and what it tells the API server about it."""

import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Pod
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from gpubank.lab.names import COMMAND, ENV
from gpubank.lab.state import write_whole
from gpubank.simulation.processes import LocalProcess, ProcessId

RECORD: Final = "pod.json"
EXIT: Final = "exit"
POD_UID: Final = "GPUBANK_POD_UID"
_INDEX: Final = "batch.kubernetes.io/job-completion-index"

_ARGV: Final = TypeAdapter(list[str])
_ENVIRONMENT: Final = TypeAdapter(dict[str, str])


class CommandError(Exception):
    """A pod's command or environment cannot be read; the message is for whoever wrote the pod."""


class PodRecord(BaseModel):
    """A pod's process, as a file that a later runner can go on from."""

    model_config = ConfigDict(frozen=True)

    uid: str
    namespace: str
    name: str
    port: int
    """Loopback port that the process may serve its checkpoint endpoint on."""
    pid: int
    started: str
    """The process's start, as `ProcessId` has it."""
    started_at: str
    """The same for people, RFC 3339."""
    grace: float
    """The pod's terminationGracePeriodSeconds."""
    restarts: int = 0

    def process(self, folder: Path) -> LocalProcess:
        """Return the process, whoever started it."""
        return LocalProcess(ProcessId(self.pid, self.started), folder / EXIT)

    def save(self, folder: Path) -> None:
        """Keep the record in the pod's folder."""
        write_whole(folder / RECORD, self.model_dump_json(indent=2) + "\n")

    @staticmethod
    def load(folder: Path) -> "PodRecord | None":
        """Return the record in a pod's folder, or None if there is none."""
        try:
            return PodRecord.model_validate_json((folder / RECORD).read_bytes())
        except (FileNotFoundError, ValidationError):
            return None


def command_of(pod: Pod) -> list[str]:
    """Return the command line that `pod` asks for; raise CommandError if it is none."""
    text = annotations_of(pod)[COMMAND]
    try:
        argv = _ARGV.validate_json(text)
    except ValidationError:
        raise CommandError(f"annotation {COMMAND} is {text!r}; it must be a JSON list of strings") from None
    if not argv:
        raise CommandError(f"annotation {COMMAND} is an empty list; name at least a program")
    return argv


def environment_of(pod: Pod, port: int, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a pod's process; raise CommandError if the pod's own cannot be read.

    Later wins: the runner's own, literal values of the first container, the annotation, what the runner assigns.
    """
    text = annotations_of(pod).get(ENV, "{}")
    try:
        own = _ENVIRONMENT.validate_json(text)
    except ValidationError:
        raise CommandError(f"annotation {ENV} is {text!r}; it must be a JSON object of strings") from None
    container = pod.spec.containers[0] if pod.spec and pod.spec.containers else None
    literal = {each.name: each.value for each in (container.env or () if container else ()) if each.value is not None}
    meta = meta_of(pod)
    assigned = {
        POD_UID: str(meta.uid),
        "GPUBANK_POD_NAME": str(meta.name),
        "GPUBANK_POD_NAMESPACE": str(meta.namespace),
        "GPUBANK_NODE_NAME": str(pod.spec.nodeName if pod.spec else ""),
        "GPUBANK_HOOK_HOST": "127.0.0.1",
        "GPUBANK_HOOK_PORT": str(port),
        "GPUBANK_HOOK_UID": str(meta.uid),
    }
    index = annotations_of(pod).get(_INDEX)
    if index is not None:
        assigned["JOB_COMPLETION_INDEX"] = index
    # So that `python` is the interpreter with the project in it, also where no virtual environment is active.
    path = os.pathsep.join([str(Path(sys.executable).parent), inherited.get("PATH", os.defpath)])
    return {**inherited, "PATH": path, **literal, **own, **assigned}


def annotations_of(pod: Pod) -> dict[str, str]:
    """Return the pod's annotations."""
    return dict(meta_of(pod).annotations or {})


def meta_of(pod: Pod) -> ObjectMeta:
    """Return the pod's metadata: every object that the API server sends has it, whatever the type says."""
    return pod.metadata or ObjectMeta()


def running(pod: Pod, record: PodRecord) -> dict[str, Any]:
    """Return the status of a pod whose process runs."""
    state = {"running": {"startedAt": record.started_at}}
    return _status("Running", pod, record.restarts, state, ready=True) | {"startTime": record.started_at}


def ended(pod: Pod, record: PodRecord, code: int) -> dict[str, Any]:
    """Return the status of a pod whose process has ended for good with `code`."""
    finished = {
        "exitCode": code,
        "reason": "Completed" if code == 0 else "Error",
        "startedAt": record.started_at,
        "finishedAt": now(),
        "containerID": f"process://{record.pid}",
    }
    phase = "Succeeded" if code == 0 else "Failed"
    return _status(phase, pod, record.restarts, {"terminated": finished}, ready=False)


def refused(pod: Pod, reason: str) -> dict[str, Any]:
    """Return the status of a pod that asks for what the runner cannot do."""
    finished = {"exitCode": 128, "reason": "StartError", "message": reason, "startedAt": now(), "finishedAt": now()}
    status = _status("Failed", pod, 0, {"terminated": finished}, ready=False)
    return status | {"reason": "CommandRefused", "message": reason}


def now() -> str:
    """Return this second as RFC 3339."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _status(phase: str, pod: Pod, restarts: int, state: dict[str, Any], *, ready: bool) -> dict[str, Any]:
    truth, at = ("True" if ready else "False"), now()
    conditions = [
        {"type": "Initialized", "status": "True", "lastTransitionTime": at},
        {"type": "ContainersReady", "status": truth, "lastTransitionTime": at},
        {"type": "Ready", "status": truth, "lastTransitionTime": at},
    ]
    containers = [
        {
            "name": each.name,
            "image": each.image or "",
            "imageID": "",
            "ready": ready,
            "started": ready,
            "restartCount": restarts,
            "state": state,
        }
        for each in (pod.spec.containers if pod.spec else ())
    ]
    return {"phase": phase, "conditions": conditions, "containerStatuses": containers}


def as_patch(uid: str, *, metadata: Mapping[str, Any] | None = None, **rest: Any) -> dict[str, Any]:
    """Return a merge patch that another pod of the same name refuses: the uid is part of it."""
    return {"metadata": {"uid": uid, **(metadata or {})}, **rest}
