"""Good objects: one of each kind that sets nearly every field, and every object of ours in examples/."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gpubank.domain.base import API_VERSION, GROUP
from gpubank.schema.manifest import Document, read_documents

ROOT: Final = Path(__file__).parents[2]
DOCUMENTS: Final[list[Document]] = [
    document
    for path in sorted((ROOT / "examples").glob("*.yaml"))
    for document in read_documents(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT)))
    if str(document.body.get("apiVersion")).startswith(f"{GROUP}/")
]
PUBLISHED: Final[list[dict[str, Any]]] = [document.body for document in DOCUMENTS]
"""What the documentation shows."""


def _object(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}


GOOD: Final[Mapping[str, dict[str, Any]]] = {
    "GPUPool": _object(
        "GPUPool",
        "h100",
        {
            "capacity": 64,
            "flavor": {"vendor": "nvidia", "model": "h100", "fabric": "rdma", "lifecycle": "reserved"},
            "shares": [{"businessGroup": "search", "guaranteed": 32, "maxCapacity": 48, "maxBorrow": 16}],
            "limits": {"maxGracePeriod": "30m", "allowedPriorityClasses": ["high"]},
            "freeze": {"by": "ops", "reason": "fabric work", "until": "2030-01-02T03:04:05+08:00"},
        },
    ),
    "BusinessGroup": _object(
        "BusinessGroup",
        "search",
        {
            "owner": "mia@example.com",
            "namespaces": ["search", "search-dev"],
            "subjects": [{"kind": "Group", "name": "search"}],
            "costCenter": "CC-1",
            "admins": ["mia@example.com"],
            "channels": [{"type": "webhook", "secretRef": {"namespace": "search", "name": "hook"}}],
        },
    ),
    "GPUQuotaPolicy": _object(
        "GPUQuotaPolicy",
        "search-h100",
        {
            "businessGroup": "search",
            "resourcePool": "h100",
            "guaranteed": 32,
            "borrowLimit": 16,
            "lendingLimit": 8,
            "maxCapacity": 48,
            "reclaimPolicy": {"gracePeriod": "10m"},
        },
    ),
    "InferenceScalingPolicy": _object(
        "InferenceScalingPolicy",
        "llm",
        {
            "workloadRef": {"kind": "Deployment", "name": "llm"},
            "replicaShape": {"tensorParallelSize": 4, "gpuPerReplica": 8, "pods": 2},
            "minReplicas": 1,
            "maxReplicas": 8,
            "scaleUp": {"queueDepthPerReplica": 8, "ttftP95": "1500ms", "kvCacheHighWatermark": 85},
            "scaleDown": {"queueDepthPerReplica": 1, "drainTimeout": "20m"},
        },
    ),
    "TidalPolicy": _object(
        "TidalPolicy",
        "weekday",
        {
            "timezone": "Asia/Shanghai",
            "windows": [
                {
                    "name": "day",
                    "start": "30 8 * * 1-5",
                    "end": "0 20 * * MON-FRI",
                    "inferenceReplicaFloor": 6,
                    "trainingBorrowLimit": 8,
                    "prewarmBefore": "30m",
                }
            ],
            "reclaim": {"checkpointBefore": "30m", "gracePeriod": "10m"},
            "holidays": ["2026-10-01"],
            "scalingPolicies": ["llm"],
            "pool": "h100",
        },
    ),
    "CapacityLease": _object(
        "CapacityLease",
        "release-week",
        {"pool": "h100", "gpus": 8, "until": "2026-11-02T18:00:00Z", "reason": "release"},
    ),
    "LowUtilizationPolicy": _object(
        "LowUtilizationPolicy",
        "default",
        {
            "match": {"workloadType": "training", "matchLabels": {"example.com/team": "search"}},
            "window": "60m",
            "thresholds": {"averageGpuUtilization": 10},
            "notify": {"first": "owner", "repeatInterval": "6h"},
            "excludeWhen": [{"label": "platform.aik8s.run/capacity-role", "value": "serving-floor"}],
        },
    ),
}


def name_of(body: Mapping[str, Any]) -> str:
    """Name an example in a test's id."""
    return f"{body['kind']}-{body['metadata']['name']}"
