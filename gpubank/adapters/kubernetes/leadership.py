"""One leader among the replicas of a process, by a Lease: held while renewed, taken over when it went stale.

Staleness is judged by this process's own monotonic clock since it last saw the Lease change, never by comparing the
clocks of two machines. Two leaders at once would do no harm to the books (every write is a compare-and-set); a single
one keeps them from losing to each other all the time.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from gpubank.adapters.kubernetes.connection import Connection
from gpubank.adapters.kubernetes.kinds import LEASE, Object
from gpubank.domain.errors import BackendError, ConflictError

log = logging.getLogger(__name__)

LEASE_DURATION: Final = timedelta(seconds=15)
"""How long a Lease that nobody renews keeps others from leading (client-go's default)."""

RENEW_EVERY: Final = 2 / 15
"""Pause between two tries to renew or to take over, as a part of the Lease's duration (client-go's default)."""

RENEW_DEADLINE: Final = 2 / 3
"""How long a leader that cannot renew goes on, as a part of the duration: it ends before another begins."""


class Leadership:
    """Competes for one Lease and runs what only the leader may run."""

    def __init__(
        self,
        connection: Connection,
        *,
        name: str,
        namespace: str,
        identity: str,
        duration: timedelta = LEASE_DURATION,
    ) -> None:
        self._connection, self._name, self._namespace, self._identity = connection, name, namespace, identity
        self._duration = duration
        self._seen: tuple[Any, float] | None = None
        self.leads = False

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Run `lead` whenever this process is the leader; cancel it when it is not any more. Never returns."""
        while True:
            await self._until_won()
            log.info("leading by lease %s/%s", self._namespace, self._name)
            self.leads = True
            work = asyncio.ensure_future(lead())
            keeper = asyncio.create_task(self._keep())
            try:
                await asyncio.wait({work, keeper}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                self.leads = False
                for task in (work, keeper):
                    task.cancel()
                results = await asyncio.gather(work, keeper, return_exceptions=True)
                await self._release()
            if isinstance(results[0], Exception):
                raise results[0]
            log.warning("lost lease %s/%s", self._namespace, self._name)

    async def _until_won(self) -> None:
        while True:
            if await self._try():
                return
            await asyncio.sleep(self._duration.total_seconds() * RENEW_EVERY)

    async def _keep(self) -> None:
        """Renew until it fails for too long or somebody else holds the Lease."""
        renewed = time.monotonic()
        seconds = self._duration.total_seconds()
        while time.monotonic() - renewed < seconds * RENEW_DEADLINE:
            await asyncio.sleep(seconds * RENEW_EVERY)
            if await self._try():
                renewed = time.monotonic()
            elif self._held_by_other:
                return

    @property
    def _held_by_other(self) -> bool:
        holder = self._seen[0][0] if self._seen else None
        return holder not in (None, "", self._identity)

    async def _try(self) -> bool:
        """Take or renew the Lease; False while another holds it or the API server does not answer."""
        try:
            lease = await self._connection.get(LEASE, self._name, self._namespace)
            if lease is None:
                await self._connection.create(LEASE, self._body({}, transitions=0))
                return True
            spec = lease.get("spec", {})
            mine = spec.get("holderIdentity") == self._identity
            if not mine and not self._is_stale(spec):
                return False
            transitions = spec.get("leaseTransitions", 0) + (not mine)
            await self._connection.replace(LEASE, self._body(lease, transitions=transitions))
        except ConflictError:
            return False
        except BackendError as error:
            log.warning("lease %s/%s: %s", self._namespace, self._name, error)
            return False
        return True

    def _is_stale(self, spec: Object) -> bool:
        """Whether the Lease is free, or has not changed for its duration as this process saw it."""
        if not spec.get("holderIdentity"):
            return True
        stamp = (spec["holderIdentity"], spec.get("renewTime"))
        if self._seen is None or self._seen[0] != stamp:
            self._seen = (stamp, time.monotonic())
            return False
        duration: float = spec.get("leaseDurationSeconds", self._duration.total_seconds())
        return time.monotonic() - self._seen[1] > duration

    def _body(self, before: Object, *, transitions: int, holder: str | None = None) -> Object:
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        spec = before.get("spec", {})
        taken = spec.get("acquireTime") if spec.get("leaseTransitions") == transitions else None
        holder = self._identity if holder is None else holder
        if holder:
            self._seen = ((holder, now), time.monotonic())
        return {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.name,
            "metadata": before.get("metadata") or {"name": self._name, "namespace": self._namespace},
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": int(self._duration.total_seconds()),
                "acquireTime": taken or now,
                "renewTime": now,
                "leaseTransitions": transitions,
            },
        }

    async def _release(self) -> None:
        """Give the Lease up, so that another need not wait for it to go stale; best effort."""
        try:
            lease = await self._connection.get(LEASE, self._name, self._namespace)
            if lease is not None and lease.get("spec", {}).get("holderIdentity") == self._identity:
                transitions = lease["spec"].get("leaseTransitions", 0)
                await self._connection.replace(LEASE, self._body(lease, transitions=transitions, holder=""))
        except BackendError as error:
            log.info("lease %s/%s could not be released: %s", self._namespace, self._name, error)
        except ConflictError:
            pass
