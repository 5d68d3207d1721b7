"""What keeps the bank's processes going: heartbeats of pools, the Schedule of sweeps, and which workflows run.

A part of `gpubank.client`, which says the rest.
"""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Final

from temporalio.api.workflowservice.v1 import DescribeWorkerDeploymentRequest
from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    WorkflowExecution,
    WorkflowExecutionStatus,
    WorkflowUpdateFailedError,
)
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from activities.interfaces import BANK_QUEUE
from gpubank.domain.errors import BackendError, PolicyError
from gpubank.domain.failsafe import HeartbeatInput, heartbeat_id
from gpubank.domain.recall import Ended, LoanInput, loan_id, reclaim_id
from gpubank.domain.sweep import LoanStart, SweepInput, sweep_schedule
from workflows import attributes
from workflows.details import heartbeat_summary, loan_summary
from workflows.heartbeat import HeartbeatWorkflow
from workflows.loan import LoanWorkflow
from workflows.sweep import SweepWorkflow

CALL_TIMEOUT: Final = timedelta(seconds=10)
"""Longest wait for one answer of the server."""

SWEEP_EVERY: Final = timedelta(minutes=5)
"""Pause between two sweeps."""

CATCH_UP: Final = timedelta(minutes=1)
"""How late a sweep may begin after the server was down; an older one has lost its point."""

SWEEP_LASTS: Final = timedelta(minutes=30)
"""Longest sweep: one that hangs would keep all others from beginning."""


class NoSuchProcessError(PolicyError):
    """No such loan or recall runs, or its history is not kept any more."""


