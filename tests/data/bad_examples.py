"""Bad objects that each break one rule: what the models and the API server must both refuse.

A bad example is a good object with a few fields changed. `by` says who can express the rule: a structural schema knows
no clock, no calendar and no time zones, and JSON has one kind of number, so some rules are the models' alone.
"""

import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from tests.data.good_examples import GOOD

ABSENT: Final = object()
"""As a change: remove the field."""


class By(StrEnum):
    """Who can express a rule."""

    BOTH = "both"
    MODELS = "models"


@dataclass(frozen=True)
class Bad:
    """One bad object: the good one of `kind`, with `changes`; the models name the field and say `rule`."""

    name: str
    kind: str
    changes: Mapping[str, Any]
    rule: str
    field: str = ""
    """Field that the models name; the first that is changed unless said."""
    by: By = By.BOTH

    def __post_init__(self) -> None:
        if not self.field:
            changed = next(iter(self.changes)).replace("/", ".")
            object.__setattr__(self, "field", re.sub(r"\.(\d+)", r"[\1]", changed))

    @property
    def body(self) -> dict[str, Any]:
        """The object itself."""
        body = deepcopy(GOOD[self.kind])
        for path, value in self.changes.items():
            _change(body, path.split("/"), value)
        return body


def _change(node: Any, path: list[str], value: Any) -> None:
    head, *rest = path
    key: Any = int(head) if isinstance(node, list) else head
    if rest:
        _change(node.setdefault(key, {}) if isinstance(node, dict) else node[key], rest, value)
    elif value is ABSENT:
        del node[key]
    else:
        node[key] = value


_Q = "GPUQuotaPolicy"
_P = "GPUPool"
_G = "BusinessGroup"
_I = "InferenceScalingPolicy"
_T = "TidalPolicy"
_L = "CapacityLease"
_U = "LowUtilizationPolicy"
_SECOND_WINDOW = {**GOOD[_T]["spec"]["windows"][0], "start": "0 9 * * 6"}

