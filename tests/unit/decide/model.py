"""A tiny abstract scheduler, and a hand that does one thing at a time: what the decisions are tried against.

The scheduler admits against integer quotas, evicts nobody by itself, and may use an old quota once more after it was
lowered. Whoever drives the model may stop anywhere: every method is one effect.
"""

from datetime import timedelta

from gpubank.decide.comeback import may_come_back
from gpubank.decide.compile import writes
from gpubank.decide.desk import Desk
from gpubank.decide.memo import Memo
from gpubank.decide.recall import RecallPlan, plan_recall
from gpubank.decide.step import SignalKind, Step, step
from gpubank.decide.use import unbacked
from gpubank.domain.books import Books
from gpubank.domain.contract import Side
from gpubank.domain.demand import Demand, DemandKind, DemandState
from gpubank.domain.facts import Mark, NodeFacts, PodFacts, PoolFacts, QueueFacts, WorkloadFacts
from gpubank.domain.loan import Line, LineState, WorkloadKey
from gpubank.domain.terms import PoolTerms
from gpubank.domain.transaction import DemandChange, Move, Take, Transaction
from tests.unit.decide.parts import CLUSTER, NOW, POOL, WHOLE, Job, Queue
from tests.unit.decide.promises import check_books, check_ends, check_transaction


