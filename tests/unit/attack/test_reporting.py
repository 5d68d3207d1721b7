"""The node's reporter and the webhook: one report harms no other, and an address tells no secrets."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from temporalio.service import RPCError, RPCStatusCode

from gpubank.adapters.webhook import Webhook
from gpubank.domain.errors import PolicyError
from gpubank.domain.incident import Edges, IncidentInput
from gpubank.domain.refusal import read
from nodeagent.reporter import MOST_AT_ONCE, Reporter
from nodeagent.reporting.edges import look
from nodeagent.reporting.settings import ReporterSettings
from nodeagent.reporting.spool import MEMORY_FILE, Spool


class Picky:
    """The part of Temporal's client that a delivery needs; refuses one GPU's reports."""

    def __init__(self, refused: str) -> None:
        self.refused = refused
        self.taken: dict[str, list[str]] = {}
        self.largest = 0
        self.rounds = 0
        self.second_round = asyncio.Event()

    async def start_workflow(self, _: str, start: IncidentInput, **options: Any) -> None:
        if start.uuid == self.refused:
            self.rounds += 1
            if self.rounds == 2:
                self.second_round.set()
            raise RPCError("exceeded the limit of signals", RPCStatusCode.INVALID_ARGUMENT, b"")
        (edges,) = options["start_signal_args"]
        assert isinstance(edges, Edges)
        self.taken.setdefault(start.uuid, []).extend(edge.id for edge in edges.edges)
        self.largest = max(self.largest, len(edges.edges))


def spooled(folder: Path, faults: dict[str, int]) -> Spool:
    spool = Spool(folder, most=10_000)
    gpus = [
        {
            "uuid": uuid,
            "marks": [
                {
                    "cause": f"c{n}",
                    "fault": "reset",
                    "action": "",
                    "first_at": at * 1000.0,
                    "last_at": at * 1000.0,
                    "count": 1,
                }
                for n in range(count)
            ],
        }
        for at, (uuid, count) in enumerate(faults.items())
    ]
    spool.take(look({"gpus": gpus}, {}, node="n1", boot_id="", burst=180))
    return spool


async def test_reports_that_temporal_refuses_hold_up_nobody_elses(tmp_path: Path) -> None:
    spool = spooled(tmp_path / "spool", {"GPU-bad": 1, "GPU-good": 2})
    settings = read(ReporterSettings, {"spoolDirectory": str(tmp_path / "spool"), "pluginDirectory": str(tmp_path)})
    client = Picky("GPU-bad")
    delivering = asyncio.create_task(Reporter(settings, "n1")._deliver(client))  # type: ignore[arg-type]
    try:
        async with asyncio.timeout(20):
            await client.second_round.wait()
    finally:
        delivering.cancel()
        await asyncio.gather(delivering, return_exceptions=True)
    assert len(client.taken["GPU-good"]) == 2
    assert [waiting.uuid for waiting in spool.waiting()] == ["GPU-bad"], "it is kept, and tried again"


async def test_many_reports_of_one_gpu_go_in_parts_that_temporal_can_take(tmp_path: Path) -> None:
    spool = spooled(tmp_path / "spool", {"GPU-1": 2 * MOST_AT_ONCE + 1})
    settings = read(ReporterSettings, {"spoolDirectory": str(tmp_path / "spool"), "pluginDirectory": str(tmp_path)})
    client = Picky("")
    assert await Reporter(settings, "n1")._tell(client, "GPU-1", spool.waiting())  # type: ignore[arg-type]
    assert (len(set(client.taken["GPU-1"])), client.largest) == (2 * MOST_AT_ONCE + 1, MOST_AT_ONCE)
    assert spool.waiting() == []


def test_numbers_that_no_clock_shows_are_no_reason_to_stop(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    body = {"version": 1, "gpus": {"GPU-1": {"lost": [10**400, 1]}}}
    (tmp_path / MEMORY_FILE).write_text(json.dumps(body))
    assert spool.memory() == {}


@pytest.mark.parametrize(
    "url",
    [
        "https://robot:hunter2@tickets.example.com/",
        "https://tickets.example.com:99999/?token=hunter2",
        "https://[fe80::1/?token=hunter2",
        "ftp://tickets.example.com/?token=hunter2",
        "https://@tickets.example.com/hunter2",
    ],
)
def test_an_address_that_cannot_be_called_is_refused_at_the_start_and_not_repeated(url: str) -> None:
    with pytest.raises(PolicyError, match=r"incidents\.webhook\.url") as refused:
        Webhook(url, secret="s")
    assert "hunter2" not in str(refused.value)
