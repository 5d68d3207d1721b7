"""The bank's objects at Kueue, as they should be, and how its ClusterQueues are read. Pure.

The quota is not part of the layout: a queue is born with 0 and without a stamp, and keeps whatever quota it has.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from gpubank.adapters.kubernetes.kinds import CLUSTER_QUEUE, LOCAL_QUEUE, RESOURCE_FLAVOR, Kind, Object
from gpubank.adapters.kubernetes.quantities import ceil, floor
from gpubank.domain.base import bounded
from gpubank.domain.contract import (
    FAIL_SAFE_EPOCH_ANNOTATION,
    FAIL_SAFE_LAST_ANNOTATION,
    FAIL_SAFE_SINCE_ANNOTATION,
    GROUP_LABEL,
    MANAGED_BY,
    MANAGED_BY_LABEL,
    POOL_LABEL,
    REVISION_ANNOTATION,
    SIDE_LABEL,
    Side,
    borrow_queue,
    cohort_name,
    flavor_name,
    local_borrow_queue,
    local_own_queue,
    own_queue,
)
from gpubank.domain.layout import GroupLayout, PoolLayout

NEVER: Final = {
    "reclaimWithinCohort": "Never",
    "borrowWithinCohort": {"policy": "Never"},
    "withinClusterQueue": "Never",
}
NAMESPACE_NAME_LABEL: Final = "kubernetes.io/metadata.name"
QUEUE_NAMES: Final = {Side.OWN: own_queue, Side.BORROW: borrow_queue}
LOCAL_NAMES: Final = {Side.OWN: local_own_queue, Side.BORROW: local_borrow_queue}
NO_STAMP: Final = -1


def flavor(layout: PoolLayout) -> Object:
    """Return the pool's one ResourceFlavor."""
    return _object(
        RESOURCE_FLAVOR, flavor_name(layout.pool), {POOL_LABEL: layout.pool}, {"nodeLabels": dict(layout.node_labels)}
    )


def cluster_queue(layout: PoolLayout, group: GroupLayout, side: Side) -> Object:
    """Return one of a group's two ClusterQueues, without quota."""
    names = sorted(group.namespaces)
    expression = {"key": NAMESPACE_NAME_LABEL, "operator": "In", "values": names}
    spec: Object = {
        # Kueue takes no selector as "no namespace", an empty one as "every namespace".
        **({"namespaceSelector": {"matchExpressions": [expression]}} if names else {}),
        "queueingStrategy": "BestEffortFIFO",
        "preemption": NEVER,
        "stopPolicy": "None",
        "resourceGroups": resource_groups(layout.pool, layout.resource_name, 0),
    }
    return _object(CLUSTER_QUEUE, QUEUE_NAMES[side](group.group, layout.pool), _labels(layout, group, side), spec)


def local_queue(layout: PoolLayout, group: GroupLayout, side: Side, namespace: str) -> Object:
    """Return one of the two LocalQueues in one of a group's namespaces."""
    spec = {"clusterQueue": QUEUE_NAMES[side](group.group, layout.pool), "stopPolicy": "None"}
    body = _object(LOCAL_QUEUE, LOCAL_NAMES[side](layout.pool), _labels(layout, group, side), spec)
    body["metadata"]["namespace"] = namespace
    return body


def resource_groups(pool: str, resource: str, nominal: int) -> list[Object]:
    """Return what stands for `nominal` GPUs; the list is atomic, so it is always written whole."""
    amount = {"name": resource, "nominalQuota": str(nominal)}
    return [{"coveredResources": [resource], "flavors": [{"name": flavor_name(pool), "resources": [amount]}]}]


# ---- reading


def is_ours(body: Object) -> bool:
    """Tell whether the bank made an object."""
    return (body["metadata"].get("labels") or {}).get(MANAGED_BY_LABEL) == MANAGED_BY


def belongs(body: Object, pool: str) -> bool:
    """Tell whether the bank made an object for this pool."""
    return is_ours(body) and body["metadata"]["labels"].get(POOL_LABEL) == pool


def side_of(body: Object) -> tuple[str, Side] | None:
    """Return group and side of one of the bank's queues, or None where its labels are damaged."""
    labels = body["metadata"].get("labels") or {}
    group, side = labels.get(GROUP_LABEL, ""), labels.get(SIDE_LABEL, "")
    return (group, Side(side)) if group and side in tuple(Side) else None


