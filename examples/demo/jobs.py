"""The three jobs of the play, as they would be submitted to any cluster.

Each says what a simulated node shall run by the annotation `lab.gpubank.dev/command`; on nodes with GPUs the image's
own command would stand in its place.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpubank.domain.contract import (
    CHECKPOINT_STORAGE_ANNOTATION,
    CHECKPOINT_TRANSPORT_ANNOTATION,
    QUEUE_LABEL,
    WORKLOAD_TYPE_LABEL,
)


def service_job() -> dict[str, Any]:
    """Search's own work: holds all of its guarantee."""
    return _job("search", "serving", "demo", labels={WORKLOAD_TYPE_LABEL: "inference"})


def training_job(command: Sequence[str], storage: Path) -> dict[str, Any]:
    """Search's training run in its borrow queue, with a checkpoint hook."""
    return _job(
        "search",
        "train",
        "demo-borrow",
        labels={WORKLOAD_TYPE_LABEL: "training"},
        annotations={CHECKPOINT_TRANSPORT_ANNOTATION: "http", CHECKPOINT_STORAGE_ANNOTATION: f"file://{storage}"},
        command=command,
    )


def owner_job(command: Sequence[str]) -> dict[str, Any]:
    """Vision's own job, which wants its GPUs back."""
    return _job("vision", "batch", "demo", labels={WORKLOAD_TYPE_LABEL: "batch"}, command=command)


def _job(
    namespace: str,
    name: str,
    queue: str,
    *,
    labels: Mapping[str, str],
    annotations: Mapping[str, str] | None = None,
    command: Sequence[str] | None = None,
) -> dict[str, Any]:
    notes = dict(annotations or {})
    if command is not None:
        notes["lab.gpubank.dev/command"] = json.dumps(list(command))
    gpus = {"nvidia.com/gpu": "8"}
    container = {"name": "main", "image": "example.invalid/none", "resources": {"requests": gpus, "limits": gpus}}
    pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 20, "containers": [container]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {QUEUE_LABEL: queue, **labels},
            "annotations": dict(annotations or {}),
        },
        "spec": {
            "parallelism": 1,
            "completions": 1,
            "backoffLimit": 0,
            "template": {"metadata": {"labels": dict(labels), "annotations": notes}, "spec": pod},
        },
    }
