"""What an incident of a GPU does to its node and its pods, and whom it tells.

Everything is read anew before it is changed, and repeating any of it changes nothing more.
"""

import asyncio
from datetime import timedelta
from typing import Final

from temporalio import activity

from activities.failures import not_yet, settled
from activities.interfaces import IncidentCalls, IncidentPlanCalls
from activities.pools import Pools
from gpubank.decide.incident import breaker, judge, leaving
from gpubank.domain.contract import Side
from gpubank.domain.incident import IncidentTerms
from gpubank.domain.incidentpolicy import IncidentPolicy
from gpubank.domain.incidentsteps import (
    CordonResult,
    EvictStep,
    IncidentSight,
    IncidentStep,
    Judgement,
    JudgeStep,
    LeavingPod,
    LeavingPods,
    PodsStep,
    Receipt,
    Ticket,
)
from gpubank.domain.recall import loan_id
from gpubank.domain.servicing import CordonMark, EvictionOutcome, Uncordoned
from gpubank.ports import Nodes, Notifier, Tickets

BLOCKED_POLL: Final = timedelta(seconds=5)
"""How often an eviction that a disruption budget forbids is asked for again."""


class IncidentPlanActivities(IncidentPlanCalls):
    """Implements `IncidentPlanCalls`."""

    def __init__(self, policy: IncidentPolicy) -> None:
        self._policy = policy

    @activity.defn(name="incident.judge")
    async def judge(self, step: JudgeStep) -> Judgement:
        """Say what is to be done about what stands against a GPU."""
        return judge(
            step.marks,
            seen=step.seen,
            last_edge_at=step.last_edge_at,
            policy=self._policy,
            now=step.now,
            removed=step.removed,
        )