def resource_of(body: Object) -> str:
    """Return the resource that a queue of the bank counts; empty where its spec is damaged."""
    for group in body["spec"].get("resourceGroups") or ():
        for covered in group.get("coveredResources") or ():
            return str(covered)
    return ""


def nominal(body: Object) -> int:
    """Return the quota in force, rounded down."""
    return _amount(
        [each for group in body["spec"].get("resourceGroups") or () for each in group.get("flavors") or ()],
        resource_of(body),
        lambda resource: floor(resource.get("nominalQuota")),
    )


def reserved(body: Object) -> int:
    """Return what Kueue says is reserved, rounded up."""
    return _amount(
        (body.get("status") or {}).get("flavorsReservation") or [],
        resource_of(body),
        lambda resource: ceil(resource.get("total")),
    )


def stamp(body: Object) -> int:
    """Return the ledger revision that the quota was last written for; -1 for none."""
    return _whole(body["metadata"].get("annotations"), REVISION_ANNOTATION, NO_STAMP)


def observed(body: Object) -> int:
    """Return the generation of the spec that Kueue has taken in; 0 for none."""
    for condition in (body.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "Active":
            return int(condition.get("observedGeneration") or 0)
    return 0


def is_acknowledged(body: Object) -> bool:
    """Tell whether Kueue has taken in the spec as it stands."""
    return observed(body) >= int(body["metadata"].get("generation") or 1)


def in_cohort(body: Object) -> bool:
    """Tell whether a queue stands in a Cohort, as only the fail-safe puts it."""
    return bool(body["spec"].get("cohortName"))


def fail_safe_epoch(body: Object | None) -> int:
    """Return the epoch of the fail-safe on a Cohort or a queue; 0 when the bank is in charge."""
    return _whole(body["metadata"].get("annotations"), FAIL_SAFE_EPOCH_ANNOTATION, 0) if body else 0


def last_epoch(cohort: Object) -> int:
    """Return the highest epoch that ever stood; 0 for none."""
    return _whole(cohort["metadata"].get("annotations"), FAIL_SAFE_LAST_ANNOTATION, 0)


def fail_safe_since(cohort: Object | None) -> datetime | None:
    """Return when the fail-safe was last switched on; None if it never was."""
    if cohort is None:
        return None
    text = (cohort["metadata"].get("annotations") or {}).get(FAIL_SAFE_SINCE_ANNOTATION, "")
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def on_its_way_back(body: Object, pool: str) -> bool:
    """Tell whether a queue of the pool still stands where the fail-safe put it."""
    return belongs(body, pool) and body["spec"].get("cohortName") == cohort_name(pool) and fail_safe_epoch(body) > 0


def borrowing_limit(body: Object) -> int | None:
    """Return the limit on what a queue borrows in its Cohort; None where it has none."""
    for group in body["spec"].get("resourceGroups") or ():
        for flavor_ in group.get("flavors") or ():
            for each in flavor_.get("resources") or ():
                if (limit := each.get("borrowingLimit")) is not None:
                    return int(floor(limit))
    return None


def _amount(flavors: list[Object], resource: str, read: Any) -> int:
    amounts = (
        int(read(each))
        for flavor_ in flavors
        for each in flavor_.get("resources") or ()
        if each.get("name") == resource
    )
    return bounded(sum(amounts))


def _whole(annotations: Mapping[str, str] | None, name: str, missing: int) -> int:
    value = (annotations or {}).get(name, "")
    return int(value) if value.isdecimal() else missing


def _labels(layout: PoolLayout, group: GroupLayout, side: Side) -> dict[str, str]:
    return {POOL_LABEL: layout.pool, GROUP_LABEL: group.group, SIDE_LABEL: str(side)}


def _object(kind: Kind, name: str, labels: Mapping[str, str], spec: Object) -> Object:
    return {
        "apiVersion": kind.api_version,
        "kind": kind.name,
        "metadata": {"name": name, "labels": {MANAGED_BY_LABEL: MANAGED_BY, **labels}},
        "spec": spec,
    }
