"""The only place where ports meet activities: two workers, one for workflows and ledger, one beside the cluster.

queue `bank`             Loan, Reclaim, Heartbeat, Sweep, GpuIncident · books.* (local) · orders.* · incident.judge
queue `cluster-<name>`   loan.* · checkpoint.* · notices.* · reclaim.* · heartbeat.* · sweep.* · incident.*
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Final, Protocol

from pydantic import ValidationError
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.worker import Interceptor, Worker, WorkerDeploymentConfig
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from activities.books import BookActivities
from activities.checkpoints import MOMENT, CheckpointActivities
from activities.failures import FailureInterceptor
from activities.heartbeat import HeartbeatActivities, RunningReclaims
from activities.incidents import IncidentActivities, IncidentPlanActivities
from activities.interfaces import BANK_QUEUE, cluster_queue
from activities.loans import LoanActivities
from activities.notices import NoticeActivities
from activities.orders import LoanDispatch, OrderActivities
from activities.pools import Clock, Pools, utc_now
from activities.reclaims import Ended, ReclaimActivities, unheard
from activities.sweeps import SweepActivities, SweepProcesses
from gpubank.adapters.webhook import NoTickets
from gpubank.decide.attest import AttestPolicy
from gpubank.domain.incidentpolicy import IncidentPolicy
from gpubank.faultgate import FaultGate
from gpubank.ports import (
    CheckpointHook,
    CheckpointStorage,
    Leases,
    LedgerStore,
    Nodes,
    Notifier,
    QuotaBackend,
    TermsSource,
    Tickets,
)
from gpubank.settings import WorkerSettings
from workers.faults import FaultInterceptor, GatedPools
from workflows.heartbeat import HeartbeatWorkflow
from workflows.incident import GpuIncidentWorkflow
from workflows.loan import LoanWorkflow
from workflows.reclaim import ReclaimWorkflow
from workflows.sweep import SweepWorkflow

GRACEFUL: Final = timedelta(seconds=20)
"""How long a worker that is told to stop lets activities finish; below a pod's usual 30 s."""

CACHED: Final = WorkerSettings().cached_workflows
"""Workflows that a worker keeps in memory where nobody says how many."""

WORKFLOWS: Final[tuple[type, ...]] = (
    LoanWorkflow,
    ReclaimWorkflow,
    HeartbeatWorkflow,
    SweepWorkflow,
    GpuIncidentWorkflow,
)
"""Every workflow of the bank."""

PASSED_THROUGH: Final = ("gpubank", "workflows", "activities")
"""Our own packages in the sandbox: they hold no mutable module state, and loading them once per run costs memory."""

Activity = Callable[..., Any]


class Dispatch(LoanDispatch, RunningReclaims, SweepProcesses, Protocol):
    """What activities need of other workflows."""


@dataclass(frozen=True)
class Ports:
    """What a worker needs from the outside."""

    quota: QuotaBackend
    ledger: LedgerStore
    terms: TermsSource
    notifier: Notifier
    hook: CheckpointHook
    storage: CheckpointStorage
    leases: Leases
    nodes: Nodes
    tickets: Tickets = field(default_factory=NoTickets)
    incidents: IncidentPolicy = field(default_factory=IncidentPolicy)
    attest: AttestPolicy = field(default_factory=AttestPolicy)
    clock: Clock = utc_now
    ended: Ended = unheard
    """Hears of demands that Reclaims end."""

    faults: FaultGate | None = None
    """Gates at which a crash test holds a recall; None everywhere else, and then nothing of them is installed."""

    def pools(self, cluster: str) -> Pools:
        """Return what a worker beside the cluster can read and write about its pools."""
        make = Pools if self.faults is None else partial(GatedPools, self.faults)
        return make(cluster, quota=self.quota, ledger=self.ledger, terms=self.terms, clock=self.clock)

    def interceptors(self) -> list[Interceptor]:
        """Return what stands around every activity."""
        return [FailureInterceptor(), *([FaultInterceptor(self.faults)] if self.faults is not None else [])]


def bank_activities(ports: Ports, dispatch: LoanDispatch) -> list[Activity]:
    """Return the activities of the queue `bank`."""
    books, orders = BookActivities(ports.ledger), OrderActivities(dispatch)
    return [books.use, books.note, orders.send, IncidentPlanActivities(ports.incidents).judge]


