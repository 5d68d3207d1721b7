"""Terms of a pool that are compiled from the objects people write, by the code that judges them on a cluster.

A `FakeBank` has its terms by hand; with `Agreed` they follow from a GPUPool, its shares, and a policy for every group.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from gpubank.agreements import Objects, agreement
from gpubank.decide.agreement import Agreement
from gpubank.domain.base import API_VERSION
from gpubank.domain.group import BusinessGroup
from gpubank.domain.policy import GPUQuotaPolicy
from gpubank.domain.pool import GPUPool
from tests.fakes.bank import FakeBank

LIMITS: Mapping[str, Any] = {
    "maxGracePeriod": "30s",
    "minRunTime": "0s",
    "maxTermination": "60s",
    "maxTimeToReturn": "20m",
    "resumeAfter": "200ms",
}
"""Short times, so that scenarios are short."""


class Agreed:
    """The objects of one pool; every change is judged at once, and its bank goes by what came of it."""

    def __init__(
        self, bank: FakeBank, guarantees: Mapping[str, int], *, capacity: int = 16, grace: str = "30s", **limits: str
    ) -> None:
        self._bank = bank
        self.capacity = capacity
        self.shares = dict(guarantees)
        """Most that each group's policy may have guaranteed."""

        self.policies: dict[str, dict[str, Any]] = {
            group: {"guaranteed": gpus, "borrowLimit": 16, "reclaimPolicy": {"gracePeriod": grace}}
            for group, gpus in guarantees.items()
        }
        self.deleted: set[str] = set()
        """Groups whose policy is being deleted."""

        self.leaving = False
        """Whether the pool is being deleted, and a finalizer holds it."""

        self._groups = tuple(guarantees)
        self._limits = {**LIMITS, **limits}
        self.judge()

    def judge(self) -> Agreement:
        """Judge the objects as they are now; the bank's terms are what came of it."""
        objects = Objects(
            pools=(self._pool(),),
            groups=tuple(self._group(name) for name in self._groups),
            policies=tuple(self._policy(group) for group in self.policies),
        )
        agreed = agreement(self._bank.cluster, objects, now=datetime.now(UTC))
        self._bank.terms.now = agreed.terms[self._bank.pool]
        self._bank.loop.poke()
        return agreed

    def verdict(self, group: str) -> str:
        """Judge, and return the reason of the verdict on a group's policy."""
        return self.judge().verdicts["GPUQuotaPolicy", f"team-{group}/policy"].reason

    def _pool(self) -> GPUPool:
        shares = [{"businessGroup": group, "guaranteed": gpus} for group, gpus in self.shares.items()]
        spec = {"capacity": self.capacity, "shares": shares, "limits": self._limits}
        return GPUPool.from_wire(_body("GPUPool", self._bank.pool, spec, deleted=self.leaving))

    def _group(self, name: str) -> BusinessGroup:
        return BusinessGroup.from_wire(
            _body("BusinessGroup", name, {"owner": "lin@example.com", "namespaces": [f"team-{name}"]})
        )

    def _policy(self, group: str) -> GPUQuotaPolicy:
        spec = {"businessGroup": group, "resourcePool": self._bank.pool, **self.policies[group]}
        deleted = group in self.deleted
        return GPUQuotaPolicy.from_wire(_body("GPUQuotaPolicy", "policy", spec, f"team-{group}", deleted=deleted))


def _body(
    kind: str, name: str, spec: Mapping[str, Any], namespace: str = "", *, deleted: bool = False
) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "creationTimestamp": "2026-01-05T12:00:00Z"}
    if namespace:
        metadata["namespace"] = namespace
    if deleted:
        metadata |= {"deletionTimestamp": "2026-01-05T13:00:00Z", "finalizers": ["platform.aik8s.run/loans"]}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": dict(spec)}
