"""A controller on the simulation with time moved by hand, a SQLite ledger, and processes that only remember."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from gpubank.adapters.ledger import SqlLedger
from gpubank.controller.controller import Controller
from gpubank.controller.pool_loop import PoolLoop
from gpubank.decide.step import LoanSignal
from gpubank.domain.books import Books
from gpubank.domain.contract import QUEUE_LABEL, RETRYABLE_LABEL
from gpubank.domain.pool import Backend
from gpubank.simulation.clock import ManualClock
from gpubank.simulation.cluster import SimulatedCluster

POOL = "demo"


class Remembered:
    """`Processes` that keep what they are told."""

    def __init__(self) -> None:
        self.signals: list[LoanSignal] = []
        self.needs: list[tuple[str, tuple[str, ...]]] = []

    async def signal_loan(self, cluster: str, pool: str, signal: LoanSignal) -> None:
        self.signals.append(signal)

    async def signal_needs(self, cluster: str, pool: str, lender: str, demands: Sequence[str], *, at: datetime) -> None:
        self.needs.append((lender, tuple(demands)))


class Bank:
    """Two groups of eight GPUs in a pool of sixteen, unless a test says otherwise."""

    def __init__(self, cluster: SimulatedCluster, ledger: SqlLedger) -> None:
        self.cluster, self.ledger = cluster, ledger
        self.processes = Remembered()
        self.controller = Controller(
            "local",
            objects=cluster.objects,
            backends={Backend.KUEUE: cluster},
            ledger=ledger,
            processes=self.processes,
            notifier=cluster.notices,
            now=cluster.clock.now,
        )
        self.loop = PoolLoop(
            "local",
            POOL,
            backend=cluster,
            ledger=ledger,
            processes=self.processes,
            notifier=cluster.notices,
            terms=lambda: self.controller.terms(POOL),
            now=cluster.clock.now,
        )

    async def agree(self, capacity: int = 16, **policies: dict[str, Any]) -> None:
        """Write pool, groups and policies; a policy's fields are given by group."""
        shares = [{"businessGroup": group, "guaranteed": capacity} for group in policies]
        await self.apply("GPUPool", POOL, {"capacity": capacity, "shares": shares})
        for group, spec in policies.items():
            await self.apply("BusinessGroup", group, {"owner": group, "namespaces": [f"team-{group}"]})
            spec = {"businessGroup": group, "resourcePool": POOL, **spec}
            await self.apply("GPUQuotaPolicy", group, spec, namespace=f"team-{group}")

    async def apply(self, kind: str, name: str, spec: dict[str, Any], namespace: str = "") -> dict[str, Any]:
        metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
        body = {"apiVersion": "platform.aik8s.run/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}
        return await self.cluster.objects.apply(body)

    async def let(self, seconds: float) -> None:
        """Let time pass; controller and loop look every tenth of a second."""
        for _ in range(max(round(seconds * 10), 1)):
            await self.controller.reconcile()
            await self.loop.turn()
            await self.cluster.advance(0.1)

    async def books(self) -> Books:
        return await self.ledger.books("local", POOL)

    async def lines(self) -> list[tuple[str, str, int, str]]:
        """Open lines as (lender, borrower, GPUs, state)."""
        return [(line.lender, line.borrower, line.gpus, line.state.value) for line in (await self.books()).lines]

    def quotas(self) -> dict[str, int | None]:
        """Quota of every queue, by `<group>.<side>`."""
        return {
            f"{group}.{side}": self.cluster.quota_of(f"{group}.{POOL}.{side}")
            for group in "ab"
            for side in ("own", "borrow")
        }

    async def conditions(self, kind: str, name: str, namespace: str | None = None) -> dict[str, tuple[str, str]]:
        """Conditions of an object as type → (status, reason)."""
        body = await self.cluster.objects.get(kind, name, namespace)
        assert body is not None
        return {each["type"]: (each["status"], each["reason"]) for each in body["status"]["conditions"]}

    async def pool(self) -> dict[str, Any]:
        """Return the GPUPool."""
        body = await self.cluster.objects.get("GPUPool", POOL)
        assert body is not None
        return body

    def submit(self, group: str, name: str, gpus: int, *, borrow: bool = False, pods: int = 1) -> None:
        """Submit a Job that runs until it is told to end."""
        labels = {RETRYABLE_LABEL: "true"} if borrow else {}
        amount = {"nvidia.com/gpu": str(gpus // pods)}
        container = {"name": "main", "image": "x", "resources": {"requests": amount, "limits": amount}}
        pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 5, "containers": [container]}
        self.cluster.submit(
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {
                    "name": name,
                    "namespace": f"team-{group}",
                    "labels": {QUEUE_LABEL: f"{POOL}-borrow" if borrow else POOL, **labels},
                },
                "spec": {
                    "parallelism": pods,
                    "completions": pods,
                    "template": {"metadata": {"labels": labels}, "spec": pod},
                },
            }
        )

    def running(self) -> set[str]:
        """Names of the jobs that run."""
        return {job.name for job in self.cluster.list_jobs() if job.state.value == "Running"}


@asynccontextmanager
async def a_bank(folder: Path) -> AsyncIterator[Bank]:
    """Open a bank with two nodes of eight GPUs."""
    cluster = SimulatedCluster(ManualClock())
    async with await SqlLedger.open(f"sqlite:///{folder / 'ledger.db'}") as ledger:
        for index in range(2):
            cluster.add_node(f"node-{index}", 8, pool=POOL)
        bank = Bank(cluster, ledger)
        try:
            yield bank
        finally:
            await bank.controller.stop()
            await cluster.close()
