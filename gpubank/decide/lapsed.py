"""Loans to groups without a policy in force: deleted, or refused as it stands. They come back, each by a demand of its
own, and nobody else is stopped for them.

    Return/<workload uid>    one for each lender of the Workload; met when its lines are returned
    a policy is there again  what has not been stopped yet goes on, as far as its borrowLimit allows

New loans end by themselves: nobody without terms is lent anything. A group's loan to itself comes back as its
guarantee falls (`decide.limits`).
"""

from gpubank.decide.demand import TRY_AGAIN, change, demand_id
from gpubank.decide.desk import Desk
from gpubank.decide.slack import borrowed
from gpubank.domain.demand import DemandKind, DemandState
from gpubank.domain.loan import Line, LineState
from gpubank.domain.transaction import DemandOpening


def follow_lapsed(desk: Desk) -> None:
    """Open a demand for whatever is lent to a group that has no terms, and end it when the group has some again."""
    owed: dict[tuple[str, str], list[Line]] = {}
    lapsed = frozenset(group for group in desk.groups if desk.group(group) is None)
    for line in desk.lines(LineState.GRANTED, LineState.RECALLED) if lapsed else ():
        if line.borrower in lapsed and not line.is_self_loan and not _given_back(desk, line):
            owed.setdefault((line.lender, line.workload.uid), []).append(line)
    for (lender, uid), lines in sorted(owed.items()):
        _follow(desk, lender, uid, lines)
    for demand in desk.books.demands:
        if demand.kind is DemandKind.RETURN and demand.workload is not None:
            held = desk.books.lines_of(demand.workload.uid)
            if held and all(_may_keep(desk, line.borrower) for line in held):
                change(desk, demand, DemandState.CANCELLED, f"{held[0].borrower} has a policy in force again")


def _may_keep(desk: Desk, group: str) -> bool:
    """Whether the group has terms, and borrows no more than they allow: what is beyond comes back all the same."""
    terms = desk.group(group)
    return terms is not None and borrowed(desk, group) <= terms.borrow_limit


def _given_back(desk: Desk, line: Line) -> bool:
    """Whether the line's Workload has ended, or it comes back for another demand."""
    workload = desk.workload(line.workload.uid)
    demand = desk.books.demand(line.demand) if line.demand is not None else None
    return workload is None or workload.finished or (demand is not None and demand.kind is not DemandKind.RETURN)


def _follow(desk: Desk, lender: str, uid: str, lines: list[Line]) -> None:
    name, gpus = demand_id(desk, lender, DemandKind.RETURN, uid), sum(line.gpus for line in lines)
    demand = desk.books.demand(name)
    if demand is not None:
        if (
            demand.state is DemandState.PARTIAL
            and not desk.frozen
            and desk.lasted(demand.moved_at or demand.opened_at, TRY_AGAIN)
        ):
            change(desk, demand, DemandState.OPEN, "it is tried again", gpus=gpus)
        return
    if desk.frozen:
        return
    line = lines[0]
    reason = f"{line.borrower} has no policy in force any more"
    opening = DemandOpening(
        demand_id=name,
        lender=lender,
        kind=DemandKind.RETURN,
        gpus=gpus,
        workload=line.workload,
        due_at=desk.now + desk.terms.max_time_to_return,
        reason=reason,
    )
    note = f"{gpus} GPUs of {lender} are to come back from {line.workload.title}: {reason}"
    desk.write(f"demand/{name}", note, openings=[opening])
