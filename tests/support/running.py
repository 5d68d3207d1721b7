"""The bank as it runs in production, beside a lab: worker and controller processes, Temporal, PostgreSQL, Kueue."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import yaml

from gpubank.adapters.ledger import SqlLedger
from gpubank.client import BankClient
from gpubank.domain.errors import BackendError
from gpubank.embedded.devserver import DevServer
from gpubank.faultgate import FaultGate
from gpubank.lab import Lab
from gpubank.lab.bank import LabBank, install
from gpubank.settings import TemporalSettings
from tests.contract.kueue_world import kueue_world
from tests.support.bank import Bank
from tests.support.restricted import restrict
from workflows import attributes

LEASE_SECONDS: Final = 4
"""A controller that is killed leaves a Lease behind; production's lasts 15 s."""


@dataclass
class RunningBank:
    """A bank that serves every pool of one lab."""

    lab: Lab
    processes: LabBank
    client: BankClient
    ledger: SqlLedger
    server: DevServer
    gate: FaultGate
    """Where crash tests hold worker and controller."""

    _leaving: list[asyncio.Task[None]] = field(default_factory=list)

    @asynccontextmanager
    async def pool(self, folder: Path) -> AsyncIterator[Bank]:
        """Open a pool for one scenario; what it leaves is cleared away in the background, while the next one runs."""
        stack = AsyncExitStack()
        world = await stack.enter_async_context(kueue_world(self.lab))
        bank = Bank(world, self.client, self.ledger, folder, world.add_namespace)
        try:
            yield bank
        finally:
            await bank.stop_auditing()
            self._leaving.append(asyncio.create_task(_leave(bank, stack)))
        self.processes.check()

    async def end(self) -> None:
        """Wait until every scenario has cleared up."""
        await asyncio.gather(*self._leaving)


async def _leave(bank: Bank, stack: AsyncExitStack) -> None:
    async with stack:
        await bank.leave()


@asynccontextmanager
async def running_bank(lab: Lab, ledger_url: str, folder: Path, *, gated: bool = True) -> AsyncIterator[RunningBank]:
    """Install the bank in a lab and run it until the block ends, with the rights of its manifests and no others.

    Without `gated` no crash test can hold it, and it is as quick as in production.
    """
    async with AsyncExitStack() as stack:
        await asyncio.to_thread(install, lab)
        server = await stack.enter_async_context(DevServer(folder / "temporal", search_attributes=attributes.KINDS))
        client = await connected(server.address)
        ledger = await stack.enter_async_context(await SqlLedger.open(ledger_url))
        processes = LabBank(lab, temporal=server.address, ledger=ledger_url, folder=folder)
        faults = folder / "faults"
        if gated:
            _mortal(processes.settings, faults)
        await asyncio.to_thread(restrict, lab, processes, read_seconds=1 if gated else None)
        stack.push_async_callback(asyncio.to_thread, processes.stop)
        await asyncio.to_thread(processes.start)
        bank = RunningBank(lab, processes, client, ledger, server, FaultGate(faults))
        stack.push_async_callback(bank.end)
        yield bank


def _mortal(settings: Path, faults: Path) -> None:
    """Have the processes come by gates, and a controller that was killed be followed soon."""
    content = yaml.safe_load(settings.read_text())
    content |= {"faults": {"folder": str(faults)}, "controller": {"lease_seconds": LEASE_SECONDS}}
    settings.write_text(yaml.safe_dump(content))


async def connected(address: str, seconds: float = 30) -> BankClient:
    """Connect to Temporal as soon as it answers."""
    end = asyncio.get_running_loop().time() + seconds
    while True:
        try:
            return await BankClient.connect(TemporalSettings(address=address))
        except BackendError:
            if asyncio.get_running_loop().time() > end:
                raise
            await asyncio.sleep(0.1)
