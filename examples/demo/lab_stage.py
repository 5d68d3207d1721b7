"""The play's real stage: etcd, Kubernetes, Kueue, PostgreSQL and Temporal, with the bank's processes beside them."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from gpubank.adapters.kubernetes.connection import Connection
from gpubank.adapters.kubernetes.kinds import JOB
from gpubank.adapters.kubernetes.objects import KubernetesObjectStore
from gpubank.adapters.ledger import SqlLedger
from gpubank.client import BankClient
from gpubank.embedded.devserver import DevServer
from gpubank.lab import Lab, LabError, Progress, Stage
from gpubank.lab.bank import LabBank, install
from gpubank.ports import LedgerStore
from gpubank.settings import TemporalSettings
from workflows import attributes

NAME: Final = "demo"
"""Name of the lab that is brought up for the play, and taken down after it."""

POOL: Final = "demo"
NAMESPACES: Final = ("search", "vision")


class LabStage:
    """Real Kueue, seen through the API server."""

    def __init__(
        self, connection: Connection, ledger: SqlLedger, client: BankClient, ui_url: str, bank: LabBank
    ) -> None:
        self._connection, self._objects = connection, KubernetesObjectStore(connection)
        self._bank = bank
        self.ledger: LedgerStore = ledger
        self.client, self.ui_url = client, ui_url
        self.hint = f"GPUBANK_CONFIG={bank.settings} .venv/bin/gpubank quota"

    async def apply(self, body: Mapping[str, Any]) -> None:
        await self._objects.apply(body)

    async def submit(self, job: Mapping[str, Any]) -> None:
        await self._connection.create(JOB, dict(job), strict=True)

    async def job_state(self, namespace: str, name: str) -> str:
        self._bank.check()
        job = await self._connection.get(JOB, name, namespace)
        if job is None:
            return ""
        status = job.get("status", {})
        ended = {each["type"] for each in status.get("conditions", ()) if each["status"] == "True"}
        if "Complete" in ended:
            return "Succeeded"
        if "Failed" in ended:
            return "Failed"
        if job["spec"].get("suspend"):
            return "Suspended"
        return "Running" if status.get("ready") else "Pending"


@asynccontextmanager
async def open_lab_stage(folder: Path) -> AsyncIterator[LabStage]:
    """Start everything that the play needs, and take it down again."""
    lab = Lab(NAME, nodes=2, gpus_per_node=8, pool=POOL, extra=("postgres",), report=_show)
    async with AsyncExitStack() as stack:
        if lab.is_up():
            raise LabError(f"lab {NAME!r} is up: another play runs; or end it by `gpubank lab down --name {NAME}`")
        await stack.enter_async_context(lab)
        await asyncio.to_thread(install, lab, NAMESPACES)
        server = await stack.enter_async_context(DevServer(folder / "temporal", search_attributes=attributes.KINDS))
        client = await BankClient.connect(TemporalSettings(address=server.address, ui_url=server.ui_url))
        ledger = await stack.enter_async_context(await SqlLedger.open(lab.postgres_url))
        bank = LabBank(
            lab, temporal=server.address, ui_url=server.ui_url, ledger=lab.postgres_url, folder=folder / "bank"
        )
        stack.push_async_callback(asyncio.to_thread, bank.stop)
        await asyncio.to_thread(bank.start)
        connection = await stack.enter_async_context(Connection.open(lab.kubeconfig))
        yield LabStage(connection, ledger, client, server.ui_url, bank)


def _show(progress: Progress) -> None:
    """Say what is compiled: it may take minutes, once."""
    if progress.stage is Stage.BUILDING:
        print(f"  {progress.component}: {progress.detail}", flush=True)
