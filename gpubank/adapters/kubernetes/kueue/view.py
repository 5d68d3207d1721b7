"""The caches of everything that facts are made of, and which of it concerns a pool."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from typing import Final, NamedTuple

from gpubank.adapters.kubernetes.cache import Cache, Caches, Source
from gpubank.adapters.kubernetes.kinds import (
    CLUSTER_QUEUE,
    COHORT,
    JOB,
    LOCAL_QUEUE,
    NODE,
    POD,
    RESOURCE_FLAVOR,
    WORKLOAD,
    Kind,
    Object,
)
from gpubank.adapters.kubernetes.kueue import queues
from gpubank.adapters.kubernetes.kueue.entries import (
    JobEntry,
    NodeEntry,
    PodEntry,
    WorkloadEntry,
    WorkloadReader,
    read_job,
    read_node,
    read_pod,
)
from gpubank.adapters.kubernetes.kueue.facts import Seen
from gpubank.domain.contract import cohort_name, flavor_name

_UNFINISHED: Final = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}

Listener = Callable[[object, object], None]


class View:
    """Watches one cluster for all of its pools."""

    def __init__(self, source: Source, clock: Callable[[], datetime]) -> None:
        self.queues: Cache[Object] = Cache(source, CLUSTER_QUEUE, _whole)
        self.local_queues: Cache[Object] = Cache(source, LOCAL_QUEUE, _whole)
        self.flavors: Cache[Object] = Cache(source, RESOURCE_FLAVOR, _whole)
        self.cohorts: Cache[Object] = Cache(source, COHORT, _whole)
        self.workloads: Cache[WorkloadEntry] = Cache(source, WORKLOAD, WorkloadReader(clock))
        self.pods: Cache[PodEntry] = Cache(source, POD, read_pod, selectors=_UNFINISHED)
        self.nodes: Cache[NodeEntry] = Cache(source, NODE, read_node)
        self.jobs: Cache[JobEntry] = Cache(source, JOB, read_job)
        self._users = _Users()
        self._hearing = ExitStack()
        self._hearing.enter_context(self.workloads.heard_by(self._users.hear))
        self._leading: tuple[int, dict[str, list[_Place]]] = -1, {}
        self._places: tuple[tuple[int, int], dict[str, _Places]] = (-1, -1), {}
        self._by_kind: dict[Kind, Cache[Object]] = {
            cache.kind: cache for cache in (self.queues, self.local_queues, self.flavors, self.cohorts)
        }
        self.caches = Caches(
            self.queues,
            self.local_queues,
            self.flavors,
            self.cohorts,
            self.workloads,
            self.pods,
            self.nodes,
            self.jobs,
        )

    def absorb(self, kind: Kind, body: Object) -> None:
        """Take in what the server answered to a write."""
        if kind == WORKLOAD:
            self.workloads.absorb(body)
        elif kind in self._by_kind:
            self._by_kind[kind].absorb(body)

    def objects(self, kind: Kind) -> Cache[Object]:
        """Return the cache of a kind of queue object."""
        return self._by_kind[kind]

    def seen(self, pool: str, fenced: Mapping[str, int]) -> Seen:
        """Return what may concern a pool."""
        places = self._places_of(pool)
        flavor = self.flavors.get(flavor_name(pool))
        return Seen(
            queues=places.queues,
            cohort=self.cohorts.get(cohort_name(pool)),
            flavor=flavor if flavor and queues.belongs(flavor, pool) else None,
            local_queues=places.local_queues,
            workloads=self.workloads,
            pods=self.pods,
            nodes=self.nodes,
            jobs={job.uid: job for job in self.jobs},
            fenced=fenced,
        )

    def of_pool(self, pool: str) -> Mapping[str, Object]:
        """Return the pool's ClusterQueues by name."""
        return self._places_of(pool).queues

    def _places_of(self, pool: str) -> "_Places":
        """Return where work of a pool waits; put together anew only when a queue of any kind has changed."""
        edits = (self.queues.edits, self.local_queues.edits)
        if self._places[0] != edits:
            self._places = edits, {}
        known = self._places[1]
        if pool not in known:
            ours = {body["metadata"]["name"]: body for body in self.queues if queues.belongs(body, pool)}
            leading = {
                (body["metadata"]["namespace"], body["metadata"]["name"]): body["spec"]["clusterQueue"]
                for body in self.local_queues
                if body["spec"].get("clusterQueue") in ours
            }
            known[pool] = _Places(ours, leading)
        return known[pool]

    def users(self, queue: str) -> list[WorkloadEntry]:
        """Return the unfinished Workloads that hold quota of a ClusterQueue or wait for it."""
        return self._users.of(queue, self._leading_to(queue))

    def _leading_to(self, queue: str) -> "Sequence[_Place]":
        """Return the LocalQueues that lead to a ClusterQueue; put together anew only when one has changed."""
        if self._leading[0] != self.local_queues.edits:
            found: dict[str, list[_Place]] = {}
            for body in self.local_queues:
                place = body["metadata"]["namespace"], body["metadata"]["name"]
                found.setdefault(body["spec"].get("clusterQueue", ""), []).append(place)
            self._leading = self.local_queues.edits, found
        return self._leading[1].get(queue, ())

    @contextmanager
    def heard_by(self, listener: Listener) -> Iterator[None]:
        """Call `listener(before, after)` on every change in any cache, while the context lasts."""
        caches = (self.queues, self.local_queues, self.flavors, self.cohorts)
        with ExitStack() as stack:
            for cache in caches:
                stack.enter_context(cache.heard_by(listener))
            stack.enter_context(self.workloads.heard_by(listener))
            stack.enter_context(self.pods.heard_by(listener))
            stack.enter_context(self.nodes.heard_by(listener))
            stack.enter_context(self.jobs.heard_by(listener))
            yield


_Place = tuple[str, str]
"""Namespace and name of a LocalQueue."""


class _Users:
    """Unfinished Workloads by the queue whose quota they hold or wait for: asked for at every raise of a quota."""

    def __init__(self) -> None:
        self._holding: dict[str, dict[str, WorkloadEntry]] = {}
        self._waiting: dict[_Place, dict[str, WorkloadEntry]] = {}

    def hear(self, before: WorkloadEntry | None, after: WorkloadEntry | None) -> None:
        """Follow a change."""
        if before is not None and not before.finished:
            if before.reserved:
                self._holding[before.cluster_queue].pop(before.uid, None)
            else:
                self._waiting[before.namespace, before.queue].pop(before.uid, None)
        if after is not None and not after.finished:
            if after.reserved:
                self._holding.setdefault(after.cluster_queue, {})[after.uid] = after
            else:
                self._waiting.setdefault((after.namespace, after.queue), {})[after.uid] = after

    def of(self, queue: str, leading: Sequence[_Place]) -> list[WorkloadEntry]:
        """Return who holds quota of a ClusterQueue, and who waits in the LocalQueues that lead to it."""
        found = [*self._holding.get(queue, {}).values()]
        for place in leading:
            found += self._waiting.get(place, {}).values()
        return found


class _Places(NamedTuple):
    """Where work of one pool waits."""

    queues: Mapping[str, Object]
    local_queues: Mapping[tuple[str, str], str]


def _whole(body: Object, before: Object | None) -> Object:
    """Keep a queue object as it is, but for the record of who set which field."""
    body["metadata"].pop("managedFields", None)
    return body
