"""The way of a report: plugin, spool, Temporal, incident, and back to the plugin; with Temporal away and crashes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from activities.interfaces import BANK_QUEUE
from gpubank.client import BankClient
from gpubank.domain.incident import QUEUE, IncidentPhase
from gpubank.domain.refusal import read
from gpubank.embedded.devserver import DevServer
from gpubank.settings import TemporalSettings
from gpubank.simulation.processes import free_port
from nodeagent.reporter import LONGEST_PAUSE, Reporter
from nodeagent.reporting.edges import Look, look
from nodeagent.reporting.settings import ReporterSettings
from nodeagent.reporting.spool import Spool, Waiting
from tests.fakes.bank import FakeBank, fake_bank
from tests.fakes.incidents import Incidents, hasty
from tests.fakes.plugin import FakePlugin, fake_plugin
from tests.support.waiting import seen
from tests.workflows.conftest import connected, settings_of
from workflows import attributes

pytestmark = pytest.mark.temporal
P = IncidentPhase
NODE = "h100-node-1"


def settings(folder: Path, spool: Path, temporal: TemporalSettings, **changes: Any) -> ReporterSettings:
    body = {
        "node": NODE,
        "temporal": {"address": temporal.address, "namespace": temporal.namespace},
        "pluginDirectory": str(folder),
        "spoolDirectory": str(spool),
        "podResourcesSocket": str(folder / "none.sock"),
        "look": 0.05,
        **changes,
    }
    return read(ReporterSettings, body)


@asynccontextmanager
async def running(reporter: Reporter) -> AsyncIterator[Reporter]:
    task = asyncio.create_task(reporter.run())
    try:
        yield reporter
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_the_reporter_and_the_workers_mean_the_same_queue() -> None:
    assert QUEUE == BANK_QUEUE


async def test_what_was_seen_while_temporal_was_away_is_delivered_when_it_is_back(tmp_path: Path) -> None:
    port = free_port()
    async with fake_plugin() as (plugin, folder):
        told = settings(folder, tmp_path / "spool", TemporalSettings(address=f"127.0.0.1:{port}"))
        plugin.fault("xid 119", "reset", verdict="GPU_RESET")
        async with running(Reporter(told, NODE)):
            await seen(lambda: Spool(tmp_path / "spool").waiting(), "a report that is kept")
        plugin.fault("remap-failed", "hardware", verdict="GPU_RESET")
        async with (
            running(Reporter(told, NODE)),
            DevServer(tmp_path / "temporal", search_attributes=attributes.KINDS, persistent=False, port=port) as server,
            fake_bank(await connected(server.address), {"research": 8, "serving": 8}) as bank,
            hasty(bank) as incidents,
        ):
            node = incidents.node()
            state = await incidents.where(node, lambda state: state.phase is P.TICKETED, "it is ticketed", 60)
            assert sorted(fault.cause for fault in state.faults) == ["remap-failed", "xid 119"]
            assert plugin.marks["quarantine"]["note"].startswith(f"{incidents.id(node)}: ")
            await seen(lambda: not Spool(tmp_path / "spool").waiting(), "every delivery")
            plugin.verdict = "NONE"
            ended = await incidents.where(node, lambda state: state.phase is P.RECOVERED, "it recovers", 60)
        assert plugin.marks == {}
    assert ended.repaired_by.startswith("the driver")


class Resting(Reporter):
    """Notes its pauses, and does not wait."""

    def __init__(self, settings: ReporterSettings, node: str) -> None:
        super().__init__(settings, node)
        self.rests: list[float] = []

    async def _rest(self, seconds: float) -> None:
        self.rests.append(seconds)
        await asyncio.sleep(0)

    def rested(self) -> bool:
        return len(self.rests) >= 8

    def lose_the_spool(self) -> None:
        def waiting() -> list[Waiting]:
            raise OSError("the disk is gone")

        self._spool.waiting = waiting  # type: ignore[method-assign]


async def test_work_that_ends_at_once_is_tried_again_after_longer_and_longer_pauses(
    bank_client: BankClient, tmp_path: Path
) -> None:
    here = settings_of(bank_client)
    elsewhere = here.model_copy(update={"namespace": "nowhere"})
    async with fake_plugin() as (_, folder):
        strayed = Resting(settings(folder, tmp_path / "strayed", elsewhere), NODE)
        broken = Resting(settings(folder, tmp_path / "broken", here), NODE)
        broken.lose_the_spool()
        for reporter in (strayed, broken):
            async with running(reporter):
                await seen(reporter.rested, "the eighth try")
            assert reporter.rests[:8] == [1, 2, 4, 8, 16, 32, LONGEST_PAUSE, LONGEST_PAUSE]


class Dying(Reporter):
    """Dies after Temporal took a report and before it is forgotten, so often."""

    def __init__(self, settings: ReporterSettings, node: str) -> None:
        super().__init__(settings, node)
        self.deaths = 0
        spool, forget = self._spool, self._spool.delivered

        def delivered(waiting: Waiting) -> None:
            if self.deaths < 2:
                self.deaths += 1
                raise RuntimeError("killed")
            forget(waiting)

        spool.delivered = delivered  # type: ignore[method-assign]


@pytest.fixture
async def incidents(bank: FakeBank) -> AsyncIterator[Incidents]:
    async with hasty(bank) as found:
        yield found


@pytest.fixture
async def plugin(incidents: Incidents) -> AsyncIterator[tuple[FakePlugin, Path]]:
    async with fake_plugin() as found:
        yield found


async def test_a_reporter_that_dies_between_delivery_and_forgetting_tells_twice_and_it_counts_once(
    incidents: Incidents, plugin: tuple[FakePlugin, Path], tmp_path: Path
) -> None:
    broken, folder = plugin
    broken.fault("xid 119", "reset", verdict="GPU_RESET")
    async with running(Dying(settings(folder, tmp_path, settings_of(incidents.bank.client)), NODE)) as reporter:
        assert isinstance(reporter, Dying)
        node = incidents.node()
        state = await incidents.reaches(node, P.TICKETED)
        await seen(lambda: reporter.deaths == 2 and not Spool(tmp_path).waiting(), "the third telling")
        assert (len(state.known), len(state.faults)) == (1, 1)
        handle = incidents.bank.client.temporal.get_workflow_handle(incidents.id(node))
        signals = [event async for event in handle.fetch_history_events() if event.HasField(
            "workflow_execution_signaled_event_attributes")]  # fmt: skip
        assert len(signals) == 3
        assert [record.phase for record in (await incidents.state(node)).history] == [
            P.CORDONED,
            P.DRAINED,
            P.TICKETED,
        ]


async def test_a_burst_is_one_incident_and_one_report(
    incidents: Incidents, plugin: tuple[FakePlugin, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, folder = plugin
    looked: list[int] = []

    def noted(inspected: dict[str, Any], *rest: Any, **options: Any) -> Look:
        looked.extend(mark["count"] for gpu in inspected["gpus"] for mark in gpu["marks"])
        return look(inspected, *rest, **options)

    monkeypatch.setattr("nodeagent.reporter.look", noted)
    async with running(Reporter(settings(folder, tmp_path, settings_of(incidents.bank.client)), NODE)):
        broken.fault("hung", "transient")
        node = incidents.node()
        await incidents.where(node, lambda state: state.cause == "hung", "it is told")
        for _ in range(5):
            broken.marks["hung"]["last_at"] += 60.0
            broken.marks["hung"]["count"] += 1
            await seen(lambda: broken.marks["hung"]["count"] in looked, "a look at the burst")
        broken.marks.clear()
        ended = await incidents.reaches(node, P.RECOVERED)
    assert len(ended.known) == 1
    assert [record.phase for record in ended.history] == [P.RECOVERED]
