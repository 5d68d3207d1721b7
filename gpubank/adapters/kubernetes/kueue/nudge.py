"""Placeholder until measured."""

from gpubank.adapters.kubernetes.connection import Connection
from gpubank.adapters.kubernetes.kueue.view import View
from gpubank.domain.loan import WorkloadKey


async def nudge(connection: Connection, view: View, pool: str, workload: WorkloadKey) -> None:
    """Nothing yet."""
