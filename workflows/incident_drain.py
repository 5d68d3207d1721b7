"""Everybody leaves what an incident has cordoned: jobs with a hook after a checkpoint, all within disruption budgets.

    job with a hook ─▶ checkpoint verified, or the grace is over ─┐
    any other pod ────────────────────────────────────────────────┴─▶ evicted ─▶ gone

Whoever does not leave in time is a matter for a person, and asked to leave all the while.
"""

import asyncio
from collections import defaultdict
from collections.abc import Sequence

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from gpubank.domain.base import clock
    from gpubank.domain.incident import Asks, IncidentInput, Leaving
    from gpubank.domain.incidentsteps import LeavingPod
    from gpubank.domain.servicing import CordonScope
    from gpubank.domain.steps import CheckpointStep, LoanStep
    from workflows.incident_desk import IncidentDesk
    from workflows.waiting import wait_until


class IncidentDrain(IncidentDesk):
    """Sees pods off."""

    def __init__(self, start: IncidentInput) -> None:
        super().__init__(start)
        self._left_alone = False
        """Whether this drain is over for those that have not left."""

        self._unknown = False
        """Whether it is not known who is on what is cordoned."""

        self._saved: set[str] = set()
        """uids of Workloads that were asked to save."""

    async def drain(self) -> bool:
        """See everybody off; False if that was interrupted and must be looked at again."""
        found = await self._pods()
        self._unknown = found is None
        if found is None:
            self.set(pods=())
            return True
        if not found:
            self.set(pods=tuple(_gone(pod) for pod in self.state.pods))
            return True
        until = self.state.drain_until or workflow.now() + self.terms.drain_limit
        self.set(pods=tuple(_leaving(each) for each in found), drain_until=until)
        jobs: dict[str, list[LeavingPod]] = defaultdict(list)
        for each in found:
            jobs[each.workload.uid if each.workload is not None else each.pod.uid].append(each)
        self._left_alone = False
        tasks = [asyncio.create_task(self._see_off(pods)) for pods in jobs.values()]
        await self._wait(tasks)
        self._left_alone = True
        await asyncio.gather(*tasks)
        return self.state.go_on and not self.disturbed

    @property
    def emptied(self) -> str:
        """How empty what is cordoned is after a drain, for people: whoever repairs relies on it."""
        if self._unknown:
            return "it is not known which pods are on the GPU, so none was evicted: look before it is touched"
        left = sum(not pod.gone for pod in self.state.pods)
        return f"{left} pods are left" if left else "no pod is left on it"

    async def _wait(self, tasks: Sequence["asyncio.Task[None]"]) -> None:
        """Wait until all have left, or somebody need not wait any more; ask a person when it takes too long."""

        def over() -> bool:
            return all(task.done() for task in tasks) or self.state.go_on or self.drain_is_off

        if await wait_until(over, until=lambda: self.state.drain_until, summary="drainLimit"):
            return
        left = ", ".join(f"{pod.namespace}/{pod.name}" for pod in self.state.pods if not pod.gone)
        self.set(asks=Asks.PODS, waits_for=f"pods are left: {left}; approve to go on without waiting for them")
        await workflow.wait_condition(over)
        self.set(asks=Asks.NOTHING, waits_for="")

    @property
    def drain_is_off(self) -> bool:
        """Whether nobody need leave any more, or it must be looked at again who does."""
        return self.disturbed or bool(self.state.repaired_by)

    async def _pods(self) -> tuple[LeavingPod, ...] | None:
        holders = None
        scope = self.state.cordoned
        if scope is CordonScope.GPU:
            sight = await self.acts.inspect(self.terms.agent_silence)
            holders = sight.holders if sight is not None else None
        found = await self.acts.pods(self.step(scope), holders)
        return found.pods if found.known else None

    async def _see_off(self, pods: list[LeavingPod]) -> None:
        if pods[0].workload is not None and pods[0].workload.uid not in self._saved:
            await self._save(pods)
        await asyncio.gather(*(self._evict(pod) for pod in pods))

    async def _evict(self, leaving: LeavingPod) -> None:
        if self._left_alone or self.drain_is_off:
            return
        self._say(leaving, "asked to leave")
        gone = await self.acts.evict(
            self.step(self.state.cordoned), leaving, lambda: self._left_alone or self.drain_is_off
        )
        if gone:
            self._say(leaving, "gone", gone=True)

    async def _save(self, pods: list[LeavingPod]) -> None:
        """Have a job saved, as far as it can be in time: the GPU is broken, and waiting longer saves nothing."""
        first = pods[0]
        assert first.workload is not None
        deadline = workflow.now() + self.terms.checkpoint_grace
        for pod in pods:
            self._say(pod, f"asked to save until {clock(deadline)}")
        step = LoanStep(
            loan=workflow.info().workflow_id,
            cluster=self.start.cluster,
            pool=self.state.pool,
            borrower=first.group,
            workload=first.workload,
            term=first.term,
            reason=f"GPU {self.start.uuid} of its node is broken ({self.state.cause})",
        )
        asked = CheckpointStep(
            step=step,
            request_id=self.step().key(f"checkpoint-{first.workload.uid}"),
            epoch=first.epoch,
            deadline=deadline,
        )
        told = await self._checkpoint(asked)
        if not self.drain_is_off:
            self._saved.add(first.workload.uid)
        for pod in pods:
            self._say(pod, told)

    async def _checkpoint(self, asked: CheckpointStep) -> str:
        """Ask and see it verified; return what came of it, for people."""

        def stop() -> bool:
            return self._left_alone or self.drain_is_off

        outcome = await self.acts.request_checkpoint(asked, stop, lambda: asked.deadline)
        if outcome is not None and not outcome.is_last:
            asked = asked.model_copy(update={"requested_at": outcome.requested_at})
            outcome = await self.acts.await_checkpoint(asked, stop, lambda: asked.deadline)
        if outcome is None:
            return "not saved in time"
        if outcome.checkpoint is not None:
            return f"saved at step {outcome.checkpoint.step}"
        return f"not saved: {outcome.failure}" if outcome.failure else "nothing to save"

    def _say(self, leaving: LeavingPod, state: str, *, gone: bool = False) -> None:
        self.set(
            pods=tuple(
                pod.model_copy(update={"state": _joined(pod.state, state), "gone": gone or pod.gone})
                if pod.uid == leaving.pod.uid
                else pod
                for pod in self.state.pods
            )
        )


def _leaving(each: LeavingPod) -> Leaving:
    pod = each.pod
    return Leaving(namespace=pod.namespace, name=pod.name, uid=pod.uid, gpus=pod.gpus, state="must leave")


def _gone(pod: Leaving) -> Leaving:
    return pod if pod.gone else pod.model_copy(update={"gone": True, "state": _joined(pod.state, "gone")})


def _joined(before: str, now: str) -> str:
    """Keep what became of the checkpoint beside what follows."""
    kept = before.partition(";")[0]
    return f"{kept}; {now}" if kept.startswith(("saved", "not saved", "nothing to save")) else now
