"""Nodes taken out of service on a real cluster: marks, cordons, and evictions within disruption budgets.

A mark is an annotation of the node, so that every worker, and whoever looks at the node, sees the same. Whose a cordon
is the API server knows: the managed fields name who last wrote `spec.unschedulable`. A person who cordons before the
bank, or opens and closes the node meanwhile, is that one, and the bank leaves the node as it is.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from pydantic import ValidationError

from gpubank.adapters.kubernetes.connection import Connection
from gpubank.adapters.kubernetes.errors import ApiError, ApiNotFoundError
from gpubank.adapters.kubernetes.kinds import NODE, POD, Object
from gpubank.adapters.kubernetes.quantities import Requests, floor, pod_requests
from gpubank.domain.contract import FIELD_MANAGER, NODE_POOL_LABEL
from gpubank.domain.device import RESOURCE_PREFIX
from gpubank.domain.errors import ConflictError, PolicyError
from gpubank.domain.servicing import (
    INCIDENTS_ANNOTATION,
    CordonMark,
    CordonScope,
    Evicted,
    EvictionOutcome,
    NodePod,
    NodeView,
    Uncordoned,
)

MIRROR_ANNOTATION: Final = "kubernetes.io/config.mirror"
"""On the API server's copy of a static pod, which evicting does not end."""

_GPU_RESOURCES: Final = (f"{RESOURCE_PREFIX}/", "nvidia.com/gpu", "nvidia.com/mig-", "amd.com/gpu")
_ENDED: Final = frozenset({"Succeeded", "Failed"})
_TOO_MANY_BUDGETS: Final = 500
"""What the API server answers where more than one budget is about a pod."""


