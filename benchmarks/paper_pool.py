"""A scheduler on paper that does everything at once: what is measured on it is the bank alone.

A quota is acknowledged and fenced as it is written, a stopped Workload leaves at once, and whoever waits in an own
queue is admitted and placed as soon as its quota is there.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime

from benchmarks.worlds import World
from gpubank.domain.contract import Side
from gpubank.domain.errors import ConflictError
from gpubank.domain.facts import Mark, NodeFacts, PodFacts, PoolFacts, QueueFacts, Wait, WorkloadFacts
from gpubank.domain.layout import LayoutProblem, LayoutReport, PoolLayout
from gpubank.domain.loan import WorkloadKey
from gpubank.domain.terms import PoolTerms


class PaperPool:
    """Implements `QuotaBackend`, `TermsSource` and `Notifier` for one world."""

    def __init__(self, world: World) -> None:
        self._facts, self._terms = world.facts, world.terms
        self._queues = {(queue.group, queue.kind): queue for queue in world.facts.queues}
        self._workloads = {workload.key.uid: workload for workload in world.facts.workloads}
        self._nodes = {node.name: node for node in world.facts.nodes}
        self._whole: PoolFacts | None = None
        self._changed = asyncio.Event()

    # ---- the ports

    async def lay_out(self, layout: PoolLayout) -> LayoutReport:
        """Leave everything as it is."""
        return LayoutReport()

    async def remove(self, pool: str) -> LayoutReport:
        """Leave everything as it is."""
        return LayoutReport()

    async def check_settings(self) -> Sequence[LayoutProblem]:
        """Find nothing wrong."""
        return ()

    async def observe(self, pool: str) -> PoolFacts:
        """Return the facts of this moment."""
        if self._whole is None:
            self._whole = self._facts.model_copy(
                update={
                    "queues": tuple(self._queues.values()),
                    "workloads": tuple(sorted(self._workloads.values(), key=lambda w: (w.created_at, w.key.uid))),
                    "nodes": tuple(self._nodes.values()),
                }
            )
        return self._whole.model_copy(update={"at": datetime.now(UTC)})

    async def write_quota(self, pool: str, group: str, kind: Side, *, nominal: int, revision: int) -> None:
        """Write, acknowledge and fence a quota, and admit whoever waits for it."""
        queue = self._queues[group, kind]
        if queue.stamp > revision:
            raise ConflictError(f"queue {queue.name!r} bears revision {queue.stamp}, later than {revision}")
        self._put(queue.model_copy(update={"nominal": nominal, "stamp": revision, "fenced": revision}))
        for workload in [w for w in self._workloads.values() if (w.group, w.kind) == (group, kind)]:
            self._admit(workload)

    async def take_back(self, pool: str, group: str, kind: Side, *, nominal: int, revision: int) -> None:
        """Write as ever: there is no fail-safe here."""
        await self.write_quota(pool, group, kind, nominal=nominal, revision=revision)

    async def stop(self, pool: str, workload: WorkloadKey, mark: Mark, *, seen: str) -> None:
        """Stop a Workload; it is gone at once."""
        found = self._workloads[workload.uid]
        if found.version != seen:
            raise ConflictError(f"{workload.name!r} has changed since version {seen!r}")
        for pod in found.pod_facts:
            self._place(pod.node, -pod.gpus)
        queue = self._queues[found.group, found.kind]
        self._put(queue.model_copy(update={"reserved": queue.reserved - found.gpus}))
        gone = {"active": False, "reserved": False, "admitted_at": None, "wait": Wait.INACTIVE, "pod_facts": ()}
        change = {"mark": mark, "evicted": "Deactivated", "version": f"{seen}+"}
        self._keep(found.model_copy(update=gone | change))

    async def resume(self, pool: str, workload: WorkloadKey, mark: Mark, *, seen: str) -> None:
        """Refuse: nobody is offered anything here."""
        raise ConflictError(f"{workload.name!r} is not resumed on paper")

    async def nudge(self, pool: str, workload: WorkloadKey) -> None:
        """Do nothing: whoever fits is in already."""

    async def recount(self, pool: str, group: str, kind: Side) -> None:
        """Do nothing: what a queue has reserved is counted at every look."""

    async def changes(self, pool: str, about: WorkloadKey | None = None) -> AsyncGenerator[None, None]:
        """Yield after every change, whatever it is about, and once at the start."""
        while True:
            yield
            changed = self._changed
            await changed.wait()

    async def terms(self, pool: str) -> PoolTerms | None:
        """Return the terms of the world."""
        return self._terms

    async def notify(self, *, key: str, pool: str, workload: WorkloadKey, reason: str, message: str) -> None:
        """Take a word and do nothing."""

    # ---- what happens

    def submit(self, workload: WorkloadFacts) -> None:
        """Submit a Workload."""
        self._keep(workload)
        self._admit(workload)

    def delete(self, uid: str) -> None:
        """Delete a Workload that holds nothing."""
        del self._workloads[uid]
        self._touch()

    def _admit(self, workload: WorkloadFacts) -> None:
        queue = self._queues[workload.group, workload.kind]
        waits = workload.active and not workload.reserved and not workload.finished
        if not waits or queue.nominal - queue.reserved < workload.gpus:
            return
        node = next(node for node in self._nodes.values() if node.gpus - node.used >= workload.gpus)
        self._place(node.name, workload.gpus)
        uid = f"{workload.key.uid}-0"
        pod = PodFacts(uid=uid, name=uid, gpus=workload.gpus, node=node.name, running=True)
        self._put(queue.model_copy(update={"reserved": queue.reserved + workload.gpus}))
        admitted = {"reserved": True, "admitted_at": datetime.now(UTC), "pod_facts": (pod,)}
        self._keep(workload.model_copy(update=admitted))

    def _place(self, node: str, gpus: int) -> None:
        before: NodeFacts = self._nodes[node]
        self._nodes[node] = before.model_copy(update={"used": before.used + gpus})

    def _put(self, queue: QueueFacts) -> None:
        self._queues[queue.group, queue.kind] = queue
        self._touch()

    def _keep(self, workload: WorkloadFacts) -> None:
        self._workloads[workload.key.uid] = workload
        self._touch()

    def _touch(self) -> None:
        self._whole = None
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
