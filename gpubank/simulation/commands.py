"""A pod's command on this machine: which program, with which environment, and where it keeps its files.

Simulated nodes run nothing by themselves; a pod whose template carries `COMMAND_ANNOTATION` runs as a local process
while it stands on a node. It gets what the lab's runner gives, so that one manifest runs in both: its pod's uid, and a
free port of loopback, which is published as the pod's checkpoint endpoint.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gpubank.simulation.processes import ProcessId

COMMAND_ANNOTATION: Final = "lab.gpubank.dev/command"
"""On a pod template: the command as a JSON list of strings."""

ENV_ANNOTATION: Final = "lab.gpubank.dev/env"
"""On a pod template: a JSON object of strings, added to the command's environment."""

LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True)
class Command:
    """What a pod runs."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None
    """Where it runs; None for where the simulation does."""

    @classmethod
    def of(cls, annotations: Mapping[str, str], containers: Sequence[Mapping[str, Any]] = ()) -> "Command | None":
        """Read the command of a pod template; None if it has none. Raises ValueError naming the annotation.

        Environment and working directory of the first container hold too; the annotation wins.
        """
        if COMMAND_ANNOTATION not in annotations:
            return None
        argv = _json(annotations, COMMAND_ANNOTATION)
        if not isinstance(argv, list) or not argv or not all(isinstance(part, str) for part in argv):
            raise ValueError(f'{COMMAND_ANNOTATION} must be a JSON list of strings, as in \'["python", "train.py"]\'')
        env = _json(annotations, ENV_ANNOTATION) if ENV_ANNOTATION in annotations else {}
        if not isinstance(env, dict) or not all(isinstance(value, str) for value in env.values()):
            raise ValueError(f'{ENV_ANNOTATION} must be a JSON object of strings, as in \'{{"SEED": "7"}}\'')
        container = containers[0] if containers else {}
        literal = {each["name"]: str(each["value"]) for each in container.get("env") or () if "value" in each}
        folder = container.get("workingDir")
        return cls(tuple(argv), literal | env, Path(folder) if folder else None)


def _json(annotations: Mapping[str, str], name: str) -> object:
    try:
        return json.loads(annotations[name])
    except ValueError as error:
        raise ValueError(f"{name} is not JSON: {error}") from error


@dataclass(frozen=True)
class PodFolder:
    """Where one pod's process keeps its files; a folder of its own for every pod."""

    path: Path

    @property
    def log(self) -> Path:
        """What the command prints."""
        return self.path / "log"

    @property
    def exit_file(self) -> Path:
        """Where the exit code appears."""
        return self.path / "exit"

    @property
    def request_file(self) -> Path:
        """Where the pod's request annotation is shown to the process."""
        return self.path / "request"

    @property
    def status_file(self) -> Path:
        """Where the process writes its latest answer, which becomes the pod's status annotation."""
        return self.path / "status"

    @property
    def _record(self) -> Path:
        return self.path / "process.json"

    def remember(self, process: ProcessId) -> None:
        """Write down which process runs here, for whoever comes after a crash."""
        self._record.write_text(json.dumps({"pid": process.pid, "started": process.started}), encoding="utf-8")

    def remembered(self) -> ProcessId | None:
        """Return the process that was written down last, alive or not."""
        try:
            record = json.loads(self._record.read_text(encoding="utf-8"))
            return ProcessId(int(record["pid"]), str(record["started"]))
        except (FileNotFoundError, ValueError, KeyError):
            return None

    def project(self, request: str) -> None:
        """Show the process a request, all of it at once, as a downward-API volume does."""
        part = self.path / "request.part"
        part.write_text(request, encoding="utf-8")
        part.replace(self.request_file)

    def status(self) -> str:
        """Return the latest answer; empty while there is none."""
        try:
            return self.status_file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""


def environment(
    command: Command, folder: PodFolder, *, uid: str, name: str, namespace: str, node: str, index: int, port: int
) -> dict[str, str]:
    """Return the whole environment of a pod's process: ours, the command's own, and what the pod is given."""
    # The interpreter's folder leads, so that `python` in a manifest is the one that the bank runs on.
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    given = {
        "GPUBANK_POD_UID": uid,
        "GPUBANK_POD_NAME": name,
        "GPUBANK_POD_NAMESPACE": namespace,
        "GPUBANK_NODE_NAME": node,
        "GPUBANK_HOOK_HOST": LOOPBACK,
        "GPUBANK_HOOK_PORT": str(port),
        "GPUBANK_HOOK_UID": uid,
        "GPUBANK_HOOK_REQUEST_FILE": str(folder.request_file),
        "GPUBANK_HOOK_STATUS_FILE": str(folder.status_file),
        "JOB_COMPLETION_INDEX": str(index),
    }
    return {**os.environ, "PATH": path, **command.env, **given}
