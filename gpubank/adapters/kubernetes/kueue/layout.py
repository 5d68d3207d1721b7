"""Lays a pool out at Kueue: flavor and queues made, repaired, retired; quotas and foreign objects left alone.

    absent                 ──▶ created
    ours, as wanted        ──▶ nothing, not even a call: the caches know
    ours, changed          ──▶ repaired; reported instead, once somebody keeps setting the field
    ours, no longer wanted ──▶ deleted, and reported as long as somebody uses it
    somebody else's        ──▶ reported

What is reported is for people; the next pass looks again.
"""

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Final

from gpubank.adapters.kubernetes.connection import Connection
from gpubank.adapters.kubernetes.errors import ApiError, ApiNotFoundError
from gpubank.adapters.kubernetes.kinds import CLUSTER_QUEUE, LOCAL_QUEUE, RESOURCE_FLAVOR, Kind, Object
from gpubank.adapters.kubernetes.kueue import queues
from gpubank.adapters.kubernetes.kueue.drift import Drift, differences, fields
from gpubank.adapters.kubernetes.kueue.order import relaxed
from gpubank.adapters.kubernetes.kueue.view import View
from gpubank.adapters.kubernetes.kueue.wanted import Want, Wants, named
from gpubank.domain.contract import MANAGED_BY, MANAGED_BY_LABEL, cohort_name, flavor_name
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
        now = self._clock()
        run = _Run(self._connection, self._view, self._repairs, now)
        if run.in_fail_safe(layout.pool):
            return run.report()
        wants = self._wants[layout.pool]
        names: dict[Kind, set[str]] = {}
        for kind, wanted in wants.of(layout).items():
            left = wants.unsettled(wanted, self._found, lambda want, found: not differences(want, found, now))
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
                    await self._settle(want, found)
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

    async def _settle(self, want: Want, found: Object | None) -> None:
        if found is None:
            await self._create(want.kind, want.body)
            return
        for drift, change in differences(want, found, self._now):
            await self._see_to(drift, want, found, change)

    async def _see_to(self, drift: Drift, want: Want, found: Object, change: Object) -> None:
        name = want.name
        match drift:
            case Drift.FOREIGN:
                self.problem(
                    "ForeignObject",
                    f"{name} exists and is not the bank's for this pool, so it is left alone: remove or rename it, or"
                    f" hand it over by the labels {MANAGED_BY_LABEL}={MANAGED_BY} and those of the pool",
                )
            case Drift.DELETING:
                self.problem("Deleting", f"{name} is being deleted: it is made anew when it is gone")
            case Drift.STOPPED:
                policy = found["spec"]["stopPolicy"]
                remedy = "set stopPolicy to None"
                self.problem("Stopped", f"{name} is stopped ({policy}), so nothing new is admitted: {remedy}")
            case Drift.ELSEWHERE:
                await self._repoint(found, want.body)
            case Drift.IN_ORDER:
                pass  # whoever raises its quota ends that
            case Drift.STRICT:
                await self._relax(found)
            case Drift.FIELDS:
                await self._repair(want, found, change)

    async def _create(self, kind: Kind, wanted: Object) -> None:
        self._view.absorb(kind, await self._connection.create(kind, wanted))
        self.changed.append(named(kind, wanted))

    async def _repair(self, want: Want, found: Object, change: Object) -> None:
        kind, name, _ = want
        drifted = sorted(fields(change))
        now = time.monotonic()
        fought = [field for field in drifted if self._is_fought(name, field, now)]
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
        for field in drifted:
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
