"""The pool of the scale proof: who is guaranteed what, and the jobs of each kind of group.

    lender     guaranteed what its own jobs run on and SLOT more, which is lent; demands it back now and then
    borrower   guaranteed what its own jobs run on; submits work that only a loan starts
    busy       guaranteed HEADROOM more, which it does not lend; submits own jobs that come in at once

Everything that may be lent is lent nearly always: with slack elsewhere a demand is met by novation and stops nobody.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeVar

from gpubank.adapters.kubernetes.connection import Connection
from gpubank.adapters.kubernetes.kinds import BANK_KINDS, JOB, NAMESPACE, POD, WORKLOAD, Object
from gpubank.domain.contract import QUEUE_LABEL, RETRYABLE_LABEL, Side, local_borrow_queue, local_own_queue
from gpubank.domain.pool import DEFAULT_RESOURCE
from gpubank.lab.names import COMPLETE_AFTER

CLUSTER: Final = "lab"
POOL: Final = "scale"
SLOT: Final = 4
"""GPUs of every loan, and of every demand."""

HEADROOM: Final = 8
"""GPUs that a busy group keeps free for its own short jobs, of one GPU each."""

NODE: Final = 128
"""GPUs of a node. No machine has so many: kwok's work grows with nodes, the bank's with Workloads."""

WORKLOAD_ANNOTATION: Final = "kueue.x-k8s.io/workload"
"""By which a pod says whose it is."""

AT_ONCE: Final = 16
"""Calls in flight while something is filled."""

KEPT_FINISHED: Final = 20
"""Seconds until a finished job is deleted, so that their number stays as it is."""

T = TypeVar("T")


class Role(StrEnum):
    """What a group is there for."""

    LENDER = "lender"
    BORROWER = "borrower"
    BUSY = "busy"


@dataclass(frozen=True)
class Plan:
    """How much there is of what."""

    groups: int
    standing: int
    """Jobs that run all the time: own jobs of one GPU, and loans."""

    loans: int
    """Loans that fit the pool."""

    @property
    def churning(self) -> int:
        """Loans that end and make room for others; the rest stand."""
        return self.loans * 3 // 5

    @property
    def standing_loans(self) -> int:
        """Loans that stay."""
        return self.loans - self.churning

    @property
    def own_jobs(self) -> int:
        """Own jobs that stay."""
        return max(self.standing - self.standing_loans, 0)

    def role(self, index: int) -> Role:
        """Role of a group: the first are lenders, then borrowers and busy ones in turn."""
        if index < self.loans:
            return Role.LENDER
        return Role.BORROWER if (index - self.loans) % 2 else Role.BUSY

    def own_of(self, index: int) -> int:
        """Own jobs of a group that stay."""
        whole, rest = divmod(self.own_jobs, self.groups)
        return whole + (index < rest)

    def guaranteed(self, index: int) -> int:
        """GPUs that a group is guaranteed."""
        more = {Role.LENDER: SLOT, Role.BUSY: HEADROOM}
        return self.own_of(index) + more.get(self.role(index), 0)

    @property
    def capacity(self) -> int:
        """GPUs of the pool: all of them are guaranteed to somebody."""
        return sum(self.guaranteed(index) for index in range(self.groups))

    @property
    def nodes(self) -> int:
        """Nodes, one more than needed so that no gang waits for a hole of its size."""
        return -(-self.capacity // NODE) + 1

    def of_role(self, role: Role) -> list[str]:
        """Names of the groups of a role."""
        return [group_name(index) for index in range(self.groups) if self.role(index) is role]


def group_name(index: int) -> str:
    """Name of a group; names sort as their numbers do."""
    return f"g{index:04d}"


def namespace_of(group: str) -> str:
    """Namespace of a group."""
    return f"team-{group}"


# ---- the bank's objects


def namespaces(plan: Plan) -> Iterator[Object]:
    """Yield a namespace for every group."""
    for index in range(plan.groups):
        yield {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": namespace_of(group_name(index))},
        }


def agreements(plan: Plan) -> Iterator[Object]:
    """Yield the pool, and a group and its policy after the other."""
    shares = [
        {"businessGroup": group_name(index), "guaranteed": plan.guaranteed(index), "maxCapacity": plan.capacity}
        for index in range(plan.groups)
    ]
    limits = {"maxGracePeriod": "10m", "minRunTime": "0s", "maxTimeToReturn": "30m", "resumeAfter": "1s"}
    yield _of_bank("GPUPool", POOL, {"capacity": plan.capacity, "shares": shares, "limits": limits})
    for index in range(plan.groups):
        group = group_name(index)
        yield _of_bank("BusinessGroup", group, {"owner": "lin@example.com", "namespaces": [namespace_of(group)]})
        guaranteed, role = plan.guaranteed(index), plan.role(index)
        policy = {
            "businessGroup": group,
            "resourcePool": POOL,
            "guaranteed": guaranteed,
            "lendingLimit": SLOT if role is Role.LENDER else 0,
            "borrowLimit": plan.capacity - guaranteed if role is Role.BORROWER else 0,
            "reclaimPolicy": {"gracePeriod": "5m"},
        }
        yield _of_bank("GPUQuotaPolicy", "policy", policy, namespace_of(group))


def _of_bank(kind: str, name: str, spec: Mapping[str, Any], namespace: str = "") -> Object:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": BANK_KINDS[kind].api_version, "kind": kind, "metadata": metadata, "spec": dict(spec)}


# ---- jobs


def job(group: str, name: str, side: Side, gpus: int, *, seconds: float | None = None) -> Object:
    """Return a Job of one pod that runs so many seconds, or for ever; one that borrows needs no checkpoint."""
    queue = local_own_queue(POOL) if side is Side.OWN else local_borrow_queue(POOL)
    labels = {QUEUE_LABEL: queue} | ({RETRYABLE_LABEL: "true"} if side is Side.BORROW else {})
    annotations = {COMPLETE_AFTER: f"{max(round(seconds * 1000), 1)}ms"} if seconds is not None else {}
    return {
        "apiVersion": JOB.api_version,
        "kind": JOB.name,
        "metadata": {"name": name, "namespace": namespace_of(group), "labels": labels},
        "spec": {
            "parallelism": 1,
            "completions": 1,
            "ttlSecondsAfterFinished": KEPT_FINISHED,
            "template": {
                "metadata": {"labels": {"app": name}, "annotations": annotations},
                "spec": _pod_spec(gpus),
            },
        },
    }


def own_work(group: str, name: str, gpus: int = 1) -> Object:
    """Return a Workload without a Job, as Kueue would make it for one of one pod."""
    return {
        "apiVersion": WORKLOAD.api_version,
        "kind": WORKLOAD.name,
        "metadata": {"name": name, "namespace": namespace_of(group)},
        "spec": {
            "active": True,
            "queueName": local_own_queue(POOL),
            "podSets": [{"name": "main", "count": 1, "template": {"spec": _pod_spec(gpus)}}],
        },
    }


def pod_of(group: str, name: str, node: str, gpus: int = 1) -> Object:
    """Return the pod of a Workload without a Job, on its node: nobody needs to place it."""
    metadata = {"name": name, "namespace": namespace_of(group), "annotations": {WORKLOAD_ANNOTATION: name}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": _pod_spec(gpus) | {"nodeName": node}}


def standing_work(plan: Plan, nodes: Sequence[str]) -> Iterator[Object]:
    """Yield every Workload of own work that stays, and its pod after it; the nodes are filled one after the other."""
    places = (node for node in nodes for _ in range(NODE))
    for index in range(plan.groups):
        for number in range(plan.own_of(index)):
            group, name = group_name(index), f"own-{index}-{number}"
            yield own_work(group, name)
            yield pod_of(group, name, next(places))


def _pod_spec(gpus: int) -> Object:
    amount = {DEFAULT_RESOURCE: str(gpus)}
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 5,
        "containers": [{"name": "main", "image": "none", "resources": {"requests": amount, "limits": amount}}],
    }


# ---- filling


async def create_all(connection: Connection, bodies: Iterable[Object]) -> int:
    """Create objects, a few at a time and the first before all others; return how many."""
    kinds = {kind.name: kind for kind in (JOB, NAMESPACE, POD, WORKLOAD, *BANK_KINDS.values())}
    waiting, count = iter(bodies), 0

    async def work() -> None:
        nonlocal count
        for body in waiting:
            await connection.create(kinds[body["kind"]], body)
            count += 1

    first = next(waiting, None)
    if first is not None:
        await connection.create(kinds[first["kind"]], first)
        count += 1
    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    return count


async def until(look: Callable[[], Awaitable[T]], what: str, seconds: float, every: float = 0.5) -> T:
    """Look until there is something; raise TimeoutError, saying what was waited for."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while True:
        found = await look()
        if found:
            return found
        if loop.time() >= end:
            raise TimeoutError(f"{what} did not come about within {seconds:.0f} s; see the logs of lab and bank")
        await asyncio.sleep(every)
