"""One pool's facts, put together from the caches: what the entries say, at the moment `at`."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Final, NamedTuple

from gpubank.adapters.kubernetes.kinds import Object
from gpubank.adapters.kubernetes.kueue import queues
from gpubank.adapters.kubernetes.kueue.entries import (
    JobEntry,
    NodeEntry,
    PodEntry,
    PodSet,
    WorkloadEntry,
    checkpoint_annotations,
)
from gpubank.domain.contract import Side, WorkloadContract
from gpubank.domain.facts import NodeFacts, PodFacts, PoolFacts, QueueFacts, Wait, WorkloadFacts
from gpubank.domain.loan import WorkloadKey

FINISHED_FOR: Final = timedelta(hours=1)
"""How long a finished Workload is still among the facts; Kueue keeps it as long as its job."""


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a ClusterQueue of the pool belongs."""

    group: str
    side: Side


@dataclass(frozen=True, slots=True)
class Seen:
    """What the caches hold that may concern a pool."""

    queues: Mapping[str, Object]
    """The pool's ClusterQueues by name."""

    cohort: Object | None
    flavor: Object | None
    local_queues: Mapping[tuple[str, str], str]
    """ClusterQueue by (namespace, LocalQueue), of every LocalQueue that leads to one of the pool's."""

    workloads: Iterable[WorkloadEntry]
    pods: Iterable[PodEntry]
    nodes: Iterable[NodeEntry]
    jobs: Mapping[str, JobEntry]
    """Jobs by uid."""

    fenced: Mapping[str, int]
    """Highest fenced stamp by ClusterQueue."""


class PoolReader:
    """Puts one pool's facts together, again and again; what has not changed since the last time is not made anew."""

    def __init__(self, cluster: str, pool: str) -> None:
        self._cluster = cluster
        self._pool = pool
        self._sums: dict[str, _Sums] = {}
        self._workloads: dict[str, _Made] = {}
        self._nodes: dict[str, tuple[tuple[object, ...], NodeFacts]] = {}
        self._seats: dict[str, tuple[Object, Seat | None]] = {}
        self._queues: dict[str, tuple[tuple[object, ...], QueueFacts]] = {}

    def read(self, seen: Seen, *, at: datetime) -> PoolFacts:
        """Return the pool's facts."""
        seats = self._read_seats(seen.queues)
        resource = next((name for body in seen.queues.values() if (name := queues.resource_of(body))), "")
        pods = [pod for pod in seen.pods if pod.requests.get(resource)]
        staff = _Staff(pods)
        known, self._workloads = self._workloads, {}
        sums, self._sums = self._sums, {}
        reserved = defaultdict[str, int](int)
        for entry in seen.workloads:
            held = sums.get(entry.uid)
            if held is None or held.entry is not entry or held.resource != resource:
                held = _Sums(entry, resource, entry.reserved, entry.gpus(resource), entry.declares(resource))
            self._sums[entry.uid] = held
            queue = entry.cluster_queue if held.reserved else seen.local_queues.get((entry.namespace, entry.queue), "")
            if queue not in seats:
                continue
            if held.reserved:
                reserved[queue] += held.gpus
            if held.declared and not _long_finished(entry, at):
                case = _Case(entry, seats[queue], resource, staff.of(entry), _jobs(entry, seen.jobs), _wait(entry, at))
                made = known.get(entry.uid)
                if made is None or made.case != case:
                    facts = _workload(case)
                    made = _Made((facts.created_at, facts.key.uid), case, facts)
                self._workloads[entry.uid] = made
        return PoolFacts(
            cluster=self._cluster,
            pool=self._pool,
            at=at,
            queues=self._read_queues(seen, seats, reserved),
            workloads=tuple(made.facts for made in sorted(self._workloads.values(), key=itemgetter(0))),
            nodes=self._read_nodes(seen, pods, resource),
            fail_safe_epoch=queues.fail_safe_epoch(seen.cohort),
            fail_safe_since=queues.fail_safe_since(seen.cohort),
        )

    def _read_seats(self, bodies: Mapping[str, Object]) -> dict[str, Seat]:
        known, self._seats = self._seats, {}
        for name, body in bodies.items():
            before = known.get(name)
            if before is None or before[0] is not body:
                seat = queues.side_of(body)
                before = (body, Seat(*seat) if seat else None)
            self._seats[name] = before
        return {name: seat for name, (_, seat) in self._seats.items() if seat is not None}

    def _read_queues(
        self, seen: Seen, seats: Mapping[str, Seat], reserved: Mapping[str, int]
    ) -> tuple[QueueFacts, ...]:
        known, self._queues = self._queues, {}
        for name in sorted(seats):
            body, held = seen.queues[name], reserved.get(name, 0)
            case = (held, seen.fenced.get(name, queues.NO_STAMP))
            before = known.get(name)
            if before is None or before[0][0] is not body or before[0][1:] != case:
                before = ((body, *case), _queue(name, seats[name], body, held, seen.fenced))
            self._queues[name] = before
        return tuple(facts for _, facts in self._queues.values())

    def _read_nodes(self, seen: Seen, pods: Iterable[PodEntry], resource: str) -> tuple[NodeFacts, ...]:
        wanted = (seen.flavor["spec"].get("nodeLabels") or {}) if seen.flavor else {}
        known, self._nodes = self._nodes, {}
        if not wanted:
            return ()  # a flavor without labels would claim every node of the cluster
        used = defaultdict[str, int](int)
        for pod in pods:
            used[pod.node] += pod.requests.get(resource, 0)
        for node in sorted(seen.nodes, key=lambda each: each.name):
            if not wanted.items() <= node.labels.items() or not node.allocatable.get(resource):
                continue
            case = (node.allocatable[resource], used[node.name], node.ready)
            before = known.get(node.name)
            if before is None or before[0] != case:
                gpus, in_use, ready = case
                before = (case, NodeFacts(name=node.name, gpus=gpus, used=in_use, ready=ready))
            self._nodes[node.name] = before
        return tuple(facts for _, facts in self._nodes.values())


