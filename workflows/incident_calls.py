"""The activities of one incident: queue, time-outs and a summary for people.

What the node's agent is asked is bounded or can be left: a dead node answers nothing.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from activities.interfaces import (
        BANK_QUEUE,
        BookCalls,
        CheckpointCalls,
        IncidentCalls,
        IncidentPlanCalls,
        NodeCalls,
        cluster_queue,
    )
    from gpubank.domain.incident import GpuSight, IncidentInput, NodeOrder, Released, Wanted, node_queue
    from gpubank.domain.incidentsteps import (
        CordonResult,
        EvictStep,
        IncidentSight,
        IncidentStep,
        Judgement,
        JudgeStep,
        LeavingPod,
        LeavingPods,
        PodsStep,
        Receipt,
        Ticket,
    )
    from gpubank.domain.servicing import PodName, Uncordoned
    from gpubank.domain.steps import CheckpointOutcome, CheckpointStep, LedgerNote
    from workflows.retries import ATTEMPT, HEARTBEAT, LONG_ATTEMPT, POLL, STEADY
    from workflows.waiting import said, unless

_WAIT: Final = workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED

NODE_POLL: Final = RetryPolicy(
    initial_interval=timedelta(seconds=1), backoff_coefficient=1.5, maximum_interval=timedelta(seconds=30)
)
"""For what takes a repair or a quiet period: an incident lasts hours, and half a minute is soon enough."""

CLOSING_WORD: Final = timedelta(minutes=2)
"""How long the word that an incident has ended is tried."""

Stop = Callable[[], bool]
Until = Callable[[], datetime | None]


class IncidentActs:
    """Everything that an incident has done."""

    def __init__(self, start: IncidentInput) -> None:
        self._start = start
        self._gpu = f"GPU {start.uuid} of {start.node}"

    # ---- the cluster

    async def look(self, step: IncidentStep) -> IncidentSight:
        """See the node, and the times of the policy."""
        return await workflow.execute_activity_method(
            IncidentCalls.look, step, **self._effect(f"look at node {self._start.node}")
        )

    async def judge(self, step: JudgeStep) -> Judgement:
        """Judge what stands against the GPU."""
        return await workflow.execute_activity_method(
            IncidentPlanCalls.judge, step, **self._bank(f"judge {len(step.marks)} faults of {self._gpu}")
        )

    async def cordon(self, step: IncidentStep) -> CordonResult:
        """Cordon, or learn that a person must approve it."""
        return await workflow.execute_activity_method(
            IncidentCalls.cordon, step, **self._effect(f"cordon {step.scope} {self._start.node}")
        )

    async def uncordon(self, step: IncidentStep) -> Uncordoned:
        """Take the mark off the node."""
        return await workflow.execute_activity_method(
            IncidentCalls.uncordon, step, **self._effect(f"uncordon {self._start.node}")
        )

    async def pods(self, step: IncidentStep, holders: tuple[PodName, ...] | None) -> LeavingPods:
        """See who must leave."""
        return await workflow.execute_activity_method(
            IncidentCalls.pods,
            PodsStep(step=step, holders=holders),
            **self._effect(f"see which pods must leave {self._start.node}"),
        )

    async def evict(self, step: IncidentStep, leaving: LeavingPod, stop: Stop) -> bool:
        """Have one pod leave; False if `stop` came first."""
        pod = leaving.pod
        handle = workflow.start_activity_method(
            IncidentCalls.evict,
            EvictStep(step=step, pod=pod, owner=leaving.owner),
            **self._poll(f"evict {pod.namespace}/{pod.name} within its disruption budgets"),
        )
        return bool(await unless(handle, stop))

    async def tell(self, ticket: Ticket, stop: Stop, limit: timedelta) -> Receipt:
        """Tell whoever repairs, for a while."""
        handle = workflow.start_activity_method(
            IncidentCalls.ticket,
            ticket,
            **self._effect(f"tell whoever repairs: {ticket.type}"),
            schedule_to_close_timeout=limit,
            cancellation_type=_WAIT,
        )
        try:
            receipt = await unless(handle, stop)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            return Receipt(sent=False, note=f"nobody could be told: {said(error)}")
        return receipt or Receipt(sent=False, note="nobody was told: it was not needed any more")

    # ---- the node

    def _order(self, key: str, reason: str, wanted: Wanted, *, for_good: bool = False) -> NodeOrder:
        incident, uuid = workflow.info().workflow_id, self._start.uuid
        return NodeOrder(incident=incident, uuid=uuid, key=key, reason=reason, wanted=wanted, for_good=for_good)

    async def inspect(self, limit: timedelta) -> GpuSight | None:
        """See the GPU as its node's agent does; None if the agent does not answer in time."""
        return await self._asked(NodeCalls.inspect, self._order("", "", Wanted.NOTHING), f"see {self._gpu}", limit)

    async def quarantine(self, key: str, reason: str, limit: timedelta, *, for_good: bool = False) -> GpuSight | None:
        """Take the GPU out; None if the agent does not answer in time."""
        order = self._order(key, reason, Wanted.NOTHING, for_good=for_good)
        return await self._asked(NodeCalls.quarantine, order, f"take {self._gpu} out", limit)

    async def await_sight(self, wanted: Wanted, stop: Stop, until: Until = lambda: None) -> GpuSight | None:
        """Wait until the GPU is as wanted; None if `stop` or `until` came first."""
        handle = workflow.start_activity_method(
            NodeCalls.inspect, self._order("", "", wanted), **self._node(f"wait until {self._gpu} is {wanted}")
        )
        return await unless(handle, stop, until=until, summary="look again")

    async def release(self, key: str, stop: Stop) -> Released | None:
        """Put the GPU back; None if `stop` came first."""
        handle = workflow.start_activity_method(
            NodeCalls.release, self._order(key, "", Wanted.NOTHING), **self._node(f"put {self._gpu} back")
        )
        return await unless(handle, stop)

    async def _asked(self, call: Any, order: NodeOrder, summary: str, limit: timedelta) -> GpuSight | None:
        try:
            sight: GpuSight = await workflow.execute_activity_method(
                call, order, **self._node(summary), schedule_to_close_timeout=limit
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            return None
        return sight

    # ---- checkpoints and books

    async def request_checkpoint(self, step: CheckpointStep, stop: Stop, until: Until) -> CheckpointOutcome | None:
        """Ask a job for a checkpoint; None if `stop` or `until` came first."""
        handle = workflow.start_activity_method(
            CheckpointCalls.request, step, **self._poll(f"ask {step.step.workload.name} for a checkpoint")
        )
        return await unless(handle, stop, until=until, summary="checkpointGrace")

    async def await_checkpoint(self, step: CheckpointStep, stop: Stop, until: Until) -> CheckpointOutcome | None:
        """See the checkpoint verified; None if `stop` or `until` came first."""
        options = self._poll(f"verify the checkpoint of {step.step.workload.name}")
        options |= {"start_to_close_timeout": LONG_ATTEMPT, "heartbeat_timeout": HEARTBEAT}
        handle = workflow.start_activity_method(CheckpointCalls.await_durable, step, **options)
        return await unless(handle, stop, until=until, summary="checkpointGrace")

    async def note(self, note: LedgerNote) -> None:
        """Append one audit event."""
        await workflow.execute_activity_method(BookCalls.note, note, **self._bank(f"note: {note.action}"))

    # ---- options

    def _bank(self, summary: str) -> Any:
        # No local activities: they move the workflow's clock by how long they ran, a replay by something else, and
        # what is decided by that clock right after one would be decided otherwise.
        return {**self._effect(summary), "task_queue": BANK_QUEUE}

    def _effect(self, summary: str) -> Any:
        return {
            "task_queue": cluster_queue(self._start.cluster),
            "start_to_close_timeout": ATTEMPT,
            "retry_policy": STEADY,
            "summary": summary,
        }

    def _poll(self, summary: str) -> Any:
        return {**self._effect(summary), "retry_policy": POLL, "cancellation_type": _WAIT}

    def _node(self, summary: str) -> Any:
        return {
            "task_queue": node_queue(self._start.cluster, self._start.node),
            "start_to_close_timeout": ATTEMPT,
            "retry_policy": NODE_POLL,
            "cancellation_type": _WAIT,
            "summary": summary,
        }