class KubernetesNodes:
    """Implements `Nodes`; needs get, list and patch on nodes, list on pods, create on pods/eviction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def view(self, name: str) -> NodeView | None:
        """Return one node as it stands in the store; see the port."""
        body = await self._connection.get(NODE, name)
        return None if body is None else _view(body)

    async def of_pool(self, pool: str) -> Sequence[NodeView]:
        """Every node of a pool, by name."""
        bodies = await self._connection.all(NODE, selectors={"labelSelector": f"{NODE_POOL_LABEL}={pool}"})
        return sorted(map(_view, bodies), key=lambda node: node.name)

    async def cordon(self, name: str, mark: CordonMark) -> None:
        """Put an incident's mark on a node, with the cordon where it is about all of it; see the port."""
        body = await self._must(name)
        marks = _marks(body)
        before = marks.get(mark.incident)
        if before is not None and (before.scope, before.since) == (mark.scope, mark.since):
            return
        change: Object = _annotated({**marks, mark.incident: mark})
        if mark.scope is CordonScope.NODE:
            change["spec"] = {"unschedulable": True}
        await self._connection.patch(NODE, name, None, change, version=body["metadata"]["resourceVersion"])

    async def uncordon(self, name: str, incident: str) -> Uncordoned:
        """Take an incident's mark off a node, with the cordon where it was the bank's; see the port."""
        body = await self._connection.get(NODE, name)
        if body is None:
            return Uncordoned(note=f"node {name!r} has left the cluster")
        marks = _marks(body)
        mine = marks.pop(incident, None)
        if mine is None:
            return Uncordoned(note="it bears no mark of this incident")
        change: Object = _annotated(marks)
        done = _view(body).without(mine)
        if done.opened:
            change["spec"] = {"unschedulable": None}
        await self._connection.patch(NODE, name, None, change, version=body["metadata"]["resourceVersion"])
        return done

    async def pods(self, name: str) -> Sequence[NodePod]:
        """Every pod on a node that has not finished."""
        bodies = await self._connection.all(POD, selectors={"fieldSelector": f"spec.nodeName={name}"})
        return [_pod(body, name) for body in bodies if (body.get("status") or {}).get("phase") not in _ENDED]

    async def evict(self, pod: NodePod) -> Evicted:
        """Ask for the eviction of this very pod, within its disruption budgets."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        path = POD.path(pod.name, pod.namespace, subresource="eviction")
        try:
            # "Too many requests" is a budget's no: asking again at once would only be told the same.
            await self._connection.call("POST", path, body=body, patient=False)
        except ApiNotFoundError:
            return Evicted(EvictionOutcome.GONE)
        except ConflictError as error:
            return Evicted(EvictionOutcome.GONE, f"another pod has its name: {error}")
        except ApiError as error:
            if error.code in (429, _TOO_MANY_BUDGETS):
                return Evicted(EvictionOutcome.BLOCKED, _budget(error))
            raise
        return Evicted(EvictionOutcome.ASKED)

    async def _must(self, name: str) -> Object:
        body = await self._connection.get(NODE, name)
        if body is None:
            raise PolicyError(f"node {name!r} has left the cluster; there is nothing to cordon")
        return body


def _view(body: Object) -> NodeView:
    metadata, status = body["metadata"], body.get("status") or {}
    conditions = {each["type"]: each["status"] for each in status.get("conditions") or ()}
    capacity = status.get("capacity") or {}
    unschedulable = bool((body.get("spec") or {}).get("unschedulable"))
    return NodeView(
        name=metadata["name"],
        pool=(metadata.get("labels") or {}).get(NODE_POOL_LABEL, ""),
        # A GPU that is unfit is not allocatable, but the node still has it.
        gpus=sum(floor(amount) for resource, amount in capacity.items() if _is_gpu(resource)),
        unschedulable=unschedulable,
        ready=conditions.get("Ready") == "True",
        ours=unschedulable and _cordoned_by_us(body),
        marks=tuple(_marks(body).values()),
    )


def _cordoned_by_us(body: Object) -> bool:
    owners = {
        entry.get("manager")
        for entry in body["metadata"].get("managedFields") or ()
        if "f:unschedulable" in ((entry.get("fieldsV1") or {}).get("f:spec") or {})
    }
    return owners == {FIELD_MANAGER}  # whoever has applied the same beside the bank wants it, too


def _marks(body: Object) -> dict[str, CordonMark]:
    """Read the marks; what nobody of the bank can have written counts as none, and hides no other."""
    text = (body["metadata"].get("annotations") or {}).get(INCIDENTS_ANNOTATION, "")
    try:
        found = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    marks: dict[str, CordonMark] = {}
    for incident, mark in found.items() if isinstance(found, dict) else ():
        with suppress(ValidationError, TypeError):  # a mapping's keys, or what is no mapping at all
            marks[incident] = CordonMark(incident=incident, **mark)
    return marks


def _annotated(marks: dict[str, CordonMark]) -> Object:
    text = json.dumps(
        {name: mark.model_dump(mode="json", exclude={"incident"}) for name, mark in sorted(marks.items())},
        sort_keys=True,
    )
    return {"metadata": {"annotations": {INCIDENTS_ANNOTATION: text if marks else None}}}


def _pod(body: Object, node: str) -> NodePod:
    metadata = body["metadata"]
    owners = {each.get("kind") for each in metadata.get("ownerReferences") or () if each.get("controller")}
    return NodePod(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        node=node,
        gpus=_gpus(pod_requests(body.get("spec") or {})),
        terminating="deletionTimestamp" in metadata,
        stays="DaemonSet" in owners or MIRROR_ANNOTATION in (metadata.get("annotations") or {}),
    )


def _gpus(requests: Requests) -> int:
    return sum(amount for resource, amount in requests.items() if _is_gpu(resource))


def _is_gpu(resource: str) -> bool:
    return resource.startswith(_GPU_RESOURCES)


def _budget(error: ApiError) -> str:
    """What the server says about a budget, with the budget's name where it is told."""
    causes = "; ".join(str(cause.get("message") or "") for cause in error.causes)
    return f"{error.detail} {causes}".strip()
