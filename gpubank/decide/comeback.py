"""When own work that made room comes back: it is switched on, and waits in the scheduler's order like all own work.

Nothing is lent for it and nobody is stopped for it; and while GPUs are gathered or were just given back for other own
work of its group it stays away, so that it takes no part of what a gang waits for.
"""

from gpubank.decide.desk import Desk, kueue_order
from gpubank.domain.contract import Side
from gpubank.domain.demand import WHOLE, DemandState
from gpubank.domain.facts import WorkloadFacts


def may_come_back(desk: Desk, workload: WorkloadFacts) -> bool:
    """Whether parked own work fits the guarantee after all that comes before it, and may be switched on now."""
    return workload in desk.once(("coming back", workload.group), lambda: _coming_back(desk, workload.group))


def _coming_back(desk: Desk, group: str) -> tuple[WorkloadFacts, ...]:
    if desk.frozen or desk.facts.in_fail_safe or _gathers(desk, group):
        return ()
    parked = [workload for workload in desk.own_work(group) if _is_parked(desk, workload)]
    # What is being stopped is on its way to somebody, or comes free later.
    left = desk.left_of(group) - desk.books.stopping(group)
    found = []
    for workload in sorted((*desk.owed(group), *parked), key=kueue_order) if parked else ():
        if workload.gpus <= left and not workload.active:
            found.append(workload)
        if workload.active or workload.gpus <= left:
            left -= workload.gpus
    return tuple(found)


def _gathers(desk: Desk, group: str) -> bool:
    """Whether GPUs are gathered for own work of the group, or were given back and are not taken yet."""
    return any(
        demand.kind in WHOLE and demand.state in (DemandState.OPEN, DemandState.RAISED)
        for demand in desk.demands_of(group)
    )


def _is_parked(desk: Desk, workload: WorkloadFacts) -> bool:
    """Whether it was stopped to make room, and has left; what the scheduler has given up stays so."""
    left = workload.gone and not desk.books.lines_of(workload.key.uid)
    return workload.kind is Side.OWN and workload.parked and left and not workload.given_up and workload.gpus > 0
