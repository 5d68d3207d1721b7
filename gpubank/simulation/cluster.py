"""A cluster in memory: queues, nodes, jobs and the bank's objects, on the machine's time or on time moved by hand.

    SimulatedCluster            the scheduler, as `QuotaBackend`; jobs and nodes, as a user and a platform see them
      .objects                  the bank's API objects, as `ObjectStore`
      .notices                  what owners are told, as `Notifier`
      .servicing                nodes taken out of service, as `Nodes`

By hand (`ManualClock`): `await cluster.advance(seconds)`; the same calls give the same cluster, and nobody sleeps.
By itself (`SystemClock`): `async with cluster.running():`, in which a task does whatever is due.
"""

import asyncio
import logging
import shutil
import tempfile
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from gpubank.decide.fence import Fence
from gpubank.domain.base import BORROW_SUFFIX
from gpubank.domain.contract import NODE_POOL_LABEL, Side
from gpubank.domain.errors import ConflictError, InvalidObjectError, Problem
from gpubank.domain.facts import Mark, PoolFacts, Wait
from gpubank.domain.layout import LayoutProblem, LayoutReport, PoolLayout
from gpubank.domain.loan import WorkloadKey
from gpubank.domain.pool import GPUPool, PoolLimits
from gpubank.simulation.clock import Clock, ManualClock, SystemClock, Timeline, Timing
from gpubank.simulation.cohorts import SimulatedFailSafe
from gpubank.simulation.events import EventLog, Notices
from gpubank.simulation.facts import workload_facts
from gpubank.simulation.jobs import JobController, Names
from gpubank.simulation.kubelet import Kubelet
from gpubank.simulation.leases import SimulatedLeases
from gpubank.simulation.manifests import DEFAULT_NAMESPACE, JobManifest, refuse
from gpubank.simulation.nodes import Node, NodeBook
from gpubank.simulation.objects import ObjectBook
from gpubank.simulation.pulse import Pulse
from gpubank.simulation.queues import Queue, QueueBook
from gpubank.simulation.servicing import SimulatedNodes
from gpubank.simulation.workloads import JobView, Workload

_log = logging.getLogger(__name__)

_SETTLING: Final = 10
"""Rounds of the event loop that those who follow changes get between two moments of a clock moved by hand."""

STOP: Final = "stop"
"""Step of the mark that only `resume` may follow."""


