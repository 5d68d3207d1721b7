"""The desk on which one step is decided: facts, terms, and books that already hold what the step has decided so far."""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Final, TypeVar

from gpubank.decide import ownside
from gpubank.decide.memo import Memo
from gpubank.decide.ownside import Holder, may_make_room, net_reserved
from gpubank.domain.books import Applied, Books, Guarantee
from gpubank.domain.contract import Side
from gpubank.domain.demand import Demand, DemandKind, DemandState
from gpubank.domain.facts import PoolFacts, QueueFacts, Wait, WorkloadFacts
from gpubank.domain.loan import SURPLUS, Line, LineState
from gpubank.domain.policy import WithinGroup
from gpubank.domain.terms import GroupTerms, PoolTerms
from gpubank.domain.transaction import Transaction

T = TypeVar("T")

ACTOR: Final = "controller"
"""Who decides what a step decides, in the audit trail."""


def line_order(line: Line) -> tuple[int, str]:
    """Sort lines as they were begun: by the number in their id, then by the id."""
    number = line.line_id.rpartition("-")[2]
    return int(number) if number.isdigit() else 0, line.line_id


def kueue_order(workload: WorkloadFacts) -> tuple[int, datetime, str]:
    """Sort Workloads as the scheduler takes them: priority descending, creation, uid."""
    return -workload.priority, workload.created_at, workload.key.uid


FENCE_POLL: Final = timedelta(milliseconds=100)
"""How soon a step is worth taking again while a fence is awaited."""