class _Sums(NamedTuple):
    """What one entry adds up to."""

    entry: WorkloadEntry
    resource: str
    reserved: bool
    gpus: int
    declared: bool


class _Made(NamedTuple):
    """Facts of one Workload, and what they were made of."""

    order: tuple[datetime, str]
    case: "_Case"
    facts: WorkloadFacts


class _Case(NamedTuple):
    """Everything that one Workload's facts are made of."""

    entry: WorkloadEntry
    seat: Seat
    resource: str
    pods: tuple[PodEntry, ...]
    jobs: tuple[JobEntry, ...]
    wait: tuple[Wait, datetime]


def _queue(name: str, seat: Seat, body: Object, reserved: int, fenced: Mapping[str, int]) -> QueueFacts:
    return QueueFacts(
        name=name,
        group=seat.group,
        kind=seat.side,
        nominal=queues.nominal(body),
        # Kueue's sum and the Workloads are told at different moments; GPUs are free when both say so.
        reserved=max(queues.reserved(body), reserved),
        stamp=queues.stamp(body),
        fenced=fenced.get(name, queues.NO_STAMP),
        fail_safe=queues.in_cohort(body),
    )


class _Staff:
    """The pool's pods, by whom they belong to."""

    def __init__(self, pods: Iterable[PodEntry]) -> None:
        self._by_uid: dict[str, PodEntry] = {}
        self._by_owner = defaultdict[str, list[PodEntry]](list)
        self._by_workload = defaultdict[tuple[str, str], list[PodEntry]](list)
        for pod in pods:
            self._by_uid[pod.uid] = pod
            self._by_owner[pod.owner].append(pod)
            if pod.workload:
                self._by_workload[pod.namespace, pod.workload].append(pod)

    def of(self, entry: WorkloadEntry) -> tuple[PodEntry, ...]:
        """Return a Workload's pods, however Kueue's integration ties them to it."""
        if len(entry.owners) == 1 and (entry.namespace, entry.name) not in self._by_workload:
            uid = entry.owners[0].uid
            owned = self._by_owner.get(uid, ())
            if len(owned) < 2 and uid not in self._by_uid:
                return tuple(owned)
        found: dict[str, PodEntry] = {}
        for owner in entry.owners:
            if owner.uid in self._by_uid:
                found[owner.uid] = self._by_uid[owner.uid]
            found |= {pod.uid: pod for pod in self._by_owner.get(owner.uid, ())}
        found |= {pod.uid: pod for pod in self._by_workload.get((entry.namespace, entry.name), ())}
        return tuple(sorted(found.values(), key=lambda pod: (pod.index, pod.name)))


