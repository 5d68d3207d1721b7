"""What an incident does next: judged by what stands against the GPU, by the policy, and by the clock that is told.

    marks ──▶ judge ──▶ Recovered | Wait until … | Act on a scope
    nodes ──▶ breaker ──▶ may it be cordoned, or is too much of the pool out already
    pods  ──▶ leaving ──▶ who is evicted

Reports are never believed to be over; only the node says that.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from gpubank.domain.incident import GpuMark, GpuSight
from gpubank.domain.incidentpolicy import IncidentPolicy, IncidentRule
from gpubank.domain.incidentsteps import Judgement, Verdict
from gpubank.domain.servicing import CordonScope, NodePod, NodeView, PodName

_UNKNOWN = IncidentRule(scope=CordonScope.GPU, why="no rule of the policy is about it")


def rule_of(policy: IncidentPolicy, mark: GpuMark) -> IncidentRule:
    """Return the first rule that is about a fault."""
    return next((rule for rule in policy.rules if rule.fits(mark.cause, mark.action, mark.fault)), _UNKNOWN)


def judge(
    marks: Sequence[GpuMark],
    *,
    seen: bool,
    last_edge_at: datetime,
    policy: IncidentPolicy,
    now: datetime,
    removed: bool = False,
) -> Judgement:
    """Say what is to be done about a GPU against which `marks` stand.

    `seen` says that they are what stands on the node now; otherwise they are only what was reported, of which an end
    of a fault is never told. A fault that should pass by itself and does not is treated as one of the GPU. A GPU that
    was `removed` since the last report harms no other: its node is not emptied for it.
    """
    if not marks:
        quiet = last_edge_at + policy.burst
        if seen and now >= quiet:
            return Judgement(verdict=Verdict.RECOVERED, reason="nothing is held against it any more")
        again = quiet if now < quiet else now + max(policy.burst, timedelta(minutes=1))
        return Judgement(verdict=Verdict.WAIT, again_at=again, reason="nothing is held against it; quiet is awaited")
    worst = min(marks, key=lambda mark: (-rule_of(policy, mark).scope.width, *_place(mark)))
    rule = rule_of(policy, worst)
    if removed and rule.scope is CordonScope.NODE:
        why = "the node was restarted since it was reported, and has no such GPU now: its others are left alone"
        return _act(worst, CordonScope.GPU, why)
    if rule.scope is not CordonScope.NONE:
        return _act(worst, rule.scope, rule.why)
    since = min(mark.first_at for mark in marks)
    if now - since >= policy.escalate_after:
        lasts = f"it should pass by itself and has lasted for {_minutes(now - since)}"
        return _act(min(marks, key=_place), CordonScope.GPU, lasts)
    return Judgement(
        verdict=Verdict.WAIT,
        again_at=since + policy.escalate_after,
        cause=worst.cause,
        fault=worst.fault,
        action=worst.action,
        reason=rule.why or "it may pass by itself",
    )


def breaker(pool: Sequence[NodeView], *, node: str, incident: str, scope: CordonScope, policy: IncidentPolicy) -> str:
    """Say why an incident may not cordon its node, or its GPU, in a pool of these nodes without anybody's approval.

    Empty if it may.

    What is out for any reason counts: unready, cordoned by a person, or marked by other incidents.
    """
    total = sum(each.gpus for each in pool)
    before = sum(each.out_without(incident) for each in pool)
    after = before
    for each in pool:
        if each.name == node:
            out = each.out_without(incident)
            after += (each.gpus if scope is CordonScope.NODE else min(each.gpus, out + 1)) - out
    if after == before or before == 0 or after * 100 <= policy.max_out_percent * total:
        return ""
    name = next((each.pool for each in pool if each.pool), "")
    return (
        f"{before} of {total} GPUs of pool {name!r} are out of service already; with this one it would be"
        f" {after}, beyond {policy.max_out_percent} %"
    )


def leaving(
    pods: Sequence[NodePod], *, scope: CordonScope, holders: Sequence[PodName] | None
) -> tuple[NodePod, ...] | None:
    """Return the pods that must leave, in order of name; None where it is not known who is on the GPU.

    Whoever uses no GPU, and what the node itself keeps, stays.
    """
    movable = [pod for pod in pods if pod.gpus > 0 and not pod.stays]
    if scope is CordonScope.GPU:
        if holders is None:
            return None
        named = {(holder.namespace, holder.name) for holder in holders}
        movable = [pod for pod in movable if (pod.namespace, pod.name) in named]
    elif scope is CordonScope.NONE:
        movable = []
    return tuple(sorted(movable, key=lambda pod: (pod.namespace, pod.name, pod.uid)))


def mended(sight: GpuSight) -> bool:
    """Whether the driver itself says that the GPU is sound: it asks for nothing, and a poll saw nothing wrong."""
    return sight.found and sight.verdict == "NONE" and not sight.wrong


def _place(mark: GpuMark) -> tuple[datetime, str, str, str]:
    return mark.first_at, mark.cause, mark.fault, mark.action


def _act(mark: GpuMark, scope: CordonScope, why: str) -> Judgement:
    return Judgement(
        verdict=Verdict.ACT, scope=scope, cause=mark.cause, fault=mark.fault, action=mark.action, reason=why
    )


def _minutes(span: timedelta) -> str:
    return f"{int(span.total_seconds() // 60)} min"
