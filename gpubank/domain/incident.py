"""The incident of one GPU: its phases, and the messages between node, workflow and people.

    SUSPECT ─▶ CORDONED ─▶ DRAINED ─▶ TICKETED ─▶ REPAIRED ─▶ UNCORDONED ─▶ RECOVERED
       │          ▲            │          │   ▲────────┘             │
       │          └────────────┴──────────┴──────────────────────────┘  worse than it seemed
       └─▶ RECOVERED  it passed by itself            from everywhere ─▶ RETIRED  by a person

What a node tells only wakes the incident; what stands against the GPU is looked at on the node.
"""

from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Final, Literal

from pydantic import AwareDatetime

from gpubank.domain.base import Duration, Message
from gpubank.domain.errors import IllegalTransitionError
from gpubank.domain.servicing import CordonScope, PodName

WORKFLOW: Final = "GpuIncident"
"""Name of the workflow type; the node's reporter starts it by this name."""

QUEUE: Final = "bank"
"""Task queue of the workflow."""

EDGES_SIGNAL: Final = "edges"
"""Signal that carries `Edges`."""


class IncidentPhase(StrEnum):
    """Where the incident of one GPU stands."""

    SUSPECT = "Suspect"
    """Something was reported; nothing has been done beyond what the node itself did."""

    CORDONED = "Cordoned"
    """Its node, or only the GPU, takes no new pods."""

    DRAINED = "Drained"
    """No pod is left on what is cordoned, or a person said to go on without."""

    TICKETED = "Ticketed"
    """Whoever repairs has been told, where anybody is configured; the repair is awaited."""

    REPAIRED = "Repaired"
    """A person or the driver says that it is mended."""

    UNCORDONED = "Uncordoned"
    """It takes new pods again and is watched."""

    RECOVERED = "Recovered"
    RETIRED = "Retired"
    """A person has taken the GPU out for good."""


_P = IncidentPhase

MOVES: Final[Mapping[IncidentPhase, frozenset[IncidentPhase]]] = {
    _P.SUSPECT: frozenset({_P.CORDONED, _P.RECOVERED, _P.RETIRED}),
    _P.CORDONED: frozenset({_P.DRAINED, _P.REPAIRED, _P.RETIRED}),
    _P.DRAINED: frozenset({_P.CORDONED, _P.TICKETED, _P.REPAIRED, _P.RETIRED}),
    _P.TICKETED: frozenset({_P.CORDONED, _P.REPAIRED, _P.RETIRED}),
    _P.REPAIRED: frozenset({_P.TICKETED, _P.UNCORDONED, _P.RETIRED}),
    _P.UNCORDONED: frozenset({_P.CORDONED, _P.RECOVERED, _P.RETIRED}),
    _P.RECOVERED: frozenset(),
    _P.RETIRED: frozenset(),
}
"""Back to CORDONED wherever a worse report widens what is cordoned; REPAIRED to TICKETED where the GPU disagrees."""

ENDED: Final = frozenset({IncidentPhase.RECOVERED, IncidentPhase.RETIRED})
"""Phases that nothing follows."""

REPAIRABLE: Final = frozenset({IncidentPhase.CORDONED, IncidentPhase.DRAINED, IncidentPhase.TICKETED})
"""Phases in which a person may say that the GPU is repaired."""


def moved_to(subject: str, phase: IncidentPhase, wanted: IncidentPhase) -> IncidentPhase:
    """Return `wanted`, or raise `IllegalTransitionError` if the table has no such move."""
    if wanted not in MOVES[phase]:
        raise IllegalTransitionError(subject, phase, wanted)
    return wanted


# ---- names


def incident_id(cluster: str, node: str, uuid: str) -> str:
    """Workflow id of the incident of one GPU."""
    return f"incident/{cluster}/{node}/{uuid}"


def node_queue(cluster: str, node: str) -> str:
    """Task queue that one node's reporter serves."""
    return f"node-{cluster}-{node}"


# ---- what nodes tell


class GpuMark(Message):
    """One thing that is held against a GPU on its node."""

    cause: str
    """As in `xid 79`, `lost`, `remap-failed`, `thermal`, `recovery action GPU_RESET`."""

    fault: str
    """Class by the node's health policy."""

    action: str = ""
    """What that policy, or the driver, asks for."""

    first_at: AwareDatetime
    last_at: AwareDatetime
    count: int = 1
    """How often it had been reported on the node by then."""


class Fault(GpuMark):
    """What was reported of one cause, all reports folded into one."""

    boot_id: str = ""
    """Boot of the node in which it was last reported."""


class HealthEdge(Fault):
    """One report about a GPU: a fault that is new, or has come again after a silence."""

    id: str
    """The same however often it is delivered."""


class Edges(Message):
    """Reports that are delivered together."""

    edges: tuple[HealthEdge, ...]


class GpuSight(Message):
    """A GPU as its node's agent sees it."""

    found: bool = True
    """Whether the node has such a GPU, or holds something against one that it had."""

    marks: tuple[GpuMark, ...] = ()
    """Faults; what people hold against it is in `quarantined_by`."""

    wrong: str = ""
    """What its last poll saw that speaks against it; empty if nothing."""

    verdict: str = ""
    """The driver's recovery action, `NONE` where it asks for nothing; empty where it does not tell."""

    quarantined_by: str = ""
    """Who took it out by hand, and why; empty if nobody but this incident."""

    holders: tuple[PodName, ...] | None = None
    """Pods on it; None where the kubelet does not tell."""

    boot_id: str = ""


