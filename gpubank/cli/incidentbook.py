"""Incidents as people see them: what Temporal's list says of each, and everything about one."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import AwareDatetime

from gpubank.cli.context import AmbiguousError, NotFoundError
from gpubank.cli.door import Door
from gpubank.cli.loandesk import ui_link
from gpubank.domain.base import Message
from gpubank.domain.incident import Fault, IncidentState, Leaving, PhaseRecord

if TYPE_CHECKING:
    from gpubank.client import IncidentRow

MOST = 10_000


class IncidentView(Message):
    """One incident in a list."""

    incident: str
    """Workflow id."""

    cluster: str
    pool: str
    node: str
    gpu: str
    phase: str
    cause: str
    needs_approval: bool
    running: bool
    started_at: AwareDatetime
    ended_at: AwareDatetime | None


class IncidentDetail(IncidentView):
    """Everything about one incident."""

    cordoned: str
    reason: str
    waits_for: str
    """What a person must approve; empty while nobody need."""

    waiting: tuple[str, ...]
    """What does not work yet, in its own words."""

    faults: tuple[Fault, ...]
    pods: tuple[Leaving, ...]
    ticket: str
    repaired_by: str
    policy: str
    """Revision of the policy that governs it."""

    note: str
    history: tuple[PhaseRecord, ...]
    ui: str


async def find_incidents(
    door: Door, *, pool: str | None = None, node: str | None = None, ended: bool = False
) -> list[IncidentView]:
    """Read the incidents that run, and with `ended` those that have ended; the newest run of each GPU speaks."""
    processes = await door.processes()
    rows = await processes.incidents(
        cluster=door.cluster_name, pool=pool, node=node, running_only=not ended, limit=MOST
    )
    newest = {row.incident: row for row in sorted(rows, key=lambda row: (row.running, row.started_at))}
    found = [_view(row) for row in newest.values()]
    return sorted(found, key=lambda view: (not view.running, view.pool, view.node, view.gpu))


async def resolve(door: Door, name: str) -> IncidentView:
    """Return the incident that a full id, `NODE/GPU`, a GPU's UUID, or a node with one incident means."""
    found = await find_incidents(door, ended=True)
    running = [view for view in found if view.running]
    for views in (running, found):
        fitting = [view for view in views if _fits(view, name)]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            listed = ", ".join(view.incident for view in fitting)
            raise AmbiguousError(f"{name!r} fits {len(fitting)} incidents: {listed}; name one of them")
    raise NotFoundError(f"no incident is called {name!r}; `gpubank incident list --all` shows what there is")


async def detail(door: Door, view: IncidentView) -> IncidentDetail:
    """Read everything about one incident."""
    processes = await door.processes()
    state = await processes.incident_state(view.incident)
    waiting: Sequence[str] = await processes.incident_waits(view.incident) if view.running else ()
    return combined(door, view, state, waiting)


def combined(door: Door, view: IncidentView, state: IncidentState, waiting: Sequence[str] = ()) -> IncidentDetail:
    """Put a list's row and the incident's own answer together; the answer is newer."""
    return IncidentDetail(
        **{
            **view.model_dump(),
            "phase": state.phase,
            "pool": state.pool or view.pool,
            "cause": state.cause or view.cause,
            "needs_approval": bool(state.waits_for),
        },
        cordoned=state.cordoned,
        reason=state.reason,
        waits_for=state.waits_for,
        waiting=tuple(waiting),
        faults=state.faults,
        pods=state.pods,
        ticket=state.ticket,
        repaired_by=state.repaired_by,
        policy=state.terms.revision if state.terms is not None else "",
        note=state.note,
        history=state.history,
        ui=ui_link(door, view.incident),
    )


def _fits(view: IncidentView, name: str) -> bool:
    return name in (view.incident, f"{view.node}/{view.gpu}", view.gpu, view.node)


def _view(row: "IncidentRow") -> IncidentView:
    _, cluster, node, gpu = (*row.incident.split("/", 3), "", "", "")[:4]
    return IncidentView(
        incident=row.incident,
        cluster=row.cluster or cluster,
        pool=row.pool,
        node=row.node or node,
        gpu=gpu,
        phase=row.phase,
        cause=row.cause,
        needs_approval=row.needs_approval,
        running=row.running,
        started_at=row.started_at,
        ended_at=row.ended_at,
    )
