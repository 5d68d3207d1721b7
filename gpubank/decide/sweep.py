"""The sweep of one pool: ledger, cluster and open workflows side by side, and what is missing between them.

    lines, demands          a Loan, a Reclaim for each?         started where it was terminated or expired
    parked Workloads        somebody to bring them back?        its Loan started
    what is on its way      still moving?                       reported: it has an author, who is at work
    quotas                  as the books say?                   reported: the controller repairs them
    borrow queues           only work with a loan?              reported

A sweep decides on one look; who sweeps looks twice and believes what it saw both times.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from gpubank.decide.compile import nominals, revisions
from gpubank.decide.desk import Desk
from gpubank.decide.step import LoanSignal, SignalKind
from gpubank.decide.use import backing
from gpubank.domain.books import Books
from gpubank.domain.contract import Side
from gpubank.domain.demand import DemandState
from gpubank.domain.facts import PoolFacts, WorkloadFacts
from gpubank.domain.loan import Line, LineState
from gpubank.domain.recall import loan_id
from gpubank.domain.sweep import LoanStart, SweepFinding, SweepKind
from gpubank.domain.terms import PoolTerms

YOUNG: Final = timedelta(seconds=30)
"""How long something may be new before anybody is missed."""

ON_ITS_WAY: Final = timedelta(minutes=2)
"""How long a step may take that waits for nothing but a fence, beside the time that pods may take to end."""


class Open(NamedTuple):
    """Workflows that run for the pool."""

    loans: frozenset[str]
    """Workflow ids."""

    reclaims: frozenset[str]
    """Lenders."""

    heartbeat: bool


class Sweep(NamedTuple):
    """What was found, and whom to start or to tell for it."""

    findings: tuple[SweepFinding, ...]
    starts: tuple[LoanStart, ...] = ()
    signals: tuple[LoanSignal, ...] = ()
    needs: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Lenders whose Reclaims are started, with their open demands."""

    left_over: tuple[str, ...] = ()
    """Ids of Loans that are told that their Workload is gone."""


def sweep(facts: PoolFacts, books: Books, terms: PoolTerms, now: datetime, running: Open) -> Sweep:
    """Return what does not fit in one pool."""
    sweeper = _Sweeper(Desk(facts, books, terms, now), running)
    return sweeper.run()


