"""Signs of life as Leases in the bank's own namespace.

A Lease is written with this machine's time, for people; whoever watches it compares what is written with what was
written before, and never with a clock.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from gpubank.adapters.kubernetes.connection import Connection
from gpubank.adapters.kubernetes.kinds import LEASE, Object
from gpubank.domain.contract import BANK_PREFIX, MANAGED_BY, MANAGED_BY_LABEL
from gpubank.domain.errors import ConflictError
from gpubank.domain.failsafe import Beat

PROMISES_ANNOTATION: Final = f"{BANK_PREFIX}/promises"
"""On a heartbeat's Lease: JSON, guarantees in force that differ from what policies ask, by group."""

_TRIES: Final = 3


class KubernetesLeases:
    """Reads and renews Leases."""

    def __init__(self, connection: Connection, namespace: str) -> None:
        self._connection = connection
        self._namespace = namespace

    async def read(self, name: str) -> Beat | None:
        """Return the Lease as it stands in the store, or None while it is missing."""
        body = await self._connection.get(LEASE, name, self._namespace)
        return None if body is None else _beat(body)

    async def renew(
        self, name: str, *, holder: str, duration: timedelta, promises: Mapping[str, int] | None = None
    ) -> None:
        """Renew the Lease, whoever held it before; see the port."""
        for attempt in range(1, _TRIES + 1):
            before = await self._connection.get(LEASE, name, self._namespace)
            body = self._body(name, before, holder, duration, promises or {})
            try:
                if before is None:
                    await self._connection.create(LEASE, body)
                else:
                    await self._connection.replace(LEASE, body)
            except ConflictError:
                if attempt == _TRIES:
                    raise
            else:
                return

    def _body(
        self, name: str, before: Object | None, holder: str, duration: timedelta, promises: Mapping[str, int]
    ) -> Object:
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        metadata = (before or {}).get("metadata") or {
            "name": name,
            "namespace": self._namespace,
            "labels": {MANAGED_BY_LABEL: MANAGED_BY},
        }
        annotations = {k: v for k, v in (metadata.get("annotations") or {}).items() if k != PROMISES_ANNOTATION}
        if promises:
            annotations[PROMISES_ANNOTATION] = json.dumps(dict(promises), sort_keys=True)
        spec = (before or {}).get("spec") or {}
        mine = spec.get("holderIdentity") == holder
        return {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.name,
            "metadata": {**metadata, "annotations": annotations},
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": max(int(duration.total_seconds()), 1),
                "acquireTime": (spec.get("acquireTime") if mine else None) or now,
                "renewTime": now,
                "leaseTransitions": int(spec.get("leaseTransitions") or 0) + (before is not None and not mine),
            },
        }


def _beat(body: Object) -> Beat:
    spec = body.get("spec") or {}
    return Beat(
        holder=str(spec.get("holderIdentity") or ""),
        renewed_at=str(spec.get("renewTime") or ""),
        duration=timedelta(seconds=int(spec.get("leaseDurationSeconds") or 0)),
        promises=_promises((body["metadata"].get("annotations") or {}).get(PROMISES_ANNOTATION, "")),
    )


def _promises(text: str) -> dict[str, int]:
    """Read promises; what somebody else wrote there counts as none, for policies say the rest."""
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {str(k): v for k, v in found.items() if isinstance(v, int) and not isinstance(v, bool) and v >= 0}
