"""The way from a command to the bank: a Unix socket in embedded mode, kubeconfig and database in cluster mode.

Door ──▶ cluster      objects, and what the scheduler sees
     ──▶ ledger()     the books, opened only when they are read
     ──▶ processes()  Temporal, connected only when it is asked for

A command that needs neither, such as `freeze`, works whatever of them is down.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from gpubank.cli.context import NotFoundError

if TYPE_CHECKING:
    from gpubank.client import IncidentRow, LoanRow, ReclaimRow
    from gpubank.decide.agreement import Agreement
    from gpubank.domain.facts import PoolFacts
    from gpubank.domain.incident import IncidentState, IncidentWord
    from gpubank.domain.recall import Decision, Extension, LoanState, ReclaimState
    from gpubank.ports import LedgerStore
    from gpubank.settings import Settings


class Cluster(Protocol):
    """What commands need of the cluster, in either mode."""

    async def list(self, kind: str) -> Sequence[dict[str, Any]]:
        """Every object of a kind."""
        ...

    async def get(self, kind: str, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        """One object, or None."""
        ...

    async def apply(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create or replace one object."""
        ...

    async def delete(self, kind: str, name: str, namespace: str | None = None) -> bool:
        """Delete one object; False when there was none."""
        ...

    async def patch_status(
        self,
        kind: str,
        name: str,
        namespace: str | None,
        status: Mapping[str, Any],
        *,
        seen: str,
        dry_run: bool = False,
    ) -> None:
        """Replace the status; `ConflictError` if the object moved on since version `seen`.

        With `dry_run` everything is checked as for a write, and nothing is kept.
        """
        ...

    async def observe(self, pool: str) -> "PoolFacts":
        """What the scheduler sees of a pool."""
        ...

    async def whoami(self) -> str | None:
        """Return the name that the API server knows the caller by; None where nobody can confirm one."""
        ...


class Processes(Protocol):
    """What commands need of Temporal; `gpubank.client.BankClient` is one."""

    async def loans(
        self,
        *,
        cluster: str | None = None,
        pool: str | None = None,
        borrower: str | None = None,
        running_only: bool = True,
        limit: int = 500,
    ) -> "Sequence[LoanRow]":
        """List Loans, newest first."""
        ...

    async def reclaims(
        self,
        *,
        cluster: str | None = None,
        pool: str | None = None,
        lender: str | None = None,
        running_only: bool = True,
        limit: int = 500,
    ) -> "Sequence[ReclaimRow]":
        """List Reclaims, newest first."""
        ...

    async def loan_state(self, loan: str) -> "LoanState":
        """Return one Loan; `PolicyError` where Temporal knows none of this id."""
        ...

    async def reclaim_state(self, reclaim: str) -> "ReclaimState":
        """Return one Reclaim; `PolicyError` where Temporal knows none of this id."""
        ...

    async def extend(self, loan: str, extension: "Extension") -> "LoanState":
        """Give a recalled job more time; `PolicyError` says why not."""
        ...

    async def return_now(self, loan: str, decision: "Decision") -> "LoanState":
        """Have a job saved and stopped; `PolicyError` says why not."""
        ...

    async def approve(self, reclaim: str, decision: "Decision") -> "ReclaimState":
        """Approve what a recall would take; `PolicyError` says why not."""
        ...

    async def deny(self, reclaim: str, decision: "Decision") -> "ReclaimState":
        """Deny what a recall would take; `PolicyError` says why not."""
        ...

    async def incidents(
        self,
        *,
        cluster: str | None = None,
        pool: str | None = None,
        node: str | None = None,
        running_only: bool = True,
        limit: int = 500,
    ) -> "Sequence[IncidentRow]":
        """List incidents, newest first."""
        ...

    async def incident_state(self, incident: str) -> "IncidentState":
        """Return one incident; `PolicyError` where Temporal knows none of this id."""
        ...

    async def incident_waits(self, incident: str) -> "Sequence[str]":
        """Return what does not work yet, in its own words."""
        ...

    async def repaired(self, incident: str, word: "IncidentWord") -> "IncidentState":
        """Say that a GPU is repaired; `PolicyError` says why not."""
        ...

    async def retire(self, incident: str, word: "IncidentWord") -> "IncidentState":
        """Take a GPU out for good; `PolicyError` says why not."""
        ...

    async def approve_incident(self, incident: str, word: "IncidentWord") -> "IncidentState":
        """Approve what an incident waits for; `PolicyError` says why not."""
        ...


