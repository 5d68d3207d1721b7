"""Signatures of the activities that workflows call; no I/O and no client library here.

Task queue `bank`: the ledger and other workflows. Task queue `cluster-<name>`: whatever touches a cluster, so that a
worker beside it does so. Task queue `node-<cluster>-<node>`: what a node's reporter does. An activity that says "waits"
fails with a benign error until what it waits for is there.
"""

from typing import Final, Protocol

from temporalio import activity

from gpubank.domain.failsafe import HeartbeatInput
from gpubank.domain.incident import GpuSight, NodeOrder, Released
from gpubank.domain.incidentsteps import (
    CordonResult,
    EvictStep,
    IncidentSight,
    IncidentStep,
    Judgement,
    JudgeStep,
    LeavingPods,
    PodsStep,
    Receipt,
    Ticket,
)
from gpubank.domain.ledger import WorkloadUse
from gpubank.domain.recall import RecallOrder
from gpubank.domain.servicing import Uncordoned
from gpubank.domain.steps import (
    CheckpointOutcome,
    CheckpointStep,
    DemandStep,
    DemandView,
    EndDemand,
    GoneResult,
    LedgerNote,
    LoanOrders,
    LoanSight,
    LoanStep,
    Notice,
    PlacedResult,
    PlannedRecall,
    PlanStep,
    RaiseResult,
    RecalledLines,
    ReleaseStep,
    StopResult,
)
from gpubank.domain.sweep import PoolList, SweepInput, SweepReport, SweepStep

BANK_QUEUE: Final = "bank"
"""Task queue of workflows, ledger activities and messages between workflows."""


def cluster_queue(cluster: str) -> str:
    """Task queue of the activities that touch one cluster."""
    return f"cluster-{cluster}"


# The bodies below are never run: a worker registers the classes that implement them.


class BookCalls(Protocol):
    """The ledger alone; local activities on `bank`."""

    @activity.defn(name="books.use")
    async def use(self, use: WorkloadUse) -> None:
        """Record when a Workload's term was admitted, and when its pods were gone."""
        ...

    @activity.defn(name="books.note")
    async def note(self, note: LedgerNote) -> None:
        """Append one audit event."""
        ...


class OrderCalls(Protocol):
    """Messages between workflows that may have to start their receiver; on `bank`."""

    @activity.defn(name="orders.send")
    async def send(self, orders: LoanOrders) -> None:
        """Hand every order to its Loan, and start the Loans that do not run."""
        ...


class LoanCalls(Protocol):
    """Everything that a Loan does to its lines and its Workload; on the cluster's queue."""

    @activity.defn(name="loan.look")
    async def look(self, step: LoanStep) -> LoanSight:
        """Return what stands in the books and at the scheduler."""
        ...

    @activity.defn(name="loan.recall_lines")
    async def recall_lines(self, step: LoanStep) -> RecalledLines:
        """Move the Workload's granted lines to RECALLED and lower the borrower's queue; waits while frozen."""
        ...

    @activity.defn(name="loan.release_lines")
    async def release_lines(self, release: ReleaseStep) -> bool:
        """Move the Workload's recalled lines back to GRANTED and raise the borrower's queue.

        False, and nothing is done, if the Workload turns out to be stopped already.
        """
        ...

    @activity.defn(name="loan.stop")
    async def stop(self, step: LoanStep) -> StopResult:
        """Deactivate the Workload in one write, if its lines are still recalled; waits while frozen."""
        ...

    @activity.defn(name="loan.await_gone")
    async def await_gone(self, step: LoanStep) -> GoneResult:
        """Wait until it holds neither quota nor pods and its queue is fenced, then return its lines."""
        ...

    @activity.defn(name="loan.resume")
    async def resume(self, step: LoanStep) -> bool:
        """Reactivate the parked Workload for `step.term`; False if there is nothing to resume. Waits while frozen."""
        ...

    @activity.defn(name="loan.await_end")
    async def await_end(self, step: LoanStep) -> bool:
        """Wait, patiently, until the Workload finished or is gone; True then."""
        ...

    @activity.defn(name="loan.return_order")
    async def return_order(self, step: LoanStep) -> RecallOrder | None:
        """Make the recall that a person asked for, by the borrower's policy; None if there is nothing to return."""
        ...


class CheckpointCalls(Protocol):
    """Checkpoints of running Workloads; on the cluster's queue."""

    @activity.defn(name="checkpoint.request")
    async def request(self, step: CheckpointStep) -> CheckpointOutcome:
        """Ask for a checkpoint, once per request id; who is done within a moment is verified at once."""
        ...

    @activity.defn(name="checkpoint.await_durable")
    async def await_durable(self, step: CheckpointStep) -> CheckpointOutcome:
        """Wait until the bank has verified it, or knows that it will not come."""
        ...


