"""Nodes that are taken out of service: what is cordoned, for whom, and which pods stand in the way. Facts only."""

from enum import StrEnum
from typing import Final, NamedTuple

from pydantic import AwareDatetime

from gpubank.domain.base import GpuCount, Message
from gpubank.domain.contract import BANK_PREFIX

INCIDENTS_ANNOTATION: Final = f"{BANK_PREFIX}/incidents"
"""On a node: JSON, the marks of incidents by workflow id; written in one patch with the cordon."""


class CordonScope(StrEnum):
    """What takes no new pods."""

    NONE = "None"
    GPU = "Gpu"
    """Only the GPU, by its node's device plugin."""

    NODE = "Node"
    """The whole node."""

    @property
    def width(self) -> int:
        """The wider, the higher."""
        return list(CordonScope).index(self)


class PodName(Message):
    """A pod by its name."""

    namespace: str
    name: str


class CordonMark(Message):
    """One incident's mark on a node."""

    incident: str
    """Workflow id."""

    scope: CordonScope
    uuid: str
    """GPU that it is about."""

    since: AwareDatetime
    """When the incident began: a mark that an earlier one of the same GPU has left behind is not its own."""


class Uncordoned(Message):
    """What came of taking an incident's mark off a node."""

    opened: bool = False
    """Whether the node takes new pods again by this."""

    note: str = ""
    """Why it does not."""


class NodeView(Message):
    """One node as whoever services it sees it."""

    name: str
    pool: str = ""
    """Value of its pool label; empty where it has none."""

    gpus: GpuCount = 0
    """GPUs that it has when all are well."""

    unschedulable: bool = False
    ready: bool = True
    ours: bool = False
    """Whether it is the bank that cordoned it, and nobody has changed that since."""

    marks: tuple[CordonMark, ...] = ()

    def out_without(self, incident: str) -> int:
        """GPUs that are out of service for other reasons than this incident's."""
        others = [mark for mark in self.marks if mark.incident != incident]
        mine = self.ours and any(m.incident == incident and m.scope is CordonScope.NODE for m in self.marks)
        # A mark on a node that somebody has opened since closes nothing.
        by_others = self.unschedulable and any(mark.scope is CordonScope.NODE for mark in others)
        if not self.ready or by_others or (self.unschedulable and not mine):
            return self.gpus
        return min(self.gpus, len({mark.uuid for mark in others}))

    def without(self, mark: CordonMark) -> Uncordoned:
        """Say whether the node is opened when this mark is taken off it, and why not."""
        if not self.unschedulable:
            return Uncordoned(note="" if mark.scope is CordonScope.GPU else "somebody has opened it already")
        if mark.scope is not CordonScope.NODE:
            return Uncordoned(note="the node is cordoned for another reason")
        others = (m for m in self.marks if m.incident != mark.incident)
        if still := sorted(m.incident for m in others if m.scope is CordonScope.NODE):
            return Uncordoned(note=f"it stays cordoned for {', '.join(still)}")
        if not self.ours:
            return Uncordoned(note="it stays cordoned: somebody else cordoned it")
        return Uncordoned(opened=True)


class NodePod(Message):
    """One pod on a node that has not finished."""

    namespace: str
    name: str
    uid: str
    node: str
    gpus: int = 0
    terminating: bool = False
    stays: bool = False
    """Whether the node itself keeps it: a DaemonSet's, or a static pod's mirror."""


class EvictionOutcome(StrEnum):
    """What came of asking for an eviction."""

    ASKED = "Asked"
    """It is ending."""

    GONE = "Gone"
    """There is no such pod any more."""

    BLOCKED = "Blocked"
    """Not now: a disruption budget forbids it."""


class Evicted(NamedTuple):
    """What came of asking for an eviction."""

    outcome: EvictionOutcome
    message: str = ""
