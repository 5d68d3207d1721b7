"""One pool's facts, put together from the caches: what the entries say, at the moment `at`."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import attrgetter
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
from gpubank.domain.base import bounded
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
        self._read_before: dict[str, _Read] = {}
        self._workloads: tuple[WorkloadFacts, ...] = ()
        self._staff = _Staff()
        self._frame: tuple[object, ...] = ()
        self._jobs: Mapping[str, JobEntry] = {}
        self._nodes: dict[str, tuple[tuple[object, ...], NodeFacts]] = {}
        self._seats: dict[str, tuple[Object, Seat | None]] = {}
        self._queues: dict[str, tuple[tuple[object, ...], QueueFacts]] = {}

    def read(self, seen: Seen, *, at: datetime) -> PoolFacts:
        """Return the pool's facts."""
        seats = self._read_seats(seen.queues)
        resource = next((name for body in seen.queues.values() if (name := queues.resource_of(body))), "")
        pods = [pod for pod in seen.pods if pod.requests.get(resource)]
        held, let_go = self._read_workloads(seen, seats, resource, pods, at)
        return PoolFacts(
            cluster=self._cluster,
            pool=self._pool,
            at=at,
            queues=self._read_queues(seen, seats, held, let_go),
            workloads=self._workloads,
            nodes=self._read_nodes(seen, pods, resource),
            fail_safe_epoch=queues.fail_safe_epoch(seen.cohort),
            fail_safe_since=queues.fail_safe_since(seen.cohort),
        )

    def _read_workloads(
        self, seen: Seen, seats: Mapping[str, Seat], resource: str, pods: Sequence[PodEntry], at: datetime
    ) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """Read every Workload whose entry, pods or job has changed, or that time changes.

        Return what is held of each queue, and what of it Kueue still counts though it is let go.
        """
        moved = self._staff.follow(pods) | (seen.jobs.keys() ^ self._jobs.keys())
        moved |= {uid for uid, job in seen.jobs.items() if self._jobs.get(uid) is not job}
        frame = (resource, seats, seen.local_queues)
        known = self._read_before if frame == self._frame else {}
        now: dict[str, _Read] = {}
        held, let_go = defaultdict[str, int](int), defaultdict[str, int](int)
        changed, left = known is not self._read_before, len(known)
        for entry in seen.workloads:
            uid = entry.uid
            read = known.get(uid)
            left -= read is not None
            if read is None or read.entry is not entry or read.with_time or not moved.isdisjoint(read.about):
                fresh = self._read_one(entry, seen, seats, resource, at)
                changed = changed or (read.facts if read else None) is not fresh.facts
                read = fresh
            now[uid] = read
            if read.held:
                held[read.queue] += read.held
            if read.let_go:
                let_go[read.queue] += read.let_go
        if changed or left:
            made = sorted((read for read in now.values() if read.facts is not None), key=attrgetter("order"))
            self._workloads = tuple(read.facts for read in made if read.facts is not None)
        self._read_before, self._frame, self._jobs = now, frame, seen.jobs
        return held, let_go

    def _read_one(
        self, entry: WorkloadEntry, seen: Seen, seats: Mapping[str, Seat], resource: str, at: datetime
    ) -> "_Read":
        """Read one Workload; facts that come out as before are the ones of before."""
        holds = entry.reserved
        queue = entry.cluster_queue if holds else seen.local_queues.get((entry.namespace, entry.queue), "")
        about = frozenset(owner.uid for owner in entry.owners) | {(entry.namespace, entry.name)}
        order = (entry.created_at, entry.uid)
        if queue not in seats:
            return _Read(entry, about, order)
        pods, jobs = self._staff.of(entry), _jobs(entry, seen.jobs)
        gone = holds and _has_let_go(entry, seats[queue], pods, jobs)
        held, let_go = (entry.gpus(resource) if each else 0 for each in (holds and not gone, gone))
        if not entry.declares(resource) or _long_finished(entry, at):
            return _Read(entry, about, order, queue, held, let_go)
        case = _Case(entry, seats[queue], resource, pods, jobs, _wait(entry, at))
        before = self._read_before.get(entry.uid)
        facts = before.facts if before is not None and before.case == case else _workload(case)
        with_time = entry.finished or entry.requeue_at is not None
        return _Read(entry, about, order, queue, held, let_go, case, facts, with_time)

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
        self, seen: Seen, seats: Mapping[str, Seat], held: Mapping[str, int], let_go: Mapping[str, int]
    ) -> tuple[QueueFacts, ...]:
        known, self._queues = self._queues, {}
        for name in sorted(seats):
            body = seen.queues[name]
            case = (held.get(name, 0), let_go.get(name, 0), seen.fenced.get(name, queues.NO_STAMP))
            before = known.get(name)
            if before is None or before[0][0] is not body or before[0][1:] != case:
                before = ((body, *case), _queue(name, seats[name], body, *case))
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
                before = (case, NodeFacts(name=node.name, gpus=gpus, used=bounded(in_use), ready=ready))
            self._nodes[node.name] = before
        return tuple(facts for _, facts in self._nodes.values())


