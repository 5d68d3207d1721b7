"""Cluster mode's side of the door: the API server of a kubeconfig, and Kueue behind it."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from gpubank.adapters.kubernetes.connection import Connection
from gpubank.adapters.kubernetes.errors import ApiError
from gpubank.adapters.kubernetes.kinds import BANK_KINDS
from gpubank.adapters.kubernetes.kueue.backend import KueueBackend
from gpubank.adapters.kubernetes.objects import KubernetesObjectStore
from gpubank.cli.context import NotFoundError
from gpubank.domain.errors import PolicyError
from gpubank.domain.facts import PoolFacts
from gpubank.domain.layout import LayoutProblem
from gpubank.schema import KINDS, kind_named
from gpubank.settings import Settings

REVIEW_PATH = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


class KubernetesCluster:
    """`Cluster` on an API server; the watches that observing needs begin with the first look."""

    def __init__(self, connection: Connection, *, cluster: str) -> None:
        self.connection = connection
        self.backend = KueueBackend(connection, cluster=cluster)
        self._store = KubernetesObjectStore(connection)
        self._watching = False

    async def list(self, kind: str) -> Sequence[dict[str, Any]]:
        """Every object of one of the bank's kinds, read now: a command is over before a watch would pay."""
        return sorted(await self.connection.all(BANK_KINDS[_own_kind(kind)]), key=_place)

    async def get(self, kind: str, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        """One object, or None."""
        return await self._store.get(_own_kind(kind), name, namespace)

    async def apply(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create or replace one object."""
        return await self._store.apply({**body, "kind": _own_kind(str(body.get("kind", "")))})

    async def delete(self, kind: str, name: str, namespace: str | None = None) -> bool:
        """Delete one object; False when there was none."""
        return await self._store.delete(_own_kind(kind), name, namespace)

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
        """Replace the status; `ConflictError` if the object moved on since version `seen`."""
        await self._store.patch_status(_own_kind(kind), name, namespace, status, seen=seen, dry_run=dry_run)

    async def observe(self, pool: str) -> PoolFacts:
        """What Kueue sees of a pool."""
        self._watch()
        return await self.backend.observe(pool)

    async def check_settings(self, namespace: str | None) -> tuple[LayoutProblem, ...]:
        """What of Kueue's settings is not as the bank needs it; `namespace` is one of a group's."""
        self._watch()
        return await self.backend.check_settings(namespace)

    def _watch(self) -> None:
        if not self._watching:
            self.backend.start()
            self._watching = True

    async def whoami(self) -> str | None:
        """Ask the API server who it takes the caller for; None where it is too old to say."""
        name, _ = await self.identity()
        return name

    async def identity(self) -> tuple[str | None, tuple[str, ...]]:
        """Return name and groups of the caller."""
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        try:
            answer = await self.connection.call("POST", REVIEW_PATH, body=body)
        except ApiError as error:
            if error.code in (403, 404):
                return None, ()
            raise
        info = (answer.get("status") or {}).get("userInfo") or {}
        return info.get("username"), tuple(info.get("groups") or ())

    async def close(self) -> None:
        """End the watches; the connection is its opener's to close."""
        if self._watching:
            await self.backend.stop_watching()


@asynccontextmanager
async def open_cluster(settings: Settings) -> AsyncIterator[KubernetesCluster]:
    """Open the cluster of the settings; `BackendError` where no kubeconfig can be used, or nothing answers."""
    async with Connection.open(settings.cluster.kubeconfig, settings.cluster.context) as connection:
        cluster = KubernetesCluster(connection, cluster=settings.cluster.name)
        try:
            yield cluster
        finally:
            await cluster.close()


def _place(item: Mapping[str, Any]) -> tuple[str, str]:
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]


def _own_kind(kind: str) -> str:
    """Return the kind as the API spells it; what is not the bank's is kubectl's to handle."""
    try:
        return kind_named(kind).name
    except PolicyError as error:
        have = ", ".join(KINDS)
        raise NotFoundError(f"{kind!r} is no kind of the bank ({have}); use kubectl for others") from error
