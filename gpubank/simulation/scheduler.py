"""Admission as Kueue does it, as far as the bank depends on it.

    new, changed, reactivated ──▶ heap ── head of every queue, one cycle ──▶ reserved
                                    ▲                   │ does not fit
                  1 s batch after   │                   ▼
                  a capacity event  └────────────── inadmissible

Each queue admits against its own quota alone, best effort in the order of priority and creation. A cycle judges by
the quotas that were in force when it began, and its verdict holds however they were edited meanwhile.
"""

from collections.abc import Callable
from dataclasses import dataclass

from gpubank.simulation.clock import Timeline, Timing
from gpubank.simulation.cohorts import Cohorts
from gpubank.simulation.queues import Queue, QueueBook
from gpubank.simulation.workloads import Workload


@dataclass(frozen=True)
class _Verdict:
    """What a cycle decided about one head when it began."""

    queue: Queue
    workload: Workload
    fits: bool
    victims: tuple[Workload, ...] = ()
    """Whom it has preempted, so that it fits later."""


class Scheduler:
    """Admits Workloads to queues."""

    def __init__(
        self,
        timeline: Timeline,
        timing: Timing,
        book: QueueBook,
        admitted: Callable[[Workload], None],
        preempt: Callable[[Workload], None],
    ) -> None:
        self._timeline = timeline
        self._timing = timing
        self._admitted = admitted
        self._preempt = preempt
        self._cohorts = Cohorts(book, self.members)
        self._members: dict[str, dict[str, Workload]] = {}
        self._heap: dict[str, set[str]] = {}
        self._inadmissible: dict[str, set[str]] = {}
        self._batches: set[str] = set()
        self._requeued: set[str] = set()
        self._cycle: tuple[_Verdict, ...] | None = None
        self._arranged = False
        self._stall = 0.0

    # -- what it knows

    def join(self, queue: Queue, workload: Workload) -> None:
        """Take a Workload into a queue, and consider it at once."""
        self._members.setdefault(queue.name, {})[workload.uid] = workload
        self.consider(queue, workload)

    def leave(self, queue: Queue, workload: Workload) -> None:
        """Forget a Workload that is gone."""
        self._members.get(queue.name, {}).pop(workload.uid, None)
        self._drop(queue, workload)

    def members(self, queue: Queue) -> tuple[Workload, ...]:
        """Return every Workload of the queue, in its order."""
        return tuple(sorted(self._members.get(queue.name, {}).values(), key=lambda workload: workload.rank))

    def reserved(self, queue: Queue) -> int:
        """Return the GPUs that the queue's Workloads hold."""
        members = self._members.get(queue.name, {}).values()
        return sum(workload.gpus for workload in members if workload.reserved and not workload.finished)

    # -- what happens to it

    def consider(self, queue: Queue, workload: Workload) -> None:
        """Put a Workload that is new, or has changed, into the heap; the next cycle sees it."""
        self._drop(queue, workload)
        if workload.eligible:
            self._heap.setdefault(queue.name, set()).add(workload.uid)
            self._arrange_cycle()

    def withdraw(self, queue: Queue, workload: Workload) -> None:
        """Consider a Workload no longer."""
        self._drop(queue, workload)

    def capacity_event(self, queue: Queue) -> None:
        """Note that those who did not fit may fit now; they are considered again with the next batch."""
        for other in self._cohorts.of(queue) or (queue,):
            if other.name not in self._batches:
                self._batches.add(other.name)
                self._timeline.after(self._timing.batch, lambda other=other: self._requeue(other))  # type: ignore[misc]

    def raised(self, queue: Queue) -> None:
        """Note a quota that was written through the port: who is first in line for it comes in at once, in order.

        The scheduler does not do that by itself; the adapter to the real one makes it so, as this does.
        """
        self.capacity_event(queue)
        free = queue.in_force - self.reserved(queue)
        for workload in self.members(queue):
            if not workload.eligible:
                continue
            free -= workload.gpus
            if free < 0:
                return  # whoever cannot come in is in the way of all behind; they wait for the batch
            self.consider(queue, workload)

    def stall(self, seconds: float) -> None:
        """Let the next cycle take this long, as on a busy cluster."""
        self._stall = seconds

    # -- cycles

    def _drop(self, queue: Queue, workload: Workload) -> None:
        self._heap.get(queue.name, set()).discard(workload.uid)
        self._inadmissible.get(queue.name, set()).discard(workload.uid)

    def _requeue(self, queue: Queue) -> None:
        self._batches.discard(queue.name)
        self._requeued.add(queue.name)
        if waiting := self._inadmissible.pop(queue.name, set()):
            self._heap.setdefault(queue.name, set()).update(waiting)
            self._arrange_cycle()

    def _arrange_cycle(self) -> None:
        if self._cycle is None and not self._arranged:
            self._arranged = True
            self._timeline.after(0, self._begin)

    def _begin(self) -> None:
        self._arranged = False
        self._requeued.clear()
        heads = [head for name in sorted(self._heap) if (head := self._pop(name)) is not None]
        verdicts = self._judged(heads)
        if not verdicts:
            return
        self._cycle = tuple(verdicts)
        length, self._stall = self._stall or self._timing.cycle, 0.0
        self._timeline.after(length, self._end)

    def _judged(self, heads: list[tuple[Queue, Workload]]) -> list[_Verdict]:
        """Judge the heads of one cycle; in a Cohort whoever borrows comes last, and nobody gets what another got."""
        promised: dict[str, int] = {}
        verdicts = []
        for queue, workload in sorted(heads, key=lambda head: self._cohorts.borrows(head[0], head[1].gpus)):
            if queue.cohort_in_force is None:
                verdicts.append(_Verdict(queue, workload, not self._cohorts.borrows(queue, workload.gpus)))
                continue
            fits = self._cohorts.fits(queue, workload.gpus, promised.get(queue.pool, 0))
            victims = () if fits else self._cohorts.victims(queue, workload.gpus)
            promised[queue.pool] = promised.get(queue.pool, 0) + (workload.gpus if fits or victims else 0)
            verdicts.append(_Verdict(queue, workload, fits, victims))
        return verdicts

    def _pop(self, name: str) -> tuple[Queue, Workload] | None:
        heap, members = self._heap[name], self._members.get(name, {})
        waiting = [members[uid] for uid in heap if uid in members]
        if not waiting:
            self._heap.pop(name)
            return None
        head = min(waiting, key=lambda workload: workload.rank)
        heap.discard(head.uid)
        return (head.queue, head) if head.queue is not None else None

    def _end(self) -> None:
        verdicts, self._cycle = self._cycle or (), None
        for verdict in verdicts:
            queue, workload = verdict.queue, verdict.workload
            known = workload.uid in self._members.get(queue.name, {})
            if not known or not workload.eligible or workload.uid in self._heap.get(queue.name, set()):
                continue  # it ended, was stopped, or changed meanwhile and has its turn in the next cycle
            for victim in verdict.victims:
                if victim.reserved and not victim.evicting:
                    self._preempt(victim)
            if verdict.fits:
                self._admitted(workload)
            elif queue.name in self._requeued or verdict.victims:
                # Capacity was freed while this cycle ran, or is about to be: parking it now would lose that event.
                self._heap.setdefault(queue.name, set()).add(workload.uid)
            else:
                self._inadmissible.setdefault(queue.name, set()).add(workload.uid)
        if any(self._heap.values()):
            self._arrange_cycle()
