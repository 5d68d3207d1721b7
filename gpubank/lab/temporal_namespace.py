"""A namespace for the bank on a Temporal server that has none: made, and told the bank's search attributes."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, TypeVar

from google.protobuf.duration_pb2 import Duration
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.service import RPCError, RPCStatusCode

from gpubank.client import CALL_TIMEOUT, BankClient
from gpubank.domain.errors import BackendError
from gpubank.lab.errors import StartError
from gpubank.settings import TemporalSettings

KEPT: Final = timedelta(days=1)
"""How long the history of an ended workflow stays."""
POLL: Final = 0.1

T = TypeVar("T")


def open_namespace(address: str, seconds: float) -> None:
    """Make the namespace that settings name by default and the bank's search attributes; what is there stays.

    Raises StartError if the server does not serve them in that time.
    """
    asyncio.run(_open(TemporalSettings(address=address), seconds))


async def _open(settings: TemporalSettings, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    client = await _insist(lambda: BankClient.connect(settings), deadline)
    # Its frontend answers before it has found the other services.
    await _insist(lambda: _make(client), deadline)
    await _insist(client.register_search_attributes, deadline)
    # The services look every two seconds what a namespace is, and until then refuse to speak of its attributes.
    await _insist(lambda: client.reclaims(lender="nobody", limit=1), deadline)


async def _make(client: BankClient) -> None:
    request = RegisterNamespaceRequest(
        namespace=client.temporal.namespace,
        workflow_execution_retention_period=Duration(seconds=int(KEPT.total_seconds())),
    )
    try:
        await client.temporal.workflow_service.register_namespace(request, timeout=CALL_TIMEOUT)
    except RPCError as error:
        if error.status is not RPCStatusCode.ALREADY_EXISTS:
            raise


async def _insist(step: Callable[[], Awaitable[T]], deadline: float) -> T:
    """Take a step until the server lets it succeed."""
    while True:
        try:
            return await step()
        except (RPCError, BackendError) as error:
            if time.monotonic() > deadline:
                raise StartError(f"temporal does not serve the bank's namespace: {error}") from error
        await asyncio.sleep(POLL)
