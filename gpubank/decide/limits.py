"""Demands that no Workload waits for: what is lent beyond a limit, beyond the pool, or twice.

    Limit/lending     lent to others beyond the lendingLimit, lowered since
    Limit/guarantee   lent beyond a guarantee that is to fall
    Limit/serving     lent of the serving floor, raised since
    Limit/surplus     surplus lent that guarantees are to rise by
    Shrunk/capacity   surplus lent that the pool's nodes do not have any more; lent by whomever, where even what is
                      reserved is more than they have
    Overadmitted/own  an own job slipped in while its quota was lent

Offers are withdrawn first. A demand asks for what has come back and what is still out; it is met when nothing is out.
"""

from typing import NamedTuple

from gpubank.decide.demand import TRY_AGAIN, change, demand_id
from gpubank.decide.desk import Desk
from gpubank.decide.offers import withdraw_for
from gpubank.decide.repay import LENDING_LIMIT
from gpubank.decide.serving import beyond_floor
from gpubank.decide.slack import overhang, physical, surplus_limit
from gpubank.decide.use import novated
from gpubank.domain.contract import Side
from gpubank.domain.demand import Demand, DemandKind, DemandState
from gpubank.domain.loan import SURPLUS, Line, LineState
from gpubank.domain.transaction import DemandOpening


class Excess(NamedTuple):
    """What one lender has to get back, and why."""

    lender: str
    kind: DemandKind
    about: str
    gpus: int
    reason: str


def follow_limits(desk: Desk) -> None:
    """Withdraw offers beyond a limit; open, change and end the demands for what is lent beyond it."""
    for lender in (*desk.groups, SURPLUS):
        quiet = lender != SURPLUS and not desk.demands_of(lender) and not any(_beyond(desk, lender))
        if quiet and not beyond_floor(desk).get(lender) and not _shrunk(desk).get(lender):
            continue
        excesses = _excesses(desk, lender)
        beyond = [excess for excess in excesses if excess.gpus > 0]
        for excess in beyond:
            withdraw_for(desk, lender, excess.gpus, excess.reason)
        for excess in _excesses(desk, lender) if beyond else excesses:
            _follow(desk, excess)


def _excesses(desk: Desk, lender: str) -> list[Excess]:
    if lender == SURPLUS:
        return _surplus_excesses(desk)
    beyond_limit, beyond_target, over = _beyond(desk, lender)
    limit, target = _lending_limit(desk, lender), desk.target(lender)
    return [
        Excess(lender, DemandKind.LIMIT, LENDING_LIMIT, beyond_limit, f"{lender} lends at most {limit} GPUs"),
        Excess(
            lender,
            DemandKind.LIMIT,
            "guarantee",
            max(beyond_target - beyond_limit, 0),
            f"the guarantee of {lender} falls to {target} GPUs",
        ),
        Excess(
            lender,
            DemandKind.LIMIT,
            "serving",
            # What comes back for another reason is back for the floor, too.
            max(beyond_floor(desk).get(lender, 0) - max(beyond_limit, beyond_target, over), 0),
            f"{desk.terms.serving_floor} GPUs of the pool are kept for serving",
        ),
        Excess(
            lender,
            DemandKind.OVERADMITTED,
            "own",
            over,
            f"own work of {lender} was admitted on {over} GPUs that are lent",
        ),
        Excess(lender, DemandKind.SHRUNK, "capacity", _shrunk(desk).get(lender, 0), _nodes_have(desk)),
    ]


def _beyond(desk: Desk, lender: str) -> tuple[int, int, int]:
    """Return what a group has lent beyond its lendingLimit and beyond its target, and what it lacks for own work."""
    beyond_limit = max(desk.books.lent_to_others(lender) - _lending_limit(desk, lender), 0)
    target, beyond_target = desk.target(lender), 0
    if desk.books.guarantee(lender).in_force > target:
        lent = desk.books.on_loan(lender)
        held = desk.reserved(lender, Side.OWN) + desk.books.stopping(lender)
        beyond_target = min(max(held + lent - target, 0), lent)
    free = desk.free(lender)
    return beyond_limit, beyond_target, max(-free - _kept(desk, lender), 0) if free < 0 else 0


def _shrunk(desk: Desk) -> dict[str, int]:
    """Return what each group has to get back because the pool's nodes do not have what is reserved.

    That is borrowed work, and never own work: whoever has lent most comes first (ties by name). What comes back for
    another reason counts, and the surplus goes before all of it.
    """
    return desk.once("shrunk", lambda: _shrunk_of(desk))


