"""The heartbeat of one pool: proof that Temporal, a worker, the controller and the ledger work together there.

It is one activity that renews a Lease and is retried until the pool is gone; the watchdog watches the Lease.
"""

from datetime import timedelta
from typing import Final

from temporalio import workflow
from temporalio.common import RetryPolicy

with workflow.unsafe.imports_passed_through():
    from activities.interfaces import HeartbeatCalls, cluster_queue
    from gpubank.domain.failsafe import HeartbeatInput
    from workflows import attributes
    from workflows.details import heartbeat_details
    from workflows.waiting import unless

_SHORTEST: Final = timedelta(milliseconds=100)

_ATTEMPT: Final = timedelta(seconds=15)
"""Longest beat; one that was lost with its worker must not break the chain of them."""


@workflow.defn(name="Heartbeat")
class HeartbeatWorkflow:
    """Beats until the pool is gone."""

    @workflow.init
    def __init__(self, start: HeartbeatInput) -> None:
        self._over = False

    @workflow.run
    async def run(self, start: HeartbeatInput) -> None:
        """Beat until told to end."""
        workflow.set_current_details(heartbeat_details(start))
        workflow.upsert_search_attributes(
            [attributes.CLUSTER.value_set(start.cluster), attributes.POOL.value_set(start.pool)]
        )
        every = max(start.every, _SHORTEST)
        beat = workflow.start_activity_method(
            HeartbeatCalls.beat,
            start,
            task_queue=cluster_queue(start.cluster),
            start_to_close_timeout=_ATTEMPT,
            retry_policy=RetryPolicy(initial_interval=every, backoff_coefficient=1, maximum_interval=every),
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            summary=f"sign of life of pool {start.pool}",
        )
        await unless(beat, lambda: self._over)

    @workflow.signal
    def end(self) -> None:
        """Take down that the pool is gone."""
        self._over = True
