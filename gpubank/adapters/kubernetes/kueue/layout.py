"""Lays a pool out at Kueue: flavor and queues made, repaired, retired; quotas and foreign objects left alone.

    absent                 ──▶ created
    ours, as wanted        ──▶ nothing, not even a call: the caches know
    ours, changed          ──▶ repaired; reported instead, once somebody keeps setting the field
    ours, no longer wanted ──▶ deleted, and reported as long as somebody uses it
    somebody else's        ──▶ reported

What is reported is for people; the next pass looks again.
"""

import asyncio
import copy
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Final

from gpubank.adapters.kubernetes.connection import Connection
from gpubank.adapters.kubernetes.errors import ApiError, ApiNotFoundError
from gpubank.adapters.kubernetes.kinds import CLUSTER_QUEUE, LOCAL_QUEUE, RESOURCE_FLAVOR, Kind, Object
from gpubank.adapters.kubernetes.kueue import queues
from gpubank.adapters.kubernetes.kueue.order import IN_ORDER_ANNOTATION, is_momentary, relaxed
from gpubank.adapters.kubernetes.kueue.view import View
from gpubank.adapters.kubernetes.kueue.wanted import Want, Wants, named
from gpubank.domain.contract import MANAGED_BY, MANAGED_BY_LABEL, POOL_LABEL, cohort_name, flavor_name
from gpubank.domain.errors import ConflictError
from gpubank.domain.layout import LayoutProblem, LayoutReport, PoolLayout

REPAIRS: Final = 3
"""How often one field of one object is repaired within `REPAIR_WINDOW`; whoever sets it again is not fought."""

REPAIR_WINDOW: Final = 600.0
"""Seconds."""

_TRIES: Final = 4
_AT_ONCE: Final = 8
"""Calls in flight, so that a first layout of many namespaces does not flood the API server."""


class LayoutWriter:
    """Makes the cluster as a layout says."""

    def __init__(self, connection: Connection, view: View, clock: Callable[[], datetime]) -> None:
        self._connection = connection
        self._view = view
        self._clock = clock
        self._repairs = defaultdict[tuple[str, str], deque[float]](lambda: deque(maxlen=REPAIRS))
        self._wants = defaultdict[str, Wants](Wants)

    async def lay_out(self, layout: PoolLayout) -> LayoutReport:
        """Create or repair what the layout wants, retire what it no longer wants."""
        run = _Run(self._connection, self._view, self._repairs, self._clock())
        if run.in_fail_safe(layout.pool):
            return run.report()
        wants = self._wants[layout.pool]
        names: dict[Kind, set[str]] = {}
        for kind, wanted in wants.of(layout).items():
            left = wants.unsettled(wanted, self._found, _is_as_wanted)
            await run.each(run.settle(want, found) for want, found in left)
            names[kind] = {want.name for want in wanted}
        wants.forget(set().union(*names.values()))
        await run.retire(layout.pool, names)
        return run.report()

    def _found(self, want: Want) -> Object | None:
        metadata = want.body["metadata"]
        return self._view.objects(want.kind).get(metadata["name"], metadata.get("namespace", ""))

    async def remove(self, pool: str) -> LayoutReport:
        """Retire everything of a pool, its flavor last."""
        self._wants.pop(pool, None)
        run = _Run(self._connection, self._view, self._repairs, self._clock())
        if run.in_fail_safe(pool):
            return run.report()
        await run.retire(pool, {})
        flavor = self._view.flavors.get(flavor_name(pool))
        if flavor and queues.belongs(flavor, pool) and not run.problems:
            await run.retire_one(RESOURCE_FLAVOR, flavor)
        return run.report()


