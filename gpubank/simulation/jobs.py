"""Jobs and Deployments, their Workloads and pods: what Kueue's job reconcilers and the Job controller do together.

    Job ──▶ one Workload of all its pods, may be stopped and brought back
    Deployment ──▶ one Workload per pod, which may not

A Workload's quota is free as soon as its pods are told to end; their GPUs only when they are gone.
"""

import itertools
import uuid
from datetime import datetime

from gpubank.domain.contract import CHECKPOINT_PREFIX
from gpubank.domain.errors import InvalidObjectError, Problem
from gpubank.simulation.clock import Timeline, Timing
from gpubank.simulation.kubelet import Kubelet
from gpubank.simulation.manifests import JobManifest
from gpubank.simulation.pulse import Pulse
from gpubank.simulation.queues import QueueBook
from gpubank.simulation.scheduler import Scheduler
from gpubank.simulation.workloads import DEACTIVATED, PREEMPTED, Job, JobView, Pod, Workload

JobKey = tuple[str, str, str]
"""Kind, namespace and name."""


class Names:
    """Makes uids that no other cluster makes, alike in every run that starts from the same seed."""

    def __init__(self, seed: uuid.UUID) -> None:
        self._seed = seed
        self._count = itertools.count(1)

    def uid(self) -> str:
        """Return the next uid."""
        return str(uuid.uuid5(self._seed, str(next(self._count))))


