"""Incidents of GPUs: what people ask and decide, and reports of whoever sees a fault that no node tells.

A part of `gpubank.client`, which says the rest.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from temporalio.client import WorkflowExecutionStatus
from temporalio.common import WorkflowIDConflictPolicy

from activities.interfaces import BANK_QUEUE
from gpubank.domain.base import Message
from gpubank.domain.incident import (
    EDGES_SIGNAL,
    WORKFLOW,
    Edges,
    HealthEdge,
    IncidentInput,
    IncidentPhase,
    IncidentState,
    IncidentWord,
    incident_id,
)
from gpubank.upkeep import CALL_TIMEOUT, NoSuchProcessError, Upkeep, in_words
from workflows import attributes
from workflows.incident import GpuIncidentWorkflow
from workflows.incident_details import incident_summary


class IncidentRow(Message):
    """One incident in a list, from its search attributes."""

    incident: str
    running: bool
    phase: IncidentPhase
    cluster: str = ""
    pool: str = ""
    node: str = ""
    cause: str = ""
    needs_approval: bool = False
    started_at: datetime
    ended_at: datetime | None = None


class Incidents(Upkeep):
    """The incidents of one Temporal namespace."""

    async def signal_incident(self, cluster: str, node: str, uuid: str, edges: Sequence[HealthEdge]) -> None:
        """Tell the incident of a GPU what was reported, and start it first where it does not run."""
        start = IncidentInput(cluster=cluster, node=node, uuid=uuid)
        workflow_id = incident_id(cluster, node, uuid)
        with in_words(f"incident {workflow_id!r}"):
            await self.temporal.start_workflow(
                GpuIncidentWorkflow.run,
                start,
                id=workflow_id,
                task_queue=BANK_QUEUE,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                start_signal=EDGES_SIGNAL,
                start_signal_args=[Edges(edges=tuple(edges))],
                static_summary=incident_summary(start),
                rpc_timeout=CALL_TIMEOUT,
            )

    async def incidents(
        self,
        *,
        cluster: str | None = None,
        pool: str | None = None,
        node: str | None = None,
        running_only: bool = True,
        limit: int = 500,
    ) -> list[IncidentRow]:
        """List incidents, newest first; the list may lag a second behind."""
        wanted = {
            attributes.CLUSTER.name: cluster,
            attributes.POOL.name: pool,
            attributes.NODE.name: node,
        }
        found = self._find(WORKFLOW, wanted, "incidents", running_only=running_only, limit=limit)
        return [_row(each) async for each in found]

    async def incident_state(self, incident: str) -> IncidentState:
        """Return an incident as it stands, or stood at its end."""
        with _in_words(incident):
            handle = self.temporal.get_workflow_handle(incident)
            return await handle.query(GpuIncidentWorkflow.read_state, rpc_timeout=CALL_TIMEOUT)

    async def incident_waits(self, incident: str) -> list[str]:
        """Return what the incident waits for right now, in the words of what did not work yet."""
        with _in_words(incident):
            found = await self.temporal.get_workflow_handle(incident).describe(rpc_timeout=CALL_TIMEOUT)
        pending = found.raw_description.pending_activities
        return [each.last_failure.message for each in pending if each.last_failure.message]

    async def repaired(self, incident: str, word: IncidentWord) -> IncidentState:
        """Say that the GPU is repaired; raise `PolicyError` unless it is cordoned and not repaired yet."""
        with _in_words(incident):
            handle = self.temporal.get_workflow_handle(incident)
            return await handle.execute_update(GpuIncidentWorkflow.repaired, word, rpc_timeout=CALL_TIMEOUT)

    async def retire(self, incident: str, word: IncidentWord) -> IncidentState:
        """Take the GPU out for good; raise `PolicyError` where the incident has ended."""
        with _in_words(incident):
            handle = self.temporal.get_workflow_handle(incident)
            return await handle.execute_update(GpuIncidentWorkflow.retire, word, rpc_timeout=CALL_TIMEOUT)

    async def approve_incident(self, incident: str, word: IncidentWord) -> IncidentState:
        """Approve what the incident waits for; raise `PolicyError` unless it waits for approval."""
        with _in_words(incident):
            handle = self.temporal.get_workflow_handle(incident)
            return await handle.execute_update(GpuIncidentWorkflow.approve, word, rpc_timeout=CALL_TIMEOUT)


@contextmanager
def _in_words(incident: str) -> Iterator[None]:
    """Say Temporal's errors about one incident in the bank's words."""
    try:
        with in_words(f"incident {incident!r}"):
            yield
    except NoSuchProcessError as error:
        raise NoSuchProcessError(
            f"incident {incident!r} does not run; `gpubank incident list` shows what does"
        ) from error


def _row(found: Any) -> IncidentRow:
    told = found.typed_search_attributes
    return IncidentRow(
        incident=found.id,
        running=found.status is WorkflowExecutionStatus.RUNNING,
        phase=IncidentPhase(told.get(attributes.PHASE, IncidentPhase.SUSPECT)),
        cluster=told.get(attributes.CLUSTER, ""),
        pool=told.get(attributes.POOL, ""),
        node=told.get(attributes.NODE, ""),
        cause=told.get(attributes.REASON, ""),
        needs_approval=told.get(attributes.NEEDS_APPROVAL, False),
        started_at=found.start_time,
        ended_at=found.close_time,
    )
