"""Victims: whom a recall may stop, and in which order.

The first difference decides:

1. on its way out already, for another demand or an earlier plan of this one;
2. borrowed work before own work, which makes room only for more important own work of its group;
3. class: reserved but pods not running; retryable and short; with a checkpoint hook; retryable and long; notebooks;
   unsaveable (only where the borrower's policy names it);
4. lower priority first;
5. newest first, for it loses the least work;
6. uid, so that the order is total and a replay chooses alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from gpubank.decide.desk import Desk, line_order
from gpubank.decide.fit import Room
from gpubank.decide.lease import protected
from gpubank.decide.ownside import may_make_room
from gpubank.domain.contract import ReclaimClass, Side
from gpubank.domain.demand import Demand, DemandKind
from gpubank.domain.facts import WorkloadFacts
from gpubank.domain.loan import Line, LineState
from gpubank.domain.policy import DEFAULT_PREEMPT, OnCheckpointFailure
from gpubank.domain.pool import OnOverdue
from gpubank.domain.terms import LeaseTerms

SHORT: Final = timedelta(hours=1)
"""Longest work that is rerun without regret: by what its author expects, else by how long it has run."""


LATE: Final = timedelta(seconds=30)
"""How long after the end of its grace a pod that is still there counts as stuck."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A Workload that may be stopped: one that borrows, or own work that makes room."""

    workload: WorkloadFacts
    lines: tuple[Line, ...]
    """Its granted and recalled lines, oldest first; own work has none until it is chosen."""

    leaving: bool
    """Being recalled already."""

    sunk: bool
    """Stopped already; its GPUs come whatever is decided now."""

    stuck: bool = False
    """Stopped, and does not go: its GPUs come who knows when."""

    @property
    def uid(self) -> str:
        """Uid of the Workload."""
        return self.workload.key.uid

    @property
    def is_own(self) -> bool:
        """Whether it is own work of the group that demands."""
        return self.workload.kind is Side.OWN


@dataclass(frozen=True, slots=True)
class Choice:
    """Who may be stopped now, and when somebody else may be."""

    candidates: tuple[Candidate, ...]
    protected_until: datetime | None
    """When the first candidate that has run too shortly, or whose lease ends, may be stopped."""

    leased: tuple[tuple[WorkloadFacts, LeaseTerms], ...] = ()
    """Who could be stopped but for a CapacityLease, by uid."""


def held(candidate: Candidate) -> int:
    """GPUs that a candidate gives up: those of its lines, or of own work that has none yet."""
    return sum(line.gpus for line in candidate.lines) if candidate.lines else candidate.workload.gpus


class Most:
    """The most that stopping some candidates could come to: they free all their pods, and every line repays."""

    def __init__(self, room: Room, novatable: int, chosen: Sequence[Candidate], unready: frozenset[str]) -> None:
        self.room = room.copy()
        self._unready = unready
        self.gpus = novatable
        for candidate in chosen:
            self.add(candidate)

    def add(self, candidate: Candidate) -> None:
        """Stop one more."""
        self.room.give(candidate.workload.pod_facts, unready=self._unready)
        self.gpus += held(candidate)


def runs(workload: WorkloadFacts) -> bool:
    """Whether any pod of the Workload is running."""
    return any(pod.running and not pod.terminating for pod in workload.pod_facts)


def stays(workload: WorkloadFacts, now: datetime) -> bool:
    """Whether a pod of it should have been gone for a while: its node is dead, or a finalizer holds it."""
    return any(pod.ends_by is not None and now >= pod.ends_by + LATE for pod in workload.pod_facts)


def stop_class(workload: WorkloadFacts, now: datetime) -> int:
    """Return what stopping the Workload costs, as a rank from 0 (nothing is lost)."""
    if not runs(workload):
        return 0
    reclaim_class = workload.contract.reclaim_class
    if reclaim_class is ReclaimClass.RETRYABLE:
        length = workload.contract.expected_duration
        if length is None:
            length = now - (workload.admitted_at or now)
        return 1 if length <= SHORT else 3
    return {ReclaimClass.CHECKPOINTABLE: 2, ReclaimClass.NOTEBOOK: 4}.get(reclaim_class, 5)


def needs_checkpoint(workload: WorkloadFacts) -> bool:
    """Whether the Workload is of a class that is not stopped without a verified checkpoint.

    Whether its pods run is seen when it is asked: they may start between the plan and the stop.
    """
    return workload.contract.reclaim_class is ReclaimClass.CHECKPOINTABLE


def grace(desk: Desk, borrower: str) -> timedelta:
    """Longest notice of the borrower's work: its policy's gracePeriod, within the pool's maxGracePeriod."""
    terms = desk.group(borrower)
    return min(terms.grace_period, desk.terms.max_grace_period) if terms is not None else desk.terms.max_grace_period


def overdue(desk: Desk, demand: Demand) -> bool:
    """Whether maxTimeToReturn has passed and the pool then evicts."""
    return desk.now >= demand.due_at and desk.terms.on_overdue is OnOverdue.EVICT