class Upkeep:
    """The bank's upkeep in one Temporal namespace."""

    def __init__(self, temporal: Client) -> None:
        self.temporal = temporal

    # ---- versions of the worker

    async def current_build(self, deployment: str) -> str:
        """Return the current build of a Worker Deployment; empty where unversioned workers are, or nobody knows it."""
        request = DescribeWorkerDeploymentRequest(namespace=self.temporal.namespace, deployment_name=deployment)
        try:
            with in_words(f"worker deployment {deployment!r}"):
                answer = await self.temporal.workflow_service.describe_worker_deployment(request, timeout=CALL_TIMEOUT)
        except NoSuchProcessError:
            return ""
        return str(answer.worker_deployment_info.routing_config.current_deployment_version.build_id)

    # ---- heartbeats

    async def start_heartbeat(self, cluster: str, pool: str, *, every: timedelta | None = None) -> None:
        """Start the pool's heartbeat, unless it runs; `every` is for whoever cannot wait."""
        start = HeartbeatInput(cluster=cluster, pool=pool, **({"every": every} if every is not None else {}))
        workflow_id = heartbeat_id(cluster, pool)
        with in_words(f"heartbeat {workflow_id!r}"):
            await self.temporal.start_workflow(
                HeartbeatWorkflow.run,
                start,
                id=workflow_id,
                task_queue=BANK_QUEUE,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                static_summary=heartbeat_summary(start),
                rpc_timeout=CALL_TIMEOUT,
            )

    async def end_heartbeat(self, cluster: str, pool: str) -> None:
        """End the pool's heartbeat, if it runs."""
        workflow_id = heartbeat_id(cluster, pool)
        with suppress(NoSuchProcessError), in_words(f"heartbeat {workflow_id!r}"):
            handle = self.temporal.get_workflow_handle(workflow_id)
            await handle.signal(HeartbeatWorkflow.end, rpc_timeout=CALL_TIMEOUT)

    # ---- sweeps

    async def start_sweeps(self, cluster: str, *, every: timedelta = SWEEP_EVERY) -> None:
        """Have the cluster swept on a Schedule, unless it is; what somebody has changed about it stays."""
        name = sweep_schedule(cluster)
        schedule = Schedule(
            action=ScheduleActionStartWorkflow(
                SweepWorkflow.run,
                SweepInput(cluster=cluster),
                id=name,
                task_queue=BANK_QUEUE,
                execution_timeout=SWEEP_LASTS,
                static_summary=f"sweep of cluster {cluster}",
            ),
            spec=ScheduleSpec(intervals=[ScheduleIntervalSpec(every=every)]),
            policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP, catchup_window=CATCH_UP),
        )
        with suppress(ScheduleAlreadyRunningError), in_words(f"schedule {name!r}"):
            await self.temporal.create_schedule(name, schedule, rpc_timeout=CALL_TIMEOUT)

    async def sweep_now(self, cluster: str) -> None:
        """Have the cluster swept at once, beside its Schedule; one that runs is enough."""
        name = sweep_schedule(cluster)
        with in_words(f"schedule {name!r}"):
            await self.temporal.get_schedule_handle(name).trigger(rpc_timeout=CALL_TIMEOUT)

    # ---- what runs

    async def reclaim_runs(self, cluster: str, pool: str, lender: str) -> bool:
        """Whether the lender's Reclaim runs; asked of its history, not of lists that lag behind."""
        return await self._runs(reclaim_id(cluster, pool, lender))

    async def heartbeat_runs(self, cluster: str, pool: str) -> bool:
        """Whether the pool's heartbeat runs."""
        return await self._runs(heartbeat_id(cluster, pool))

    async def open_loans(self, cluster: str, pool: str) -> frozenset[str]:
        """Return the ids of the pool's Loans that run; the list may lag a second behind."""
        wanted = {attributes.CLUSTER.name: cluster, attributes.POOL.name: pool}
        found = self._find("Loan", wanted, f"loans of pool {pool!r}", running_only=True)
        return frozenset([each.id async for each in found])

    async def _find(
        self,
        kind: str,
        wanted: Mapping[str, str | None],
        what: str,
        *,
        running_only: bool,
        limit: int | None = None,
    ) -> AsyncIterator[WorkflowExecution]:
        """Yield workflows of a type, newest first, by search attributes; `what` they are, for people."""
        terms = [f"WorkflowType = {quoted(kind)}"]
        terms += [f"{name} = {quoted(value)}" for name, value in wanted.items() if value is not None]
        terms += ["ExecutionStatus = 'Running'"] if running_only else []
        with in_words(f"list of {what}"):
            async for found in self.temporal.list_workflows(" AND ".join(terms), limit=limit, rpc_timeout=CALL_TIMEOUT):
                yield found

    async def _runs(self, workflow_id: str) -> bool:
        with suppress(NoSuchProcessError), in_words(f"workflow {workflow_id!r}"):
            found = await self.temporal.get_workflow_handle(workflow_id).describe(rpc_timeout=CALL_TIMEOUT)
            return found.status is WorkflowExecutionStatus.RUNNING
        return False

    # ---- whom a sweep starts and tells

    async def start_loan(self, cluster: str, pool: str, start: LoanStart) -> None:
        """Start a Loan, unless it runs; it finds out by itself where it stands."""
        loan = LoanInput(cluster=cluster, pool=pool, borrower=start.borrower, workload=start.workload, gpus=start.gpus)
        workflow_id = loan_id(cluster, start.workload.uid)
        with in_words(f"loan {workflow_id!r}"):
            await self.temporal.start_workflow(
                LoanWorkflow.run,
                loan,
                id=workflow_id,
                task_queue=BANK_QUEUE,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                static_summary=loan_summary(loan),
                rpc_timeout=CALL_TIMEOUT,
            )

    async def end_loan(self, loan: str) -> None:
        """Tell a Loan that its Workload is gone, if it runs; it looks before it believes it."""
        with suppress(NoSuchProcessError), in_words(f"loan {loan!r}"):
            handle: Any = self.temporal.get_workflow_handle(loan)
            await handle.signal("ended", Ended(reason="a sweep found it gone"), rpc_timeout=CALL_TIMEOUT)


def quoted(text: str) -> str:
    """Write a string as Temporal's list filters read it."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


@contextmanager
def in_words(subject: str) -> Iterator[None]:
    """Say Temporal's errors in the bank's words."""
    try:
        yield
    except WorkflowUpdateFailedError as error:
        cause = error.cause
        message = cause.message if isinstance(cause, ApplicationError) else str(cause)
        raise PolicyError(message) from error
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            raise NoSuchProcessError(
                f"{subject} does not run; `gpubank loan list` and `reclaim list` show what does"
            ) from error
        raise BackendError(f"{subject}: Temporal does not answer ({error.status.name}): {error.message}") from error
