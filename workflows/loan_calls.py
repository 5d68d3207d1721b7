"""The activities of one Loan, as its workflow calls them: queue, time-outs and a summary for people."""

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from activities.interfaces import BookCalls, CheckpointCalls, LoanCalls, NoticeCalls, cluster_queue
    from gpubank.domain.ledger import WorkloadUse
    from gpubank.domain.recall import LoanInput, RecallOrder
    from gpubank.domain.steps import (
        CheckpointOutcome,
        CheckpointStep,
        GoneResult,
        LedgerNote,
        LoanSight,
        LoanStep,
        Notice,
        RecalledLines,
        ReleaseStep,
        StopResult,
    )
    from workflows.retries import ATTEMPT, HEARTBEAT, LAST_LOOK, LONG_ATTEMPT, NOTICE_LIMIT, ONCE, POLL, STEADY, STEP
    from workflows.waiting import never, said, unless

_WAIT: Final = workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED


class LoanActs:
    """Everything that a Loan has done, by the step that it is done for."""

    def __init__(self, start: LoanInput) -> None:
        self._start = start
        self._what = start.workload.title

    def step(self, term: int, recall: int, reason: str = "") -> LoanStep:
        """Name one step of this Loan."""
        start = self._start
        return LoanStep(
            loan=workflow.info().workflow_id,
            cluster=start.cluster,
            pool=start.pool,
            borrower=start.borrower,
            workload=start.workload,
            term=term,
            recall=recall,
            reason=reason,
        )

    async def look(self, step: LoanStep) -> LoanSight:
        """See what stands in the books and at the scheduler."""
        return await workflow.execute_activity_method(LoanCalls.look, step, **self._effect(f"look at {self._what}"))

    async def recall_lines(self, step: LoanStep, stop: Callable[[], bool]) -> RecalledLines | None:
        """Recall the lines; None if `stop` came first, as while the pool is frozen."""
        handle = workflow.start_activity_method(
            LoanCalls.recall_lines, step, **self._poll(f"recall the GPUs of {self._what}")
        )
        return await unless(handle, stop)

    async def release_lines(self, step: LoanStep, *, drop_pledges: bool = True) -> bool:
        """Let the Workload keep its GPUs; False if it is stopped already."""
        return await workflow.execute_activity_method(
            LoanCalls.release_lines,
            ReleaseStep(step=step, drop_pledges=drop_pledges),
            **self._effect(f"let {self._what} keep its GPUs"),
        )

    async def stop(self, step: LoanStep, stop: Callable[[], bool]) -> StopResult | None:
        """Stop the Workload; None if `stop` came first."""
        handle = workflow.start_activity_method(LoanCalls.stop, step, **self._poll(f"stop {self._what}"))
        return await unless(handle, stop)

    async def await_gone(self, step: LoanStep, stop: Callable[[], bool] = never) -> GoneResult | None:
        """See pods and quota gone and the lines returned; None if `stop` came first."""
        handle = workflow.start_activity_method(
            LoanCalls.await_gone, step, **self._poll(f"see {self._what} off its GPUs and return them")
        )
        return await unless(handle, stop)

    async def resume(self, step: LoanStep, stop: Callable[[], bool]) -> bool:
        """Resume the parked Workload; False if there was nothing to resume, or `stop` came first."""
        handle = workflow.start_activity_method(LoanCalls.resume, step, **self._poll(f"resume {self._what}"))
        return bool(await unless(handle, stop))

    async def await_end(self, step: LoanStep, stop: Callable[[], bool]) -> bool:
        """See whether the parked Workload ends; False if `stop` came first."""
        handle = workflow.start_activity_method(
            LoanCalls.await_end, step, **self._poll(f"see whether {self._what} is deleted while it is parked")
        )
        return bool(await unless(handle, stop))

    async def return_order(self, step: LoanStep) -> RecallOrder | None:
        """Make the recall that a person asked for."""
        return await workflow.execute_activity_method(
            LoanCalls.return_order, step, **self._effect(f"prepare the return of {self._what}")
        )

    async def request_checkpoint(
        self, step: CheckpointStep, stop: Callable[[], bool], until: Callable[[], datetime | None]
    ) -> CheckpointOutcome | None:
        """Ask for a checkpoint; None if `stop` or `until` came first."""
        handle = workflow.start_activity_method(
            CheckpointCalls.request, step, **self._poll(f"ask {self._what} for a checkpoint")
        )
        return await unless(handle, stop, until=until, summary="end of the notice")

    async def await_checkpoint(
        self, step: CheckpointStep, stop: Callable[[], bool], until: Callable[[], datetime | None]
    ) -> CheckpointOutcome | None:
        """See the checkpoint durable and verified; None if `stop` or `until` came first."""
        handle = workflow.start_activity_method(
            CheckpointCalls.await_durable,
            step,
            **{
                **self._poll(f"verify the checkpoint of {self._what}"),
                "start_to_close_timeout": LONG_ATTEMPT,
                "heartbeat_timeout": HEARTBEAT,
            },
        )
        return await unless(handle, stop, until=until, summary="end of the notice")

    async def last_look(self, step: CheckpointStep) -> CheckpointOutcome:
        """Look once more when the notice has ended; a failure says what is wrong, for people."""
        try:
            return await workflow.execute_activity_method(
                CheckpointCalls.await_durable,
                step,
                **{
                    **self._effect(f"look once more for the checkpoint of {self._what}"),
                    "start_to_close_timeout": LAST_LOOK,
                    "heartbeat_timeout": LAST_LOOK,
                    "retry_policy": ONCE,
                },
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            return CheckpointOutcome(failure=said(error))

    async def tell(self, key: str, reason: str, message: str) -> None:
        """Tell the owner of the Workload, once per key; go on without a word where it cannot be delivered."""
        start = self._start
        try:
            await workflow.execute_activity_method(
                NoticeCalls.tell,
                Notice(key=key, pool=start.pool, workload=start.workload, reason=reason, message=message),
                **self._effect(f"tell the owner of {self._what}: {reason}"),
                schedule_to_close_timeout=NOTICE_LIMIT,
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            workflow.logger.warning("the owner of %s could not be told %s: %s", self._what, reason, error)

    async def use(self, term: int, gpus: int, admitted_at: datetime, gone_at: datetime | None = None) -> None:
        """Record the time that the Workload really held GPUs."""
        start = self._start
        await workflow.execute_local_activity_method(
            BookCalls.use,
            WorkloadUse(
                workload=start.workload,
                cluster=start.cluster,
                pool=start.pool,
                group=start.borrower,
                gpus=gpus,
                term=term,
                admitted_at=admitted_at,
                gone_at=gone_at,
            ),
            start_to_close_timeout=ATTEMPT,
            retry_policy=STEADY,
            summary="record the use of GPUs",
        )

    async def note(self, key: str, action: str, detail: dict[str, str | int | float | None]) -> None:
        """Append one audit event about this Loan."""
        loan = workflow.info().workflow_id
        await workflow.execute_local_activity_method(
            BookCalls.note,
            LedgerNote(key=key, at=workflow.now(), actor=loan, subject=loan, action=action, detail=detail),
            start_to_close_timeout=ATTEMPT,
            retry_policy=STEADY,
            summary=f"note: {action}",
        )

    def _effect(self, summary: str) -> Any:
        return {
            "task_queue": cluster_queue(self._start.cluster),
            "start_to_close_timeout": STEP,
            "retry_policy": STEADY,
            "summary": summary,
        }

    def _poll(self, summary: str) -> Any:
        return {**self._effect(summary), "retry_policy": POLL, "cancellation_type": _WAIT}
