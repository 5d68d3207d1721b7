"""Pools of any size, in the middle of their day: what decisions are measured on.

every group    lends its share of the loans to the groups after it, and runs own work on what it keeps
waiting        own work above the guarantee, and borrow work that finds no slack: they cost a step as much as any
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from gpubank.decide.compile import nominals, revisions
from gpubank.domain.books import Books, Guarantee
from gpubank.domain.contract import Side, WorkloadContract
from gpubank.domain.demand import Demand, DemandKind
from gpubank.domain.facts import NodeFacts, PodFacts, PoolFacts, QueueFacts, WorkloadFacts
from gpubank.domain.loan import Line, LineState, WorkloadKey
from gpubank.domain.terms import GroupTerms, PoolTerms

NOW: Final = datetime(2026, 11, 2, 9, tzinfo=UTC)
CLUSTER: Final = "bench"
POOL: Final = "h100"
SIZE: Final = 4
"""GPUs of every loan and of every own job."""

NODE: Final = 8
"""GPUs of a node."""

RETRYABLE: Final = WorkloadContract(retryable=True)
LONG_AGO: Final = NOW - timedelta(hours=2)


@dataclass(frozen=True)
class Size:
    """How much there is of what."""

    groups: int
    loans: int
    own: int = 0
    """Own jobs that run, in all."""

    waiting: int = 0
    """Jobs that wait and stay waiting, in all: half own work above the guarantee, half borrow work without slack."""

    slack: int = 0
    """GPUs of every group that it neither uses nor lends."""


@dataclass(frozen=True)
class World:
    """One pool: what the scheduler sees, what the books say, what was agreed."""

    facts: PoolFacts
    books: Books
    terms: PoolTerms


def group_name(index: int) -> str:
    """Name of a group; names sort as their numbers do."""
    return f"g{index:04d}"


def workload(uid: str, group: str, kind: Side, gpus: int = SIZE, *, node: str = "", age: int = 0) -> WorkloadFacts:
    """A job of one pod, running where it has a node; `age` in seconds tells one from another."""
    at = LONG_AGO + timedelta(seconds=age % 3600)
    return WorkloadFacts(
        key=WorkloadKey(uid=uid, namespace=f"team-{group}", name=f"job-{uid}", job=f"Job/{uid}"),
        group=group,
        kind=kind,
        gpus=gpus,
        created_at=at,
        reserved=bool(node),
        admitted_at=at if node else None,
        waiting_since=at,
        contract=RETRYABLE,
        pod_facts=(PodFacts(uid=f"{uid}-0", name=f"{uid}-0", gpus=gpus, node=node, running=True),) if node else (),
    )


def world(size: Size, now: datetime = NOW) -> World:
    """Build a pool at rest at `now`: every quota is written and fenced, every loan runs."""
    names = [group_name(index) for index in range(size.groups)]
    own = [names[index % size.groups] for index in range(size.own)]
    loans = [
        (names[index % size.groups], names[(index % size.groups + 1 + index // size.groups) % size.groups])
        for index in range(size.loans)
    ]
    held = dict.fromkeys(names, size.slack)
    for group in (*own, *(lender for lender, _ in loans)):
        held[group] += SIZE
    nodes = [f"node-{index:06d}" for index in range(-(-sum(held.values()) // NODE))]
    workloads, lines = [], []
    for index, group in enumerate(own):
        workloads.append(workload(f"own-{index:06d}", group, Side.OWN, node=nodes[index * SIZE // NODE], age=index))
    for index, (lender, borrower) in enumerate(loans):
        node = nodes[(len(own) + index) * SIZE // NODE]
        workloads.append(workload(f"loan-{index:06d}", borrower, Side.BORROW, node=node, age=index))
        lines.append(_line(index + 1, lender, borrower, workloads[-1].key))
    for index in range(size.waiting):
        side = Side.BORROW if index % 2 else Side.OWN
        # A gang that would run if nobody else did, and own work above the guarantee.
        asks = (size.slack + SIZE) * size.groups if side is Side.BORROW else max(held.values()) + SIZE
        job = workload(f"wait-{index:06d}", names[index % size.groups], side, asks, age=index)
        job = job.model_copy(update={"pods": asks // SIZE})
        just_now = now - timedelta(minutes=1)
        workloads.append(job.model_copy(update={"created_at": just_now, "waiting_since": just_now}))
    books = Books(
        cluster=CLUSTER,
        pool=POOL,
        revision=1,
        capacity=sum(held.values()),
        next_line=size.loans + 1,
        guarantees=tuple(Guarantee(group=name, in_force=held[name], revision=1) for name in names),
        lines=tuple(sorted(lines, key=lambda line: line.line_id)),
    )
    facts = PoolFacts(
        cluster=CLUSTER,
        pool=POOL,
        at=now,
        queues=_queues(books, names, workloads),
        workloads=tuple(sorted(workloads, key=lambda each: (each.created_at, each.key.uid))),
        nodes=_nodes(nodes, workloads),
    )
    return World(facts, books, _terms(held, books.capacity))


def with_demand(world: World, gpus: int) -> tuple[World, str]:
    """Add own work of the first group that waits for what it has lent, and the demand for it; return its id too."""
    group = group_name(0)
    owner = workload("owner", group, Side.OWN, gpus).model_copy(update={"pods": gpus // SIZE})
    demand = Demand(
        demand_id=f"{POOL}/{group}/{DemandKind.WORKLOAD}/owner",
        cluster=CLUSTER,
        pool=POOL,
        lender=group,
        kind=DemandKind.WORKLOAD,
        workload=owner.key,
        gpus=gpus,
        pods=owner.pods,
        opened_at=NOW,
        due_at=NOW + timedelta(hours=1),
    )
    facts = world.facts.model_copy(update={"workloads": (*world.facts.workloads, owner)})
    return World(facts, world.books.model_copy(update={"demands": (demand,)}), world.terms), demand.demand_id


def with_newcomers(world: World, count: int, serial: int = 0) -> World:
    """Add jobs that ask for a loan and find slack, each of another group."""
    groups = len(world.terms.groups)
    new = tuple(
        workload(f"new-{serial + index:06d}", group_name((serial + index) * 7 % groups), Side.BORROW)
        for index in range(count)
    )
    return World(world.facts.model_copy(update={"workloads": (*world.facts.workloads, *new)}), world.books, world.terms)


def _line(number: int, lender: str, borrower: str, key: WorkloadKey) -> Line:
    return Line(
        line_id=f"{POOL}-{number}",
        cluster=CLUSTER,
        pool=POOL,
        lender=lender,
        borrower=borrower,
        gpus=SIZE,
        workload=key,
        term=1,
        state=LineState.GRANTED,
        revision=1,
        offered_at=LONG_AGO,
        granted_at=LONG_AGO,
        moved_at=LONG_AGO,
    )


def _queues(books: Books, names: list[str], workloads: list[WorkloadFacts]) -> tuple[QueueFacts, ...]:
    reserved: dict[tuple[str, Side], int] = {}
    for each in workloads:
        if each.reserved:
            reserved[each.group, each.kind] = reserved.get((each.group, each.kind), 0) + each.gpus
    quotas, stamps = nominals(books), revisions(books)
    return tuple(
        QueueFacts(
            name=f"{name}.{POOL}.{kind}",
            group=name,
            kind=kind,
            nominal=quotas.get((name, kind), 0),
            reserved=reserved.get((name, kind), 0),
            stamp=stamps.get((name, kind), 0),
            fenced=stamps.get((name, kind), 0),
        )
        for name in names
        for kind in Side
    )


def _nodes(names: list[str], workloads: list[WorkloadFacts]) -> tuple[NodeFacts, ...]:
    used = dict.fromkeys(names, 0)
    for each in workloads:
        for pod in each.pod_facts:
            used[pod.node] += pod.gpus
    return tuple(NodeFacts(name=name, gpus=NODE, used=used[name]) for name in names)


def _terms(held: dict[str, int], capacity: int) -> PoolTerms:
    return PoolTerms(
        cluster=CLUSTER,
        pool=POOL,
        resource_name="nvidia.com/gpu",
        capacity=capacity,
        groups=tuple(
            GroupTerms(group=name, guaranteed=gpus, borrow_limit=capacity, lending_limit=gpus)
            for name, gpus in held.items()
        ),
        max_grace_period=timedelta(minutes=10),
        max_termination=timedelta(seconds=60),
        max_time_to_return=timedelta(hours=1),
        resume_after=timedelta(0),
        min_run_time=timedelta(0),
        fail_safe_after=timedelta(minutes=5),
    )
