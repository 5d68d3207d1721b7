"""What people may order about a loan, and why not: one rule for the Loan itself and for whoever only asks.

extend    while the notice of a recall runs, within the pool's maxGracePeriod, unless the demand is overdue
return    while it runs and nobody wants it back
"""

from datetime import timedelta
from typing import Final

from gpubank.domain.base import clock, format_duration
from gpubank.domain.recall import LoanPhase, LoanState

NOTICE_RUNS: Final = frozenset({LoanPhase.RECALLED, LoanPhase.CHECKPOINTING})
"""Phases in which the end of a notice matters."""


def extension_refusal(loan: str, state: LoanState, by: timedelta) -> str:
    """Say why the notice of the loan cannot end `by` later; empty if it can."""
    deadline = state.deadline
    if state.phase not in NOTICE_RUNS or state.order is None or deadline is None:
        return f"loan {loan!r} is {state.phase}: only the notice of a recall can be extended"
    if any(order.overdue for order in state.orders):
        return f"loan {loan!r} is overdue: its notice is over; return it"
    latest = min((o.latest_deadline for o in state.orders if o.latest_deadline is not None), default=None)
    if latest is None or deadline + by > latest:
        return (
            f"loan {loan!r} has notice until {clock(deadline)}, and the pool's maxGracePeriod allows it until"
            f" {clock(latest)}: {format_duration(by)} more is too much"
        )
    return ""


def return_refusal(loan: str, state: LoanState, *, asked: bool = False) -> str:
    """Say why the loan cannot be returned now; empty if it can. `asked` is whether somebody has just asked for it."""
    if state.phase is LoanPhase.ACTIVE and not state.orders and not state.finished and not asked:
        return ""
    what = "recalled already" if state.orders or asked else str(state.phase)
    return f"loan {loan!r} is {what}: only one that runs can be returned"
