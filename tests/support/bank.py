"""A pool of a running bank, as scenarios use it: agreements, work, what the books and processes say, and the audit.

The bank itself (worker, controller, Temporal, ledger) runs already and serves many pools at once; every scenario has a
pool with nodes and groups of its own. Scenarios call groups by short names; on the cluster each has a unique one.
"""

import contextlib
import itertools
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from gpubank.adapters.ledger import SqlLedger
from gpubank.client import BankClient
from gpubank.domain.base import API_VERSION
from gpubank.domain.contract import (
    CHECKPOINT_STORAGE_ANNOTATION,
    CHECKPOINT_TRANSPORT_ANNOTATION,
    RETRYABLE_LABEL,
    WORKLOAD_TYPE_LABEL,
    Side,
)
from gpubank.domain.facts import WorkloadFacts
from tests.contract.world import DeploymentRequest, JobRequest, World
from tests.support.audit import EVERY, Auditor, drift
from tests.support.sight import Sight

TRAINEE: Final = Path(__file__).with_name("trainee.py")

LIMITS: Final[Mapping[str, str]] = {
    "maxGracePeriod": "10m",
    "minRunTime": "0s",
    "maxTimeToReturn": "30m",
    "resumeAfter": "1s",
}
"""Short times, so that scenarios are short."""

T = TypeVar("T")


