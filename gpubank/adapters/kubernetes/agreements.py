"""The bank's agreements, listed now and then instead of watched: for whoever has few rights and no hurry.

Leases are left out: whom a recall spares is nothing to whoever only wants to know a pool's limits.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from gpubank.adapters.kubernetes.connection import Connection
from gpubank.adapters.kubernetes.kinds import BANK_KINDS

Items = list[dict[str, Any]]

FRESH_FOR: Final = 15.0
"""Seconds for which a list is good."""


class PolledAgreements:
    """Implements `ObjectReader` by plain lists; needs the verb `list` alone."""

    def __init__(self, connection: Connection, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._connection = connection
        self._monotonic = monotonic
        self._lists: dict[str, tuple[float, Items]] = {}

    async def list(self, kind: str) -> Sequence[dict[str, Any]]:
        """Every object of a kind, in all namespaces, at most `FRESH_FOR` seconds old. Raises `BackendError`."""
        if kind == "CapacityLease":
            return []
        known = self._lists.get(kind)
        if known is None or self._monotonic() - known[0] >= FRESH_FOR:
            known = self._lists[kind] = (self._monotonic(), await self._read(kind))
        return known[1]

    async def _read(self, kind: str) -> Items:
        items = await self._connection.all(BANK_KINDS[kind])
        return [{"apiVersion": BANK_KINDS[kind].api_version, "kind": kind, **item} for item in items]
