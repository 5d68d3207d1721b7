"""What Temporal's UI says about a workflow, for somebody who has never seen the code: who, how many, why, what next."""

from gpubank.domain.base import clock, format_duration
from gpubank.domain.failsafe import HeartbeatInput, heartbeat_lease
from gpubank.domain.recall import DemandProgress, LoanInput, LoanPhase, LoanState, ReclaimInput, ReclaimPhase
from gpubank.domain.sweep import SweepInput, SweepReport

_LOAN_NEXT = {
    LoanPhase.ACTIVE: "It runs on GPUs that other groups are guaranteed and do not use. When one of them wants its"
    " GPUs back, this loan is recalled.",
    LoanPhase.RECALLED: "Its owner has been told. Next: a checkpoint, if it has a hook; then it may be stopped.",
    LoanPhase.CHECKPOINTING: "It has been asked to save while it runs on. The bank reads the checkpoint itself before"
    " it believes it. Not saved by the end of the notice: the policy protects or evicts it.",
    LoanPhase.DURABLE: "It may be stopped, and runs on until all victims of a demand may be:"
    " nobody is stopped in vain.",
    LoanPhase.STOPPING: "It has been deactivated. When its pods and its quota are gone, its GPUs go back to their"
    " lenders.",
    LoanPhase.PARKED: "Its GPUs are with their lenders. It comes back by itself, from its checkpoint, as soon as there"
    " is room for all of it.",
    LoanPhase.PROTECTED: "It could not be saved in time, and its policy protects it: it runs on.",
    LoanPhase.CLOSED: "The job finished or is gone; the loan is over.",
}

_OWN_NEXT = {
    LoanPhase.ACTIVE: "It is own work of its group, and makes room for nobody now.",
    LoanPhase.STOPPING: "It has been deactivated. When its pods and its quota are gone, its GPUs go to the job that"
    " waits.",
    LoanPhase.PARKED: "It made room for more important work of its group. It comes back by itself, from its checkpoint,"
    " as soon as it fits the group's guarantee again.",
    LoanPhase.CLOSED: "The job finished or is gone, runs on, or waits in its own queue again.",
}
"""What differs where nothing is lent."""

_RECLAIM_NEXT = {
    ReclaimPhase.PLANNING: "choosing what hurts least: unused loans, other lenders, then running jobs",
    ReclaimPhase.AWAITING_APPROVAL: "**waits for an admin of the lender to approve or deny**",
    ReclaimPhase.RECALLING: "jobs are told and save their work; none is stopped before all of them may be",
    ReclaimPhase.STOPPING: "jobs are being stopped",
    ReclaimPhase.RETURNING: "the GPUs are back in the lender's queue; its pods are awaited",
    ReclaimPhase.SCHEDULED: "the lender's pods are on nodes",
    ReclaimPhase.MET: "done",
    ReclaimPhase.PARTIAL: "could not be met; it is tried again when facts change",
    ReclaimPhase.CANCELLED: "nobody waits any more",
}


def loan_summary(start: LoanInput) -> str:
    """One line about a Loan."""
    return f"{start.borrower} has {start.gpus} GPUs of {start.pool} for {start.workload.title}"


def loan_details(start: LoanInput, state: LoanState) -> str:
    """Everything about a Loan, as Markdown."""
    job = start.workload.title
    whose = "own work of its group" if state.own else f"lent by {', '.join(state.lenders) or 'nobody at present'}"
    follows = _OWN_NEXT.get(state.phase) if state.own else None
    lines = [
        f"### {state.phase}: {start.borrower} · {state.gpus} GPUs of {start.pool} (cluster {start.cluster})",
        "",
        f"Job **{job}** in namespace `{start.workload.namespace}`, term {state.term}, {whose}.",
        "",
        follows or _LOAN_NEXT[state.phase],
    ]
    if state.orders:
        lines += ["", f"**Wanted back** (notice ends {clock(state.deadline)}):"]
        lines += [f"- by {order.lender}: {order.reason} (`{order.demand}`)" for order in state.orders]
    if state.checkpoint is not None:
        saved = state.checkpoint
        lines += ["", f"Last verified checkpoint: step {saved.step} at {clock(saved.verified_at)}, `{saved.uri}`."]
    if state.note:
        lines += ["", f"Last: {state.note}."]
    if state.history:
        lines += ["", "| term | from | to | GPUs | lenders | ended because |", "|--|--|--|--|--|--|"]
        lines += [
            f"| {term.term} | {clock(term.started_at)} | {clock(term.ended_at)} | {term.gpus}"
            f" | {', '.join(term.lenders)} | {term.ended_because} |"
            for term in state.history[-10:]
        ]
    return "\n".join(lines)


def reclaim_summary(start: ReclaimInput) -> str:
    """One line about a Reclaim."""
    return f"{start.lender} wants its GPUs of {start.pool} back"


def reclaim_details(start: ReclaimInput, demands: tuple[DemandProgress, ...]) -> str:
    """Everything about a Reclaim, as Markdown."""
    lines = [f"### {start.lender} wants GPUs of {start.pool} back (cluster {start.cluster})"]
    for demand in demands:
        lines += [
            "",
            f"**{demand.phase}**: {demand.gpus} GPUs, due {clock(demand.due_at)} – {_RECLAIM_NEXT[demand.phase]}.",
            "",
            f"`{demand.demand}`: {demand.reason or 'own work waits'}",
        ]
        if demand.approved_by is not None:
            lines += ["", f"Approved by {demand.approved_by}."]
        if demand.victims:
            lines += ["", "| job | group | GPUs | answer | |", "|--|--|--|--|--|"]
            lines += [
                f"| {victim.workload.namespace}/{victim.workload.title} | {victim.borrower}"
                f" | {victim.gpus} | {victim.answer or 'awaited'} | {victim.reason} |"
                for victim in demand.victims
            ]
    return "\n".join(lines)


def heartbeat_summary(start: HeartbeatInput) -> str:
    """One line about a heartbeat."""
    return f"sign of life of the bank in pool {start.pool}"


def heartbeat_details(start: HeartbeatInput) -> str:
    """Everything about a heartbeat, as Markdown."""
    return "\n".join(
        (
            f"### The bank's sign of life in {start.pool} (cluster {start.cluster})",
            "",
            f"Every {format_duration(start.every)} the Lease `{heartbeat_lease(start.cluster, start.pool)}` is renewed,"
            " if the controller's loop turns, the ledger takes writes and no demand is without its Reclaim.",
            "",
            "The one pending activity is meant to fail and to be retried for ever: **NotYet** says that it has beaten,"
            " **HeartbeatRefused** says what is missing. Unrenewed for the pool's failSafeAfter, the watchdog hands"
            " the pool to the scheduler.",
        )
    )


def sweep_details(start: SweepInput, report: SweepReport) -> str:
    """Everything that a sweep has found so far, as Markdown."""
    lines = [f"### Sweep of cluster {start.cluster}: {report.pools} pools", ""]
    lines += [f"- could not be swept: {text}" for text in report.unswept]
    if not report.findings:
        return "\n".join([*lines, "Ledger, cluster and open workflows fit together."])
    lines += ["| pool | what | | who |", "|--|--|--|--|"]
    lines += [
        f"| {found.pool} | {found.kind} | {found.message} | {'started or told' if found.mended else '**people**'} |"
        for found in report.findings
    ]
    return "\n".join(lines)
