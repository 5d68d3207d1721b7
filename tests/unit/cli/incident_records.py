"""What the bench's Temporal holds of incidents: one that is being drained, one that asks, one that has ended."""

from datetime import timedelta

from gpubank.client import IncidentRow
from gpubank.domain.incident import (
    Asks,
    Fault,
    IncidentPhase,
    IncidentState,
    IncidentTerms,
    Leaving,
    PhaseRecord,
    incident_id,
)
from gpubank.domain.servicing import CordonScope
from tests.unit.cli.records import CLUSTER, POOL, at

DRAINING = incident_id(CLUSTER, "n1", "GPU-a")
ASKING = incident_id(CLUSTER, "n2", "GPU-b")
ENDED = incident_id(CLUSTER, "n2", "GPU-c")


def _row(incident: str, phase: IncidentPhase, cause: str, *, minutes: float, asks: bool = False) -> IncidentRow:
    over = phase is IncidentPhase.RECOVERED
    return IncidentRow(
        incident=incident,
        running=not over,
        phase=phase,
        cluster=CLUSTER,
        pool=POOL,
        node=incident.split("/")[2],
        cause=cause,
        needs_approval=asks,
        started_at=at(minutes),
        ended_at=at(minutes + 30) if over else None,
    )


def incident_rows() -> list[IncidentRow]:
    """What Temporal's list says."""
    return [
        _row(DRAINING, IncidentPhase.CORDONED, "xid 79", minutes=0),
        _row(ASKING, IncidentPhase.SUSPECT, "lost", minutes=5, asks=True),
        _row(ENDED, IncidentPhase.RECOVERED, "thermal", minutes=-60),
    ]


def incident_states() -> dict[str, IncidentState]:
    """What the incidents themselves say."""
    fault = Fault(
        cause="xid 79", fault="hardware", action="RESTART_BM", first_at=at(0), last_at=at(0) + timedelta(seconds=9)
    )
    terms = IncidentTerms(revision="2026-11.1")
    return {
        DRAINING: IncidentState(
            phase=IncidentPhase.CORDONED,
            opened_at=at(0),
            pool=POOL,
            cordoned=CordonScope.NODE,
            cause="xid 79",
            reason="the machine must be restarted or opened",
            terms=terms,
            faults=(fault,),
            pods=(Leaving(namespace="ads", name="serve-0", uid="u", gpus=4, state="asked to leave"),),
            note="xid 79: the machine must be restarted or opened",
            history=(PhaseRecord(phase=IncidentPhase.CORDONED, at=at(1), why="xid 79"),),
        ),
        ASKING: IncidentState(
            opened_at=at(5),
            pool=POOL,
            cause="lost",
            reason="the machine must be restarted or opened",
            terms=terms,
            asks=Asks.CORDON,
            waits_for="8 of 32 GPUs of pool 'h100' are out of service already",
        ),
        ENDED: IncidentState(phase=IncidentPhase.RECOVERED, opened_at=at(-60), pool=POOL, cause="thermal"),
    }