class _Sweeper:
    def __init__(self, desk: Desk, running: Open) -> None:
        self._desk = desk
        self._running = running
        self._findings: list[SweepFinding] = []
        self._starts: dict[str, LoanStart] = {}
        self._signals: list[LoanSignal] = []
        self._needs: list[tuple[str, tuple[str, ...]]] = []
        self._left_over: list[str] = []

    def run(self) -> Sweep:
        self._loans()
        self._parked()
        self._leftovers()
        self._reclaims()
        if not self._running.heartbeat:
            pool = self._desk.books.pool
            message = f"heartbeat of pool {pool!r} does not run; it has been started"
            self._find(SweepKind.HEARTBEAT_MISSING, pool, message, mended=True)
        self._steps()
        if not self._desk.facts.in_fail_safe:
            self._quotas()
            self._unknown()
        return Sweep(
            tuple(self._findings),
            tuple(self._starts.values()),
            tuple(self._signals),
            tuple(self._needs),
            tuple(self._left_over),
        )

    def _find(
        self,
        kind: SweepKind,
        subject: str,
        message: str,
        *,
        mended: bool = False,
        workload: WorkloadFacts | None = None,
    ) -> None:
        self._findings.append(
            SweepFinding(
                kind=kind,
                pool=self._desk.books.pool,
                subject=subject,
                message=message,
                mended=mended,
                workload=workload.key if workload is not None else None,
            )
        )

    def _is_young(self, since: datetime) -> bool:
        return self._desk.now - since < YOUNG

    def _runs(self, uid: str) -> bool:
        return loan_id(self._desk.books.cluster, uid) in self._running.loans

    # ---- workflows

    def _loans(self) -> None:
        """Every Workload with lines that are more than an offer, or a choice, has a Loan."""
        for uid, lines in _by_workload(self._desk):
            if self._runs(uid) or self._is_young(max(line.moved_at for line in lines)):
                continue
            first, workload = lines[0], self._desk.workload(uid)
            gpus = sum(line.gpus for line in lines)
            name = first.workload.title
            what = f"is to give {gpus} GPUs back" if first.is_own else f"has {gpus} GPUs on loan"
            message = f"{name} of {first.borrower} {what} and no Loan runs for it; it has been started"
            self._find(SweepKind.LOAN_MISSING, uid, message, mended=True)
            self._starts[uid] = LoanStart(workload=first.workload, borrower=first.borrower, gpus=gpus)
            granted = tuple(line for line in lines if line.state is LineState.GRANTED)
            if workload is not None and workload.reserved and granted:
                self._signals.append(_granted(workload, granted))

    def _parked(self) -> None:
        """Whom the bank stopped has a Loan that brings it back."""
        for workload in (*self._desk.of_side(Side.BORROW), *self._desk.of_side(Side.OWN)):
            uid, mark = workload.key.uid, workload.mark
            if not workload.parked or mark is None or self._runs(uid) or uid in self._starts:
                continue
            if self._is_young(workload.waiting_since):
                continue
            name = workload.key.title
            if mark.loan == loan_id(self._desk.books.cluster, uid):
                message = f"{name} of {workload.group} was stopped and no Loan runs for it; it has been started"
                self._find(SweepKind.ORPHAN_PARKED, uid, message, mended=True)
                self._starts[uid] = LoanStart(workload=workload.key, borrower=workload.group, gpus=workload.gpus)
            else:
                message = (
                    f"{name} of {workload.group} was stopped by {mark.loan!r}, which is none of this bank's Loans:"
                    " resume it by hand, or delete it"
                )
                self._find(SweepKind.ORPHAN_PARKED, uid, message, workload=workload)

    def _leftovers(self) -> None:
        """A Loan ends when its Workload does, unless it still has lines or it is just about to."""
        cluster = self._desk.books.cluster
        known = {loan_id(cluster, w.key.uid) for w in self._desk.facts.workloads if not w.finished}
        known |= {loan_id(cluster, line.workload.uid) for line in self._desk.books.lines}
        for loan in sorted(self._running.loans - known):
            message = f"loan {loan!r} runs and its Workload is gone; it has been told"
            self._find(SweepKind.LOAN_LEFT_OVER, loan, message, mended=True)
            self._left_over.append(loan)

    def _reclaims(self) -> None:
        """Every lender with an open demand has a Reclaim."""
        desk = self._desk
        waiting: dict[str, list[str]] = {}
        late: set[str] = set()
        for demand in desk.books.demands:
            if demand.state in (DemandState.OPEN, DemandState.RAISED):
                waiting.setdefault(demand.lender, []).append(demand.demand_id)
                if not self._is_young(max(demand.opened_at, demand.moved_at or demand.opened_at)):
                    late.add(demand.lender)
        for lender in sorted(late - self._running.reclaims):
            demands = tuple(sorted(waiting[lender]))
            message = f"{lender} has {len(demands)} open demands and no Reclaim runs for it; it has been started"
            self._find(SweepKind.RECLAIM_MISSING, lender, message, mended=True)
            self._needs.append((lender, demands))

    # ---- steps

    def _steps(self) -> None:
        """What is on its way arrives: fences pass in less than a second, pods end within maxTermination."""
        desk = self._desk
        if desk.frozen or desk.facts.in_fail_safe:
            return  # steps wait then, and are meant to
        allowed = ON_ITS_WAY + desk.terms.max_termination
        for line in desk.books.lines:
            since = desk.now - line.moved_at
            if since <= allowed or line.state is LineState.GRANTED:
                continue
            workload = desk.workload(line.workload.uid)
            if line.state is LineState.RECALLED and workload is not None and not workload.gone:
                continue  # its notice runs, or its pods end: its Loan knows until when
            message = (
                f"line {line.line_id!r} ({line.gpus} GPUs of {line.lender} to {line.borrower}) has been"
                f" {line.state} for {int(since.total_seconds())} s: see why its queue is not fenced"
            )
            self._find(SweepKind.STEP_INTERRUPTED, line.line_id, message)
        for queue in desk.facts.queues:
            if queue.stamp > desk.books.revision:
                message = (
                    f"queue {queue.name!r} bears revision {queue.stamp}, and the books are at {desk.books.revision}:"
                    " the ledger was restored from an older backup; see what was lost"
                )
                self._find(SweepKind.STEP_INTERRUPTED, queue.name, message)

    # ---- the cluster

    def _quotas(self) -> None:
        desk = self._desk
        quotas, latest = nominals(desk.books), revisions(desk.books)
        for queue in desk.facts.queues:
            key = queue.group, queue.kind
            nominal = quotas.get(key, 0)
            # A queue without a stamp and without a quota is new; with one, somebody has removed the stamp.
            unstamped = queue.stamp < 0 and queue.nominal > 0
            stale = unstamped or latest.get(key, 0) <= queue.stamp <= desk.books.revision
            if queue.nominal != nominal and stale:
                message = (
                    f"queue {queue.name!r} has {queue.nominal} GPUs, and the books say {nominal}: somebody has edited"
                    " it by hand; the controller repairs it, see that whoever it was does not do so again"
                )
                self._find(SweepKind.QUOTA_EDITED, queue.name, message)

    def _unknown(self) -> None:
        """Work in a borrow queue has a loan if it runs, and can be stopped."""
        for workload in self._desk.of_side(Side.BORROW):
            name = workload.key.title
            if not workload.suspendable:
                message = f"{name} of {workload.group} is in a borrow queue and cannot be suspended: move it to 'own'"
                self._find(SweepKind.UNKNOWN_WORK, workload.key.uid, message, workload=workload)
            elif workload.reserved and not self._is_young(workload.admitted_at or self._desk.now):
                self._unbacked(workload, name)

    def _unbacked(self, workload: WorkloadFacts, name: str) -> None:
        short = workload.gpus - backing(self._desk, workload.key.uid)
        if short > 0:
            message = (
                f"{name} of {workload.group} runs in a borrow queue, and {short} of its {workload.gpus} GPUs are on no"
                " loan: nobody has the quota to lend; see who admitted it"
            )
            self._find(SweepKind.UNKNOWN_WORK, workload.key.uid, message, workload=workload)