def on_failure(desk: Desk, demand: Demand, borrower: str) -> OnCheckpointFailure:
    """What happens to a victim without a durable checkpoint: the borrower's policy, or the pool's once overdue."""
    return OnCheckpointFailure.EVICT if overdue(desk, demand) else desk.terms.on_checkpoint_failure(borrower)


def choose_from(desk: Desk, demand: Demand, spared: frozenset[str]) -> Choice:
    """Return the Workloads that may be stopped for the demand, in the order in which they are taken.

    The borrower's policy must allow its class. A group's loan to itself is a victim only for its own group's demand;
    own work only for a Workload of its group that is more important, and no lease speaks for it.
    Whoever was brought back has `minRunTime` to make progress, unless the demand would be late for it. `spared`
    Workloads have refused; an overdue demand of a pool that evicts spares nobody but whom a lease protects: that is the
    platform's word, and ends by itself.
    """
    found: list[Candidate] = []
    until: list[datetime] = []
    leased: list[tuple[WorkloadFacts, LeaseTerms]] = []
    for workload in desk.of_side(Side.BORROW):
        candidate = _candidate(desk, demand, workload, spared)
        if candidate is None:
            continue
        lease = protected(desk).get(workload.key.uid)
        if lease is not None and not candidate.sunk and demand.kind is not DemandKind.RETURN:
            leased.append((workload, lease))
            until.append(lease.until)
            continue
        free_at = _protected_until(desk, demand, workload)
        if free_at is not None and not candidate.leaving:
            until.append(free_at)
        else:
            found.append(candidate)
    for candidate in _own_candidates(desk, demand, spared):
        free_at = _protected_until(desk, demand, candidate.workload)
        if free_at is not None and not candidate.leaving:
            until.append(free_at)
        else:
            found.append(candidate)
    found.sort(key=lambda candidate: _order(candidate, demand, desk.now))
    leased.sort(key=lambda pair: pair[0].key.uid)
    return Choice(tuple(found), min(until, default=None), tuple(leased))


def _order(candidate: Candidate, demand: Demand, now: datetime) -> tuple[object, ...]:
    workload = candidate.workload
    asked = any(line.demand == demand.demand_id for line in candidate.lines)
    admitted = workload.admitted_at or now
    return (
        not candidate.sunk,
        not asked,
        not candidate.leaving,
        candidate.is_own,
        stop_class(workload, now),
        workload.priority,
        -admitted.timestamp(),
        workload.key.uid,
    )


def _candidate(desk: Desk, demand: Demand, workload: WorkloadFacts, spared: frozenset[str]) -> Candidate | None:
    uid = workload.key.uid
    lines = tuple(x for x in desk.books.lines_of(uid) if x.state in (LineState.GRANTED, LineState.RECALLED))
    if len(lines) > 1:
        lines = tuple(sorted(lines, key=line_order))
    leaving = any(line.state is LineState.RECALLED for line in lines)
    if not lines or (workload.gone and not leaving):
        return None
    sunk = leaving and (workload.parked or workload.gone)
    candidate = Candidate(workload, lines, leaving, sunk, stuck=sunk and stays(workload, desk.now))
    if demand.kind is DemandKind.RETURN:
        asked = demand.workload is None or demand.workload.uid == uid
        refused = uid in spared and not sunk and not overdue(desk, demand)
        return candidate if asked and not refused else None
    if all(line.is_self_loan for line in lines) and demand.lender != workload.group:
        return None
    if sunk:
        return candidate
    if uid in spared and not overdue(desk, demand):
        return None
    terms = desk.group(workload.group)
    allowed = terms.only_preempt if terms is not None else frozenset(DEFAULT_PREEMPT)
    return candidate if workload.contract.reclaim_class.preempt_class in allowed else None


def _own_candidates(desk: Desk, demand: Demand, spared: frozenset[str]) -> list[Candidate]:
    """Own work of the demanding group that may be stopped for what waits, or is stopped already."""
    owner = desk.workload(demand.workload.uid) if demand.workload is not None else None
    if owner is None or demand.kind is not DemandKind.WORKLOAD:
        return []
    terms, evicts = desk.group(demand.lender), overdue(desk, demand)
    found = []
    for workload in desk.own_work(demand.lender):
        uid = workload.key.uid
        lines = tuple(line for line in desk.books.lines_of(uid) if line.demand in (None, demand.demand_id))
        if len(lines) < len(desk.books.lines_of(uid)):
            continue  # it makes room for somebody else
        taken = any(not line.is_chosen for line in lines)
        sunk = taken and (workload.parked or workload.gone)
        less = workload.priority < owner.priority and may_make_room(workload, terms)
        if sunk or (less and (uid not in spared or evicts)):
            stuck = sunk and stays(workload, desk.now)
            found.append(Candidate(workload, lines, leaving=taken, sunk=sunk, stuck=stuck))
    return found


def _protected_until(desk: Desk, demand: Demand, workload: WorkloadFacts) -> datetime | None:
    """Return until when minRunTime protects a Workload that was brought back; None if it does not."""
    if workload.mark is None or workload.mark.step != "resume" or workload.admitted_at is None:
        return None
    until = workload.admitted_at + desk.terms.min_run_time
    late = until + grace(desk, workload.group) + desk.terms.max_termination > demand.due_at
    return None if late or desk.now >= until else until