class Door:
    """An open way to the bank."""

    def __init__(
        self,
        settings: "Settings",
        cluster: Cluster,
        ledger: "LedgerStore | None" = None,
        processes: Processes | None = None,
    ) -> None:
        """Ledger and Temporal that are not given are opened as the settings say when they are first needed."""
        import asyncio  # help and offline checks do without

        self.settings, self.cluster = settings, cluster
        self._ledger, self._processes = ledger, processes
        self._opening = asyncio.Lock()
        self._stack = AsyncExitStack()

    @property
    def cluster_name(self) -> str:
        """Name of the cluster in ids and in the ledger."""
        return self.settings.cluster.name

    async def close(self) -> None:
        """Close what was opened on the way."""
        await self._stack.aclose()

    async def ledger(self) -> "LedgerStore":
        """Open the books, once.

        Raises `BackendError` where the database does not answer or is of another schema, `PolicyError` where the
        settings name none.
        """
        async with self._opening:  # two that read at once open it once
            if self._ledger is None:
                from gpubank.adapters.ledger import SqlLedger

                opened = await SqlLedger.open(self.settings.database_url, upgrade=False)
                self._ledger = await self._stack.enter_async_context(opened)
            return self._ledger

    async def processes(self) -> Processes:
        """Connect to Temporal, once; `BackendError` where it does not answer."""
        if self._processes is None:
            from gpubank.client import BankClient  # Temporal's SDK takes longer to import than most commands to run

            self._processes = await BankClient.connect(self.settings.temporal)
        return self._processes

    async def agreement(self) -> "Agreement":
        """What is in force now."""
        from gpubank.agreements import agreement, read_objects

        return agreement(self.cluster_name, await read_objects(self.cluster), now=datetime.now(UTC))

    async def pools(self, only: str | None = None) -> list[str]:
        """Names of the pools, or just `only`, which must be there."""
        names = sorted(pool["metadata"]["name"] for pool in await self.cluster.list("GPUPool"))
        if only is None:
            return names
        if only not in names:
            have = ", ".join(names) or "there is none"
            raise NotFoundError(f"pool {only!r} does not exist; have: {have}")
        return [only]

    async def check_pool(self, name: str | None) -> None:
        """Raise `NotFoundError` where a pool is named that is not there."""
        if name is not None:
            await self.pools(name)


@asynccontextmanager
async def open_door(settings: "Settings") -> AsyncIterator[Door]:
    """Open the way that the settings name; `BackendError` says what does not answer.

    The ledger is opened when a command first reads it, and closed with the door.
    """
    from gpubank.settings import Mode

    async with AsyncExitStack() as stack:
        cluster: Cluster
        if settings.mode is Mode.EMBEDDED:
            from gpubank.adapters.embedded import EmbeddedClient

            cluster = client = await stack.enter_async_context(EmbeddedClient(settings.socket))
            settings = embedded_settings(settings, await client.status())
        else:
            from gpubank.cli.cluster import open_cluster

            cluster = await stack.enter_async_context(open_cluster(settings))
        door = Door(settings, cluster)
        stack.push_async_callback(door.close)
        yield door


def embedded_settings(settings: "Settings", status: Mapping[str, Any]) -> "Settings":
    """Return the settings with the addresses that the running bank tells."""
    from pydantic import SecretStr

    temporal = settings.temporal.model_copy(update={"address": status["temporal"], "ui_url": status["ui"]})
    ledger = settings.ledger.model_copy(update={"url": SecretStr(status["database"])})
    return settings.model_copy(update={"temporal": temporal, "ledger": ledger})