class JobController:
    """Turns jobs into Workloads and pods, and keeps them so."""

    def __init__(
        self,
        timeline: Timeline,
        timing: Timing,
        queues: QueueBook,
        kubelet: Kubelet,
        pulse: Pulse,
        names: Names,
    ) -> None:
        self._timeline = timeline
        self._timing = timing
        self._queues = queues
        self._kubelet = kubelet
        self._pulse = pulse
        self._names = names
        self._orders = itertools.count(1)
        self._jobs: dict[JobKey, Job] = {}
        self._owners: dict[str, Workload] = {}
        self.scheduler = Scheduler(timeline, timing, queues, self._admitted, self.preempt)
        kubelet.on_exit = self._pod_exited
        kubelet.on_gone = self._pod_gone

    # -- what users do

    def submit(self, manifest: JobManifest, priority: int) -> None:
        """Take a job; raise InvalidObjectError if there is one of that name."""
        key = manifest.kind, manifest.namespace, manifest.name
        if key in self._jobs:
            problem = Problem("metadata.name", repr(manifest.name), "is taken", "delete the old one, or choose another")
            raise InvalidObjectError(f"{manifest.kind} {manifest.name!r}", (problem,))
        replicas = 1 if manifest.suspendable else manifest.parallelism
        job = self._jobs[key] = Job(manifest, self._now(), priority, replicas)
        for _ in range(replicas):
            self._new_workload(job)
        self._pulse.beat()

    def delete(self, key: JobKey) -> bool:
        """Delete a job, its Workloads and pods; False if there is none."""
        job = self._jobs.pop(key, None)
        if job is None:
            return False
        for workload in tuple(job.workloads):
            self._remove(job, workload)
        return True

    def scale(self, key: JobKey, replicas: int) -> bool:
        """Set a Deployment's replicas; False if there is none.

        Those that wait go first, then the newest.
        """
        job = self._jobs.get(key)
        if job is None or job.manifest.suspendable:
            return False
        job.replicas = replicas
        superfluous = sorted(job.workloads, key=lambda workload: (workload.reserved, -workload.order))
        for workload in superfluous[: max(0, len(job.workloads) - replicas)]:
            self._remove(job, workload)
        for _ in range(replicas - len(job.workloads)):
            self._new_workload(job)
        return True

    def finish(self, key: JobKey) -> bool:
        """Let every pod of a Job end well now; False if there is none."""
        job = self._jobs.get(key)
        if job is None or not job.manifest.suspendable:
            return False
        for workload in job.workloads:
            self._end(workload)
        return True

    def views(self) -> tuple[JobView, ...]:
        """Say how every job fares, in the order of creation."""
        return tuple(self._view(job) for job in self._jobs.values())

    # -- what the bank does

    def workload(self, uid: str) -> Workload | None:
        """Return the Workload with this uid, or None when it is gone."""
        found = (workload for job in self._jobs.values() for workload in job.workloads if workload.uid == uid)
        return next(found, None)

    def deactivate(self, workload: Workload) -> None:
        """Stop a Workload: its quota is free once its pods are told to end, and they are gone later."""
        workload.active = False
        workload.version += 1
        workload.evicted = workload.evicted or DEACTIVATED
        if workload.queue is not None:
            self.scheduler.withdraw(workload.queue, workload)
        if workload.reserved and not workload.evicting:
            workload.evicting = True
            self._timeline.after(self._timing.eviction, lambda: self._evict(workload))
        elif not workload.reserved:
            workload.waiting_since = self._now()
        self._pulse.beat()

    def preempt(self, workload: Workload) -> None:
        """Take a Workload's quota for somebody else of its Cohort; it waits again once its pods are told to end."""
        workload.version += 1
        workload.evicted = PREEMPTED
        workload.evicting = True
        self._timeline.after(self._timing.eviction, lambda: self._evict(workload))
        self._pulse.beat()

    def activate(self, workload: Workload) -> None:
        """Bring a Workload back, with its old place in the order."""
        workload.active = True
        workload.version += 1
        workload.waiting_since = self._now()
        self.reconsider(workload)

    def reconsider(self, workload: Workload) -> None:
        """Have a Workload that changed considered at once."""
        if workload.queue is not None:
            self.scheduler.consider(workload.queue, workload)
        self._pulse.beat()

    def attach_all(self) -> None:
        """Take Workloads into their queues that did not exist when they came."""
        for job in self._jobs.values():
            for workload in job.workloads:
                self._attach(workload)

    def lost(self, pods: tuple[Pod, ...]) -> None:
        """Replace pods that went with their node."""
        for pod in pods:
            workload = self._owners.get(pod.uid)
            self._kubelet.lose(pod)
            if workload is not None and not pod.terminating:
                self._make_up(workload)

    def evict(self, pod: Pod) -> None:
        """End one pod with its grace, as the Eviction API does; its job makes another one."""
        workload = self._owners.get(pod.uid)
        self._kubelet.terminate(pod)
        if workload is not None:
            self._make_up(workload)

    # -- Workloads

    def _now(self) -> datetime:
        return self._timeline.clock.now()

    def _new_workload(self, job: Job) -> None:
        manifest, uid = job.manifest, self._names.uid()
        suffix = uid.replace("-", "")[-10:]
        pod_name = f"{manifest.name}-{suffix[:5]}"
        workload = Workload(
            uid=uid,
            namespace=manifest.namespace,
            name=f"job-{manifest.name}-{suffix[:5]}" if manifest.suspendable else f"pod-{pod_name}-{suffix[5:]}",
            job=f"Job/{manifest.name}" if manifest.suspendable else f"Pod/{pod_name}",
            manifest=manifest,
            contract=manifest.contract,
            priority=job.priority,
            created_at=self._now(),
            order=next(self._orders),
            wanted=manifest.pods if manifest.suspendable else 1,
            waiting_since=self._now(),
        )
        job.workloads.append(workload)
        self._attach(workload)
        if not manifest.suspendable:
            self._new_pod(workload, 0, name=pod_name, gated=True)

    def _attach(self, workload: Workload) -> None:
        if workload.queue is not None:
            return
        queue = self._queues.of(workload.namespace, workload.manifest.queue)
        flavor = self._queues.flavors.get(queue.pool) if queue is not None else None
        if queue is None or flavor is None:
            return
        workload.queue = queue
        workload.gpus_per_pod = workload.manifest.requests.get(flavor.resource, 0)
        for pod in workload.pods:  # those of a Deployment, which wait gated
            pod.gpus, pod.selector = workload.gpus_per_pod, dict(self._queues.labels_of(queue.pool))
        self.scheduler.join(queue, workload)
        self._pulse.beat()

    def _admitted(self, workload: Workload) -> None:
        workload.reserved = True
        workload.evicted = ""
        workload.admitted_at = self._now()
        workload.version += 1
        self._timeline.after(self._timing.creation, lambda: self._fill(workload))
        self._pulse.beat()

    def _evict(self, workload: Workload) -> None:
        workload.evicting = False
        back = workload.active and workload.evicted == DEACTIVATED  # switched on again before anybody had looked
        workload.evicted = "" if back else workload.evicted
        if workload.finished or not workload.reserved or back:
            return
        self._release(workload)
        for pod in tuple(workload.pods):
            self._kubelet.terminate(pod)
        if not workload.suspendable:
            self._replace(workload)
        elif workload.active:
            self.reconsider(workload)

    def _release(self, workload: Workload) -> None:
        """Give a Workload's quota back."""
        workload.reserved = False
        workload.admitted_at = None
        workload.waiting_since = self._now()
        workload.version += 1
        if workload.queue is not None:
            self.scheduler.capacity_event(workload.queue)
        self._pulse.beat()

    def _end(self, workload: Workload) -> None:
        """Let a Workload be finished: quota free, its pods done."""
        if workload.finished:
            return
        workload.finished = True
        if workload.queue is not None:
            self.scheduler.withdraw(workload.queue, workload)
        if workload.reserved:
            self._release(workload)
        for pod in tuple(workload.pods):
            if pod.process is not None:
                self._kubelet.terminate(pod)
            else:
                self._kubelet.retire(pod)
        workload.version += 1
        self._pulse.beat()

    def _remove(self, job: Job, workload: Workload) -> None:
        """Delete a Workload; its quota is free and its pods are told to end a moment later."""
        job.workloads.remove(workload)
        # Not considered any more, but there until its job's deletion has reached it.
        workload.evicting = True
        if workload.queue is not None:
            self.scheduler.withdraw(workload.queue, workload)
        self._timeline.after(self._timing.eviction, lambda: self._removed(workload))

    def _removed(self, workload: Workload) -> None:
        for pod in tuple(workload.pods):
            self._kubelet.terminate(pod)
        if workload.reserved:
            self._release(workload)
        if workload.queue is not None:
            self.scheduler.leave(workload.queue, workload)
        self._pulse.beat()

    def _make_up(self, workload: Workload) -> None:
        """Have another pod made for one that is gone."""
        if workload.suspendable:
            self._timeline.after(self._timing.creation, lambda: self._fill(workload))
        else:
            self._replace(workload)

    def _replace(self, workload: Workload) -> None:
        """Let a Deployment have a new pod, hence a new Workload, for one that is gone."""
        for job in self._jobs.values():
            if workload in job.workloads:
                self._remove(job, workload)
                self._new_workload(job)
                return

    # -- pods

    def _fill(self, workload: Workload) -> None:
        """Create the pods that an admitted Workload lacks, or let those that wait for admission go."""
        if not workload.reserved or workload.evicting or workload.finished:
            return
        for pod in workload.pods:
            self._kubelet.admit(pod)
        if not workload.suspendable:
            return
        live = {pod.index for pod in workload.pods if not pod.terminating}
        free = (index for index in range(workload.manifest.completions) if index not in workload.done | live)
        for index in itertools.islice(free, max(0, workload.current - len(live))):
            self._new_pod(workload, index)

    def _new_pod(self, workload: Workload, index: int, *, name: str = "", gated: bool = False) -> None:
        uid, manifest = self._names.uid(), workload.manifest
        pool = workload.queue.pool if workload.queue is not None else ""
        checkpoint = {k: v for k, v in manifest.annotations.items() if k.startswith(f"{CHECKPOINT_PREFIX}/")}
        pod = Pod(
            uid=uid,
            name=name or f"{manifest.name}-{index}-{uid[-5:]}",
            namespace=manifest.namespace,
            gpus=workload.gpus_per_pod,
            index=index,
            priority=workload.priority,
            order=next(self._orders),
            selector=dict(self._queues.labels_of(pool)) if pool else {},
            grace=manifest.grace,
            annotations=checkpoint,
            command=manifest.command,
            gated=gated,
        )
        workload.pods.append(pod)
        self._owners[uid] = workload
        self._kubelet.create(pod)

    def _pod_exited(self, pod: Pod, code: int) -> None:
        workload = self._owners[pod.uid]
        if not workload.suspendable:
            self._kubelet.restart(pod)
            return
        if code == 0:
            workload.done.add(pod.index)
        else:
            workload.failed += 1
        self._kubelet.retire(pod)
        if workload.finished or workload.evicting:
            return
        if len(workload.done) >= workload.manifest.completions:
            self._end(workload)
        elif workload.failed > workload.manifest.backoff_limit:
            self._fail(workload)
        else:
            self._go_on(workload, failed=code != 0)

    def _go_on(self, workload: Workload, *, failed: bool) -> None:
        """Start what follows on a pod that ended; quota that is not needed any more is free."""
        workload.version += 1
        if workload.queue is not None and workload.current < workload.wanted:
            self.scheduler.capacity_event(workload.queue)
        wait = self._timing.retry if failed else self._timing.creation
        self._timeline.after(wait, lambda: self._fill(workload))
        self._pulse.beat()

    def _fail(self, workload: Workload) -> None:
        for job in self._jobs.values():
            if workload in job.workloads:
                job.failed = True
        self._end(workload)

    def _pod_gone(self, pod: Pod) -> None:
        workload = self._owners.pop(pod.uid, None)
        if workload is not None:
            workload.pods.remove(pod)

    def _view(self, job: Job) -> JobView:
        pods = [pod for workload in job.workloads for pod in workload.pods]
        return JobView(
            kind=job.manifest.kind,
            namespace=job.manifest.namespace,
            name=job.manifest.name,
            queue=job.manifest.queue,
            state=job.state,
            pods=sum(workload.current for workload in job.workloads if not workload.finished),
            running=sum(pod.running and not pod.terminating for pod in pods),
            created_at=job.created_at,
            workloads=tuple(workload.uid for workload in job.workloads),
            nodes=tuple(sorted({pod.node for pod in pods if pod.node})),
        )
