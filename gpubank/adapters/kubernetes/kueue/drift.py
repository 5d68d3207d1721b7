"""What of an object at Kueue is not as a layout wants it. Pure.

    somebody else's | being deleted           nothing else counts
    stopped                                   and what else there is
    leads elsewhere | strict for too long     before anything else is repaired
    strict for a moment                       and what else there is, but for its order
    other fields                              with the patch that makes them as wanted

Whether there is anything to do about an object, and what is done about it, are both read off here.
"""

import copy
from datetime import datetime
from enum import Enum, auto
from typing import Any, NamedTuple

from gpubank.adapters.kubernetes.kinds import CLUSTER_QUEUE, LOCAL_QUEUE, RESOURCE_FLAVOR, Kind, Object
from gpubank.adapters.kubernetes.kueue import queues
from gpubank.adapters.kubernetes.kueue.order import IN_ORDER_ANNOTATION, is_momentary
from gpubank.adapters.kubernetes.kueue.wanted import Want
from gpubank.domain.contract import POOL_LABEL


class Drift(Enum):
    """One way in which an object is not as wanted."""

    FOREIGN = auto()
    """It is not the bank's, or another pool's."""

    DELETING = auto()
    STOPPED = auto()
    """Nothing new is admitted; whoever stopped it meant to."""

    ELSEWHERE = auto()
    """A LocalQueue that leads to another ClusterQueue."""

    IN_ORDER = auto()
    """A queue that is strict for a moment, which must end: so it is never settled."""

    STRICT = auto()
    """A queue whose strict moment nobody has ended."""

    FIELDS = auto()
    """Something else that the bank looks after."""


class Difference(NamedTuple):
    """One way in which an object differs, and the merge patch against it."""

    drift: Drift
    change: Object
    """Empty but for `FIELDS`."""


def differences(want: Want, found: Object, now: datetime) -> list[Difference]:
    """Return what differs, in the order in which it is seen to; nothing where all is as wanted.

    Time alone never makes a difference: an object that is as wanted is so until it changes.
    """
    kind, _, wanted = want
    if not queues.belongs(found, wanted["metadata"]["labels"][POOL_LABEL]):
        return [Difference(Drift.FOREIGN, {})]
    if "deletionTimestamp" in found["metadata"]:
        return [Difference(Drift.DELETING, {})]
    differs: list[Difference] = []
    if (found["spec"].get("stopPolicy") or "None") != "None":
        differs.append(Difference(Drift.STOPPED, {}))
    if kind == LOCAL_QUEUE and found["spec"]["clusterQueue"] != wanted["spec"]["clusterQueue"]:
        return [*differs, Difference(Drift.ELSEWHERE, {})]
    change = _change(kind, found, wanted)
    if kind == CLUSTER_QUEUE and IN_ORDER_ANNOTATION in (found["metadata"].get("annotations") or {}):
        if not is_momentary(found, now):
            return [*differs, Difference(Drift.STRICT, {})]
        differs.append(Difference(Drift.IN_ORDER, {}))
        change.get("spec", {}).pop("queueingStrategy", None)
    if fields(change):
        differs.append(Difference(Drift.FIELDS, change))
    return differs


def fields(change: Object) -> list[str]:
    """Return the fields that a change sets, as they are told of."""
    return [
        *(f"metadata.labels[{name}]" for name in change.get("metadata", {}).get("labels", {})),
        *(f"spec.{name}" for name in change.get("spec", {})),
    ]


def _change(kind: Kind, found: Object, wanted: Object) -> Object:
    """Return the merge patch that makes `found` as `wanted` in what the bank looks after; empty where it is so."""
    change: Object = {}
    labels = found["metadata"].get("labels") or {}
    if missing := {key: value for key, value in wanted["metadata"]["labels"].items() if labels.get(key) != value}:
        change["metadata"] = {"labels": missing}
    spec: Object = {}
    if kind == RESOURCE_FLAVOR:
        spec = _replaced(found["spec"], wanted["spec"], "nodeLabels")
    elif kind == CLUSTER_QUEUE:
        spec = _replaced(found["spec"], wanted["spec"], "namespaceSelector")
        for field in ("queueingStrategy", "preemption"):
            spec |= _covered(found["spec"], wanted["spec"], field)
        if found["spec"].get("cohortName"):
            spec["cohortName"] = None
        spec |= _groups(found, wanted)
    if spec:
        change["spec"] = spec
    return change


def _groups(found: Object, wanted: Object) -> Object:
    """Return the quota's frame if it is not as wanted, around the quota that stands."""
    frame = wanted["spec"]["resourceGroups"]
    resource = queues.resource_of(wanted)
    if _frame(found["spec"].get("resourceGroups")) == _frame(frame):
        return {}
    nominal = queues.nominal(found) if queues.resource_of(found) == resource else 0
    return {"resourceGroups": queues.resource_groups(frame[0]["flavors"][0]["name"], resource, nominal)}


def _frame(groups: list[Object] | None) -> list[Any]:
    """Return resource groups without their quotas."""
    bare = copy.deepcopy(groups or [])
    for amount in (each for group in bare for flavor in group["flavors"] for each in flavor["resources"]):
        amount.pop("nominalQuota", None)
    return bare


def _replaced(found: Object, wanted: Object, field: str) -> Object:
    """Return a patch that makes a field exactly as wanted, keys that only `found` has included."""
    before, after = found.get(field), wanted.get(field)
    if (before or None) == (after or None):
        return {}
    if after is None:
        return {field: None}
    return {field: {key: None for key in (before or {}) if key not in after} | after}


def _covered(found: Object, wanted: Object, field: str) -> Object:
    """Return a patch that makes a field as wanted where the wanted one says something."""
    return {} if _covers(found.get(field), wanted[field]) else {field: wanted[field]}


def _covers(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(_covers(found.get(key), value) for key, value in wanted.items())
    return bool(found == wanted)
