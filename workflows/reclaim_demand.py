"""One demand of a lender, from its plan to its pods on nodes: one coroutine of the lender's Reclaim.

    PLANNING ─▶ [AWAITING_APPROVAL] ─▶ RECALLING ─▶ STOPPING ─▶ RETURNING ─▶ SCHEDULED ─▶ MET
        ▲               │                  │            │           │
        └───────────────┴──── facts changed: plan anew ─┴───────────┘        PARTIAL, CANCELLED

Nobody is stopped before everybody who must be may be: after the last answer it is planned once more, and only a plan
whose victims are all durable goes on to the stop.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from gpubank.domain.demand import DemandKind, DemandState
    from gpubank.domain.pool import OnOverdue
    from gpubank.domain.recall import (
        RECLAIM_MOVES,
        Decision,
        DemandProgress,
        LoanOutcome,
        LoanReport,
        ReclaimInput,
        ReclaimPhase,
        VictimProgress,
        moved,
    )
    from gpubank.domain.steps import PlacedOutcome, PlannedRecall, PlannedVictim, RaiseOutcome
    from workflows.reclaim_calls import ReclaimActs
    from workflows.reclaim_victims import OVER, Victims, names
    from workflows.waiting import unless, wait_until

SEND_AGAIN: Final = timedelta(seconds=60)
"""How often a Loan that has not answered is asked again; it may have been terminated and started anew."""

LOOK_AGAIN: Final = timedelta(seconds=15)
"""How often a demand that waits for time to pass is planned anew, for facts change too."""

PAUSE: Final = timedelta(seconds=1)
"""Between a plan that did not come true and the next."""

_ENDED: Final = frozenset({ReclaimPhase.MET, ReclaimPhase.PARTIAL, ReclaimPhase.CANCELLED})
_MAY_BE_LATE: Final = frozenset({ReclaimPhase.PLANNING, ReclaimPhase.AWAITING_APPROVAL, ReclaimPhase.RECALLING})
"""Phases that maxTimeToReturn ends; what is being stopped or given back comes soonest if it goes on."""

_WHOLE: Final = frozenset({DemandKind.WORKLOAD, DemandKind.PLACEMENT})
"""Demands that half their GPUs do not help."""


class _Rest(Exception):  # noqa: N818 - it is no error
    """The Reclaim continues as new: leave everything as it is."""


class _End(Exception):  # noqa: N818 - it is no error
    """The demand ends here."""

    def __init__(self, phase: ReclaimPhase, reason: str, *, book: bool = True) -> None:
        super().__init__(reason)
        self.phase = phase
        self.reason = reason
        self.book = book
        """Whether the books do not know yet."""


class DemandRun:
    """Serves one demand."""

    def __init__(self, start: ReclaimInput, progress: DemandProgress, changed: Callable[[], None]) -> None:
        self._start = start
        self._acts = ReclaimActs(start, progress.demand)
        self._changed = changed
        self._kind = DemandKind.WORKLOAD
        self._victims = Victims(start, progress.demand)
        self._decision: tuple[bool, Decision] | None = None
        self._began: datetime | None = None
        self._watch: workflow.ActivityHandle[bool] | None = None
        """Ends when the demand does, for nobody may tell."""

        self._late_since: datetime | None = None
        """The maxTimeToReturn that passed while victims were being stopped."""

        self.progress = progress.model_copy(update={"phase": ReclaimPhase.PLANNING})
        self.missing = False
        """It stands no more in the list of open demands; the books are asked before it is given up."""

        self.resting = False
        """The Reclaim is about to continue as new."""

    # ---- what the Reclaim tells it

    @property
    def ended(self) -> bool:
        """Whether nothing more will be done for it."""
        return self.progress.phase in _ENDED

    @property
    def awaits_approval(self) -> bool:
        """Whether a person must decide."""
        return self.progress.phase is ReclaimPhase.AWAITING_APPROVAL and self._decision is None

    @property
    def kind(self) -> DemandKind:
        """Why the GPUs are wanted."""
        return self._kind

    def decide(self, decision: Decision, *, approved: bool) -> None:
        """Take a person's word down."""
        self._decision = (approved, decision)

    def hear(self, report: LoanReport) -> None:
        """Take a Loan's answer down; the last one counts."""
        self._victims.hear(report)
        self._show_victims()

    # ---- the whole way

    async def run(self) -> None:
        """Serve the demand until it ends, or the Reclaim rests."""
        self._began = workflow.now()
        try:
            await self._look()
            self._watch = self._acts.watch()
            while True:
                await self._serve()
        except _Rest:
            pass
        except _End as end:
            await self._finish(end)
        if self._watch is not None:
            await unless(self._watch, lambda: True)

    async def _look(self) -> None:
        view = await self._acts.view()
        if not view.live:
            raise _End(ReclaimPhase.CANCELLED, "it had ended already", book=False)
        self._kind = view.kind
        self._set(gpus=view.gpus, reason=view.reason, due_at=view.due_at)

    async def _serve(self) -> None:
        """Take one plan as far as it goes; where it returns, the next is due."""
        plan = await self._plan()
        if plan.raised:
            await self._give_back()
            return
        if not plan.complete and (self._kind in _WHOLE or not plan.victims):
            await self._lacks(plan)
            return
        await self._release("it is not needed any more", keep=plan.victims)
        if plan.approval_required and plan.victims and self.progress.approved_by is None:
            await self._ask(plan)
            return
        if plan.victims and not (await self._recall(plan) and await self._stop(plan)):
            return
        await self._give_back()

    async def _lacks(self, plan: PlannedRecall) -> None:
        """Wait where time alone makes more possible, else end PARTIAL."""
        had = f"{plan.covered} of {plan.need} GPUs can be had"
        why = f"{had}: {plan.reason}" if plan.reason else had
        due = self._due()
        if plan.retry_at is None or (due is not None and plan.retry_at >= due):
            raise _End(ReclaimPhase.PARTIAL, why)
        self._set(reason=why)
        await self._pause(min(max(plan.retry_at - workflow.now(), PAUSE), LOOK_AGAIN))

    async def _pause(self, span: timedelta) -> None:
        end = workflow.now() + span
        await wait_until(self._disturbed, until=lambda: end, summary="before the next plan")
        await self._mind()

    async def _plan(self) -> PlannedRecall:
        while True:
            self._move(ReclaimPhase.PLANNING)
            plan = await self._acts.plan(self.progress.spared, self._disturbed, self._due)
            if plan is not None and not plan.live:
                raise _End(ReclaimPhase.CANCELLED, "nobody waits any more", book=False)
            if plan is not None:
                return plan
            await self._mind()

    # ---- approval

    async def _ask(self, plan: PlannedRecall) -> None:
        """Wait for a person; a re-plan follows, for time has passed."""
        self._decision = None
        self._victims_planned(plan)
        self._move(ReclaimPhase.AWAITING_APPROVAL)
        while self._decision is None:
            await wait_until(lambda: self._disturbed() or self._decision is not None, until=self._due)
            if self._decision is None:
                await self._mind()
        approved, decision = self._decision
        who = decision.identity or "somebody"
        action = "approve" if approved else "deny"
        await self._acts.note(
            f"{self.progress.demand}/{action}/{workflow.info().run_id}",
            action,
            {"identity": decision.identity, "verified": str(decision.verified), "reason": decision.reason},
        )
        if not approved:
            raise _End(ReclaimPhase.PARTIAL, f"denied by {who}: {decision.reason or 'no reason given'}")
        self._set(approved_by=who)

    # ---- recall

    async def _recall(self, plan: PlannedRecall) -> bool:
        """Have every victim made ready; True if all of this plan were ready already."""
        self._move(ReclaimPhase.RECALLING)
        victims = self._victims
        waiting = [victim for victim in plan.victims if victims.outcome(victim) is not LoanOutcome.DURABLE]
        if not waiting:
            return True
        victims.ask(waiting)
        self._show_victims()
        while True:
            unheard = [victim for victim in waiting if victims.outcome(victim) is None]
            orders = [victims.recall(victim, plan, self.progress, self._kind) for victim in unheard]
            await self._acts.send(orders, f"recall {names(unheard)}")
            again = workflow.now() + SEND_AGAIN
            heard = await wait_until(
                lambda: self._disturbed() or victims.answered(waiting),
                until=lambda again=again: self._first(again),  # type: ignore[misc]
            )
            if heard and not self._disturbed():
                self._spare(waiting)
                return False
            if await self._mind():
                return False

    def _spare(self, victims: Sequence[PlannedVictim]) -> None:
        """Remember who runs on, and forget whoever has no answer to give any more."""
        self._set(spared=(*self.progress.spared, *self._victims.protected(victims)))
        self._victims.forget_ended(victims)

    # ---- stop

    async def _stop(self, plan: PlannedRecall) -> bool:
        """Stop every victim; False if one runs on after all."""
        self._move(ReclaimPhase.STOPPING)
        victims, first = self._victims, True
        while True:
            left = [victim for victim in plan.victims if victims.outcome(victim) not in OVER]
            # A Loan that was started anew meanwhile knows nothing of its recall.
            recalls = [] if first else [victims.recall(v, plan, self.progress, self._kind) for v in left]
            await self._acts.send([*recalls, *(victims.stop(victim) for victim in left)], f"stop {names(left)}")
            first = False
            again = workflow.now() + SEND_AGAIN
            await wait_until(
                lambda: self._disturbed() or victims.stopped(plan.victims),
                until=lambda again=again: again,  # type: ignore[misc]
            )
            if self._disturbed():
                await self._mind()
            elif not victims.stopped(plan.victims):
                await self._note_late()
            else:
                self._spare(plan.victims)
                return not victims.protected(plan.victims)

    # ---- return

    async def _give_back(self) -> None:
        """Raise the lender's queue once, and see its pods on nodes; where it returns, a new plan is due."""
        self._move(ReclaimPhase.RETURNING)
        while (raised := await self._acts.raise_queue(self._disturbed)) is None:
            await self._mind()
        if raised.outcome is RaiseOutcome.ENDED:
            raise _End(ReclaimPhase.CANCELLED, "nobody waits any more", book=False)
        if raised.outcome is RaiseOutcome.REPLAN:
            await self._pause(PAUSE)
            return
        while (placed := await self._acts.await_placed(self._disturbed)) is None:
            await self._mind()
        if placed.outcome is PlacedOutcome.ENDED:
            raise _End(ReclaimPhase.CANCELLED, placed.reason)
        if placed.outcome is PlacedOutcome.SLIPPED:
            return
        self._move(ReclaimPhase.SCHEDULED)
        raise _End(ReclaimPhase.MET, "its pods are on nodes")

    # ---- ends

    async def _finish(self, end: _End) -> None:
        """End the demand in the books first, so that nobody pledges to it again; then let go of who still runs."""
        if end.book:
            await self._acts.end_demand(DemandState(end.phase), end.reason)
        await self._release(end.reason)
        if end.phase is not ReclaimPhase.MET:
            self._set(reason=end.reason)
        elif self._began is not None:
            meter = workflow.metric_meter()
            seconds = meter.create_histogram_timedelta("gpubank_recall_seconds", "From a demand to its pods on nodes")
            seconds.record(workflow.now() - self._began, {"pool": self._start.pool, "lender": self._start.lender})
        self._move(end.phase)

    async def _release(self, reason: str, *, keep: Sequence[PlannedVictim] = ()) -> None:
        """Let everybody go whom the demand does not need."""
        free = self._victims.let_go(keep)
        await self._acts.send([self._victims.release(victim, reason) for victim in free], f"let {names(free)} go")

    # ---- interruptions

    def _disturbed(self) -> bool:
        return self.missing or self.resting or (self._watch is not None and self._watch.done())

    async def _mind(self) -> bool:
        """See to what interrupted a wait; True if a new plan is due."""
        if self.resting:
            raise _Rest
        if self._disturbed():
            view = await self._acts.view()
            if not view.live:
                raise _End(ReclaimPhase.CANCELLED, "nobody waits any more", book=False)
            self.missing = False
            if self._watch is not None and self._watch.done():  # it was ended, and opened again
                self._watch = self._acts.watch()
        due = self._due()
        if due is None or workflow.now() < due or self.progress.phase not in _MAY_BE_LATE:
            return False
        await self._overdue()
        return True

    async def _overdue(self) -> None:
        """MaxTimeToReturn has passed: the pool decides between the victims and the lender, the lender for itself."""
        view = await self._acts.view()
        waited = self.progress.phase is ReclaimPhase.AWAITING_APPROVAL
        self._set(overdue=True)
        await self._tell_overdue(view.on_overdue)
        if waited:
            raise _End(ReclaimPhase.PARTIAL, "nobody approved or denied it within maxTimeToReturn")
        if view.on_overdue is OnOverdue.PROTECT:
            raise _End(ReclaimPhase.PARTIAL, "maxTimeToReturn has passed and the pool protects who could not be saved")
        self._set(spared=())

    async def _note_late(self) -> None:
        """Say once that victims which are stopped already, as on a dead node, do not leave in time."""
        due = self._due()
        if due is not None and workflow.now() >= due and self._late_since != due:
            self._late_since = due
            await self._tell_overdue((await self._acts.view()).on_overdue)

    async def _tell_overdue(self, on_overdue: OnOverdue) -> None:
        meter = workflow.metric_meter()
        meter.create_counter("gpubank_recalls_overdue_total", "Demands not met within maxTimeToReturn").add(
            1, {"pool": self._start.pool, "lender": self._start.lender}
        )
        await self._acts.note(
            f"{self.progress.demand}/overdue/{self._due_text()}",
            "overdue",
            {"on_overdue": on_overdue, "phase": self.progress.phase},
        )

    def _due(self) -> datetime | None:
        """When maxTimeToReturn passes; None once it has."""
        return None if self.progress.overdue else self.progress.due_at

    def _due_text(self) -> str:
        return self.progress.due_at.isoformat() if self.progress.due_at is not None else ""

    def _first(self, moment: datetime) -> datetime:
        due = self._due()
        return moment if due is None else min(moment, due)

    # ---- state

    def _victims_planned(self, plan: PlannedRecall) -> None:
        shown = (VictimProgress(workload=v.workload, borrower=v.borrower, gpus=v.gpus) for v in plan.victims)
        self._set(victims=tuple(shown))

    def _show_victims(self) -> None:
        self._set(victims=self._victims.shown(self.progress.victims))

    def _set(self, **update: Any) -> None:
        self.progress = self.progress.model_copy(update=update)
        self._changed()

    def _move(self, phase: ReclaimPhase) -> None:
        if phase is not self.progress.phase:
            self._set(phase=moved(f"demand {self.progress.demand!r}", RECLAIM_MOVES, self.progress.phase, phase))