class IncidentActivities(IncidentCalls):
    """Implements `IncidentCalls` on any cluster and any receiver of tickets."""

    def __init__(
        self,
        pools: Pools,
        *,
        nodes: Nodes,
        tickets: Tickets,
        notifier: Notifier,
        policy: IncidentPolicy,
        blocked_poll: timedelta = BLOCKED_POLL,
    ) -> None:
        self._pools, self._nodes, self._tickets, self._policy = pools, nodes, tickets, policy
        self._notifier = notifier
        self._blocked_poll = blocked_poll
        self._cordoning = asyncio.Lock()

    @activity.defn(name="incident.look")
    async def look(self, step: IncidentStep) -> IncidentSight:
        """Return the node as the cluster sees it, and the times of the policy in force."""
        node, policy = await self._nodes.view(step.node), self._policy
        terms = IncidentTerms(**{name: getattr(policy, name) for name in IncidentTerms.model_fields})
        return IncidentSight(found=node is not None, pool=node.pool if node else "", terms=terms)

    @activity.defn(name="incident.cordon")
    async def cordon(self, step: IncidentStep) -> CordonResult:
        """Mark the node, and close it where the scope is the node; or say why a person must approve that.

        Others may be cordoning at the same moment. Each marks first and then counts again, all marks included, and
        takes its own back if they are too many: whoever marks last sees all others, so never too many stay.
        """
        async with self._cordoning:
            return await settled(lambda: self._cordon(step))

    async def _cordon(self, step: IncidentStep) -> CordonResult:
        node = await self._nodes.view(step.node)
        if node is None:
            return CordonResult(gone=True)
        if not step.approved and (reason := await self._forbidden(step, node.pool)):
            return CordonResult(blocked=reason)
        before = next((mark for mark in node.marks if mark.incident == step.incident), None)
        mark = CordonMark(incident=step.incident, scope=step.scope, uuid=step.uuid, since=step.opened_at)
        await self._nodes.cordon(step.node, mark)
        if not step.approved and (reason := await self._forbidden(step, node.pool)):
            await self._nodes.uncordon(step.node, step.incident)
            if before is not None:  # only what was to be widened is not; what it has cordoned so far it keeps
                await self._nodes.cordon(step.node, before)
            return CordonResult(blocked=reason)
        return CordonResult(cordoned=True, was_closed=node.unschedulable and not node.ours)

    async def _forbidden(self, step: IncidentStep, pool: str) -> str:
        """Why nothing more of the pool may be cordoned; empty where it may, as of a node that is in no pool."""
        if not pool:
            return ""
        nodes = await self._nodes.of_pool(pool)
        return breaker(nodes, node=step.node, incident=step.incident, scope=step.scope, policy=self._policy)

    @activity.defn(name="incident.uncordon")
    async def uncordon(self, step: IncidentStep) -> Uncordoned:
        """Take the incident's mark off the node, and open it where it was the bank that closed it."""
        return await settled(lambda: self._nodes.uncordon(step.node, step.incident))

    @activity.defn(name="incident.pods")
    async def pods(self, step: PodsStep) -> LeavingPods:
        """Return the pods that must leave, each with the job to be saved before."""
        inner = step.step
        pods = leaving(await self._nodes.pods(inner.node), scope=inner.scope, holders=step.holders)
        if pods is None:
            return LeavingPods(known=False)
        node = await self._nodes.view(inner.node)
        if not pods or node is None or not node.pool:
            return LeavingPods(pods=tuple(LeavingPod(pod=pod) for pod in pods))
        facts = await self._pools.quota.observe(node.pool)
        owners = {pod.uid: each for each in facts.workloads for pod in each.pod_facts}
        found = []
        for pod in pods:
            owner = owners.get(pod.uid)
            if owner is None or owner.contract.checkpoint is None:
                found.append(LeavingPod(pod=pod, owner=owner.key if owner is not None else None))
                continue
            # A trainer refuses epochs older than the last one; its loan's next recall must be newer than this.
            borrows = owner.kind is Side.BORROW
            epoch = await self._pools.recalls(loan_id(inner.cluster, owner.key.uid)) if borrows else 0
            term = owner.mark.term if owner.mark is not None else 1
            found.append(
                LeavingPod(pod=pod, owner=owner.key, workload=owner.key, group=owner.group, term=term, epoch=epoch)
            )
        return LeavingPods(pods=tuple(found))

    @activity.defn(name="incident.evict")
    async def evict(self, step: EvictStep) -> bool:
        """Have one pod leave: "not yet" until it is gone, and while a disruption budget forbids it."""
        pod = next((each for each in await self._nodes.pods(step.pod.node) if each.uid == step.pod.uid), None)
        if pod is None:
            return True
        name = f"pod {pod.namespace}/{pod.name}"
        if pod.terminating:
            raise not_yet(f"{name} is ending")
        evicted = await self._nodes.evict(pod)
        if evicted.outcome is EvictionOutcome.BLOCKED:
            raise not_yet(f"{name} may not be evicted yet: {evicted.message}", again=self._blocked_poll)
        if evicted.outcome is EvictionOutcome.ASKED:
            await self._tell_owner(step)
            raise not_yet(f"{name} is ending")
        return True

    async def _tell_owner(self, step: EvictStep) -> None:
        """Say to whom the pod belongs why it ended: nobody of the group has asked for that."""
        inner, pod = step.step, step.pod
        if step.owner is None:
            return
        view = await self._nodes.view(inner.node)
        await self._notifier.notify(
            key=inner.key(f"evicted-{pod.uid}"),
            pool=view.pool if view is not None else "",
            workload=step.owner,
            reason="GpuIncident",
            message=f"Pod {pod.name} was evicted, for GPU {inner.uuid} of its node {inner.node} is broken:"
            f" {inner.reason or 'see the incident'}. `gpubank incident show {inner.incident}` says more.",
        )

    @activity.defn(name="incident.ticket")
    async def ticket(self, ticket: Ticket) -> Receipt:
        """Tell whoever repairs, once per id."""
        return await self._tickets.send(ticket)
