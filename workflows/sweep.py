"""A sweep of one cluster, by a Schedule: pool after pool, ledger, cluster and open workflows side by side.

It repairs nothing that has an author: it starts or tells who is missing, and reports the rest. What it found is its
result, and stands in the audit trail.
"""

from datetime import timedelta
from typing import Final

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from activities.interfaces import SweepCalls, cluster_queue
    from gpubank.domain.sweep import SweepFinding, SweepInput, SweepReport, SweepStep
    from workflows import attributes
    from workflows.details import sweep_details

_ATTEMPT: Final = timedelta(minutes=2)
_TRIES: Final = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_attempts=3)
"""The next sweep comes anyway."""


@workflow.defn(name="Sweep")
class SweepWorkflow:
    """Sweeps every pool once."""

    @workflow.run
    async def run(self, start: SweepInput) -> SweepReport:
        """Sweep, and return what was found."""
        workflow.upsert_search_attributes([attributes.CLUSTER.value_set(start.cluster)])
        queue = cluster_queue(start.cluster)
        listed = await workflow.execute_activity_method(
            SweepCalls.pools,
            start,
            task_queue=queue,
            start_to_close_timeout=_ATTEMPT,
            retry_policy=_TRIES,
            summary="which pools there are",
        )
        findings: list[SweepFinding] = []
        unswept: list[str] = []
        for pool in listed.pools:
            try:
                found = await workflow.execute_activity_method(
                    SweepCalls.sweep_pool,
                    SweepStep(cluster=start.cluster, pool=pool, settle=start.settle),
                    task_queue=queue,
                    start_to_close_timeout=_ATTEMPT,
                    retry_policy=_TRIES,
                    summary=f"sweep pool {pool}",
                )
            except ActivityError as error:
                unswept.append(f"{pool}: {error.cause or error}")
            else:
                findings += found.findings
            report = SweepReport(pools=len(listed.pools), findings=tuple(findings), unswept=tuple(unswept))
            workflow.set_current_details(sweep_details(start, report))
        return SweepReport(pools=len(listed.pools), findings=tuple(findings), unswept=tuple(unswept))