BAD: Final = (
    # Numbers
    Bad("a number in quotes", _Q, {"spec/guaranteed": "32"}, "whole number"),
    Bad("true for 1", _Q, {"spec/guaranteed": True}, "whole number"),
    Bad("16.0 for 16 in a field of a CEL rule", _Q, {"spec/borrowLimit": 16.0}, "whole number"),
    # Without a CEL rule the API server takes 16.0 for 16, and a null for a field left out.
    Bad("2.0 for 2", _Q, {"spec/fairShareWeight": 2.0}, "whole number", by=By.MODELS),
    Bad("a fraction", _Q, {"spec/borrowLimit": 1.5}, "whole number"),
    Bad("a negative guarantee", _Q, {"spec/guaranteed": -1}, "at least 0"),
    Bad("a negative borrowLimit", _Q, {"spec/borrowLimit": -1}, "at least 0"),
    Bad("a negative lendingLimit", _Q, {"spec/lendingLimit": -1}, "at least 0"),
    Bad("more GPUs than any pool has", _Q, {"spec/maxCapacity": 1_000_001}, "at most 1000000"),
    Bad("a null", _Q, {"spec/borrowLimit": None}, "not be null", by=By.MODELS),
    Bad("a weight of zero", _Q, {"spec/fairShareWeight": 0}, "at least 1"),
    Bad("a weight beyond its bound", _Q, {"spec/fairShareWeight": 1001}, "at most 1000"),
    # Fields
    Bad("a required field left out", _Q, {"spec/guaranteed": ABSENT}, "required"),
    Bad("no spec", _Q, {"spec": ABSENT}, "required"),
    Bad("a field that does not exist", _Q, {"spec/guarantee": 32}, "no field"),
    Bad("a snake_case name", _Q, {"spec/borrow_limit": 4}, "no field"),
    Bad("an unknown field deep down", _Q, {"spec/reclaimPolicy/grace": "1m"}, "no field"),
    Bad("an unknown field at the top", _Q, {"sepc": {}}, "no field"),
    Bad("an unknown metadata field", _Q, {"metadata/lables": {}}, "no field"),
    Bad("a list for a mapping", _Q, {"spec/reclaimPolicy": []}, "mapping"),
    Bad("a mapping for a list", _P, {"spec/shares": {}}, "list"),
    Bad("a number for text", _Q, {"spec/businessGroup": 7}, "text"),
    # Names
    Bad("a group with a dot", _Q, {"spec/businessGroup": "a.b"}, "DNS label"),
    Bad("a group in upper case", _Q, {"spec/businessGroup": "Search"}, "DNS label"),
    Bad("no group", _Q, {"spec/businessGroup": ""}, "not be empty"),
    Bad("a pool that ends in -borrow", _Q, {"spec/resourcePool": "h100-borrow"}, "-borrow"),
    Bad("a pool too long for its queue label", _Q, {"spec/resourcePool": "p" * 57}, "at most 56"),
    Bad("a pool object with a dot", _P, {"metadata/name": "h100.rdma"}, "DNS label"),
    Bad("a pool object that ends in -borrow", _P, {"metadata/name": "h100-borrow"}, "-borrow"),
    Bad("a pool object with too long a name", _P, {"metadata/name": "p" * 57}, "at most 56"),
    Bad("a group object with a dot", _G, {"metadata/name": "search.cn"}, "DNS label"),
    Bad("an object name in upper case", _Q, {"metadata/name": "Search"}, "Kubernetes name"),
    # Durations
    Bad("a duration without a unit", _Q, {"spec/reclaimPolicy/gracePeriod": "10"}, "whole hours"),
    Bad("a duration as a number", _Q, {"spec/reclaimPolicy/gracePeriod": 600}, "whole hours"),
    Bad("a duration in days", _Q, {"spec/reclaimPolicy/gracePeriod": "1d"}, "whole hours"),
    Bad("a duration with a fraction", _Q, {"spec/reclaimPolicy/gracePeriod": "1.5h"}, "whole hours"),
    Bad("a negative duration", _Q, {"spec/reclaimPolicy/gracePeriod": "-1m"}, "whole hours"),
    Bad("a duration in the wrong order", _Q, {"spec/reclaimPolicy/gracePeriod": "5s1m"}, "whole hours"),
    Bad("an ISO duration", _Q, {"spec/reclaimPolicy/gracePeriod": "PT10M"}, "whole hours"),
    Bad("an empty duration", _Q, {"spec/reclaimPolicy/gracePeriod": ""}, "whole hours"),
    Bad("a duration in microseconds", _I, {"spec/scaleUp/ttftP95": "1500us"}, "whole hours"),
    Bad("a duration that overflows", _Q, {"spec/reclaimPolicy/gracePeriod": "9999999h"}, "whole hours"),
    Bad("a grace beyond a day", _Q, {"spec/reclaimPolicy/gracePeriod": "25h"}, "from 0s to 24h"),
    # Choices and lists
    Bad(
        "an unknown class to preempt",
        _Q,
        {"spec/reclaimPolicy/onlyPreempt": ["training"]},
        "one of",
        field="spec.reclaimPolicy.onlyPreempt[0]",
    ),
    Bad(
        "inference as a class to preempt",
        _Q,
        {"spec/reclaimPolicy/onlyPreempt": ["inference"]},
        "one of",
        field="spec.reclaimPolicy.onlyPreempt[0]",
    ),
    Bad("nothing to preempt", _Q, {"spec/reclaimPolicy/onlyPreempt": []}, "at least 1"),
    Bad("a class twice", _Q, {"spec/reclaimPolicy/onlyPreempt": ["batch", "batch"]}, "twice"),
    Bad("a choice in the wrong case", _Q, {"spec/reclaimPolicy/onCheckpointFailure": "Protect"}, "one of"),
    Bad("an unknown approval", _Q, {"spec/reclaimPolicy/approval": "Maybe"}, "one of"),
    Bad("an unknown withinGroup", _Q, {"spec/reclaimPolicy/withinGroup": "Any"}, "one of"),
    Bad("an unknown backend", _P, {"spec/backend": "Slurm"}, "one of"),
    # Between the fields of a policy
    Bad("lends more than it has", _Q, {"spec/lendingLimit": 33}, "not exceed guaranteed"),
    Bad("guarantee and loans beyond maxCapacity", _Q, {"spec/borrowLimit": 17}, "maxCapacity"),
    Bad(
        "a guarantee beyond maxCapacity",
        _Q,
        {"spec/maxCapacity": 31, "spec/borrowLimit": ABSENT},
        "at least guaranteed",
    ),
    # Pools
    Bad(
        "no time for a recall",
        _P,
        {"spec/limits": {"maxTimeToReturn": "30m"}},
        "minRunTime",
        field="spec.limits.maxTimeToReturn",
    ),
    Bad(
        "a run time that leaves no time",
        _P,
        {"spec/limits": {"minRunTime": "45m"}},
        "minRunTime",
        field="spec.limits.maxTimeToReturn",
    ),
    Bad(
        "pods that take the time of a recall to end",
        _P,
        {"spec/limits": {"maxTermination": "1h"}},
        "maxTermination",
        field="spec.limits.maxTimeToReturn",
    ),
    Bad(
        "a lease limit beyond a day",
        _P,
        {"spec/limits": {"maxLease": "48h"}},
        "from 0s to 24h",
        field="spec.limits.maxLease",
    ),
    Bad(
        "no time to terminate",
        _P,
        {"spec/limits": {"maxTermination": "0s"}},
        "from 1s to 1h",
        field="spec.limits.maxTermination",
    ),
    Bad(
        "a hasty fail-safe",
        _P,
        {"spec/limits": {"failSafeAfter": "10s"}},
        "from 1m to 24h",
        field="spec.limits.failSafeAfter",
    ),
    Bad(
        "a floor beyond the capacity",
        _P,
        {"spec/limits": {"servingFloorGpus": 65}},
        "not exceed capacity",
        field="spec.limits.servingFloorGpus",
    ),
    Bad(
        "a share whose capacity is under its guarantee",
        _P,
        {"spec/shares/0/maxCapacity": 31},
        "at least the share's guaranteed",
    ),
    Bad(
        "two shares for one group",
        _P,
        {"spec/shares": [{"businessGroup": "a", "guaranteed": 1}, {"businessGroup": "a", "guaranteed": 2}]},
        "one share",
    ),
    Bad("a negative capacity", _P, {"spec/capacity": -8}, "at least 0"),
    Bad("a resource without a domain", _P, {"spec/resourceName": "gpu"}, "must match"),
    Bad("a freeze without a reason", _P, {"spec/freeze/reason": ABSENT}, "required"),
    Bad("a freeze until a date", _P, {"spec/freeze/until": "2030-01-02"}, "RFC 3339"),
    # Groups
    Bad("a group nobody answers for", _G, {"spec/owner": ABSENT}, "required"),
    Bad("a namespace twice", _G, {"spec/namespaces": ["a", "a"]}, "twice"),
    Bad(
        "a subject twice",
        _G,
        {"spec/subjects": [{"kind": "User", "name": "a"}, {"kind": "User", "name": "a"}]},
        "twice",
    ),
    Bad("an unknown kind of subject", _G, {"spec/subjects/0/kind": "Robot"}, "one of"),
    Bad("a secret in the open", _G, {"spec/channels/0/secretRef": "https://hook"}, "mapping"),
    # Inference
    Bad("fewest replicas above most", _I, {"spec/minReplicas": 9}, "not exceed maxReplicas"),
    Bad(
        "no replicas at all", _I, {"spec/minReplicas": 0, "spec/maxReplicas": 0}, "at least 1", field="spec.maxReplicas"
    ),
    Bad("marks that meet", _I, {"spec/scaleDown/queueDepthPerReplica": 8}, "below scaleUp"),
    Bad("no signal to scale up by", _I, {"spec/scaleUp": {"stabilizationWindow": "30s"}}, "signal"),
    Bad("a cache fuller than full", _I, {"spec/scaleUp/kvCacheHighWatermark": 101}, "at most 100"),
    Bad("percent with its sign", _I, {"spec/scaleUp/kvCacheHighWatermark": "85%"}, "whole number"),
    Bad(
        "GPUs that tensor parallelism does not divide",
        _I,
        {"spec/replicaShape/tensorParallelSize": 3},
        "multiple",
        field="spec.replicaShape.gpuPerReplica",
    ),
    Bad("GPUs that the pods cannot share", _I, {"spec/replicaShape/pods": 3}, "divide"),
    Bad("a replica without GPUs", _I, {"spec/replicaShape/gpuPerReplica": 0}, "at least 1"),
    Bad("a TTFT of nothing", _I, {"spec/scaleUp/ttftP95": "0ms"}, "from 1ms to 10m"),
    Bad("a service without a name", _I, {"spec/workloadRef/name": ABSENT}, "required"),
    # Tides
    Bad("cron with four fields", _T, {"spec/windows/0/start": "30 8 * *"}, "five fields"),
    Bad("cron with seconds", _T, {"spec/windows/0/start": "0 30 8 * * 1-5"}, "five fields"),
    Bad("cron by nickname", _T, {"spec/windows/0/start": "@daily"}, "five fields"),
    Bad("cron at minute 60", _T, {"spec/windows/0/start": "60 8 * * *"}, "five fields"),
    Bad("cron at hour 24", _T, {"spec/windows/0/start": "0 24 * * *"}, "five fields"),
    Bad("cron with L", _T, {"spec/windows/0/start": "0 8 L * *"}, "five fields"),
    Bad("cron with a reversed range", _T, {"spec/windows/0/start": "0 20-8 * * *"}, "ascending", by=By.MODELS),
    Bad("cron on 30 February", _T, {"spec/windows/0/start": "0 8 30 2 *"}, "never comes", by=By.MODELS),
    Bad("a window that closes as it opens", _T, {"spec/windows/0/end": "30 8 * * 1-5"}, "differ from start"),
    Bad(
        "the same moment written otherwise",
        _T,
        {"spec/windows/0/end": "30 8 * * MON-FRI"},
        "differ from start",
        by=By.MODELS,
    ),
    Bad("a time zone that does not exist", _T, {"spec/timezone": "Asia/Shangai"}, "IANA", by=By.MODELS),
    Bad("this machine's time zone", _T, {"spec/timezone": "localtime"}, "IANA", by=By.MODELS),
    Bad("a time zone as an offset", _T, {"spec/timezone": "+08:00"}, "must match"),
    Bad("no windows", _T, {"spec/windows": []}, "at least 1"),
    Bad("two windows of one name", _T, {"spec/windows": [GOOD[_T]["spec"]["windows"][0], _SECOND_WINDOW]}, "twice"),
    Bad(
        "a holiday that does not exist",
        _T,
        {"spec/holidays": ["2026-02-30"]},
        "day that exists",
        field="spec.holidays[0]",
        by=By.MODELS,
    ),
    Bad(
        "a holiday with a time",
        _T,
        {"spec/holidays": ["2026-02-01T00:00:00Z"]},
        "day that exists",
        field="spec.holidays[0]",
    ),
    Bad("a negative floor", _T, {"spec/windows/0/inferenceReplicaFloor": -1}, "at least 0"),
    # Leases
    Bad(
        "a lease for both",
        _L,
        {"spec/workloadRef": {"apiVersion": "batch/v1", "kind": "Job", "name": "a"}},
        "not for both",
    ),
    Bad("a lease for nothing", _L, {"spec/pool": ABSENT, "spec/gpus": ABSENT}, "for a workload", field="spec"),
    Bad("a lease for a pool without GPUs", _L, {"spec/gpus": ABSENT}, "for a workload", field="spec"),
    Bad("a lease for no GPUs", _L, {"spec/gpus": 0}, "at least 1"),
    Bad("a lease for ever", _L, {"spec/until": ABSENT}, "required"),
    Bad("a lease until a local time", _L, {"spec/until": "2026-11-02T18:00:00"}, "RFC 3339"),
    Bad("a lease until Unix seconds", _L, {"spec/until": 1793642400}, "RFC 3339"),
    Bad("a lease until month 13", _L, {"spec/until": "2026-13-02T18:00:00Z"}, "date and time that exists"),
    Bad("a lease without a reason", _L, {"spec/reason": ""}, "not be empty"),
    Bad(
        "a workload without its version",
        _L,
        {"spec/pool": ABSENT, "spec/gpus": ABSENT, "spec/workloadRef": {"kind": "Job", "name": "a"}},
        "required",
        field="spec.workloadRef.apiVersion",
    ),
    # Low utilization
    Bad("a threshold above 100", _U, {"spec/thresholds/averageGpuUtilization": 101}, "at most 100"),
    Bad("no threshold", _U, {"spec/thresholds": {}}, "threshold"),
    Bad("a window shorter than the measurements", _U, {"spec/window": "1m"}, "from 5m to 168h"),
    Bad("reminders faster than the window", _U, {"spec/notify/repeatInterval": "30m"}, "at least window"),
    Bad("an unknown type of workload", _U, {"spec/match/workloadType": "serving"}, "one of"),
    Bad("an unknown recipient", _U, {"spec/notify/first": "boss"}, "one of"),
    Bad(
        "an exclusion by two marks", _U, {"spec/excludeWhen/0/annotation": "a"}, "one mark", field="spec.excludeWhen[0]"
    ),
    Bad("an exclusion by no mark", _U, {"spec/excludeWhen": [{"value": "a"}]}, "one mark", field="spec.excludeWhen[0]"),
    Bad(
        "a label key with a space",
        _U,
        {"spec/match/matchLabels": {"a b": "c"}},
        "key of a label",
        field="spec.match.matchLabels.a b",
    ),
    Bad(
        "a label value with a space",
        _U,
        {"spec/match/matchLabels": {"a": "b c"}},
        "value of a label",
        field="spec.match.matchLabels.a",
    ),
)
