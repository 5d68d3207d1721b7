"""Signs of life in memory: Leases without a server."""

import itertools
from collections.abc import Mapping
from datetime import timedelta

from gpubank.domain.failsafe import Beat


class SimulatedLeases:
    """Implements `Leases`; every renewal is another one, whatever the clock says."""

    def __init__(self) -> None:
        self._beats: dict[str, Beat] = {}
        self._numbers = itertools.count(1)

    async def read(self, name: str) -> Beat | None:
        """Return the Lease as it stands, or None while it is missing."""
        return self._beats.get(name)

    async def renew(
        self, name: str, *, holder: str, duration: timedelta, promises: Mapping[str, int] | None = None
    ) -> None:
        """Renew the Lease, whoever held it before."""
        self._beats[name] = Beat(
            holder=holder, renewed_at=str(next(self._numbers)), duration=duration, promises=dict(promises or {})
        )

    def drop(self, name: str) -> None:
        """Delete a Lease, as somebody might by hand."""
        self._beats.pop(name, None)
