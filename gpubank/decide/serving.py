"""The serving floor: GPUs of a pool that serving holds, or finds idle when it scales up; neither is ever lent away.

    kept idle   servingFloorGpus − what serving work holds, out of the slack of groups:
                those that serve first, then by guarantee descending, then by name
    too much    lent out of guarantees > guarantees − servingFloorGpus: the rest comes back, of the same groups first

Serving is own work of inference, or with a capacity role (`serving-floor`): no recall ever takes it, and it runs on
guarantees, so that the surplus is lent as ever. Whoever lends for a tide lends out of the same slack.
"""

from collections.abc import Mapping

from gpubank.decide.desk import Desk
from gpubank.domain.contract import ReclaimClass, Side
from gpubank.domain.facts import WorkloadFacts
from gpubank.domain.loan import SURPLUS


def serves(workload: WorkloadFacts) -> bool:
    """Whether it is serving work in a group's own queue."""
    return workload.kind is Side.OWN and workload.contract.reclaim_class is ReclaimClass.INFERENCE


def kept_for_serving(desk: Desk, slack: Mapping[str, int]) -> dict[str, int]:
    """Return how much of its slack each group keeps for serving; empty without a floor, or when serving holds it."""
    if not desk.terms.serving_floor:
        return {}
    left = desk.terms.serving_floor - _served(desk)
    kept: dict[str, int] = {}
    for group in _order(desk):
        part = min(slack.get(group, 0), left)
        if part > 0:
            kept[group] = part
            left -= part
    return kept


def _served(desk: Desk) -> int:
    """GPUs that serving work holds, or is owed."""
    owed = {workload.key.uid for group in desk.groups for workload in desk.owed(group)}
    return sum(w.gpus for w in _serving(desk) if w.reserved or w.key.uid in owed)


def _serving(desk: Desk) -> tuple[WorkloadFacts, ...]:
    return desk.fixed("serving", lambda: tuple(w for w in desk.of_side(Side.OWN) if serves(w)))


def _order(desk: Desk) -> list[str]:
    """Groups, those that serve first."""
    serving = {workload.group for workload in _serving(desk)}
    groups = [group for group in desk.groups if group != SURPLUS]
    return sorted(groups, key=lambda name: (name not in serving, -desk.target(name), name))


def beyond_floor(desk: Desk) -> Mapping[str, int]:
    """Return what each group has lent of the floor, as after it was raised."""
    if not desk.terms.serving_floor:
        return {}
    return desk.once("beyond the floor", lambda: _beyond(desk))


def _beyond(desk: Desk) -> dict[str, int]:
    groups = _order(desk)
    guaranteed = sum(desk.books.guarantee(group).in_force for group in groups)
    left = sum(desk.books.on_loan(group) for group in groups) - max(guaranteed - desk.terms.serving_floor, 0)
    beyond: dict[str, int] = {}
    for group in groups:
        part = min(desk.books.on_loan(group), left)
        if part > 0:
            beyond[group] = part
            left -= part
    return beyond