class Bank(Sight):
    """One pool of a bank that runs."""

    def __init__(
        self,
        world: World,
        client: BankClient,
        ledger: SqlLedger,
        folder: Path,
        add_namespace: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(world, client, ledger)
        self.folder = folder
        self.audit_every = EVERY
        """Seconds between two looks at the quotas; longer where many pools are audited at once."""

        self._add_namespace = add_namespace
        self._limits: dict[str, str] = dict(LIMITS)
        self._shares: dict[str, int] = {}
        self._jobs: list[tuple[str, str]] = []
        self._deployments: list[tuple[str, str]] = []
        self._gates = itertools.count(1)

    # ---- agreements

    async def agree(self, nodes: tuple[int, ...], limits: Mapping[str, str] | None = None, **policies: Any) -> None:
        """Make the pool of these nodes and a policy for every group: an int is its guarantee, a dict its policy.

        Returns when every guarantee is in force and in the queues.
        """
        await self.world.add_nodes(*nodes)
        self.capacity = sum(nodes)
        self._limits |= limits or {}
        for group, policy in policies.items():
            self.policies[group] = policy if isinstance(policy, dict) else {"guaranteed": policy}
            self._shares[group] = self.policies[group]["guaranteed"]
        await self._write_pool()
        for group in policies:
            if self._add_namespace is not None:
                await self._add_namespace(self.world.namespace(self.name(group)))
            await self.world.objects.apply(
                _object(
                    "BusinessGroup",
                    self.name(group),
                    {"owner": "lin@example.com", "namespaces": [self.world.namespace(self.name(group))]},
                )
            )
            await self._write_policy(group)
        await self.until(self._in_force, "every guarantee is in force")
        self._auditor = Auditor(self.world, self.capacity, self.audit_every)

    async def edit(self, group: str, **changes: Any) -> None:
        """Change a policy, as its owner would."""
        self.policies[group] = self.policies[group] | changes
        await self._write_policy(group)

    async def share(self, group: str, guaranteed: int) -> None:
        """Change what the platform lets a group ask for."""
        self._shares[group] = guaranteed
        await self._write_pool()

    async def freeze(self, frozen: bool) -> None:
        """Freeze the pool, or thaw it."""
        await self._write_pool({"freeze": {"by": "ops", "reason": "an incident"}} if frozen else {})

    async def delete_policy(self, group: str) -> None:
        """Ask for the deletion of a policy."""
        assert await self.world.objects.delete("GPUQuotaPolicy", "policy", self.world.namespace(self.name(group)))

    async def policy(self, group: str) -> dict[str, Any] | None:
        """Return the policy object, or None if it is gone."""
        return await self.world.objects.get("GPUQuotaPolicy", "policy", self.world.namespace(self.name(group)))

    async def _write_pool(self, more: Mapping[str, Any] | None = None) -> None:
        shares = [
            {"businessGroup": self.name(group), "guaranteed": gpus, "maxCapacity": self.capacity}
            for group, gpus in self._shares.items()
        ]
        spec = {"capacity": self.capacity, "shares": shares, "limits": self._limits, **(more or {})}
        await self.world.objects.apply(_object("GPUPool", self.world.pool, spec))

    async def _write_policy(self, group: str) -> None:
        policy = {
            "businessGroup": self.name(group),
            "resourcePool": self.world.pool,
            "borrowLimit": self.capacity - self.policies[group]["guaranteed"],
            "reclaimPolicy": {"gracePeriod": "5m"},
            **self.policies[group],
        }
        await self.world.objects.apply(
            _object("GPUQuotaPolicy", "policy", policy, self.world.namespace(self.name(group)))
        )

    async def _in_force(self) -> bool:
        books, facts = await self.books(), await self.facts()
        wanted = {self.name(group): policy["guaranteed"] for group, policy in self.policies.items()}
        laid_out = {queue.group for queue in facts.queues} == set(wanted)
        agreed = all(books.guarantee(group).in_force == gpus for group, gpus in wanted.items())
        return laid_out and agreed and not drift(books, facts)

    # ---- work

    async def own(
        self,
        group: str,
        name: str,
        gpus: int = 8,
        *,
        pods: int = 1,
        priority: int = 0,
        grace: int = 5,
        trains: Path | None = None,
    ) -> None:
        """Submit a job of a group to its own queue; with `trains` a trainee that saves once that gate is open."""
        self._jobs.append((group, name))
        request = JobRequest(
            self.name(group), name, pods=pods, gpus_per_pod=gpus // pods, priority=priority, termination_grace=grace
        )
        if trains is not None:
            labels, annotations, command = self._trainee(name, trains)
            request = replace(request, labels=labels, annotations=annotations, command=command)
        await self.world.submit_job(request)

    async def ask(
        self, group: str, name: str, gpus: int = 8, *, pods: int = 1, priority: int = 0, trains: Path | None = None
    ) -> None:
        """Submit a job to a group's borrow queue: retryable, or a trainee that saves once the gate `trains` is open."""
        if trains is None:
            await self._ask(group, name, gpus, pods, priority, {RETRYABLE_LABEL: "true"}, {}, None)
        else:
            await self._ask(group, name, gpus, pods, priority, *self._trainee(name, trains))

    def _trainee(self, name: str, gate: Path) -> tuple[dict[str, str], dict[str, str], list[str]]:
        """Return labels, annotations and command of a trainee that saves once the gate is open."""
        storage = self.folder / name
        storage.mkdir()
        return *_checkpointable(storage), [sys.executable, str(TRAINEE), str(storage), str(gate)]

    async def train(self, group: str, name: str, command: Sequence[str], storage: Path, gpus: int = 8) -> None:
        """Submit a training run of one pod to a group's borrow queue, with its checkpoints below `storage`."""
        await self._ask(group, name, gpus, 1, 0, *_checkpointable(storage), command)

    async def _ask(
        self,
        group: str,
        name: str,
        gpus: int,
        pods: int,
        priority: int,
        labels: Mapping[str, str],
        annotations: Mapping[str, str],
        command: Sequence[str] | None,
    ) -> None:
        self._jobs.append((group, name))
        await self.world.submit_job(
            JobRequest(
                self.name(group),
                name,
                side=Side.BORROW,
                pods=pods,
                gpus_per_pod=gpus // pods,
                priority=priority,
                labels=labels,
                annotations=annotations,
                command=command,
            )
        )

    async def borrow(self, group: str, name: str, gpus: int = 8, **how: Any) -> WorkloadFacts:
        """Submit a job to a group's borrow queue, as `ask` does, and see it run."""
        await self.ask(group, name, gpus, **how)
        workload = await self.placed(name)
        if how.get("trains") is not None:
            await self.answers(name)
        return workload

    def gate(self, *, opened: bool = False) -> Path:
        """Return a gate for trainees: no file is there yet, unless it is `opened`."""
        gate = self.folder / f"gate-{next(self._gates)}"
        if opened:
            gate.touch()
        return gate

    async def deploy(self, group: str, name: str, replicas: int, gpus: int) -> None:
        """Submit a Deployment to a group's own queue."""
        self._deployments.append((group, name))
        await self.world.submit_deployment(DeploymentRequest(self.name(group), name, replicas, gpus_per_pod=gpus))

    async def finish(self, group: str, name: str) -> None:
        """Let a job end well."""
        if (self.folder / name).is_dir():
            (self.folder / name / "done").touch()
        else:
            await self.world.finish_job(self.name(group), name)

    async def drop(self, group: str, name: str) -> None:
        """Delete a job."""
        self._jobs.remove((group, name))
        await self.world.delete_job(self.name(group), name)

    # ---- the end

    async def stop_auditing(self) -> None:
        """End what watches in the background."""
        if self._auditor is not None:
            await self._auditor.stop()

    async def leave(self) -> None:
        """Delete everything of the scenario, as users would, and see the bank let it go."""
        for group, deployment in self._deployments:
            await self.world.scale_deployment(self.name(group), deployment, 0)
        for group, job in self._jobs:
            with contextlib.suppress(AssertionError):  # it ended and was cleared away by itself
                await self.world.delete_job(self.name(group), job)
        objects, pool = self.world.objects, self.world.pool
        for group in self.policies:
            await objects.delete("GPUQuotaPolicy", "policy", self.world.namespace(self.name(group)))
        await objects.delete("GPUPool", pool)
        for group in self.policies:
            await objects.delete("BusinessGroup", self.name(group))
        if self.policies:
            await self.until(self._left, f"pool {pool} and everything of it is gone", 90)

    async def _left(self) -> bool:
        objects = self.world.objects
        left = [await objects.get("GPUPool", self.world.pool)]
        left += [await objects.get("BusinessGroup", self.name(group)) for group in self.policies]
        left += [await self.policy(group) for group in self.policies]
        return not any(left)


def _checkpointable(storage: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return labels and annotations of a training run that saves below `storage`."""
    annotations = {CHECKPOINT_TRANSPORT_ANNOTATION: "http", CHECKPOINT_STORAGE_ANNOTATION: storage.as_uri()}
    return {WORKLOAD_TYPE_LABEL: "training", RETRYABLE_LABEL: "false"}, annotations


def _object(kind: str, name: str, spec: Mapping[str, Any], namespace: str = "") -> dict[str, Any]:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": dict(spec)}