def _shrunk_of(desk: Desk) -> dict[str, int]:
    missing = overhang(desk)
    if missing <= 0:
        return {}
    missing -= sum(excess.gpus for excess in _surplus_excesses(desk))
    coming = {group: max(*_beyond(desk, group), beyond_floor(desk).get(group, 0)) for group in desk.groups}
    missing -= sum(coming.values())
    found: dict[str, int] = {}
    for group in sorted(desk.groups, key=lambda g: (-desk.books.on_loan(g), g)):
        part = min(desk.books.on_loan(group) - coming[group], missing)
        if part > 0:
            found[group] = part
            missing -= part
    return found


def _nodes_have(desk: Desk) -> str:
    return f"the pool's nodes have {physical(desk)} GPUs only"


def _lending_limit(desk: Desk, lender: str) -> int:
    terms = desk.group(lender)
    return terms.lending_limit if terms is not None else 0


def _kept(desk: Desk, lender: str) -> int:
    """GPUs that demands keep free, and that go to an overdrawn queue first."""
    return desk.books.pledged(lender) + desk.books.guarantee(lender).releasing


def _surplus_excesses(desk: Desk) -> list[Excess]:
    lent = desk.books.lent(SURPLUS)
    promised = max(lent - surplus_limit(desk, desk.terms.capacity), 0)
    missing = max(lent - surplus_limit(desk, min(desk.terms.capacity, physical(desk))), 0) - promised
    return [
        Excess(SURPLUS, DemandKind.LIMIT, "surplus", promised, "guarantees need what is lent as surplus"),
        Excess(SURPLUS, DemandKind.SHRUNK, "capacity", missing, _nodes_have(desk)),
    ]


def _follow(desk: Desk, excess: Excess) -> None:
    demand = desk.books.demand(demand_id(desk, excess.lender, excess.kind, excess.about))
    if demand is None:
        _open(desk, excess)
    elif excess.gpus <= 0:
        change(desk, demand, DemandState.MET, "nothing is lent beyond it any more")
    elif demand.state is DemandState.PARTIAL:
        if not desk.frozen and desk.lasted(demand.moved_at or demand.opened_at, TRY_AGAIN):
            change(desk, demand, DemandState.OPEN, "it is tried again", gpus=excess.gpus)
    elif demand.state is DemandState.RAISED:
        change(desk, demand, DemandState.OPEN, "more is lent beyond it", gpus=excess.gpus)
    elif demand.gpus != demand.idle + excess.gpus:
        change(desk, demand, demand.state, excess.reason, gpus=demand.idle + excess.gpus)


def _open(desk: Desk, excess: Excess) -> None:
    if excess.gpus <= 0 or desk.frozen:
        return
    missing = excess.gpus - _under_way(desk, excess)
    if missing <= 0:
        return
    name = demand_id(desk, excess.lender, excess.kind, excess.about)
    opening = DemandOpening(
        demand_id=name,
        lender=excess.lender,
        kind=excess.kind,
        gpus=missing,
        due_at=desk.now + desk.terms.max_time_to_return,
        reason=excess.reason,
    )
    desk.write(f"demand/{name}", f"{missing} GPUs are to come back: {excess.reason}", openings=[opening])


def _under_way(desk: Desk, excess: Excess) -> int:
    """GPUs of the lender that come back anyway."""
    replaced = novated(desk)
    return sum(
        line.gpus
        for line in desk.books.lines
        if line.lender == excess.lender
        and not line.is_own
        and not (excess.about == LENDING_LIMIT and line.is_self_loan)
        and (line.state is LineState.CLOSING or _leaves(desk, line, excess) or line.line_id in replaced)
    )


def _leaves(desk: Desk, line: Line, excess: Excess) -> bool:
    """Whether a recalled or pledged line relieves this excess: what own work waits for does not lower a guarantee."""
    if excess.about == "guarantee":
        demand: Demand | None = desk.books.demand(line.demand) if line.demand is not None else None
        return demand is not None and demand.kind is DemandKind.LIMIT
    return line.state is LineState.RECALLED or line.demand is not None


def cure_overdraft(desk: Desk) -> None:
    """Where own work was admitted on more than its queue has: offers go first, then what demands keep, newest first.

    What is still missing after that is lent, and comes back by a demand of its own (Overadmitted).
    """
    for group in desk.groups:
        over = -desk.free(group)
        if over <= 0:
            continue
        over -= withdraw_for(desk, group, over, f"an own job of {group} came first")
        kept = sorted(
            (d for d in desk.demands_of(group) if d.is_open and d.idle),
            key=lambda d: (d.kind is DemandKind.WORKLOAD, -d.opened_at.timestamp(), d.demand_id),
        )
        for demand in kept:
            if over > 0:
                part = min(over, demand.idle)
                change(desk, demand, demand.state, "an own job was admitted first", idle=demand.idle - part)
                over -= part