class Model:
    """One pool at its scheduler, with its books."""

    def __init__(self, terms: PoolTerms, nodes: dict[str, int]) -> None:
        self.terms = terms
        self.nodes = nodes
        self.now = NOW
        self.books = Books(cluster=CLUSTER, pool=POOL)
        self.queues = {(g.group, side): Queue() for g in terms.groups for side in Side}
        self.jobs: dict[str, Job] = {}
        self.moves: list[tuple[LineState, LineState]] = []
        """Every change of state that a line ever made."""

        self.keys: set[str] = set()
        self.spared: dict[str, set[str]] = {}
        self.notice = False
        """Whether whoever was recalled is not ready to be stopped yet."""

        self.last = Step()
        self.told: set[str] = set()
        """uids of Workloads whose end was said."""

        self._memo = Memo()
        self._seen: tuple[WorkloadFacts, ...] = ()

    # ---- what is seen

    def facts(self) -> PoolFacts:
        used = dict.fromkeys(self.nodes, 0)
        for job in self.jobs.values():
            for node in job.nodes:
                used[node] += job.size
        return PoolFacts(
            cluster=CLUSTER,
            pool=POOL,
            at=self.now,
            queues=tuple(
                QueueFacts(
                    name=f"{group}.{POOL}.{side}",
                    group=group,
                    kind=side,
                    nominal=queue.nominal,
                    reserved=self.reserved(group, side),
                    stamp=queue.stamp,
                    fenced=queue.fenced,
                )
                for (group, side), queue in self.queues.items()
            ),
            workloads=tuple(self._workload(job) for job in self.jobs.values()),
            nodes=tuple(NodeFacts(name=name, gpus=gpus, used=used[name]) for name, gpus in self.nodes.items()),
        )

    def _workload(self, job: Job) -> WorkloadFacts:
        return WorkloadFacts(
            key=WorkloadKey(uid=job.uid, namespace=f"team-{job.group}", name=f"job-{job.uid}"),
            group=job.group,
            kind=job.kind,
            gpus=job.gpus,
            pods=job.pods,
            priority=job.priority,
            priority_class=job.priority_class,
            created_at=job.created_at,
            active=job.active,
            reserved=job.reserved,
            admitted_at=job.admitted_at,
            finished=job.finished,
            waiting_since=job.waiting_since,
            mark=job.mark,
            contract=job.contract,
            pod_facts=tuple(
                PodFacts(uid=f"{job.uid}-{i}", name=f"{job.uid}-{i}", gpus=job.size, node=node, running=True)
                for i, node in enumerate(job.nodes)
            ),
        )

    def reserved(self, group: str, side: Side) -> int:
        return sum(j.gpus for j in self.jobs.values() if (j.group, j.kind) == (group, side) and j.reserved)

    # ---- the scheduler

    def submit(self, uid: str, group: str, side: Side, pods: int, size: int = 1, **update: object) -> Job:
        job = Job(uid, group, side, pods, size, created_at=self.now, waiting_since=self.now)
        for name, value in update.items():
            setattr(job, name, value)
        self.jobs[uid] = job
        return job

    def admit(self, *, stale: bool = False) -> int:
        """Admit what fits; a running cycle uses the quota that stood before (`stale`). Return how many were."""
        count = 0
        for job in sorted(self.jobs.values(), key=lambda j: (-j.priority, j.created_at, j.uid)):
            queue = self.queues[job.group, job.kind]
            quota = max(queue.old, queue.nominal) if stale else queue.nominal
            fits = job.gpus <= quota - self.reserved(job.group, job.kind)
            if job.active and not job.reserved and not job.finished and not job.nodes and fits:
                job.reserved, job.admitted_at = True, self.now
                count += 1
        return count

    def place(self) -> int:
        """Bind pods of admitted jobs wherever there is room."""
        count = 0
        free = {node.name: node.gpus - node.used for node in self.facts().nodes}
        for job in sorted(self.jobs.values(), key=lambda j: (j.kind is not Side.OWN, j.admitted_at or self.now, j.uid)):
            while job.reserved and job.active and len(job.nodes) < job.pods:
                fitting = [(room, name) for name, room in free.items() if room >= job.size]
                if not fitting:
                    break
                job.nodes.append(min(fitting)[1])
                free[job.nodes[-1]] -= job.size
                count += 1
        return count

    def fence(self) -> int:
        """Let every running admission cycle end."""
        passed = 0
        for queue in self.queues.values():
            passed += queue.fenced != queue.stamp
            queue.old, queue.fenced = queue.nominal, queue.stamp
        return passed

    def finish(self, uid: str, *, deleted: bool = False) -> None:
        job = self.jobs[uid]
        job.finished, job.reserved, job.nodes = True, False, []
        if deleted:
            del self.jobs[uid]

    def evict(self) -> int:
        """Take quota and pods from whoever was switched off: first the quota, then the pods."""
        count = 0
        for job in self.jobs.values():
            if not job.active and (job.reserved or job.nodes):
                if job.reserved:
                    job.reserved, job.admitted_at, job.waiting_since = False, None, self.now
                else:
                    job.nodes = []
                count += 1
        return count

    # ---- the controller

    def commit(self, transaction: Transaction) -> None:
        """Apply a transaction once per key, as the ledger does."""
        if transaction.key in self.keys:
            return
        before = {line.line_id: line.state for line in self.books.lines}
        applied = self.books.applied(transaction)
        self.keys.add(transaction.key)
        self.books = applied.books
        check_transaction(transaction, applied, lambda: Desk(self.facts(), self.books, self.terms, self.now))
        for line in applied.lines:
            if line.line_id in before and before[line.line_id] is not line.state:
                self.moves.append((before[line.line_id], line.state))

    def step(self, *, crash_after: int | None = None) -> Step:
        """Decide, and commit the first `crash_after` transactions (all by default)."""
        facts = self._as_before(self.facts())
        before = self.last.parked
        self.last = step(facts, self.books, self.terms, self.now, before=before, memo=self._memo)
        assert self.last == step(facts, self.books, self.terms, self.now, before=before)
        check_ends(self.last, facts, before, self.now)
        self.told |= {signal.workload.uid for signal in self.last.signals if signal.kind is SignalKind.ENDED}
        for transaction in self.last.transactions[:crash_after]:
            self.commit(transaction)
        return self.last

    def _as_before(self, facts: PoolFacts) -> PoolFacts:
        """Hand out again what has not changed since, as a reader of the cluster does."""
        before = {workload.key.uid: workload for workload in self._seen}
        self._seen = tuple(
            old if (old := before.get(workload.key.uid)) == workload else workload for workload in facts.workloads
        )
        return facts.model_copy(update={"workloads": self._seen})

    def write(self, *, crash_after: int | None = None) -> int:
        """Write the first quotas that compile asks for."""
        asked = writes(self.books, self.facts())[:crash_after]
        for write in asked:
            queue = self.queues[write.group, write.kind]
            assert write.revision >= queue.stamp
            queue.old = max(queue.old, queue.nominal)
            queue.nominal, queue.stamp = write.nominal, write.revision
        return len(asked)

    # ---- the workflows, one move at a time

    def plan(self, demand_id: str) -> RecallPlan:
        spared = frozenset(self.spared.get(demand_id, ()))
        return plan_recall(self.facts(), self.books, self.terms, demand_id, now=self.now, spared=spared)

    def work(self) -> str:
        """Do the next thing that a Reclaim or a Loan would do; return what it was, or nothing."""
        if self.terms.frozen(self.now):
            return ""
        wanted: set[str] = set()
        for demand in self.books.demands:
            if demand.state is DemandState.RAISED and (done := self._await_placed(demand.demand_id)):
                return done
            if demand.state is DemandState.OPEN and (done := self._serve(demand.demand_id, wanted)):
                return done
        return self._loans(wanted)

    def _serve(self, demand_id: str, wanted: set[str]) -> str:
        plan = self.plan(demand_id)
        demand = self.books.demand(demand_id)
        assert demand is not None
        if plan.transaction is not None:
            self.commit(plan.transaction)
            return f"plan {demand_id}"
        wanted |= {victim.workload.uid for victim in plan.victims}
        if not plan.complete and demand.kind in WHOLE:
            wanted -= {victim.workload.uid for victim in plan.victims}
            self._change(demand_id, DemandState.PARTIAL, plan.reason)
            return f"partial {demand_id}"
        for victim in plan.victims:
            if granted := self._lines(victim.workload.uid, LineState.GRANTED):
                self._move(f"recall/{victim.workload.uid}", granted, LineState.RECALLED)
                return f"recall {victim.workload.uid}"
        for victim in () if self.notice else plan.victims:
            job = self.jobs.get(victim.workload.uid)
            if job is not None and job.active:
                if job.kind is Side.OWN and (done := self._take(job, demand)) is not None:
                    if done:
                        return done
                    continue
                job.active = False
                job.mark = Mark(loan=f"loan/{job.uid}", term=victim_term(job), step="stop")
                return f"stop {job.uid}"
        pledged = [line for line in self.books.lines if line.demand == demand_id]
        if demand.kind in WHOLE and not pledged and (demand.idle >= demand.gpus or demand.kind is DemandKind.PLACEMENT):
            self._change(demand_id, DemandState.RAISED, "")
            return f"raise {demand_id}"
        return ""

    def _take(self, job: Job, demand: Demand) -> str | None:
        """Take what own work holds before it is stopped; empty while its fence is awaited, None once it may be."""
        lines = self.books.lines_of(job.uid)
        if not job.reserved or not lines:
            return ""
        if chosen := [line for line in lines if line.is_chosen]:
            takes = tuple(Take(line_id=line.line_id, version=line.version) for line in chosen)
            self._commit(f"take/{job.uid}", takes=takes)
            return f"take {job.uid}"
        queue = self.queues[job.group, Side.OWN]
        return None if queue.fenced >= max(line.revision for line in lines) else ""

    def _await_placed(self, demand_id: str) -> str:
        demand = self.books.demand(demand_id)
        assert demand is not None
        job = self.jobs.get(demand.workload.uid) if demand.workload is not None else None
        if job is not None and job.reserved and len(job.nodes) == job.pods:
            self._change(demand_id, DemandState.MET, "")
            return f"met {demand_id}"
        return ""

    def _loans(self, wanted: set[str]) -> str:
        facts = self.facts()
        for uid in sorted({line.workload.uid for line in self.books.lines if line.state is LineState.RECALLED}):
            workload = facts.workload(uid)
            lines = self._lines(uid, LineState.RECALLED)
            if lines[0].is_own:
                if workload is None or workload.gone:
                    self._move(f"gone/{uid}", lines, LineState.RETURNED)
                    return f"returned {uid}"
                if workload.active and uid not in wanted:
                    self._move(f"release/{uid}", lines, LineState.RETURNED, release=True)
                    return f"release {uid}"
                continue
            queue = self.queues[lines[0].borrower, Side.BORROW]
            if workload is None or workload.gone:
                fenced = queue.fenced >= max(line.revision for line in lines)
                if unbacked(Desk(facts, self.books, self.terms, self.now), lines[0].borrower):
                    # Somebody was admitted on its quota just before it was lowered: the lines are in use after all.
                    self._move(f"in-use/{uid}", lines, LineState.GRANTED, release=True)
                    return f"in use {uid}"
                if fenced:
                    self._move(f"gone/{uid}", lines, LineState.RETURNED)
                    return f"returned {uid}"
            elif workload.active and uid not in wanted:
                self._move(f"release/{uid}", lines, LineState.GRANTED, release=True)
                return f"release {uid}"
        for signal in self.last.signals:
            job = self.jobs.get(signal.workload.uid)
            offered = bool(self._lines(signal.workload.uid, LineState.OFFERED))
            if signal.own and signal.kind is SignalKind.OFFERED:
                seen = facts.workload(signal.workload.uid)
                desk = Desk(facts, self.books, self.terms, self.now)
                offered = seen is not None and may_come_back(desk, seen)
            if signal.kind is SignalKind.OFFERED and job is not None and not job.active and offered:
                job.active = True
                job.mark = Mark(loan=f"loan/{job.uid}", term=signal.term, step="resume")
                return f"resume {job.uid}"
        return ""

    def protect(self, uid: str) -> bool:
        """Have a recalled job refuse to be stopped."""
        job, lines = self.jobs.get(uid), self._lines(uid, LineState.RECALLED)
        if job is None or not job.active or not lines:
            return False
        for line in lines:
            if line.demand is not None:
                self.spared.setdefault(line.demand, set()).add(uid)
        self._move(f"protect/{uid}", lines, kept(lines[0]), release=True)
        return True

    def _lines(self, uid: str, state: LineState) -> tuple[Line, ...]:
        return tuple(line for line in self.books.lines_of(uid) if line.state is state)

    def _move(self, event: str, lines: tuple[Line, ...], state: LineState, *, release: bool = False) -> None:
        self._commit(
            event,
            moves=tuple(
                Move(
                    line_id=line.line_id,
                    version=line.version,
                    from_state=line.state,
                    to_state=state,
                    release=release,
                )
                for line in lines
            ),
        )

    def _change(self, demand_id: str, state: DemandState, reason: str) -> None:
        demand = self.books.demand(demand_id)
        assert demand is not None
        change = DemandChange(demand_id=demand_id, version=demand.version, state=state, reason=reason)
        self._commit(f"demand/{demand_id}/{state}", demands=(change,))

    def _commit(self, event: str, **rows: object) -> None:
        head = {"key": f"{event}/{self.books.revision}", "cluster": CLUSTER, "pool": POOL, "at": self.now}
        self.commit(Transaction.model_validate({**head, "actor": "model", **rows}))

    # ---- until nothing happens any more

    def round(self) -> list[str]:
        """Let everybody act once; return what happened."""
        happened = [transaction.key for transaction in self.step().transactions]
        happened += ["write"] * self.write()
        happened += ["fence"] * self.fence()
        happened += ["admit"] * self.admit()
        happened += ["place"] * self.place()
        for _ in range(200):
            if not (done := self.work()):
                break
            happened.append(done)
            happened += ["write"] * self.write()
        happened += ["evict"] * self.evict()
        return happened

    def settle(self, *, rounds: int = 300, until: timedelta = timedelta(minutes=5)) -> list[str]:
        """Run until nothing happens, letting time pass where only time is waited for; return what happened last."""
        end = self.now + until
        happened: list[str] = []
        for _ in range(rounds):
            if happened := self.round():
                self.now += timedelta(milliseconds=300)
                continue
            wake = self.last.wake_at
            if wake is None or wake > end:
                return []
            self.now = max(wake, self.now + timedelta(milliseconds=100))
        return happened

    def check(self) -> None:
        """Assert the invariants that hold at every moment."""
        quotas = [queue.nominal for queue in self.queues.values()]
        reserved = sum(self.reserved(group, side) for group, side in self.queues)
        check_books(self.books, quotas, reserved, self.terms.capacity)


def kept(line: Line) -> LineState:
    """State of a line whose Workload runs on."""
    return LineState.RETURNED if line.is_own else LineState.GRANTED


def victim_term(job: Job) -> int:
    """Term in which a job runs."""
    return job.mark.term if job.mark is not None else 1