def _workload(case: _Case) -> WorkloadFacts:
    entry, seat, resource, pods, jobs, (wait, since) = case
    admitted = entry.conditions.get("Admitted")
    evicted = entry.conditions.get("Evicted")
    owner = entry.owners[0] if entry.owners else None
    return WorkloadFacts(
        key=WorkloadKey(
            uid=entry.uid,
            namespace=entry.namespace,
            name=entry.name,
            job=f"{owner.kind}/{owner.name}" if owner else "",
        ),
        group=seat.group,
        kind=seat.side,
        gpus=entry.gpus(resource),
        pods=max(sum(each.count for each in entry.pod_sets if each.requests.get(resource)), 1),
        priority=entry.priority,
        created_at=entry.created_at,
        active=entry.active,
        reserved=entry.reserved,
        admitted_at=admitted.since if admitted and admitted.status else None,
        finished=entry.finished,
        wait=wait,
        waiting_since=since,
        evicted=evicted.reason if evicted and evicted.status else "",
        mark=entry.mark,
        version=entry.version,
        contract=_contract(entry, pods, jobs),
        # Kueue ends a pod to take its quota back; only what is above pods can be suspended and come back.
        suspendable=owner is not None and owner.kind != "Pod",
        pod_facts=tuple(
            PodFacts(
                uid=pod.uid,
                name=pod.name,
                gpus=pod.requests.get(resource, 0),
                node=pod.node,
                running=pod.running,
                terminating=pod.terminating,
                index=pod.index,
                ip=pod.ip,
                annotations=checkpoint_annotations(pod.annotations),
            )
            for pod in pods
        ),
    )


def _wait(entry: WorkloadEntry, at: datetime) -> tuple[Wait, datetime]:
    """Return what it waits for and since when, its requeue time considered."""
    if entry.requeue_at is None or entry.wait not in (Wait.QUOTA, Wait.BACKOFF):
        return entry.wait, entry.state_since
    if entry.requeue_at > at:
        return Wait.BACKOFF, entry.state_since
    return entry.wait, max(entry.state_since, entry.requeue_at)


def _jobs(entry: WorkloadEntry, jobs: Mapping[str, JobEntry]) -> tuple[JobEntry, ...]:
    return tuple(jobs[owner.uid] for owner in entry.owners if owner.uid in jobs)


def _contract(entry: WorkloadEntry, pods: tuple[PodEntry, ...], jobs: tuple[JobEntry, ...]) -> WorkloadContract:
    """Read the contract: the job's own words over its pod template's, and a bare pod's where it has neither."""
    labels, annotations = dict[str, str](), dict[str, str]()
    owners = {owner.uid for owner in entry.owners}
    said: list[PodSet | PodEntry | JobEntry] = [*reversed(entry.pod_sets)]
    said += [pod for pod in pods if pod.uid in owners]
    said += jobs
    for source in said:
        labels |= source.labels
        annotations |= source.annotations
    return WorkloadContract.of(labels, annotations)


def _long_finished(entry: WorkloadEntry, at: datetime) -> bool:
    finished = entry.conditions.get("Finished")
    return bool(finished and finished.status and finished.since and finished.since < at - FINISHED_FOR)
