"""The activities of one Reclaim, as its demands call them: queue, time-outs and a summary for people."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities.interfaces import BANK_QUEUE, BookCalls, OrderCalls, ReclaimCalls, cluster_queue
    from gpubank.domain.demand import DemandState
    from gpubank.domain.pool import OnOverdue
    from gpubank.domain.recall import DemandProgress, ReclaimInput
    from gpubank.domain.steps import (
        DemandStep,
        DemandView,
        EndDemand,
        LedgerNote,
        LoanOrder,
        LoanOrders,
        PlacedResult,
        PlannedRecall,
        PlanStep,
        RaiseResult,
    )
    from workflows.retries import ATTEMPT, POLL, STEADY, STEP
    from workflows.waiting import unless

ORDERS: Final = 50
"""Orders in one activity: one takes 30 to 50 ms, on a busy server ten times as long, and an attempt has 30 s."""

_WAIT: Final = workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED


class ReclaimActs:
    """Everything that a Reclaim has done for one demand."""

    def __init__(self, start: ReclaimInput, demand: str) -> None:
        self._start = start
        self._demand = demand

    def step(self, reason: str = "") -> DemandStep:
        """Name one step for this demand."""
        start = self._start
        return DemandStep(
            reclaim=workflow.info().workflow_id,
            cluster=start.cluster,
            pool=start.pool,
            lender=start.lender,
            demand=self._demand,
            reason=reason,
        )

    async def view(self) -> DemandView:
        """See how the demand stands."""
        return await workflow.execute_activity_method(
            ReclaimCalls.view, self.step(), **self._effect(f"look at demand {self._demand}")
        )

    async def plan(
        self, spared: Sequence[str], stop: Callable[[], bool], until: Callable[[], datetime | None]
    ) -> PlannedRecall | None:
        """Plan and pledge; None if `stop` or `until` came first, as while the pool is frozen."""
        handle = workflow.start_activity_method(
            ReclaimCalls.plan,
            PlanStep(step=self.step(), spared=tuple(spared)),
            **self._poll(f"plan what is given up for {self._demand}"),
        )
        return await unless(handle, stop, until=until, summary="maxTimeToReturn")

    def begin_raise(self) -> workflow.ActivityHandle[RaiseResult]:
        """Begin to wait until nothing pledged is outstanding, and to give the lender the whole set at once then."""
        return workflow.start_activity_method(
            ReclaimCalls.raise_queue,
            self.step(),
            **self._poll(f"raise the queue of {self._start.lender}, once nothing pledged is outstanding"),
        )

    async def await_placed(self, stop: Callable[[], bool]) -> PlacedResult | None:
        """See the owner's pods on nodes; None if `stop` came first."""
        handle = workflow.start_activity_method(
            ReclaimCalls.await_placed, self.step(), **self._poll(f"see the pods of {self._start.lender} on nodes")
        )
        return await unless(handle, stop)

    def watch(self, gpus: int) -> workflow.ActivityHandle[bool]:
        """Begin to watch for the end of the demand, and for one of another amount."""
        step = self.step().model_copy(update={"gpus": gpus})
        return workflow.start_activity_method(
            ReclaimCalls.await_ended, step, **self._poll(f"see whether anybody waits for {self._demand}")
        )

    async def end_demand(self, state: DemandState, reason: str) -> None:
        """End the demand in the books."""
        await workflow.execute_activity_method(
            ReclaimCalls.end_demand,
            EndDemand(step=self.step(reason), state=state),
            **self._effect(f"demand {self._demand} is {state}"),
        )

    async def send(self, orders: Sequence[LoanOrder], summary: str) -> None:
        """Hand orders to Loans, so many at a time as an attempt is sure to get done."""
        for first in range(0, len(orders), ORDERS):
            await workflow.execute_activity_method(
                OrderCalls.send,
                LoanOrders(orders=tuple(orders[first : first + ORDERS])),
                task_queue=BANK_QUEUE,
                start_to_close_timeout=ATTEMPT,
                retry_policy=STEADY,
                summary=summary,
            )

    async def note(self, key: str, action: str, detail: dict[str, str | int | float | None]) -> None:
        """Append one audit event about this demand."""
        await workflow.execute_local_activity_method(
            BookCalls.note,
            LedgerNote(
                key=key,
                at=workflow.now(),
                actor=workflow.info().workflow_id,
                subject=self._demand,
                action=action,
                detail=detail,
            ),
            start_to_close_timeout=ATTEMPT,
            retry_policy=STEADY,
            summary=f"note: {action}",
        )

    async def tell_overdue(self, progress: DemandProgress, on_overdue: OnOverdue) -> None:
        """Count and note that a demand was not met within maxTimeToReturn, once for each time that it is due."""
        meter, start = workflow.metric_meter(), self._start
        late = meter.create_counter("gpubank_recalls_overdue_total", "Demands not met within maxTimeToReturn")
        late.add(1, {"pool": start.pool, "lender": start.lender})
        due = progress.due_at.isoformat() if progress.due_at is not None else ""
        detail: dict[str, str | int | float | None] = {"on_overdue": on_overdue, "phase": progress.phase}
        await self.note(f"{self._demand}/overdue/{due}", "overdue", detail)

    def measure(self, took: timedelta) -> None:
        """Measure how long a demand took to be met."""
        meter, start = workflow.metric_meter(), self._start
        seconds = meter.create_histogram_timedelta("gpubank_recall_seconds", "From a demand to its pods on nodes")
        seconds.record(took, {"pool": start.pool, "lender": start.lender})

    def _effect(self, summary: str) -> Any:
        return {
            "task_queue": cluster_queue(self._start.cluster),
            "start_to_close_timeout": STEP,
            "retry_policy": STEADY,
            "summary": summary,
        }

    def _poll(self, summary: str) -> Any:
        return {**self._effect(summary), "retry_policy": POLL, "cancellation_type": _WAIT}