class NoticeCalls(Protocol):
    """Words to people; on the cluster's queue."""

    @activity.defn(name="notices.tell")
    async def tell(self, notice: Notice) -> None:
        """Tell the owner of a Workload."""
        ...


class ReclaimCalls(Protocol):
    """Everything that a Reclaim does for one demand; on the cluster's queue, for plans need its facts."""

    @activity.defn(name="reclaim.view")
    async def view(self, step: DemandStep) -> DemandView:
        """Return the demand as it stands."""
        ...

    @activity.defn(name="reclaim.plan")
    async def plan(self, plan: PlanStep) -> PlannedRecall:
        """Plan what is given up, pledge it in one transaction and write the quotas; waits while frozen."""
        ...

    @activity.defn(name="reclaim.raise_queue")
    async def raise_queue(self, step: DemandStep) -> RaiseResult:
        """Wait until nothing pledged is outstanding, then give the lender the whole set at once."""
        ...

    @activity.defn(name="reclaim.await_placed")
    async def await_placed(self, step: DemandStep) -> PlacedResult:
        """Wait until the owner's pods are on nodes, or somebody slipped in."""
        ...

    @activity.defn(name="reclaim.await_ended")
    async def await_ended(self, step: DemandStep) -> bool:
        """Wait until the demand has ended in the books; True then."""
        ...

    @activity.defn(name="reclaim.end_demand")
    async def end_demand(self, end: EndDemand) -> None:
        """End the demand in the books and write the quotas that follow."""
        ...


class HeartbeatCalls(Protocol):
    """The sign of life of one pool's bank; on the cluster's queue."""

    @activity.defn(name="heartbeat.beat")
    async def beat(self, pool: HeartbeatInput) -> None:
        """Renew the pool's Lease if the whole bank is at work there, again and again; ends when the pool is gone."""
        ...


class SweepCalls(Protocol):
    """Sweeps; on the cluster's queue."""

    @activity.defn(name="sweep.pools")
    async def pools(self, start: SweepInput) -> PoolList:
        """Return the pools that are to be swept."""
        ...

    @activity.defn(name="sweep.pool")
    async def sweep_pool(self, step: SweepStep) -> SweepReport:
        """Look at one pool twice, report what does not fit, and start or tell whoever mends it."""
        ...


class IncidentPlanCalls(Protocol):
    """What is to be done about a GPU; on `bank`, for it needs the policy alone."""

    @activity.defn(name="incident.judge")
    async def judge(self, step: JudgeStep) -> Judgement:
        """Say what is to be done about what stands against a GPU."""
        ...


class IncidentCalls(Protocol):
    """What an incident does to a node and its pods, and whom it tells; on the cluster's queue."""

    @activity.defn(name="incident.look")
    async def look(self, step: IncidentStep) -> IncidentSight:
        """Return the node as the cluster sees it, and the times of the policy in force."""
        ...

    @activity.defn(name="incident.cordon")
    async def cordon(self, step: IncidentStep) -> CordonResult:
        """Mark the node, and close it where the scope is the node; or say why a person must approve that."""
        ...

    @activity.defn(name="incident.uncordon")
    async def uncordon(self, step: IncidentStep) -> Uncordoned:
        """Take the incident's mark off the node, and open it where it was the bank that closed it."""
        ...

    @activity.defn(name="incident.pods")
    async def pods(self, step: PodsStep) -> LeavingPods:
        """Return the pods that must leave, each with the job to be saved before."""
        ...

    @activity.defn(name="incident.evict")
    async def evict(self, step: EvictStep) -> bool:
        """Have one pod leave; waits until it is gone, and is True then."""
        ...

    @activity.defn(name="incident.ticket")
    async def ticket(self, ticket: Ticket) -> Receipt:
        """Tell whoever repairs, once per id."""
        ...


class NodeCalls(Protocol):
    """What a node's agent says and does about one GPU; on the node's queue, implemented by `nodeagent.reporter`."""

    @activity.defn(name="node.inspect")
    async def inspect(self, order: NodeOrder) -> GpuSight:
        """Return the GPU as the agent sees it; waits for what `order.wanted` says."""
        ...

    @activity.defn(name="node.quarantine")
    async def quarantine(self, order: NodeOrder) -> GpuSight:
        """Take the GPU out in the incident's name, unless a person has; return it as it is then."""
        ...

    @activity.defn(name="node.release")
    async def release(self, order: NodeOrder) -> Released:
        """Put the GPU back, unless a person holds it or it still reports a fault."""
        ...