class SimulatedCluster:
    """A cluster in memory; implements `QuotaBackend`."""

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        name: str = "local",
        timing: Timing | None = None,
        home: Path | None = None,
    ) -> None:
        """Begin with no nodes, queues or jobs.

        Args:
            clock: the time; the machine's by default.
            name: name of the cluster.
            timing: how long it takes for what it does.
            home: folder for the files of pods with a command; one of its own, removed at the end, by default.

        """
        self.name = name
        self.clock = clock or SystemClock()
        self.timing = timing or Timing()
        self.events = EventLog(self.clock)
        # Two runs by hand must be alike; two of the machine's time must not share a uid, for the ledger outlives them.
        names = Names(uuid.UUID(int=0) if isinstance(self.clock, ManualClock) else uuid.uuid4())
        self.objects = ObjectBook(self.clock, self.events, names.uid)
        self.notices = Notices(self.events)
        self.priority_classes: dict[str, int] = {}
        """Values of the priority classes that jobs may name."""

        self._pulse = Pulse()
        self._timeline = Timeline(self.clock)
        self._home = home
        self._own_home: Path | None = None
        self._nodes, self._queues = NodeBook(), QueueBook()
        self._fence = Fence(self.timing.cycle)
        kubelet = self._kubelet = Kubelet(self._timeline, self.timing, self._nodes, self._pulse, self._pod_home)
        self._jobs = JobController(self._timeline, self.timing, self._queues, kubelet, self._pulse, names)
        self._scheduler = self._jobs.scheduler
        self.leases = SimulatedLeases()
        self.servicing = SimulatedNodes(self._nodes, self._pulse, self._jobs.evict, kubelet.place)
        self.fail_safe = SimulatedFailSafe(self._queues, self._scheduler.members, self._written)

    # -- QuotaBackend

    async def lay_out(self, layout: PoolLayout) -> LayoutReport:
        """Create or repair flavor and queues; leave standing quotas and what is not the bank's alone."""
        report = self._queues.lay_out(layout, busy=self._busy(layout.pool))
        return self._laid_out(report)

    async def remove(self, pool: str) -> LayoutReport:
        """Remove what the bank made for the pool; queues that have work stay."""
        return self._laid_out(self._queues.remove(pool, busy=self._busy(pool)))

    async def check_settings(self) -> tuple[LayoutProblem, ...]:
        """Find nothing: the simulation has no settings that could be wrong."""
        return ()

    async def observe(self, pool: str) -> PoolFacts:
        """Return the facts of one pool; one that was never laid out has no queues."""
        queues = self._queues.of_pool(pool)
        return PoolFacts(
            cluster=self.name,
            pool=pool,
            at=self.clock.now(),
            queues=tuple(
                self._queues.facts(queue, reserved=self._scheduler.reserved(queue), fenced=self._fenced(queue))
                for queue in queues
            ),
            workloads=tuple(
                workload_facts(workload, queue.group, queue.kind)
                for queue in queues
                for workload in self._scheduler.members(queue)
            ),
            nodes=tuple(node.facts() for node in self._nodes.with_labels(self._queues.labels_of(pool))),
            fail_safe_epoch=self._queues.cohort(pool).epoch,
            fail_safe_since=self._queues.cohort(pool).since,
        )

    async def write_quota(self, pool: str, group: str, kind: Side, *, nominal: int, revision: int) -> None:
        """Set one queue's quota and stamp it; see `QuotaBackend` for what is refused."""
        self._written(self._queues.written(pool, group, kind, nominal=nominal, revision=revision))
        self._watch_fence(pool)

    async def take_back(self, pool: str, group: str, kind: Side, *, nominal: int, revision: int) -> None:
        """Take a queue out of the fail-safe's Cohort, with its quota and stamp; see `QuotaBackend`."""
        self._written(self._queues.taken_back(pool, group, kind, nominal=nominal, revision=revision))
        self._watch_fence(pool)

    async def stop(self, pool: str, workload: WorkloadKey, mark: Mark, *, seen: str) -> None:
        """Deactivate a Workload and mark it, against the version `seen`."""
        found = self._jobs.workload(workload.uid)
        if found is None or found.finished or (found.mark == mark and not found.active):
            return
        self._check(pool, found, seen)
        found.mark = mark
        self._jobs.deactivate(found)

    async def resume(self, pool: str, workload: WorkloadKey, mark: Mark, *, seen: str) -> None:
        """Reactivate a Workload that this Loan stopped, against the version `seen`."""
        found = self._jobs.workload(workload.uid)
        if found is None or found.finished or (found.mark == mark and found.active):
            return
        if found.mark is None or found.mark.loan != mark.loan or found.mark.step != STOP:
            raise ConflictError(
                f"workload {found.name!r} bears no stop mark of {mark.loan!r}: only who stopped it may resume it"
            )
        self._check(pool, found, seen)
        found.mark = mark
        self._jobs.activate(found)

    async def nudge(self, pool: str, workload: WorkloadKey) -> None:
        """Have a waiting Workload considered at once."""
        if (found := self._jobs.workload(workload.uid)) is not None and found.eligible:
            self._jobs.reconsider(found)

    async def recount(self, pool: str, group: str, kind: Side) -> None:
        """Do nothing: what a queue has reserved is counted at every look."""

    async def changes(self, pool: str, about: WorkloadKey | None = None) -> AsyncGenerator[None, None]:
        """Yield whenever the facts may have changed, whatever they are about, and once at the start."""
        async for _ in self._pulse.follow():
            yield

    # -- what users do

    def submit(self, manifest: Mapping[str, Any]) -> None:
        """Take a `batch/v1` Job or `apps/v1` Deployment, as a cluster with Kueue and the bank's admission policy does.

        Raises InvalidObjectError naming field, value, rule and remedy of everything that is wrong.
        """
        job = JobManifest.read(manifest)
        refuse(job, self._limits(job.queue.removesuffix(BORROW_SUFFIX)))
        self._jobs.submit(job, self._priority(job))

    def list_jobs(self, namespace: str | None = None) -> tuple[JobView, ...]:
        """Say how every job fares, in the order of creation."""
        return tuple(view for view in self._jobs.views() if namespace in (None, view.namespace))

    def delete_job(self, name: str, namespace: str = DEFAULT_NAMESPACE, *, kind: str = "Job") -> bool:
        """Delete a Job or Deployment with its pods; False if there is none."""
        deleted = self._jobs.delete((kind, namespace, name))
        self._pulse.beat()
        return deleted

    def scale_deployment(self, name: str, replicas: int, namespace: str = DEFAULT_NAMESPACE) -> bool:
        """Set a Deployment's replicas; False if there is none."""
        return self._jobs.scale(("Deployment", namespace, name), replicas)

    def finish_job(self, name: str, namespace: str = DEFAULT_NAMESPACE) -> bool:
        """Let every pod of a Job end well now; False if there is none."""
        return self._jobs.finish(("Job", namespace, name))

    def annotate_pod(self, uid: str, annotations: Mapping[str, str]) -> bool:
        """Set annotations of a pod; False if it is gone."""
        return self._kubelet.annotate(uid, annotations)

    def pod_annotations(self, namespace: str, name: str) -> tuple[str, dict[str, str]] | None:
        """Return uid and annotations of a pod, or None if there is none of this name."""
        pod = self._kubelet.pod(namespace, name)
        return None if pod is None else (pod.uid, dict(pod.annotations))

    # -- what the platform does, and what happens to it

    def add_node(self, name: str, gpus: int, *, pool: str, labels: Mapping[str, str] | None = None) -> None:
        """Add a node of a pool, or change what it offers and carries."""
        self._nodes.add(Node(name, gpus, {NODE_POOL_LABEL: pool, **(labels or {})}))
        self._kubelet.place()
        self._pulse.beat()

    def remove_node(self, name: str) -> None:
        """Lose a node and the pods on it; jobs make new ones, which wait until they fit somewhere."""
        self._jobs.lost(self._nodes.drop(name))
        self._pulse.beat()

    def set_node(self, name: str, *, ready: bool | None = None, foreign: int | None = None) -> None:
        """Open or close a node for new pods, or set the GPUs that pods outside every queue take on it."""
        node = self._nodes.get(name)
        node.ready = node.ready if ready is None else ready
        node.foreign = node.foreign if foreign is None else foreign
        self._kubelet.place()
        self._pulse.beat()

    def add_foreign_queue(self, name: str, *, pool: str, nominal: int = 0) -> None:
        """Let somebody else own a ClusterQueue of this name."""
        self._queues.queues[name] = Queue(
            name, pool, name.split(".", 1)[0], Side.OWN, managed=False, nominal=nominal, in_force=nominal
        )

    def quota_of(self, queue: str) -> int | None:
        """Return a ClusterQueue's quota, whoever owns it; None if there is none."""
        found = self._queues.queues.get(queue)
        return None if found is None else found.nominal

    def edit_quota(self, queue: str, nominal: int) -> None:
        """Change a quota by hand, past the bank: its stamp stays."""
        found = self._queues.queues[queue]
        found.nominal = nominal
        found.generation += 1
        self._take_over(found, self._scheduler.capacity_event)
        self._pulse.beat()

    def stall_cycle(self, seconds: float) -> None:
        """Let the next admission cycle take this long: what it began with holds until its end."""
        self._scheduler.stall(seconds)

    def hold(self, uid: str, wait: Wait | None) -> None:
        """Let a Workload wait for something besides quota, or no longer."""
        workload = self._jobs.workload(uid)
        if workload is not None:
            workload.gate = wait
            workload.version += 1
            workload.waiting_since = self.clock.now()
            self._jobs.reconsider(workload)

    def set_fail_safe(self, pool: str, epoch: int) -> None:
        """Write the fail-safe's epoch alone, so that the bank's writes are refused; 0 clears it."""
        self._queues.cohort(pool).epoch = epoch
        self._pulse.beat()

    # -- time

    async def advance(self, seconds: float) -> None:
        """Let time pass on a clock that is moved by hand, one moment after the other."""
        if not isinstance(self.clock, ManualClock):
            raise TypeError("the clock runs by itself; advance() is for a ManualClock")
        end = self.clock.monotonic() + seconds
        await self._settle()
        while (at := self._timeline.next_at()) is not None and at <= end:
            self.clock.move_to(at)
            self._timeline.run_due()
            await self._settle()
        self.clock.move_to(end)
        await self._settle()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["SimulatedCluster"]:
        """Do whatever is due, by the machine's time, until the block ends; then end every process."""
        if self._home is not None:
            await self._kubelet.end_leftovers(self._home)
        driver = asyncio.create_task(self._drive(), name=f"simulated cluster {self.name!r}")
        try:
            yield self
        finally:
            driver.cancel()
            await asyncio.gather(driver, return_exceptions=True)
            await self.close()

    async def close(self) -> None:
        """End every process of a pod, and remove the folder that was made for them."""
        await self._kubelet.close()
        if self._own_home is not None:
            shutil.rmtree(self._own_home, ignore_errors=True)
            self._own_home = None

    async def _settle(self) -> None:
        for _ in range(_SETTLING):
            await asyncio.sleep(0)

    async def _drive(self) -> None:
        arranged = asyncio.Event()
        self._timeline.on_arranged = arranged.set
        while True:
            arranged.clear()
            try:
                self._timeline.run_due()
            except Exception:
                _log.exception("the simulated cluster %r stumbled; it goes on with what is due next", self.name)
            at = self._timeline.next_at()
            wait = None if at is None else max(0.0, at - self.clock.monotonic())
            # Not wait_for: it may lose the cancellation that ends this loop when both come at once.
            try:
                async with asyncio.timeout(wait):
                    await arranged.wait()
            except TimeoutError:
                continue

    # -- inside

    def _pod_home(self) -> Path:
        if self._home is not None:
            return self._home
        if self._own_home is None:
            self._own_home = Path(tempfile.mkdtemp(prefix=f"gpubank-{self.name}-"))
        return self._own_home

    def _busy(self, pool: str) -> tuple[str, ...]:
        """Name the queues whose Workloads have not all finished."""
        queues = self._queues.of_pool(pool)
        return tuple(q.name for q in queues if any(not w.finished for w in self._scheduler.members(q)))

    def _laid_out(self, report: LayoutReport) -> LayoutReport:
        if report.changed:
            self._jobs.attach_all()
            self._pulse.beat()
        return report

    def _written(self, queue: Queue | None) -> None:
        if queue is not None:
            self._take_over(queue, self._scheduler.raised)
        self._pulse.beat()

    def _take_over(self, queue: Queue, then: Callable[[Queue], None]) -> None:
        """Let the scheduler use a quota for new cycles, and acknowledge it, a moment later."""
        generation, nominal, cohort = queue.generation, queue.nominal, queue.cohort

        def acknowledge() -> None:
            queue.in_force, queue.cohort_in_force, queue.acknowledged = nominal, cohort, generation
            then(queue)
            self._pulse.beat()
            self._watch_fence(queue.pool)

        self._timeline.after(self.timing.acknowledge, acknowledge)

    def _fenced(self, queue: Queue) -> int:
        acknowledged = queue.acknowledged >= queue.generation
        return self._fence.seen(queue.name, queue.stamp, acknowledged, self.clock.monotonic())

    def _watch_fence(self, pool: str) -> None:
        """Start the fences' clocks now, and wake those who wait for them when they are due."""
        for queue in self._queues.of_pool(pool):
            self._fenced(queue)
        self._timeline.after(self._fence.wait, self._pulse.beat)

    def _check(self, pool: str, workload: Workload, seen: str) -> None:
        self._queues.check_in_charge(pool)
        if str(workload.version) != seen:
            raise ConflictError(
                f"workload {workload.name!r} has moved on since version {seen!r}: read again, decide again"
            )

    def _priority(self, job: JobManifest) -> int:
        if not job.priority_class:
            return 0
        if job.priority_class not in self.priority_classes:
            known = ", ".join(sorted(self.priority_classes)) or "none"
            problem = Problem(
                "priority class", repr(job.priority_class), "does not exist", f"name one that does; there are {known}"
            )
            raise InvalidObjectError(f"{job.kind} {job.name!r}", (problem,))
        return self.priority_classes[job.priority_class]

    def _limits(self, pool: str) -> PoolLimits:
        body = self.objects.peek("GPUPool", pool)
        return GPUPool.from_wire(body).spec.limits if body is not None else PoolLimits()