def _by_workload(desk: Desk) -> Iterator[tuple[str, list[Line]]]:
    found: dict[str, list[Line]] = {}
    for line in desk.lines(LineState.GRANTED, LineState.CLOSING, LineState.RECALLED):
        if not line.is_chosen:  # it stands and falls with its demand
            found.setdefault(line.workload.uid, []).append(line)
    yield from sorted(found.items())


def _granted(workload: WorkloadFacts, lines: tuple[Line, ...]) -> LoanSignal:
    """Say what the controller has said before, to a Loan that was not there."""
    return LoanSignal(
        workload=workload.key,
        borrower=workload.group,
        gpus=workload.gpus,
        kind=SignalKind.GRANTED,
        term=lines[0].term,
        lenders=tuple(sorted({line.lender for line in lines})),
        at=workload.admitted_at,
    )


def seen_twice(first: Sweep, second: Sweep) -> Sweep:
    """Return what the second look found that the first one did too."""
    before = {(finding.kind, finding.subject) for finding in first.findings}
    kept = {f.subject: f for f in second.findings if (f.kind, f.subject) in before}
    return Sweep(
        tuple(f for f in second.findings if (f.kind, f.subject) in before),
        tuple(start for start in second.starts if start.workload.uid in kept),
        tuple(signal for signal in second.signals if signal.workload.uid in kept),
        tuple(need for need in second.needs if need[0] in kept),
        tuple(loan for loan in second.left_over if loan in kept),
    )