def cluster_activities(cluster: str, ports: Ports, dispatch: Dispatch) -> list[Activity]:
    """Return the activities of the queue `cluster-<name>`."""
    pools = ports.pools(cluster)
    loans, reclaims = LoanActivities(pools), ReclaimActivities(pools, ended=ports.ended)
    checkpoints = CheckpointActivities(
        pools,
        hook=ports.hook,
        storage=ports.storage,
        policy=ports.attest,
        moment=MOMENT if ports.faults is None else 0,  # a crash test stops between the request and the look
    )
    notices = NoticeActivities(ports.notifier)
    heartbeat = HeartbeatActivities(pools, leases=ports.leases, reclaims=dispatch)
    sweeps = SweepActivities(pools, processes=dispatch, notifier=ports.notifier)
    incidents = IncidentActivities(
        pools, nodes=ports.nodes, tickets=ports.tickets, notifier=ports.notifier, policy=ports.incidents
    )
    return [
        loans.look,
        loans.recall_lines,
        loans.release_lines,
        loans.stop,
        loans.await_gone,
        loans.resume,
        loans.await_end,
        loans.return_order,
        checkpoints.request,
        checkpoints.await_durable,
        notices.tell,
        reclaims.view,
        reclaims.plan,
        reclaims.raise_queue,
        reclaims.await_placed,
        reclaims.await_ended,
        reclaims.end_demand,
        heartbeat.beat,
        sweeps.pools,
        sweeps.sweep_pool,
        incidents.look,
        incidents.cordon,
        incidents.uncordon,
        incidents.pods,
        incidents.evict,
        incidents.ticket,
    ]


def sandbox() -> SandboxedWorkflowRunner:
    """Return the runner of workflows: what is not deterministic raises, except in our own packages' imports."""
    return SandboxedWorkflowRunner(restrictions=SandboxRestrictions.default.with_passthrough_modules(*PASSED_THROUGH))


def deployed(version: WorkerDeploymentVersion | None) -> WorkerDeploymentConfig | None:
    """Return how a worker of this version takes part in its deployment; None for an unversioned one.

    Loans outlive every build, so a running workflow goes on with whatever build is current. That is said here, for the
    worker as a whole: on a workflow's definition it would have an unversioned worker refused every task, for ever.
    """
    if version is None:
        return None
    return WorkerDeploymentConfig(
        version=version, use_worker_versioning=True, default_versioning_behavior=VersioningBehavior.AUTO_UPGRADE
    )


def make_workers(
    client: Client,
    cluster: str,
    ports: Ports,
    dispatch: Dispatch,
    version: WorkerDeploymentVersion | None = None,
    *,
    cached_workflows: int = CACHED,
) -> tuple[Worker, Worker]:
    """Return the worker of workflows and ledger, and the one beside the cluster; both unversioned without a version."""
    # Whose record it is stands in fields of its own (gpubank.logs), not as a dictionary behind every message.
    workflow.logger.workflow_info_on_message = activity.logger.activity_info_on_message = False
    bank = Worker(
        client,
        task_queue=BANK_QUEUE,
        workflows=WORKFLOWS,
        activities=bank_activities(ports, dispatch),
        workflow_runner=sandbox(),
        max_cached_workflows=cached_workflows,
        # Bad input fails the run instead of retrying its first task for ever.
        workflow_failure_exception_types=[ValidationError],
        # After a restart with a cold cache, more replays at once than cores trip the deadlock detector.
        max_concurrent_workflow_tasks=max(4, 2 * (os.cpu_count() or 1)),
        interceptors=ports.interceptors(),
        graceful_shutdown_timeout=GRACEFUL,
        deployment_config=deployed(version),
    )
    beside = Worker(
        client,
        task_queue=cluster_queue(cluster),
        activities=cluster_activities(cluster, ports, dispatch),
        interceptors=ports.interceptors(),
        # A release reaches a running verification with its heartbeat.
        max_heartbeat_throttle_interval=timedelta(seconds=5),
        graceful_shutdown_timeout=GRACEFUL,
        deployment_config=deployed(version),
    )
    return bank, beside


async def run_workers(workers: Sequence[Worker], stop: asyncio.Event) -> None:
    """Run until `stop` is set, then let activities finish; a worker that fails stops all of them and raises."""
    runs = [asyncio.create_task(worker.run()) for worker in workers]
    told = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([*runs, told], return_when=asyncio.FIRST_COMPLETED)
    finally:
        told.cancel()
        await asyncio.gather(*(worker.shutdown() for worker in workers if worker.is_running))
        results = await asyncio.gather(*runs, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
