"""The incident of one GPU: from the first report until it works again, or is retired.

Reports only wake it. What stands against the GPU is looked at on its node, judged by the policy, and done step by step;
a worse report widens what is cordoned wherever the incident stands. People repair, retire and approve by updates.
"""

from typing import Any, Final

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from gpubank.domain.incident import (
        WORKFLOW,
        Asks,
        Edges,
        IncidentInput,
        IncidentPhase,
        IncidentState,
        IncidentWord,
        Wanted,
        word_refusal,
    )
    from gpubank.domain.incidentsteps import Judgement, Ticket, Verdict
    from gpubank.domain.servicing import CordonScope
    from workflows.incident_calls import CLOSING_WORD
    from workflows.incident_drain import IncidentDrain
    from workflows.refusals import refuse
    from workflows.waiting import never, wait_until

OPENED: Final = "run.aik8s.platform.incident.opened"
CLOSED: Final = "run.aik8s.platform.incident.closed"
"""Types of the events that go out."""


@workflow.defn(name=WORKFLOW)
class GpuIncidentWorkflow(IncidentDrain):
    """Takes one GPU through an incident."""

    @workflow.init
    def __init__(self, start: IncidentInput) -> None:
        super().__init__(start)

    @workflow.run
    async def run(self, start: IncidentInput) -> IncidentState:
        """Go on until it works again or is retired."""
        await self._begin()
        steps = {
            IncidentPhase.SUSPECT: self._suspect,
            IncidentPhase.CORDONED: self._cordoned,
            IncidentPhase.DRAINED: self._drained,
            IncidentPhase.TICKETED: self._ticketed,
            IncidentPhase.REPAIRED: self._repaired,
            IncidentPhase.UNCORDONED: self._uncordoned,
        }
        while not self.ended:
            if self.rests:
                await self._rest()
            if self.state.retired is not None:
                await self._retire()
            else:
                await steps[self.state.phase]()
            await self.record()
        await self._say_closed()
        await workflow.wait_condition(workflow.all_handlers_finished)
        if self.state.fresh and self.state.phase is IncidentPhase.RECOVERED:
            self._begin_anew()
        return self.state

    def _begin_anew(self) -> None:
        """Open the next incident with what was reported while this one ended, so that it is not lost with it."""
        heard = IncidentState(
            faults=self.state.faults, known=self.state.known, last_edge_at=self.state.last_edge_at, fresh=True
        )
        workflow.continue_as_new(self.start.model_copy(update={"state": heard}))

    async def _begin(self) -> None:
        if self.state.opened_at is not None:
            return
        self.set(opened_at=workflow.now())
        sight = await self.acts.look(self.step())
        self.set(pool=sight.pool, terms=sight.terms, note="" if sight.found else "the cluster has no such node")

    async def _rest(self) -> None:
        """Continue as new; what has been heard goes along."""
        await workflow.wait_condition(workflow.all_handlers_finished)
        workflow.continue_as_new(self.start.model_copy(update={"state": self.state}))

    # ---- phases

    async def _suspect(self) -> None:
        found = await self.judged()
        if found.verdict is Verdict.RECOVERED:
            self.move(IncidentPhase.RECOVERED, found.reason)
        elif found.verdict is Verdict.ACT:
            if await self._cordon(found):
                self.move(IncidentPhase.CORDONED, f"{found.cause}: {found.reason}")
        elif found.cause:
            await self.acts.await_sight(Wanted.CLEAR, lambda: self.disturbed, lambda: found.again_at)
        else:
            await wait_until(lambda: self.disturbed, until=lambda: found.again_at, summary="quiet")

    async def _cordoned(self) -> None:
        if self.state.fresh and await self._widened():
            return
        if self.state.repaired_by:
            self.move(IncidentPhase.REPAIRED, self.state.repaired_by)
        elif await self.drain():
            self.move(IncidentPhase.DRAINED, self.emptied)

    async def _drained(self) -> None:
        if self.state.fresh and await self._widened():
            return
        if self.state.repaired_by:
            self.move(IncidentPhase.REPAIRED, self.state.repaired_by)
            return
        receipt = await self.acts.tell(
            self._ticket(OPENED),
            lambda: self.disturbed or bool(self.state.repaired_by),
            self.terms.ticket_limit,
        )
        if not receipt.sent and self.disturbed:
            return  # what is new comes first; nobody was told yet, and will be
        self.set(ticket=receipt.note, told=self.state.told or receipt.sent)
        self.move(IncidentPhase.TICKETED, receipt.note)

    async def _ticketed(self) -> None:
        if self.state.fresh and await self._widened():
            return

        def over() -> bool:
            return self.disturbed or bool(self.state.repaired_by)

        quiet = self.heard_at + self.terms.quiet
        if not await wait_until(over, until=lambda: quiet, summary="quiet"):
            sight = await self.acts.await_sight(Wanted.SOUND, over)
            if sight is not None and not over():
                self.set(repaired_by="the driver: it asks for nothing, and nothing is wrong")
        if self.state.repaired_by:
            self.move(IncidentPhase.REPAIRED, self.state.repaired_by)

    async def _repaired(self) -> None:
        if self.state.fresh:
            self.set(repaired_by="")
            self.move(IncidentPhase.TICKETED, "a fault was reported again")  # and is judged there
            return
        released = await self.acts.release(self._key("release"), lambda: self.disturbed)
        if released is None:
            return
        if not released.mended:
            self.set(repaired_by="")
            self.move(IncidentPhase.TICKETED, f"it was not put back: {released.why_not}")
            return
        opened = await self.acts.uncordon(self.step())
        self.set(cordoned=CordonScope.NONE, pods=(), drain_until=None, go_on=False, approved=False)
        self.move(IncidentPhase.UNCORDONED, "; ".join(filter(None, (released.why_not, opened.note))) or "put back")

    async def _uncordoned(self) -> None:
        if self.state.fresh:
            self.set(repaired_by="")
            found = await self.judged()
            if await self._widen(found):
                return
            if found.cause:  # it may pass by itself, and stands as yet: nothing is reported of it again meanwhile
                await self.acts.await_sight(Wanted.CLEAR, lambda: self.disturbed, lambda: found.again_at)
                self.set(fresh=True)
                return
        end = max(self.state.history[-1].at, self.heard_at) + self.terms.probation
        if not await wait_until(lambda: self.disturbed, until=lambda: end, summary="probation"):
            self.move(IncidentPhase.RECOVERED, "nothing was reported while it was watched")

    # ---- cordons

    async def _widened(self) -> bool:
        """Judge what is new; True if more is cordoned by it, or that waits, so that the phase begins anew."""
        return await self._widen(await self.judged())

    async def _widen(self, found: Judgement) -> bool:
        """Cordon more where that was judged; see `_widened`."""
        if found.verdict is not Verdict.ACT or found.scope.width <= self.state.cordoned.width:
            return False
        if not await self._cordon(found):
            return True
        if self.state.phase is not IncidentPhase.CORDONED:
            self.move(IncidentPhase.CORDONED, f"worse than it seemed: {found.cause}: {found.reason}")
        self.set(drain_until=None, go_on=False)
        return True

    async def _cordon(self, found: Judgement) -> bool:
        """Cordon as was judged; False if it is to be judged again."""
        scope, reason = found.scope, found.reason
        while True:
            result = await self.acts.cordon(self.step(scope))
            if result.gone:
                return self._node_is_gone()
            if result.blocked:
                if not await self._approved(result.blocked):
                    return False
                continue
            # What was approved is this scope: a wider one is approved anew.
            note = "the node was cordoned by somebody else before" if result.was_closed else ""
            self.set(cordoned=scope, approved=False, note=note)
            if scope is CordonScope.NODE:
                return True
            sight = await self.acts.quarantine(
                self._key("quarantine"), f"{found.cause}: {reason}", self.terms.agent_silence
            )
            if sight is not None:
                return True
            scope, reason = CordonScope.NODE, f"{reason}; its agent does not answer, so the whole node is cordoned"
            self.set(reason=reason)

    def _node_is_gone(self) -> bool:
        if self.may_move(IncidentPhase.RECOVERED):
            self.move(IncidentPhase.RECOVERED, "its node has left the cluster")
        else:
            self.set(note="its node has left the cluster: say repaired, or retire it")
        return False

    async def _approved(self, blocked: str) -> bool:
        """Wait for a person to approve the cordon; False if it is to be judged again first."""
        self.set(asks=Asks.CORDON, waits_for=blocked)
        await self.record()
        clear = await self.acts.await_sight(Wanted.CLEAR, lambda: self.state.approved or self.disturbed)
        self.set(asks=Asks.NOTHING, waits_for="")
        if self.state.approved:
            return True
        # What was not done is judged again, unless the fault has gone by itself.
        self.set(fresh=self.state.fresh or clear is None)
        return False

    # ---- the end

    async def _retire(self) -> None:
        word = self.state.retired
        assert word is not None
        reason = f"retired by {word.who}: {word.reason or 'no reason given'}"
        sight = await self.acts.quarantine(self._key("retire"), reason, self.terms.agent_silence, for_good=True)
        out = sight is not None
        note = reason if out else f"{reason}; the node's agent did not answer, so that the GPU may still be handed out"
        if self.state.cordoned is not CordonScope.NONE:
            if word.keep_cordon or (self.state.cordoned is CordonScope.NODE and not out):
                note += "; its node stays cordoned"
            else:
                opened = await self.acts.uncordon(self.step())
                self.set(cordoned=CordonScope.NONE)
                note = "; ".join(filter(None, (note, opened.note)))
        self.move(IncidentPhase.RETIRED, note)

    async def _say_closed(self) -> None:
        """Tell whoever was told of the beginning."""
        if self.state.told:
            receipt = await self.acts.tell(self._ticket(CLOSED), never, CLOSING_WORD)
            self.set(ticket=f"{self.state.ticket}; closed: {receipt.note}")

    def _key(self, what: str) -> str:
        return self.step().key(f"{what}-{self.state.moves}")

    def _ticket(self, kind: str) -> Ticket:
        start, state = self.start, self.state
        data: dict[str, Any] = {
            "incident": workflow.info().workflow_id,
            "cluster": start.cluster,
            "node": start.node,
            "pool": state.pool,
            "gpu": start.uuid,
            "phase": state.phase,
            "cordoned": state.cordoned,
            "cause": state.cause,
            "reason": state.reason,
            "openedAt": state.opened_at.isoformat() if state.opened_at else None,
            "faults": [fault.model_dump(mode="json", by_alias=True) for fault in state.faults],
            "note": state.note,
        }
        return Ticket(
            id=self._key(kind.rpartition(".")[2]),
            type=kind,
            source=f"/gpubank/{start.cluster}",
            subject=workflow.info().workflow_id,
            time=workflow.now(),
            data=data,
        )

    # ---- signals, updates, state

    @workflow.signal
    def edges(self, edges: Edges) -> None:
        """Take reports of the node down."""
        self.hear(edges)

    @workflow.update
    async def repaired(self, word: IncidentWord) -> IncidentState:
        """Take down that a person has repaired the GPU."""
        self.set(repaired_by=word.said)
        return self.state

    @workflow.update
    async def retire(self, word: IncidentWord) -> IncidentState:
        """Take the GPU out for good."""
        self.set(retired=word)
        return self.state

    @workflow.update
    async def approve(self, word: IncidentWord) -> IncidentState:
        """Approve what is waited for."""
        cordon = self.state.asks is Asks.CORDON
        self.set(note=f"approved by {word.said}", approval=f"approved by {word.said}")
        self.set(**({"approved": True} if cordon else {"go_on": True}))
        return self.state

    @repaired.validator
    def _check_repaired(self, word: IncidentWord) -> None:
        refuse(word_refusal(workflow.info().workflow_id, self.state, "repaired"))

    @retire.validator
    def _check_retire(self, word: IncidentWord) -> None:
        refuse(word_refusal(workflow.info().workflow_id, self.state, "retire"))

    @approve.validator
    def _check_approve(self, word: IncidentWord) -> None:
        refuse(word_refusal(workflow.info().workflow_id, self.state, "approve"))

    @workflow.query(name="state")
    def read_state(self) -> IncidentState:
        """Return the incident as it stands."""
        return self.state
