"""What an incident does about a fault: data with a revision, a part of the settings. First rule that fits, per fault.

    cause, action, class of the fault ──▶ rule ──▶ scope: None, Gpu, Node

Numbers that are others': a silence of three minutes ends a burst (as NVIDIA's Fleet Intelligence groups XIDs); repair
stops where more than 20 % of a group is unhealthy (as Amazon EKS' node repair does).
"""

from datetime import timedelta
from typing import Annotated

from pydantic import Field

from gpubank.domain.base import ApiModel, Duration, DurationBounds
from gpubank.domain.servicing import CordonScope


class IncidentRule(ApiModel):
    """Which faults it is about, and what they cost. An empty list fits everything."""

    causes: tuple[str, ...] = ()
    """As in `xid 79` or `remap-failed`, whatever instance it was on."""

    actions: tuple[str, ...] = ()
    """As in `RESTART_BM` or `NODE_REBOOT`."""

    faults: tuple[str, ...] = ()
    """Classes of the node's health policy, as in `hardware`."""

    scope: CordonScope
    why: str = ""
    """For whoever asks why."""

    def fits(self, cause: str, action: str, fault: str) -> bool:
        """Whether it is about this fault."""
        plain = cause.partition(" on instance ")[0]
        return all(
            not wanted or value in wanted
            for wanted, value in ((self.causes, plain), (self.actions, action), (self.faults, fault))
        )


DEFAULT_RULES = (
    IncidentRule(
        causes=("remap-failed",), scope=CordonScope.GPU, why="its memory has no spare row left; the others are sound"
    ),
    IncidentRule(actions=("DRAIN_P2P",), scope=CordonScope.NODE, why="its peers must be idle before it can be reset"),
    IncidentRule(faults=("hardware",), scope=CordonScope.NODE, why="the machine must be restarted or opened"),
    IncidentRule(faults=("reset",), scope=CordonScope.GPU, why="it must be reset"),
    IncidentRule(
        faults=("transient", "application", "ignored", "manual"),
        scope=CordonScope.NONE,
        why="it passes by itself, is the application's, or is in somebody's hands",
    ),
    IncidentRule(scope=CordonScope.GPU, why="its class is not known here"),
)
"""Class names are those of the health policy that comes with the node agent."""

Minutes = Annotated[Duration, DurationBounds("0s", "24h")]


class IncidentPolicy(ApiModel):
    """The whole policy."""

    revision: Annotated[str, Field(min_length=1, max_length=64)] = "2026-11.1"
    """Shown with every incident; name your own."""

    rules: Annotated[tuple[IncidentRule, ...], Field(min_length=1)] = DEFAULT_RULES
    """In order; a fault that none fits is treated as Gpu."""

    max_out_percent: Annotated[int, Field(ge=0, le=100)] = 20
    """Most of a pool's GPUs, in percent, that may be out of service before a person must approve the next cordon.

    Where nothing is out, one GPU or one node may always go.
    """

    burst: Minutes = timedelta(seconds=180)
    """Silence that ends a burst of reports."""

    quiet: Minutes = timedelta(minutes=5)
    """Without a new report before what the driver says counts as mended."""

    escalate_after: Annotated[Duration, DurationBounds("1s", "168h")] = timedelta(minutes=30)
    """How long a fault that should pass by itself may last before the GPU is cordoned."""

    agent_silence: Annotated[Duration, DurationBounds("1s", "24h")] = timedelta(minutes=2)
    """How long a node's agent is waited for before the incident goes on without its answer."""

    checkpoint_grace: Minutes = timedelta(minutes=10)
    """Longest wait for a verified checkpoint of a job before it is evicted."""

    drain_limit: Annotated[Duration, DurationBounds("1s", "168h")] = timedelta(hours=1)
    """How long pods are waited for before a person is asked whether to go on without."""

    ticket_limit: Annotated[Duration, DurationBounds("1s", "168h")] = timedelta(hours=1)
    """How long the webhook is tried."""

    probation: Minutes = timedelta(minutes=10)
    """How long the GPU is watched after it was put back."""
