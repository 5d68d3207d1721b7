"""Checkpoints: asked for over the workload's own transport, believed only after the bank has looked itself."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.failures import not_yet
from activities.interfaces import CheckpointCalls
from activities.pools import Pools
from gpubank.adapters.checkpoint.verification import verify
from gpubank.decide.attest import AttestPolicy
from gpubank.domain.checkpoint import CheckpointAnswer, CheckpointRequest, CheckpointState, CheckpointTarget
from gpubank.domain.contract import CHECKPOINT_ENDPOINT_ANNOTATION
from gpubank.domain.errors import BankError
from gpubank.domain.facts import WorkloadFacts
from gpubank.domain.recall import CheckpointSummary
from gpubank.domain.steps import CheckpointOutcome, CheckpointStep
from gpubank.ports import CheckpointHook, CheckpointStorage

BEAT_SECONDS: Final = 5
"""Between two heartbeats of a verification, which may read every byte of a checkpoint."""

MOMENT: Final = 1.0
"""Seconds in which a small checkpoint may be written and verified with the request itself."""

SMALL: Final = 64 * 2**20
"""Bytes that are read and hashed well within that moment: a tenth of a second at 1 GB/s with SHA-256."""

FIRST_LOOK: Final = 0.02
"""Seconds until the first look in that moment; each later pause is twice the one before."""


class CheckpointActivities(CheckpointCalls):
    """Implements `CheckpointCalls` on any transport and storage."""

    def __init__(
        self,
        pools: Pools,
        *,
        hook: CheckpointHook,
        storage: CheckpointStorage,
        policy: AttestPolicy | None = None,
        moment: float = MOMENT,
    ) -> None:
        """`moment`: seconds in which a request sees to it that the checkpoint is verified; 0 leaves that to others."""
        self._pools = pools
        self._hook = hook
        self._storage = storage
        self._policy = policy or AttestPolicy()
        self._moment = moment

    @activity.defn(name="checkpoint.request")
    async def request(self, step: CheckpointStep) -> CheckpointOutcome:
        """Ask for a checkpoint, once per request id; who is done within a moment is verified at once."""
        requested_at = self._pools.now()
        target = await self._target(step)
        if isinstance(target, CheckpointOutcome):
            return target
        step = step.model_copy(update={"requested_at": requested_at})
        answer = await self._hook.request(target, _request(step))
        if answer.state is CheckpointState.FAILED:
            return CheckpointOutcome(failure=_said(answer), requested_at=requested_at)
        outcome = await self._at_once(step, target, answer) if self._moment else CheckpointOutcome()
        return outcome.model_copy(update={"requested_at": requested_at})

    async def _at_once(
        self, step: CheckpointStep, target: CheckpointTarget, answer: CheckpointAnswer
    ) -> CheckpointOutcome:
        """See it verified within a moment; nothing is lost if it is not, for somebody awaits it then."""
        pause = FIRST_LOOK
        try:
            async with asyncio.timeout(self._moment):
                while not answer.is_final:
                    await asyncio.sleep(pause)
                    pause *= 2
                    answer = await self._hook.answer(target, step.request_id) or answer
                if self._policy.check_hashes and answer.manifest is not None and answer.manifest.bytes > SMALL:
                    return CheckpointOutcome()  # hashes are of every byte, and are not begun twice
                return await self._judge(step, target, answer)
        except (TimeoutError, ApplicationError, BankError) as error:
            activity.logger.debug("checkpoint %s is awaited: %s", step.request_id, error)
            return CheckpointOutcome()

    @activity.defn(name="checkpoint.await_durable")
    async def await_durable(self, step: CheckpointStep) -> CheckpointOutcome:
        """Look once; "not yet" unless the bank has verified the checkpoint or knows that it will not come."""
        target = await self._target(step)
        if isinstance(target, CheckpointOutcome):
            return target
        answer = await self._hook.answer(target, step.request_id)
        if answer is None:  # a restarted trainer has forgotten; the id makes asking again harmless
            answer = await self._hook.request(target, _request(step))
        if not answer.is_final:
            raise not_yet(f"the trainer says {answer.state}: {answer.message or 'no word on how long'}")
        return await self._judge(step, target, answer)

    async def _judge(
        self, step: CheckpointStep, target: CheckpointTarget, answer: CheckpointAnswer
    ) -> CheckpointOutcome:
        """Look at what a last answer claims; "not yet" where looking again may find it."""
        if answer.state is CheckpointState.FAILED:
            return CheckpointOutcome(failure=_said(answer))
        async with heartbeats():
            verdict = await verify(
                self._storage,
                answer,
                request=_request(step),
                requested_at=step.requested_at or self._pools.now(),
                target=target,
                last_step=step.last_step,
                policy=self._policy,
                now=self._pools.now(),
            )
        if verdict.may_still_come:
            raise not_yet(f"not verified: {verdict.reason}: {verdict.detail}")
        if not verdict.verified:
            return CheckpointOutcome(failure=f"{verdict.reason}: {verdict.detail}")
        return CheckpointOutcome(
            checkpoint=CheckpointSummary(
                uri=verdict.uri, step=verdict.step, verified_at=self._pools.now(), request_id=step.request_id
            )
        )

    async def _target(self, step: CheckpointStep) -> CheckpointTarget | CheckpointOutcome:
        """Find the pod to ask, or the reason why there is none."""
        facts = await self._pools.quota.observe(step.step.pool)
        workload = facts.workload(step.step.workload.uid)
        if workload is None or workload.finished:
            return CheckpointOutcome(finished=True)
        if workload.contract.checkpoint is None:
            return CheckpointOutcome(failure="it declares no checkpoint hook any more")
        if not workload.works:
            return CheckpointOutcome(nothing_to_save=True)
        target = checkpoint_target(workload)
        if target is None:
            raise not_yet("its index-0 pod does not run; the others do")
        return target


@asynccontextmanager
async def heartbeats() -> AsyncIterator[None]:
    """Heartbeat while the block runs, so that a worker that dies in it is noticed, and a release reaches it."""

    async def beat() -> None:
        while True:
            activity.heartbeat()
            await asyncio.sleep(BEAT_SECONDS)

    beats = asyncio.create_task(beat())
    try:
        yield
    finally:
        beats.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await beats


def checkpoint_target(workload: WorkloadFacts) -> CheckpointTarget | None:
    """Return the index-0 pod of a running workload with a hook; None while there is none to ask."""
    hook = workload.contract.checkpoint
    pods = [pod for pod in workload.pod_facts if pod.index == 0 and pod.running and not pod.terminating]
    if hook is None or not pods:
        return None
    pod = min(pods, key=lambda pod: pod.uid)
    return CheckpointTarget(
        namespace=workload.key.namespace,
        pod=pod.name,
        uid=pod.uid,
        transport=hook.transport,
        # What the running pod publishes is newer than what its template could know.
        endpoint=pod.annotations.get(CHECKPOINT_ENDPOINT_ANNOTATION) or hook.endpoint,
        storage=hook.storage,
        pod_ip=pod.ip,
    )


def _request(step: CheckpointStep) -> CheckpointRequest:
    return CheckpointRequest(
        id=step.request_id, epoch=step.epoch, deadline=step.deadline, reason=step.step.reason[:4096]
    )


def _said(answer: CheckpointAnswer) -> str:
    return f"the trainer says failed: {answer.message or 'without a reason'}"
