"""What Temporal's UI says about an incident of a GPU: which GPU, what is wrong, what was done, what comes next."""

from typing import Final

from gpubank.domain.base import clock
from gpubank.domain.incident import IncidentInput, IncidentPhase, IncidentState
from gpubank.domain.servicing import CordonScope

_NEXT: Final = {
    IncidentPhase.SUSPECT: "Reported. It is looked at on its node: what passes by itself is waited for, the rest is"
    " cordoned.",
    IncidentPhase.CORDONED: "No new pod gets it. Its pods are asked to leave, jobs with a hook after a checkpoint,"
    " disruption budgets respected.",
    IncidentPhase.DRAINED: "No pod is left on it. Whoever repairs is told.",
    IncidentPhase.TICKETED: "**Repair it**, then `gpubank incident repaired`; if the driver says that all is well, that"
    " counts too. What cannot be repaired: `gpubank incident retire`.",
    IncidentPhase.REPAIRED: "Said to be mended. The node's agent puts it back if the GPU agrees.",
    IncidentPhase.UNCORDONED: "It takes pods again and is watched for a while.",
    IncidentPhase.RECOVERED: "Over.",
    IncidentPhase.RETIRED: "Taken out for good.",
}

_SCOPES: Final = {
    CordonScope.NONE: "nothing",
    CordonScope.GPU: "only the GPU",
    CordonScope.NODE: "the whole node",
}


def incident_summary(start: IncidentInput) -> str:
    """One line about an incident."""
    return f"GPU {start.uuid} of node {start.node}"


def incident_details(start: IncidentInput, state: IncidentState) -> str:
    """Everything about an incident, as Markdown."""
    lines = [
        f"### {state.phase}: GPU {start.uuid} of node {start.node} (cluster {start.cluster})",
        "",
        _NEXT[state.phase],
        "",
        f"Pool {state.pool or '–'}, cordoned: **{_SCOPES[state.cordoned]}**.",
    ]
    if state.cause:
        lines += ["", f"Decided by **{state.cause}**: {state.reason}."]
    if state.waits_for:
        lines += ["", f"**Waits for approval** (`gpubank incident approve`): {state.waits_for}."]
    if state.faults:
        lines += ["", "| fault | class | asks for | first | last | times |", "|--|--|--|--|--|--|"]
        lines += [
            f"| {fault.cause} | {fault.fault} | {fault.action or '–'} | {clock(fault.first_at)}"
            f" | {clock(fault.last_at)} | {fault.count} |"
            for fault in state.faults
        ]
    if state.pods:
        lines += ["", "| pod | GPUs | |", "|--|--|--|"]
        lines += [f"| {pod.namespace}/{pod.name} | {pod.gpus} | {pod.state} |" for pod in state.pods]
    if state.ticket:
        lines += ["", f"Ticket: {state.ticket}."]
    if state.repaired_by:
        lines += ["", f"Repaired, says {state.repaired_by}."]
    if state.note:
        lines += ["", f"Last: {state.note}."]
    if state.history:
        lines += ["", "| since | phase | because |", "|--|--|--|"]
        lines += [f"| {clock(record.at)} | {record.phase} | {record.why} |" for record in state.history[-10:]]
    return "\n".join(lines)
