"""A node's reporter without a node: answers what a test says about one GPU, on the node's task queue."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.worker import Worker

from gpubank.domain.incident import GpuMark, GpuSight, HealthEdge, NodeOrder, Released, Wanted, node_queue
from gpubank.domain.servicing import PodName


class FakeNode:
    """One node with one GPU that a test breaks and mends; implements `NodeCalls`."""

    def __init__(self, client: Client, cluster: str, node: str, uuid: str) -> None:
        self.client, self.cluster, self.node, self.uuid = client, cluster, node, uuid
        self.marks: dict[str, GpuMark] = {}
        self.holders: tuple[PodName, ...] | None = ()
        self.verdict = "NONE"
        self.wrong = ""
        self.boot_id = ""
        self.here = True
        """Whether the node still has this GPU."""

        self.orders: list[NodeOrder] = []
        """Quarantines and releases, in order, repeated ones left out."""

    def fault(self, cause: str, fault: str, action: str = "", *, verdict: str = "") -> HealthEdge:
        """Break the GPU, and return what is reported of it."""
        now = datetime.now(UTC)
        self.marks[cause] = GpuMark(cause=cause, fault=fault, action=action, first_at=now, last_at=now)
        self.verdict = verdict
        return HealthEdge(
            id=f"{self.node}/{self.uuid}/{cause}/{now.timestamp()}",
            cause=cause,
            fault=fault,
            action=action,
            first_at=now,
            last_at=now,
            boot_id=self.boot_id,
        )

    def taken_away(self) -> None:
        """Have the node restarted without the GPU."""
        self.here, self.boot_id, self.holders = False, f"{self.boot_id}+", ()
        self.pass_by()

    def mend(self) -> None:
        """Let the driver say that the GPU is sound; what is held against it stays, as on a node."""
        self.verdict, self.wrong = "NONE", ""

    def pass_by(self) -> None:
        """Let a fault that passes by itself be over."""
        self.mend()
        self.marks.clear()

    @property
    def released(self) -> bool:
        """Whether nothing is held against it."""
        return not self.marks

    @activity.defn(name="node.inspect")
    async def inspect(self, order: NodeOrder) -> GpuSight:
        sight = GpuSight(
            found=self.here,
            marks=tuple(self.marks.values()),
            wrong=self.wrong,
            verdict=self.verdict if self.here else "",
            holders=self.holders,
            boot_id=self.boot_id,
        )
        sound = self.here and self.verdict == "NONE" and not self.wrong
        clear = self.here and not self.marks
        if (order.wanted is Wanted.CLEAR and not clear) or (order.wanted is Wanted.SOUND and not sound):
            raise ApplicationError("not yet", type="NotYet", category=ApplicationErrorCategory.BENIGN)
        return sight

    @activity.defn(name="node.quarantine")
    async def quarantine(self, order: NodeOrder) -> GpuSight:
        self._remember(order)
        return await self.inspect(order)

    @activity.defn(name="node.release")
    async def release(self, order: NodeOrder) -> Released:
        if self.wrong:
            return Released(released=False, mended=False, why_not=f"it still reports {self.wrong}")
        self._remember(order)
        self.marks.clear()
        return Released()

    def _remember(self, order: NodeOrder) -> None:
        if order.key not in {known.key for known in self.orders}:
            self.orders.append(order)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Answer while the block runs."""
        async with Worker(
            self.client,
            task_queue=node_queue(self.cluster, self.node),
            activities=[self.inspect, self.quarantine, self.release],
        ):
            yield
