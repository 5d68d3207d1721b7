"""What an incident remembers, and how it shows it: state, reports folded, Temporal's UI, the audit trail."""

from datetime import datetime
from typing import Any, Final

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from gpubank.domain.incident import (
        ENDED,
        MOVES,
        Edges,
        Fault,
        HealthEdge,
        IncidentInput,
        IncidentPhase,
        IncidentState,
        IncidentTerms,
        PhaseRecord,
        moved_to,
    )
    from gpubank.domain.incidentsteps import IncidentStep, Judgement, JudgeStep, Verdict
    from gpubank.domain.servicing import CordonScope
    from gpubank.domain.steps import LedgerNote
    from workflows import attributes
    from workflows.incident_calls import IncidentActs
    from workflows.incident_details import incident_details

KNOWN: Final = 256
"""Edges that are remembered by id; a node tells of one GPU less often than that in a day."""

SHOWN: Final = 50
"""Moves that are shown."""


class IncidentDesk:
    """The one place where an incident's state changes."""

    def __init__(self, start: IncidentInput) -> None:
        self.start = start
        self.state = start.state or IncidentState()
        self.acts = IncidentActs(start)
        self._shown: tuple[object, ...] = ()

    # ---- what is wanted

    @property
    def rests(self) -> bool:
        """Whether this run should continue as new."""
        return workflow.info().is_continue_as_new_suggested()

    @property
    def disturbed(self) -> bool:
        """Whether a wait is over for a reason of its own: news, a person who retires the GPU, a new run due."""
        return self.state.fresh or self.state.retired is not None or self.rests

    @property
    def terms(self) -> IncidentTerms:
        """Times of the policy."""
        return self.state.terms or IncidentTerms()

    @property
    def heard_at(self) -> datetime:
        """When something was last reported; when the incident began, if nothing was."""
        return self.state.last_edge_at or self.state.opened_at or workflow.now()

    def step(self, scope: CordonScope = CordonScope.NONE) -> IncidentStep:
        """Name one step."""
        start, state = self.start, self.state
        return IncidentStep(
            incident=workflow.info().workflow_id,
            cluster=start.cluster,
            node=start.node,
            uuid=start.uuid,
            opened_at=state.opened_at or workflow.now(),
            scope=scope,
            approved=state.approved,
            reason=state.reason,
        )

    # ---- changes

    def set(self, **update: Any) -> None:
        """Change what is remembered, and show it."""
        self.state = self.state.model_copy(update=update)
        self._show()

    def move(self, phase: IncidentPhase, why: str = "") -> None:
        """Go on to another phase; one that the table does not have is a bug, and raises."""
        state = self.state
        moved = moved_to(workflow.info().workflow_id, state.phase, phase)
        why = "; ".join(filter(None, (why, state.approval)))  # a person's word belongs into the audit trail
        record = PhaseRecord(phase=moved, at=workflow.now(), why=why)
        self.set(
            phase=moved,
            approval="",
            note=why or state.note,
            history=(*state.history, record)[-SHOWN:],
            moves=state.moves + 1,
        )
        workflow.logger.info("%s: %s", moved, why, extra={"phase": moved})

    def hear(self, edges: Edges) -> None:
        """Take reports down; one that was delivered before changes nothing."""
        state, now = self.state, workflow.now()
        faults = {fault.cause: fault for fault in state.faults}
        known, last = list(state.known), state.last_edge_at
        for edge in edges.edges:
            if edge.id in known:
                continue
            known.append(edge.id)
            faults[edge.cause] = _folded(faults.get(edge.cause), edge)
            # A node's clock may be wrong; what lies ahead would keep the incident waiting for it.
            heard = min(edge.last_at, now)
            last = max(last or heard, heard)
        if len(known) > len(state.known):
            self.set(faults=tuple(faults.values()), known=tuple(known[-KNOWN:]), last_edge_at=last, fresh=True)

    async def judged(self) -> Judgement:
        """Judge what stands against the GPU now; what was reported, where its node does not tell."""
        self.set(fresh=False)
        sight = await self.acts.inspect(self.terms.agent_silence)
        seen = sight is not None and sight.found
        marks = sight.marks if sight is not None and seen else self.state.faults
        removed = sight is not None and not sight.found and self._restarted(sight.boot_id)
        step = JudgeStep(marks=marks, seen=seen, last_edge_at=self.heard_at, now=workflow.now(), removed=removed)
        found = await self.acts.judge(step)
        if found.verdict is Verdict.ACT or not self.state.cause:
            self.set(cause=found.cause or self.state.cause, reason=found.reason)
        return found

    def _restarted(self, boot_id: str) -> bool:
        """Whether the node has been restarted since everything that was reported; what is not known is taken as no."""
        return bool(boot_id) and all(fault.boot_id not in ("", boot_id) for fault in self.state.faults)

    async def record(self) -> None:
        """Write what moved into the audit trail."""
        state = self.state
        missing = state.moves - state.recorded
        for offset, record in enumerate(state.history[-missing:] if missing else ()):
            await self.acts.note(
                LedgerNote(
                    key=self.step().key(f"move-{state.recorded + offset + 1}"),
                    at=record.at,
                    actor=workflow.info().workflow_id,
                    subject=workflow.info().workflow_id,
                    action=f"incident {record.phase}",
                    detail={"why": record.why, "cause": state.cause, "pool": state.pool, "cordoned": state.cordoned},
                )
            )
        self.set(recorded=state.moves)

    # ---- what people see

    def _show(self) -> None:
        """Tell the UI; search attributes only when one has changed."""
        state, start = self.state, self.start
        workflow.set_current_details(incident_details(start, state))
        shown = (state.phase, state.pool, state.cause, bool(state.waits_for))
        if shown == self._shown:
            return
        self._shown = shown
        workflow.upsert_search_attributes(
            [
                attributes.PHASE.value_set(state.phase),
                attributes.CLUSTER.value_set(start.cluster),
                attributes.NODE.value_set(start.node),
                attributes.NEEDS_APPROVAL.value_set(bool(state.waits_for)),
                attributes.POOL.value_set(state.pool) if state.pool else attributes.POOL.value_unset(),
                attributes.REASON.value_set(state.cause) if state.cause else attributes.REASON.value_unset(),
            ]
        )

    @property
    def ended(self) -> bool:
        """Whether nothing follows."""
        return self.state.phase in ENDED

    def may_move(self, phase: IncidentPhase) -> bool:
        """Whether the table has this move."""
        return phase in MOVES[self.state.phase]


def _folded(before: Fault | None, edge: HealthEdge) -> Fault:
    return Fault(
        cause=edge.cause,
        fault=edge.fault,
        action=edge.action,
        first_at=min(before.first_at, edge.first_at) if before else edge.first_at,
        last_at=max(before.last_at, edge.last_at) if before else edge.last_at,
        count=max(before.count, edge.count) if before else edge.count,
        boot_id=before.boot_id if before and before.last_at > edge.last_at else edge.boot_id,
    )