class _Run:
    """One pass over a pool."""

    def __init__(
        self,
        connection: Connection,
        view: View,
        repairs: defaultdict[tuple[str, str], deque[float]],
        now: datetime,
    ) -> None:
        self._connection = connection
        self._view = view
        self._repairs = repairs
        self._now = now
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self.changed: list[str] = []
        self.problems: list[LayoutProblem] = []

    def report(self) -> LayoutReport:
        return LayoutReport(
            changed=tuple(sorted(self.changed)),
            problems=tuple(sorted(self.problems, key=lambda each: (each.reason, each.message))),
        )

    def problem(self, reason: str, message: str) -> None:
        told = LayoutProblem(reason=reason, message=message)
        if told not in self.problems:
            self.problems.append(told)

    def in_fail_safe(self, pool: str) -> bool:
        """Tell whether the pool's queues are not the layout's now: the watchdog's, or on their way back from it."""
        epoch = queues.fail_safe_epoch(self._view.cohorts.get(cohort_name(pool)))
        if epoch:
            message = f"pool {pool!r} is in fail-safe epoch {epoch}: its queues are the watchdog's until it ends"
            self.problem("FailSafe", message)
        elif any(queues.on_its_way_back(body, pool) for body in self._view.queues):
            message = f"pool {pool!r} comes back from its fail-safe: its queues are laid out when they have their loans"
            self.problem("FailSafe", message)
        else:
            return False
        return True

    async def each(self, steps: Iterable[Any]) -> None:
        async def one(step: Any) -> None:
            async with self._slots:
                await step

        await asyncio.gather(*(one(step) for step in steps))

    # ---- create and repair

    async def settle(self, want: Want, found: Object | None) -> None:
        """Make one object as wanted, or report why not; `found` is what the caches hold in its place."""
        kind, name, wanted = want
        metadata = wanted["metadata"]
        try:
            for _ in range(_TRIES):
                try:
                    await self._settle(kind, found, wanted)
                except ConflictError:
                    # Kueue writes status into these objects all the time, so a cache is easily a moment behind.
                    found = await self._connection.get(kind, metadata["name"], metadata.get("namespace"))
                else:
                    return
        except ApiNotFoundError as error:
            remedy = "create the namespace, or take it out of its group" if kind == LOCAL_QUEUE else "install Kueue"
            self.problem("NotFound", f"{name} cannot be written: {error.detail}; {remedy}")
        except ApiError as error:
            if not error.is_refusal:
                raise
            self.problem("Refused", f"{name} is refused: {error.detail}; change what stands in its way")
        else:
            self.problem("Contended", f"{name} changes faster than it can be laid out; the next pass tries again")

    async def _settle(self, kind: Kind, found: Object | None, wanted: Object) -> None:
        if found is None:
            await self._create(kind, wanted)
        elif not queues.belongs(found, _pool_of(wanted)):
            self.problem(
                "ForeignObject",
                f"{named(kind, wanted)} exists and is not the bank's for this pool, so it is left alone: remove or"
                f" rename it, or hand it over by the labels {MANAGED_BY_LABEL}={MANAGED_BY} and those of the pool",
            )
        elif "deletionTimestamp" in found["metadata"]:
            self.problem("Deleting", f"{named(kind, wanted)} is being deleted: it is made anew when it is gone")
        else:
            await self._repair(kind, found, wanted)

    async def _create(self, kind: Kind, wanted: Object) -> None:
        self._view.absorb(kind, await self._connection.create(kind, wanted))
        self.changed.append(named(kind, wanted))

    async def _repair(self, kind: Kind, found: Object, wanted: Object) -> None:
        name = named(kind, wanted)
        if (found["spec"].get("stopPolicy") or "None") != "None":
            policy = found["spec"]["stopPolicy"]
            self.problem("Stopped", f"{name} is stopped ({policy}), so nothing new is admitted: set stopPolicy to None")
        if kind == LOCAL_QUEUE and found["spec"]["clusterQueue"] != wanted["spec"]["clusterQueue"]:
            await self._repoint(found, wanted)
            return
        change = _drift(kind, found, wanted)
        if kind == CLUSTER_QUEUE and IN_ORDER_ANNOTATION in (found["metadata"].get("annotations") or {}):
            if is_momentary(found, self._now):
                change.get("spec", {}).pop("queueingStrategy", None)
            else:
                await self._relax(found)
                return
        fields = sorted(_fields(change))
        if not fields:
            return
        now = time.monotonic()
        fought = [field for field in fields if self._is_fought(name, field, now)]
        if fought:
            self.problem(
                "RepeatedDrift",
                f"{name} was repaired {REPAIRS} times in {REPAIR_WINDOW / 60:.0f} minutes and somebody sets"
                f" {', '.join(fought)} again: take it out of what else manages it",
            )
            return
        metadata = found["metadata"]
        written = await self._connection.patch(
            kind, metadata["name"], metadata.get("namespace"), change, version=metadata["resourceVersion"]
        )
        self._view.absorb(kind, written)
        self.changed.append(name)
        for field in fields:
            self._repairs[name, field].append(now)

    async def _relax(self, found: Object) -> None:
        """End a strict moment whose writer did not live to end it; everything else is seen in the next pass."""
        metadata = found["metadata"]
        written = await self._connection.patch(
            CLUSTER_QUEUE, metadata["name"], None, relaxed(), version=metadata["resourceVersion"]
        )
        self._view.absorb(CLUSTER_QUEUE, written)
        self.changed.append(named(CLUSTER_QUEUE, found))

    def _is_fought(self, name: str, field: str, now: float) -> bool:
        times = self._repairs[name, field]
        return len(times) == REPAIRS and now - times[0] < REPAIR_WINDOW

    async def _repoint(self, found: Object, wanted: Object) -> None:
        """Make a LocalQueue anew whose ClusterQueue is another: Kueue does not let it be changed."""
        name, metadata = named(LOCAL_QUEUE, wanted), found["metadata"]
        place = (metadata["namespace"], metadata["name"])
        holding = [each for each in self._view.users(found["spec"]["clusterQueue"]) if each.reserved]
        if any((each.namespace, each.queue) == place for each in holding):
            queue = found["spec"]["clusterQueue"]
            self.problem(
                "QueueInUse",
                f"{name} leads to {queue!r} of another group and has running work: it is led over when that has ended",
            )
            return
        await self.delete(LOCAL_QUEUE, found)
        await self._create(LOCAL_QUEUE, wanted)

    # ---- retire

    async def retire(self, pool: str, wanted: dict[Kind, set[str]]) -> None:
        """Delete the pool's queues that are not wanted, LocalQueues first, where nobody uses them."""
        for kind in (LOCAL_QUEUE, CLUSTER_QUEUE):
            obsolete = [
                body
                for body in list(self._view.objects(kind))
                if queues.belongs(body, pool)
                and named(kind, body) not in wanted.get(kind, set())
                and "deletionTimestamp" not in body["metadata"]
            ]
            await self.each(self.retire_one(kind, body) for body in obsolete)

    async def retire_one(self, kind: Kind, body: Object) -> None:
        name, found = named(kind, body), body
        for _ in range(_TRIES):
            if reason := self._use_of(kind, found):
                message = f"{name} is no longer wanted but {reason}: it is removed when that has ended"
                self.problem("QueueInUse", message)
                return
            try:
                await self.delete(kind, found)
            except ConflictError:
                # Somebody may have begun to use it: it is read anew, and judged anew.
                metadata = body["metadata"]
                fresh = await self._connection.get(kind, metadata["name"], metadata.get("namespace"))
                if fresh is None:
                    return
                found = fresh
            else:
                return
        self.problem("Contended", f"{name} changes faster than it can be removed; the next pass tries again")

    def _use_of(self, kind: Kind, body: Object) -> str:
        if kind == RESOURCE_FLAVOR:
            return ""  # its queues are gone, and Kueue holds it while another one names it
        queue = body["spec"].get("clusterQueue") if kind == LOCAL_QUEUE else body["metadata"]["name"]
        users = self._view.users(queue)
        if kind == LOCAL_QUEUE:
            place = (body["metadata"]["namespace"], body["metadata"]["name"])
            users = [each for each in users if (each.namespace, each.queue) == place]
        elif nominal := queues.nominal(body):
            return f"has a quota of {nominal} in force"
        if users:
            return f"has {len(users)} unfinished Workloads, the first is '{users[0].namespace}/{users[0].name}'"
        return ""

    async def delete(self, kind: Kind, body: Object) -> None:
        metadata = body["metadata"]
        await self._connection.delete(
            kind, metadata["name"], metadata.get("namespace"), version=metadata["resourceVersion"]
        )
        self.changed.append(named(kind, body))


def _is_as_wanted(want: Want, found: Object) -> bool:
    """Whether there is nothing to do about an object, and nothing to say."""
    kind, _, wanted = want
    return (
        queues.belongs(found, _pool_of(wanted))
        and "deletionTimestamp" not in found["metadata"]
        and (found["spec"].get("stopPolicy") or "None") == "None"
        and (kind != LOCAL_QUEUE or found["spec"]["clusterQueue"] == wanted["spec"]["clusterQueue"])
        # Strict for a moment, which must end: that is seen to in every pass.
        and IN_ORDER_ANNOTATION not in (found["metadata"].get("annotations") or {})
        and not _drift(kind, found, wanted)
    )


def _drift(kind: Kind, found: Object, wanted: Object) -> Object:
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


def _fields(change: Object) -> list[str]:
    return [
        *(f"metadata.labels[{name}]" for name in change.get("metadata", {}).get("labels", {})),
        *(f"spec.{name}" for name in change.get("spec", {})),
    ]


def _pool_of(wanted: Object) -> str:
    return str(wanted["metadata"]["labels"][POOL_LABEL])
