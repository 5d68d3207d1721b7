"""Placement: own work that is admitted and finds no node, because borrowed work stands in its way."""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final

from gpubank.decide.demand import TRY_AGAIN, change, demand_id
from gpubank.decide.desk import Desk
from gpubank.decide.fit import Room, pod_size, unplaced
from gpubank.decide.recall import plan_recall
from gpubank.domain.contract import Side
from gpubank.domain.demand import Demand, DemandKind, DemandState
from gpubank.domain.facts import WorkloadFacts
from gpubank.domain.transaction import DemandOpening

PATIENCE: Final = timedelta(seconds=30)
"""How long the Kubernetes scheduler gets before borrowed work is stopped for its placement."""


MOST_PLANS: Final = 8
"""Workloads for which one step looks whether a stop would help; each costs a plan. Others have their turn later."""

TURN: Final = timedelta(seconds=1)
"""How soon it is the turn of others."""


def follow_placement(desk: Desk) -> None:
    """Open demands for nodes, where stopping borrowed work would place own work that is admitted."""
    if desk.frozen:
        return
    asking: list[tuple[WorkloadFacts, int]] = []
    for workload in sorted(desk.stirring(Side.OWN), key=lambda w: w.key.uid):
        stays = workload.reserved and workload.active  # what is being stopped needs no nodes
        missing = unplaced(workload) if stays else 0
        if workload.admitted_at is None or missing == 0 or pod_size(workload) == 0:
            continue
        if not desk.lasted(workload.admitted_at, PATIENCE):
            continue
        demand = desk.books.demand(demand_id(desk, workload.group, DemandKind.PLACEMENT, workload.key.uid))
        if demand is None:
            asking.append((workload, missing))
        elif demand.state is DemandState.PARTIAL and desk.lasted(demand.moved_at or demand.opened_at, TRY_AGAIN):
            change(desk, demand, DemandState.OPEN, "it is tried again")
        elif demand.state is DemandState.RAISED and desk.lasted(demand.moved_at or demand.opened_at, PATIENCE):
            _look_again(desk, demand, workload, missing)
    if asking and not _all_fit(desk):
        for workload, missing in _in_turn(desk, asking):
            _open(desk, workload, missing)


def _all_fit(desk: Desk) -> bool:
    """Whether nodes have room for everything that is admitted and on none: then the scheduler is late, not the room.

    After a restart of the scheduler that is thousands of Workloads, and a plan for each took a step minutes.
    """
    room = Room.of(desk.facts.nodes)
    waiting = [each for side in Side for each in desk.stirring(side) if each.reserved]
    return all(room.take(unplaced(each), pod_size(each)) == unplaced(each) for each in waiting)


def _in_turn(desk: Desk, asking: Sequence[tuple[WorkloadFacts, int]]) -> Iterator[tuple[WorkloadFacts, int]]:
    """Yield whose turn it is: all, or where there are too many, others every second."""
    if len(asking) <= MOST_PLANS:
        yield from asking
        return
    first = int(desk.now.timestamp()) * MOST_PLANS
    for number in range(first, first + MOST_PLANS):
        yield asking[number % len(asking)]
    desk.wake(desk.now + TURN)


def _look_again(desk: Desk, demand: Demand, workload: WorkloadFacts, missing: int) -> None:
    """Somebody else was placed where room was made for it."""
    if _would_help(desk, _opening(desk, workload, missing)):
        change(
            desk, demand, DemandState.OPEN, "its nodes were taken by somebody else", gpus=missing * pod_size(workload)
        )
    else:
        change(desk, demand, DemandState.PARTIAL, "its pods are on no nodes, and no stop would place them")


def _open(desk: Desk, workload: WorkloadFacts, missing: int) -> None:
    opening = _opening(desk, workload, missing)
    if _would_help(desk, opening):
        desk.write(f"demand/{opening.demand_id}", opening.reason, openings=[opening])


def _opening(desk: Desk, workload: WorkloadFacts, missing: int) -> DemandOpening:
    return DemandOpening(
        demand_id=demand_id(desk, workload.group, DemandKind.PLACEMENT, workload.key.uid),
        lender=workload.group,
        kind=DemandKind.PLACEMENT,
        gpus=missing * pod_size(workload),
        pods=missing,
        workload=workload.key,
        due_at=desk.now + desk.terms.max_time_to_return,
        reason=f"{workload.key.title} of {workload.group} is admitted, and no node has room for {missing} of its pods",
    )


def _would_help(desk: Desk, opening: DemandOpening) -> bool:
    """Whether stopping somebody places it: not if nodes have room anyway, nor if nothing helps."""
    demand = Demand(
        cluster=desk.books.cluster,
        pool=desk.books.pool,
        opened_at=desk.now,
        **opening.model_dump(exclude={"workload"}, by_alias=False),
        workload=opening.workload,
    )
    others = tuple(other for other in desk.books.demands if other.demand_id != demand.demand_id)
    trial = desk.books.model_copy(update={"demands": (*others, demand)})
    plan = plan_recall(desk.facts, trial, desk.terms, demand.demand_id, now=desk.now)
    return plan.complete and bool(plan.victims)
