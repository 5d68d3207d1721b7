"""The way from a command to the bank: a Unix socket in embedded mode, kubeconfig and database in cluster mode."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Protocol

from gpubank.adapters.embedded import EmbeddedClient
from gpubank.adapters.ledger import SqlLedger
from gpubank.agreements import read_objects
from gpubank.cli.context import NotFoundError
from gpubank.decide.agreement import Agreement, agree
from gpubank.domain.facts import PoolFacts
from gpubank.ports import LedgerStore
from gpubank.settings import Mode, Settings


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

    async def observe(self, pool: str) -> PoolFacts:
        """What the scheduler sees of a pool."""
        ...


class Door:
    """An open way to the bank."""

    def __init__(
        self, settings: Settings, cluster: Cluster, ledger: LedgerStore, temporal_address: str, ui: str
    ) -> None:
        self.settings, self.cluster, self.ledger = settings, cluster, ledger
        self.temporal_address, self.ui_url = temporal_address, ui

    async def agreement(self) -> Agreement:
        """What is in force now."""
        objects = await read_objects(self.cluster)
        return agree(self.settings.cluster.name, objects.pools, objects.groups, objects.policies)

    async def pools(self, only: str | None = None) -> list[str]:
        """Names of the pools, or just `only`, which must be there."""
        names = sorted(pool["metadata"]["name"] for pool in await self.cluster.list("GPUPool"))
        if only is None:
            return names
        if only not in names:
            have = ", ".join(names) or "there is none"
            raise NotFoundError(f"pool {only!r} does not exist; have: {have}")
        return [only]


@asynccontextmanager
async def open_door(settings: Settings) -> AsyncIterator[Door]:
    """Open the way that the settings name; `BackendError` says what does not answer."""
    async with AsyncExitStack() as stack:
        if settings.mode is Mode.EMBEDDED:
            client = await stack.enter_async_context(EmbeddedClient(settings.socket))
            status = await client.status()
            ledger = await stack.enter_async_context(await SqlLedger.open(status["database"], upgrade=False))
            temporal = settings.temporal.model_copy(update={"address": status["temporal"], "ui_url": status["ui"]})
            yield Door(settings.model_copy(update={"temporal": temporal}), client, ledger, ui_url=status["ui"])
            return
        from gpubank.cli.cluster import open_cluster  # its imports take longer than a whole embedded command

        cluster = await stack.enter_async_context(open_cluster(settings))
        ledger = await stack.enter_async_context(await SqlLedger.open(settings.database_url, upgrade=False))
        yield Door(settings, cluster, ledger, ui_url=settings.temporal.ui_url)
