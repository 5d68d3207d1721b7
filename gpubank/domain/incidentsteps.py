"""What an incident asks of activities, and what it is told: one record per step, with the key that makes it one."""

from enum import StrEnum
from typing import Any

from pydantic import AwareDatetime, Field

from gpubank.domain.base import Message
from gpubank.domain.incident import GpuMark, IncidentTerms
from gpubank.domain.loan import WorkloadKey
from gpubank.domain.servicing import CordonScope, NodePod, PodName


class Verdict(StrEnum):
    """What is to be done about a GPU."""

    RECOVERED = "Recovered"
    WAIT = "Wait"
    ACT = "Act"


class Judgement(Message):
    """What is to be done about a GPU, and why."""

    verdict: Verdict
    scope: CordonScope = CordonScope.NONE
    """What is to be cordoned, where something is."""

    cause: str = ""
    """The fault that decided."""

    fault: str = ""
    action: str = ""
    reason: str = ""
    again_at: AwareDatetime | None = None
    """When time alone changes the answer."""


class JudgeStep(Message):
    """Judge what stands against a GPU."""

    marks: tuple[GpuMark, ...]
    seen: bool
    """Whether they stand on the node now; False for what was only reported."""

    removed: bool = False
    """Whether the node, restarted since the last report, has no such GPU now."""

    last_edge_at: AwareDatetime
    now: AwareDatetime


class IncidentStep(Message):
    """One step of one incident."""

    incident: str
    """Workflow id."""

    cluster: str
    node: str
    uuid: str
    opened_at: AwareDatetime
    """Tells apart incidents of the same GPU."""

    scope: CordonScope = CordonScope.NONE
    approved: bool = False
    """Whether a person has approved the cordon."""

    reason: str = ""

    def key(self, step: str) -> str:
        """Idempotency key of an effect of this step."""
        return f"{self.incident}/{self.opened_at:%Y%m%dT%H%M%S.%fZ}/{step}"


class IncidentSight(Message):
    """The node as the cluster sees it, and the policy's times."""

    found: bool = True
    """Whether the cluster has such a node."""

    pool: str = ""
    terms: IncidentTerms


class CordonResult(Message):
    """What came of cordoning."""

    cordoned: bool = False
    blocked: str = ""
    """Why a person must approve it first; empty if nobody need."""

    gone: bool = False
    """The node has left the cluster."""

    was_closed: bool = False
    """Somebody else had cordoned the node before."""


class PodsStep(Message):
    """See who must leave."""

    step: IncidentStep
    holders: tuple[PodName, ...] | None = None
    """Pods on the GPU, where they are known."""


class LeavingPod(Message):
    """One pod that must leave, with the job to be saved before."""

    pod: NodePod
    owner: WorkloadKey | None = None
    """Workload that it is of, whose people are told; None where no queue knows it."""

    workload: WorkloadKey | None = None
    """Workload with a checkpoint hook; None where there is nothing to ask."""

    group: str = ""
    term: int = 1
    epoch: int = 0
    """Ordinal of the last recall of its loan, which its trainer knows."""


class LeavingPods(Message):
    """Who must leave."""

    known: bool = True
    """False where it is not known which pods are on the GPU."""

    pods: tuple[LeavingPod, ...] = ()


class EvictStep(Message):
    """Have one pod leave."""

    step: IncidentStep
    pod: NodePod
    owner: WorkloadKey | None = None
    """Workload that it is of, whose people are told."""


class Ticket(Message):
    """One event for whoever repairs: CloudEvents 1.0."""

    id: str
    """The idempotency key, too."""

    type: str
    source: str
    subject: str
    time: AwareDatetime
    data: dict[str, Any] = Field(default_factory=dict)


class Receipt(Message):
    """What became of a ticket."""

    sent: bool
    note: str = ""
    """What the other side said, or why nothing was sent."""
