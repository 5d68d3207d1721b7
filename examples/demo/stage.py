"""Where the play takes place: the embedded bank, or a lab of real servers with worker and controller beside it."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from gpubank.client import BankClient
from gpubank.embedded.bank import EmbeddedBank, embedded_bank
from gpubank.ports import LedgerStore
from gpubank.settings import Settings

POOL = "demo"


class Stage(Protocol):
    """What the play needs."""

    ledger: LedgerStore
    client: BankClient
    ui_url: str
    hint: str
    """A command line to look around with."""

    async def apply(self, body: Mapping[str, Any]) -> None:
        """Create or replace an object of the bank."""
        ...

    async def submit(self, job: Mapping[str, Any]) -> None:
        """Submit a Job."""
        ...

    async def job_state(self, namespace: str, name: str) -> str:
        """Running, Succeeded, Failed, or another word; empty if there is no such Job."""
        ...


class EmbeddedStage:
    """The simulated cluster in this process."""

    def __init__(self, bank: EmbeddedBank) -> None:
        self._bank = bank
        self.ledger: LedgerStore = bank.ledger
        self.client = bank.client
        self.ui_url = bank.server.ui_url
        self.hint = f".venv/bin/gpubank --state-dir {bank.settings.state_dir} quota"

    async def apply(self, body: Mapping[str, Any]) -> None:
        await self._bank.cluster.objects.apply(body)

    async def submit(self, job: Mapping[str, Any]) -> None:
        self._bank.cluster.submit(job)

    async def job_state(self, namespace: str, name: str) -> str:
        jobs = self._bank.cluster.list_jobs(namespace)
        return next((job.state.value for job in jobs if job.name == name), "")


@asynccontextmanager
async def embedded_stage(folder: Path) -> AsyncIterator[Stage]:
    """Start the embedded bank with two nodes of eight GPUs."""
    async with embedded_bank(Settings.load({"mode": "embedded", "state_dir": folder / "state"})) as bank:
        await bank.add_nodes(POOL, 2, 8)
        yield EmbeddedStage(bank)


@asynccontextmanager
async def lab_stage(folder: Path) -> AsyncIterator[Stage]:
    """Start real servers: etcd, Kubernetes, Kueue, PostgreSQL, Temporal, and the bank's worker and controller."""
    from examples.demo.lab_stage import open_lab_stage  # only this stage needs the lab's parts

    async with open_lab_stage(folder) as stage:
        yield stage