@dataclass(frozen=True, slots=True)
class _Read:
    """What came of one entry."""

    entry: WorkloadEntry
    about: frozenset[object]
    """Whatever its pods and jobs are known by."""

    order: tuple[datetime, str]
    queue: str = ""
    held: int = 0
    """GPUs that it holds of the queue."""

    let_go: int = 0
    """GPUs of the queue that it is only booked for; see `_has_let_go`."""

    case: "_Case | None" = None
    facts: WorkloadFacts | None = None
    """None where it does not concern the pool."""

    with_time: bool = False
    """Whether time alone makes other facts of it."""


class _Case(NamedTuple):
    """Everything that one Workload's facts are made of."""

    entry: WorkloadEntry
    seat: Seat
    resource: str
    pods: tuple[PodEntry, ...]
    jobs: tuple[JobEntry, ...]
    wait: tuple[Wait, datetime]


def _queue(name: str, seat: Seat, body: Object, held: int, let_go: int, fenced: int) -> QueueFacts:
    return QueueFacts(
        name=name,
        group=seat.group,
        kind=seat.side,
        nominal=queues.nominal(body),
        # Kueue's sum and the Workloads are told at different moments; GPUs are free when both say so.
        reserved=bounded(max(queues.reserved(body) - let_go, held)),
        stamp=queues.stamp(body),
        fenced=fenced,
        fail_safe=queues.in_cohort(body),
    )


class _Staff:
    """The pool's pods, by whom they belong to."""

    def __init__(self) -> None:
        self._by_uid: dict[str, PodEntry] = {}
        self._by_owner: dict[str, dict[str, PodEntry]] = {}
        self._by_workload: dict[tuple[str, str], dict[str, PodEntry]] = {}

    def follow(self, pods: Iterable[PodEntry]) -> set[object]:
        """Take over the pods as they are now; return by what those are known that have come, changed or gone."""
        before, self._by_uid = self._by_uid, {pod.uid: pod for pod in pods}
        gone = [pod for uid, pod in before.items() if self._by_uid.get(uid) is not pod]
        new = [pod for uid, pod in self._by_uid.items() if before.get(uid) is not pod]
        for pod in gone:
            self._by_owner[pod.owner].pop(pod.uid)
            if pod.workload:
                self._by_workload[pod.namespace, pod.workload].pop(pod.uid)
        for pod in new:
            self._by_owner.setdefault(pod.owner, {})[pod.uid] = pod
            if pod.workload:
                self._by_workload.setdefault((pod.namespace, pod.workload), {})[pod.uid] = pod
        for pod in gone:  # nobody is left of an owner that is no more
            if not self._by_owner.get(pod.owner, True):
                del self._by_owner[pod.owner]
            if pod.workload and not self._by_workload.get((pod.namespace, pod.workload), True):
                del self._by_workload[pod.namespace, pod.workload]
        return {name for pod in (*gone, *new) for name in (pod.uid, pod.owner, (pod.namespace, pod.workload))}

    def of(self, entry: WorkloadEntry) -> tuple[PodEntry, ...]:
        """Return a Workload's pods, however Kueue's integration ties them to it."""
        found: dict[str, PodEntry] = {}
        for owner in entry.owners:
            if owner.uid in self._by_uid:
                found[owner.uid] = self._by_uid[owner.uid]
            found |= self._by_owner.get(owner.uid, {})
        found |= self._by_workload.get((entry.namespace, entry.name), {})
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
        pods=max(bounded(sum(each.count for each in entry.pod_sets if each.requests.get(resource))), 1),
        priority=entry.priority,
        priority_class=entry.priority_class,
        created_at=entry.created_at,
        active=entry.active,
        reserved=entry.reserved and not _has_let_go(entry, seat, pods, jobs),
        admitted_at=admitted.since if admitted and admitted.status else None,
        finished=entry.finished,
        wait=wait,
        waiting_since=since,
        refused=wait is Wait.QUOTA and entry.refused,
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
                gpus=bounded(pod.requests.get(resource, 0)),
                node=pod.node,
                running=pod.running,
                terminating=pod.terminating,
                ends_by=pod.ends_by,
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


def _has_let_go(entry: WorkloadEntry, seat: Seat, pods: tuple[PodEntry, ...], jobs: tuple[JobEntry, ...]) -> bool:
    """Whether a Workload that Kueue still books is off, its Jobs suspended, its pods gone: its GPUs are free.

    Kueue books until the Job's status counts no active pod, which the Job controller writes up to a second after the
    last one has gone (ADR-0011). Of other kinds nobody knows but Kueue. In an own queue it keeps the GPUs from whoever
    is to have them, until it has booked it.
    """
    evicted = entry.conditions.get("Evicted")
    stopped = not entry.active and evicted is not None and evicted.status
    alone = seat.side is Side.BORROW and not pods
    return stopped and alone and len(jobs) == len(entry.owners) > 0 and all(job.suspended for job in jobs)


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
