"""Whoever is told to stop stops, also in the very moment in which what it waits for comes true."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from activities.pools import _within
from gpubank.controller.controller import Controller
from gpubank.domain.pool import Backend
from gpubank.simulation.clock import ManualClock
from gpubank.simulation.cluster import SimulatedCluster
from nodeagent.plugin.watch import FolderWatch
from tests.unit.controller.harness import Remembered

MOMENTS = range(6)
"""Turns of the event loop between what was waited for and the order to stop."""


async def stops(work: Callable[[], Awaitable[object]], moment: Callable[[], None], turns: int) -> bool:
    """Whether somebody who works for ever ends when told to, so many turns after something happened."""

    async def forever() -> None:
        while True:
            await work()

    task = asyncio.create_task(forever())
    await asyncio.sleep(0.02)
    moment()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=1)
    if not done:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return bool(done)


@pytest.mark.parametrize("turns", MOMENTS)
async def test_the_device_plugin_stops_although_its_folder_changes(turns: int) -> None:
    changed = asyncio.Event()
    assert await stops(FolderWatch(60, changed).wait, changed.set, turns)


@pytest.mark.parametrize("turns", MOMENTS)
async def test_an_activity_stops_although_something_changes(turns: int) -> None:
    changed = asyncio.Event()

    async def comes() -> None:
        await changed.wait()

    async def look() -> None:
        await _within(60, comes())
        changed.clear()

    assert await stops(look, changed.set, turns)


@pytest.mark.parametrize("turns", MOMENTS)
async def test_a_controller_that_loses_the_lead_stops_although_an_object_changes(turns: int) -> None:
    cluster = SimulatedCluster(ManualClock())
    events: list[asyncio.Event] = []

    class Watched(Controller):
        async def _watch(self, changed: asyncio.Event) -> None:
            events.append(changed)
            await asyncio.Event().wait()

        async def reconcile(self) -> None:
            """Nothing is to be seen to."""

        async def _post(self) -> None:
            """Nothing is to be posted."""

        async def _keep_beating(self) -> None:
            """Nobody looks."""

    controller = Watched(
        "local",
        objects=cluster.objects,
        backends={Backend.KUEUE: cluster},
        ledger=None,  # type: ignore[arg-type]
        processes=Remembered(),
        notifier=cluster.notices,
        now=cluster.clock.now,
        resync=timedelta(seconds=60),
    )
    assert await stops(controller.run, lambda: events[0].set(), turns)