class Wanted(StrEnum):
    """What an inspection waits for."""

    NOTHING = "Nothing"
    CLEAR = "Clear"
    """Nothing is held against the GPU."""

    SOUND = "Sound"
    """The driver says that it asks for nothing, and the last poll saw nothing wrong."""


class NodeOrder(Message):
    """An order to one node's agent about one GPU."""

    incident: str
    """Workflow id; also the name under which the GPU is taken out."""

    uuid: str
    key: str = ""
    """Idempotency key, which the agent remembers."""

    reason: str = ""
    wanted: Wanted = Wanted.NOTHING
    for_good: bool = False
    """Only with a quarantine: the GPU is retired, and no later incident puts it back; a person on its node may."""


class Released(Message):
    """What came of putting a GPU back."""

    released: bool = True
    why_not: str = ""
    """Why it stays out; empty if it is back, or is not on the node any more."""

    mended: bool = True
    """False where the GPU itself still reports a fault."""


# ---- the workflow


class IncidentTerms(Message):
    """Times that govern an incident, by the policy that was in force when it began."""

    revision: str = ""
    burst: Duration = timedelta(seconds=180)
    quiet: Duration = timedelta(minutes=5)
    agent_silence: Duration = timedelta(minutes=2)
    checkpoint_grace: Duration = timedelta(minutes=10)
    drain_limit: Duration = timedelta(hours=1)
    ticket_limit: Duration = timedelta(hours=1)
    probation: Duration = timedelta(minutes=10)


class IncidentInput(Message):
    """Starts an incident; signal-with-start always carries it."""

    cluster: str
    node: str
    uuid: str
    state: "IncidentState | None" = None
    """What an earlier run hands over when it continues as new."""


class PhaseRecord(Message):
    """One phase that the incident has been in."""

    phase: IncidentPhase
    at: AwareDatetime
    why: str = ""


class Asks(StrEnum):
    """What a person is asked to approve."""

    NOTHING = "Nothing"
    CORDON = "Cordon"
    """To cordon although much of the pool is out of service."""

    PODS = "Pods"
    """To go on although pods are left."""


class Leaving(Message):
    """One pod that is to leave, and how far it is."""

    namespace: str
    name: str
    uid: str
    gpus: int = 0
    state: str = "asked to leave"
    gone: bool = False


class IncidentWord(Message):
    """A person's word on an incident."""

    identity: str
    verified: bool = False
    """Whether the identity was confirmed by the API server."""

    reason: str = ""
    keep_cordon: bool = False
    """Only with a retirement: leave the node cordoned."""

    @property
    def who(self) -> str:
        """The person's name, marked where nobody has confirmed it."""
        return self.identity if self.verified else f"{self.identity} (unverified)"

    @property
    def said(self) -> str:
        """Who, and why where that was said."""
        return self.who + (f": {self.reason}" if self.reason else "")


class IncidentState(Message):
    """What an incident remembers; also the answer of its query."""

    phase: IncidentPhase = IncidentPhase.SUSPECT
    opened_at: AwareDatetime | None = None
    pool: str = ""
    cordoned: CordonScope = CordonScope.NONE
    """What takes no new pods because of this incident."""

    cause: str = ""
    """The fault that decided."""

    reason: str = ""
    """Why it is treated as it is, for people."""

    terms: IncidentTerms | None = None
    faults: tuple[Fault, ...] = ()
    known: tuple[str, ...] = ()
    """Ids of the last edges, so that one that is delivered twice counts once."""

    last_edge_at: AwareDatetime | None = None
    fresh: bool = False
    """Whether something was reported that has not been judged yet."""

    approved: bool = False
    """A person has said that it may be cordoned although much of the pool is."""

    go_on: bool = False
    """A person has said that it goes on although pods are left."""

    approval: str = ""
    """Who approved what and why, until the audit trail has it with the next move."""

    asks: Asks = Asks.NOTHING
    """What a person must approve."""

    waits_for: str = ""
    """Why, for people; empty while nobody need."""

    drain_until: AwareDatetime | None = None
    pods: tuple[Leaving, ...] = ()
    ticket: str = ""
    """What became of the word to whoever repairs."""

    told: bool = False
    """Whether somebody outside took it."""

    repaired_by: str = ""
    retired: IncidentWord | None = None
    note: str = ""
    """What happened last, for people."""

    history: tuple[PhaseRecord, ...] = ()
    recorded: int = 0
    """Moves that the audit trail has."""

    moves: int = 0
    """Moves so far."""


# ---- what people may say

Word = Literal["repaired", "retire", "approve"]
"""What an `IncidentWord` is about."""


def word_refusal(incident: str, state: IncidentState, word: Word) -> str:
    """Say why a person's word on the incident counts for nothing now; empty if it counts."""
    phase = state.phase
    if state.retired is not None and phase not in ENDED:
        rule = f"{state.retired.who} has it retired, and no other word counts"
    elif word == "repaired" and phase not in REPAIRABLE:
        rule = "only what is cordoned and not yet repaired can be said to be repaired"
    elif word == "retire" and phase in ENDED:
        rule = "it cannot be retired any more"
    elif word == "approve" and state.asks is Asks.NOTHING:
        rule = "nothing waits for approval"
    else:
        return ""
    return f"incident {incident!r}: it is {phase}: {rule}"