class Desk:
    """Collects the transactions of one step; each is applied at once, so that the next one is decided after it."""

    def __init__(
        self,
        facts: PoolFacts,
        books: Books,
        terms: PoolTerms,
        now: datetime,
        *,
        resting: frozenset[str] = frozenset(),
        memo: Memo | None = None,
    ) -> None:
        self.facts = facts
        self.books = books
        self.terms = terms
        self.now = now
        self.transactions: list[Transaction] = []
        self.wakes: list[datetime] = []
        self.resting = resting
        """uids of Workloads that let a loan lapse a short while ago: others come first."""

        self.lapsed: set[str] = set()
        """uids of Workloads that have let a loan lapse now."""

        self.memo = memo or Memo()
        self._known: dict[object, Any] = {}
        self._of_groups: dict[str, dict[str, Any]] = {}
        self._fixed: dict[object, Any] = {}
        self._owed: dict[str, tuple[Guarantee, tuple[Line, ...], tuple[WorkloadFacts, ...]]] = {}

    # ---- writing

    def write(self, event: str, note: str, *, at: datetime | None = None, **rows: Any) -> None:
        """Add one transaction and apply it; its key is the event and the revision that it was decided on.

        The revision makes a key unique: the same event at another revision is another decision. `at` is when it came
        true, where that is known better than by when it is decided.
        """
        head: dict[str, Any] = {
            "key": f"{event}/{self.books.revision}",
            "cluster": self.books.cluster,
            "pool": self.books.pool,
            "at": at or self.now,
            "actor": ACTOR,
            "note": note,
        }
        body = {name: row if name == "capacity" else tuple(row) for name, row in rows.items()}
        transaction = Transaction.model_validate(head | body)
        if not transaction.is_empty:
            before, applied = self.books, self.books.applied(transaction)
            self.books = applied.books
            self._forget(before, applied)
            self.transactions.append(transaction)

    def _forget(self, before: Books, applied: Applied) -> None:
        """Forget every answer that the rows which were written may have changed."""
        self._known.clear()
        old = [line for row in applied.lines if (line := before.line(row.line_id)) is not None]
        groups = {group for line in (*old, *applied.lines) for group in (line.lender, line.borrower)}
        groups |= {demand.lender for demand in applied.demands} | {each.group for each in applied.guarantees}
        for answers in self._of_groups.values():
            for group in groups:
                answers.pop(group, None)
        if "_told_apart" in self.__dict__:
            resting, awake = self._told_apart
            for line in (*old, *applied.lines):
                if (workload := resting.pop(line.workload.uid, None)) is not None:
                    awake[workload.kind].append(workload)

    def wake(self, at: datetime) -> None:
        """Note that time alone changes a decision at `at`."""
        if at > self.now:
            self.wakes.append(at)

    def lasted(self, since: datetime, wait: timedelta) -> bool:
        """Whether `wait` has passed since `since`; if not, the step is to be taken again when it has."""
        self.wake(since + wait)
        return self.now >= since + wait

    # ---- reading

    def once(self, what: object, compute: Callable[[], T]) -> T:
        """Return what `compute` returns, which is called once between two writes: `what` names the question."""
        if what not in self._known:
            self._known[what] = compute()
        found: T = self._known[what]
        return found

    def of_group(self, what: str, group: str, compute: Callable[[], T]) -> T:
        """Return what `compute` returns, which is called once until a row of the group is written.

        It may depend on the group's guarantee, lines and demands, on facts, terms and time, and on nobody else's rows.
        """
        answers = self._of_groups.setdefault(what, {})
        if group not in answers:
            answers[group] = compute()
        found: T = answers[group]
        return found

    def fixed(self, what: object, compute: Callable[[], T]) -> T:
        """Return what `compute` returns, which is called once: it depends on facts, terms and time alone."""
        if what not in self._fixed:
            self._fixed[what] = compute()
        found: T = self._fixed[what]
        return found

    @cached_property
    def _by_queue(self) -> dict[tuple[str, Side], QueueFacts]:
        return {(queue.group, queue.kind): queue for queue in self.facts.queues}

    @cached_property
    def _by_group(self) -> dict[str, GroupTerms]:
        return {group.group: group for group in self.terms.groups}

    @property
    def frozen(self) -> bool:
        """Whether a freeze is in force."""
        return self.terms.frozen(self.now)

    def workload(self, uid: str) -> WorkloadFacts | None:
        """Return the Workload, or None when it is gone."""
        return self.facts.workload(uid)

    def group(self, name: str) -> GroupTerms | None:
        """Return the group's terms, or None where it has none."""
        return self._by_group.get(name)

    def target(self, name: str) -> int:
        """GPUs that the group's policy asks to be guaranteed; 0 where it has none."""
        group = self.group(name)
        return group.guaranteed if group is not None else 0

    @property
    def groups(self) -> tuple[str, ...]:
        """Groups that have terms or stand in the books."""
        return self.once("groups", lambda: tuple(sorted({*self._by_group, *self.books.groups})))

    def reserved(self, group: str, kind: Side) -> int:
        """GPUs that the scheduler has reserved in the queue; 0 where it does not exist.

        Own work that is being stopped for more important work of its group is left out: its line stands for it.
        """
        queue = self._by_queue.get((group, kind))
        reserved = queue.reserved if queue is not None else 0
        if kind is Side.OWN and self.books.stopping(group):
            return net_reserved(reserved, self.own_work(group), self.books.own_lines(group))
        return reserved

    def own_work(self, group: str) -> tuple[WorkloadFacts, ...]:
        """Own Workloads of a group that have not finished."""

        def found() -> dict[str, tuple[WorkloadFacts, ...]]:
            groups: dict[str, list[WorkloadFacts]] = {}
            for workload in self.of_side(Side.OWN):
                groups.setdefault(workload.group, []).append(workload)
            return {name: tuple(workloads) for name, workloads in groups.items()}

        return self.fixed("own work", found).get(group, ())

    def fenced(self, group: str, kind: Side, revision: int) -> bool:
        """Whether no running admission cycle can still use a quota older than `revision`; surplus has no queue.

        A stamp that the books have not reached says nothing: it is from before the ledger was restored from a backup.
        """
        if group == SURPLUS:
            return True
        queue = self._by_queue.get((group, kind))
        return queue is not None and queue.stamp <= self.books.revision and queue.fenced >= revision

    def free(self, group: str) -> int:
        """GPUs of the group's own queue that nobody has; negative where it has admitted more than its quota."""
        return self.books.own_nominal(group) - self.reserved(group, Side.OWN)

    def raised(self, lender: str) -> int:
        """GPUs in the group's own queue that were given back to its demands, and that they have not taken yet."""
        return sum(
            demand.gpus
            for demand in self.demands_of(lender, DemandKind.WORKLOAD)
            if demand.state is DemandState.RAISED and not self._admitted(demand)
        )

    def _admitted(self, demand: Demand) -> bool:
        workload = self.workload(demand.workload.uid) if demand.workload is not None else None
        return workload is not None and workload.reserved

    def of_side(self, kind: Side) -> tuple[WorkloadFacts, ...]:
        """Workloads of all queues of one kind that have not finished."""
        return self._by_side[kind]

    @cached_property
    def _by_side(self) -> dict[Side, tuple[WorkloadFacts, ...]]:
        live = [workload for workload in self.facts.workloads if not workload.finished]
        return {kind: tuple(workload for workload in live if workload.kind is kind) for kind in Side}

    @cached_property
    def _told_apart(self) -> tuple[dict[str, WorkloadFacts], dict[Side, list[WorkloadFacts]]]:
        """Return the Workloads that run as they should and that nothing is under way for, by uid; and all others.

        An own one of the former holds quota and all of its pods are on nodes; one that borrows also has exactly its
        lines, all granted. Nothing of what a step decides is about them. The others are those of both sides that have
        not finished.
        """
        lines, workloads = self.books.line_index.by_workload, self.facts.workloads
        pairs = [(workload, lines.get(workload.key.uid, ())) for workload in workloads]
        uids = self.memo.each("at rest", pairs, _uid_at_rest)
        resting = {uid: workload for workload, uid in zip(workloads, uids, strict=True) if uid is not None}
        awake: dict[Side, list[WorkloadFacts]] = {kind: [] for kind in Side}
        for workload, uid in zip(workloads, uids, strict=True):
            if uid is None and not workload.finished:
                awake[workload.kind].append(workload)
        return resting, awake

    def at_rest(self, kind: Side) -> list[WorkloadFacts]:
        """Workloads of all queues of one kind that run as they should, and that nothing is under way for."""
        return [workload for workload in self._told_apart[0].values() if workload.kind is kind]

    def stirring(self, kind: Side) -> tuple[WorkloadFacts, ...]:
        """Workloads of `of_side` that are not at rest."""
        return tuple(self._told_apart[1][kind])

    def finished(self, kind: Side) -> tuple[WorkloadFacts, ...]:
        """Workloads of all queues of one kind that have finished."""
        return tuple(w for w in self.facts.workloads if w.finished and w.kind is kind)

    def stirring_lines(self) -> tuple[Line, ...]:
        """Open lines of Workloads that are not at rest, or gone."""
        lines = self.books.line_index.by_workload
        return tuple(line for uid in lines.keys() - self._told_apart[0].keys() for line in lines[uid])

    @cached_property
    def _pending_own(self) -> dict[str, tuple[WorkloadFacts, ...]]:
        found: dict[str, list[WorkloadFacts]] = {}
        # Whoever waits is not at rest; to tell that apart for this alone would cost more than to look at everybody.
        among = self.stirring(Side.OWN) if "_told_apart" in self.__dict__ else self.of_side(Side.OWN)
        for workload in sorted(filter(waits_for_quota, among), key=kueue_order):
            found.setdefault(workload.group, []).append(workload)
        return {group: tuple(workloads) for group, workloads in found.items()}

    def owed(self, group: str) -> tuple[WorkloadFacts, ...]:
        """Own Workloads that the group's guarantee still has room for, in the scheduler's order.

        One that fits what is left of the guarantee counts and consumes it, or what less important work of the group
        makes room for, where the policy says so; one that cannot is passed over. Work above the guarantee is owed
        nothing.
        """
        guarantee, lines = self.books.guarantee(group), self.books.own_lines(group)
        known = self._owed.get(group)
        # Nothing else in it changes while one step is decided.
        if known is None or known[0] is not guarantee or known[1] is not lines:
            known = self._owed[group] = (guarantee, lines, self._owed_by(guarantee))
        return known[2]

    def _owed_by(self, guarantee: Guarantee) -> tuple[WorkloadFacts, ...]:
        group = guarantee.group
        pending = self._pending_own.get(group, ())
        if not pending:
            return ()
        return ownside.owed(pending, self.left_of(group), self._holders(group))

    def left_of(self, group: str) -> int:
        """GPUs of the group's guarantee that its own work does not hold, whoever they are lent to."""
        guarantee = self.books.guarantee(group)
        return min(guarantee.in_force - guarantee.releasing, self.target(group)) - self.reserved(group, Side.OWN)

    def _holders(self, group: str) -> list[Holder]:
        """Own work that may make room, and for whom it was chosen already."""
        terms = self.group(group)
        if terms is None or terms.within_group is WithinGroup.NEVER:
            return []
        lines = {line.workload.uid: line for line in self.books.own_lines(group)}
        found = []
        for workload in self.own_work(group):
            line = lines.get(workload.key.uid)
            if may_make_room(workload, terms) and (line is None or line.is_chosen):
                found.append(Holder(workload, self._waits_for(line)))
        return found

    def _waits_for(self, line: Line | None) -> str | None:
        demand = self.books.demand(line.demand) if line is not None and line.demand is not None else None
        return demand.workload.uid if demand is not None and demand.workload is not None else None

    def lines(self, *states: LineState) -> tuple[Line, ...]:
        """Open lines in one of the states, in the order in which they were begun."""

        def found() -> tuple[Line, ...]:
            if LineState.GRANTED in states:  # most lines are: they are put in order once for all
                return tuple(line for line in self._in_order() if line.state in states)
            moving = self.books.line_index.moving.values()
            return tuple(sorted((line for line in moving if line.state in states), key=line_order))

        return self.once(states, found)

    def _in_order(self) -> tuple[Line, ...]:
        return self.once("lines in order", lambda: tuple(sorted(self.books.lines, key=line_order)))

    def demands_of(self, lender: str, *kinds: DemandKind) -> tuple[Demand, ...]:
        """Live demands of a lender, of the given kinds (all where none is given), by id."""
        return tuple(d for d in self.books.demands_of(lender) if not kinds or d.kind in kinds)


def waits_for_quota(workload: WorkloadFacts) -> bool:
    """Whether the Workload waits for nothing but quota."""
    return (
        workload.active
        and not workload.reserved
        and not workload.finished
        and workload.wait is Wait.QUOTA
        and workload.gpus > 0
    )


def _uid_at_rest(workload: WorkloadFacts, lines: tuple[Line, ...]) -> str | None:
    """Return the uid of a Workload that is at rest with these lines."""
    if workload.finished or not workload.reserved or not workload.active or not workload.placed:
        return None
    if workload.kind is Side.OWN:
        return None if lines else workload.key.uid
    granted = all(line.state is LineState.GRANTED for line in lines)
    backed = granted and sum([line.gpus for line in lines]) == workload.gpus > 0
    return workload.key.uid if backed else None
