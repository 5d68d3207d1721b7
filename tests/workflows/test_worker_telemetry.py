"""The worker's probes by its poller gauge, and what it counts, on a real Temporal server."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta

import pytest
from temporalio import activity, workflow
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from gpubank.client import BankClient
from gpubank.probes import Check
from tests.workflows.conftest import settings_of
from workers.telemetry import SILENT_AFTER, Telemetry

QUEUE = "telemetry"


class Seconds:
    """A monotonic clock that is moved by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@workflow.defn(name="Broken")
class Broken:
    """A workflow with a bug: its task fails, and is tried again for ever."""

    @workflow.run
    async def run(self) -> None:
        raise RuntimeError("a bug")


@activity.defn
async def nothing() -> None:
    """Do nothing."""


@pytest.fixture
async def clock() -> Seconds:
    return Seconds()


@pytest.fixture
async def telemetry(clock: Seconds) -> AsyncIterator[Telemetry]:
    telemetry = Telemetry(monotonic=clock)
    yield telemetry
    await telemetry.close()


@pytest.fixture
async def client(bank_client: BankClient, telemetry: Telemetry) -> BankClient:
    return await BankClient.connect(settings_of(bank_client), telemetry.runtime)


async def until(look: Callable[[], Awaitable[bool]], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not await look():  # noqa: ASYNC110
            await asyncio.sleep(0.1)


def says(check: Check, text: str) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return await check() == text

    return look


async def test_a_worker_is_ready_while_it_polls_and_dead_when_it_has_not_polled_for_long(
    client: BankClient, telemetry: Telemetry, clock: Seconds
) -> None:
    probes = telemetry.probes([QUEUE])
    (alive,), (ready,) = probes.live, probes.ready
    assert await ready() == f"nothing polls task queue {QUEUE}"
    assert await alive() == ""
    clock.now += SILENT_AFTER + 1
    assert await alive() == f"nothing has polled task queue {QUEUE} for {SILENT_AFTER:.0f} s"
    async with Worker(client.temporal, task_queue=QUEUE, activities=[nothing]):
        await until(says(ready, ""))
        clock.now += SILENT_AFTER - 1
        assert await alive() == ""  # it has had no task in all that time
    await until(says(ready, f"nothing polls task queue {QUEUE}"))


async def test_a_workflow_whose_tasks_fail_again_and_again_is_counted(client: BankClient) -> None:
    assert await client.stuck() == 0
    worker = Worker(client.temporal, task_queue=QUEUE, workflows=[Broken], workflow_runner=UnsandboxedWorkflowRunner())
    async with worker:
        handle = await client.temporal.start_workflow(
            Broken.run, id="broken", task_queue=QUEUE, task_timeout=timedelta(seconds=1)
        )

        async def counted() -> bool:
            return await client.stuck() == 1

        await until(counted)
        await handle.terminate()
