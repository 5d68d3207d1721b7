"""Guarantees in force follow what the policies ask, as use allows; and lenders rest after a recall.

falls    in force F, target T < F     releasing = F − max(T, own use + lent + pledged)      (out of the queue)
         once the queue is fenced     in force = F − releasing, or less of it if an own job was quicker
rises    in force F, target T > F     by what is free of the surplus, groups in the order of their names

What is lent beyond a target comes back through demands (`decide.limits`); nobody is stopped here.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from gpubank.decide.desk import Desk
from gpubank.decide.slack import raw_slack
from gpubank.domain.books import Guarantee
from gpubank.domain.contract import Side
from gpubank.domain.transaction import CapacityChange, GuaranteeChange

MOST_AT_ONCE: Final = 100
"""Guarantees that rise in one transaction."""


def follow_capacity(desk: Desk) -> None:
    """Enter in the books what the platform vouches for."""
    capacity = desk.terms.capacity
    if capacity != desk.books.capacity:
        note = f"the pool's capacity is {capacity} GPUs, was {desk.books.capacity}"
        desk.write(f"capacity/{capacity}", note, capacity=CapacityChange(capacity=capacity))


def follow_targets(desk: Desk) -> None:
    """Move every guarantee in force towards its target: falls first, for they make room for rises."""
    for group in desk.groups:
        _fall(desk, desk.books.guarantee(group))
    _rise(desk)


def _fall(desk: Desk, guarantee: Guarantee) -> None:
    group, target = guarantee.group, desk.target(guarantee.group)
    if guarantee.releasing:
        if target >= guarantee.in_force:
            _set(desk, guarantee, guarantee.in_force, 0, "the policy asks for all of it again")
        elif desk.facts.queue(group, Side.OWN) is None or desk.fenced(group, Side.OWN, guarantee.revision):
            taken = max(-desk.free(group), 0)
            if taken:
                note = f"own work took {taken} GPUs first"
                _set(desk, guarantee, guarantee.in_force, max(guarantee.releasing - taken, 0), note)
            else:
                left = guarantee.in_force - guarantee.releasing
                _set(desk, guarantee, left, 0, f"{guarantee.releasing} GPUs are free")
    elif target < guarantee.in_force:
        held = desk.reserved(group, Side.OWN) + desk.books.lent(group) + desk.books.pledged(group)
        if (release := guarantee.in_force - max(target, held)) > 0:
            _set(desk, guarantee, guarantee.in_force, release, f"the policy asks for {target}")


def _rise(desk: Desk) -> None:
    """Raise what may rise, many groups in one transaction: a pool of a thousand is not a thousand of them."""
    surplus, rising = max(desk.books.surplus, 0), list[tuple[Guarantee, int]]()
    for group in desk.groups:
        guarantee = desk.books.guarantee(group)
        rise = min(desk.target(group) - guarantee.in_force, surplus)
        if rise > 0 and not guarantee.releasing:
            rising.append((guarantee, guarantee.in_force + rise))
            surplus -= rise
    for begin in range(0, len(rising), MOST_AT_ONCE):
        _raise(desk, rising[begin : begin + MOST_AT_ONCE])


def _raise(desk: Desk, rising: Sequence[tuple[Guarantee, int]]) -> None:
    (first, in_force), *others = rising
    if not others:
        _set(desk, first, in_force, 0, f"the policy asks for {desk.target(first.group)}")
        return
    changes = [GuaranteeChange(group=each.group, version=each.version, in_force=gpus) for each, gpus in rising]
    named = ", ".join(f"{each.group}: {gpus}" for each, gpus in rising)
    desk.write(f"guarantees/{first.group}", f"guarantees rise, GPUs now in force: {named}", guarantees=changes)


def _set(desk: Desk, guarantee: Guarantee, in_force: int, releasing: int, why: str) -> None:
    change = GuaranteeChange(group=guarantee.group, version=guarantee.version, in_force=in_force, releasing=releasing)
    note = f"guarantee of {guarantee.group}: {in_force} GPUs in force, {releasing} being given up; {why}"
    desk.write(f"guarantee/{guarantee.group}", note, guarantees=[change])


def rest_lenders(desk: Desk) -> None:
    """Keep the clock of lenders that got a recalled loan back: their slack must last before it is lent again."""
    for guarantee in desk.books.guarantees:
        if not guarantee.recalled:
            continue
        since = guarantee.slack_since
        if raw_slack(desk, guarantee.group) <= 0:
            if since is not None:
                _rest(desk, guarantee, True, None, "its slack is gone again")
        elif since is None:
            _rest(desk, guarantee, True, desk.now, "it has slack again")
            desk.wake(desk.now + desk.terms.resume_after)
        elif desk.lasted(since, desk.terms.resume_after):
            _rest(desk, guarantee, False, None, "its slack has lasted")


def _rest(desk: Desk, guarantee: Guarantee, recalled: bool, since: datetime | None, why: str) -> None:
    change = GuaranteeChange(
        group=guarantee.group,
        version=guarantee.version,
        in_force=guarantee.in_force,
        releasing=guarantee.releasing,
        recalled=recalled,
        slack_since=since,
    )
    desk.write(f"rest/{guarantee.group}", f"{guarantee.group} after a recall: {why}", guarantees=[change])
