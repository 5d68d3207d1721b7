"""One demand of a lender, from its plan to its pods on nodes: one coroutine of the lender's Reclaim.

    PLANNING ─▶ [AWAITING_APPROVAL] ─▶ RECALLING ─▶ STOPPING ─▶ RETURNING ─▶ SCHEDULED ─▶ MET
        ▲               │                  │            │           │
        └───────────────┴──── facts changed: plan anew ─┴───────────┘        PARTIAL, CANCELLED

Nobody is stopped before everybody who must be may be: after the last answer it is planned once more, and only a plan
whose victims are all durable goes on to the stop.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from gpubank.domain.demand import WHOLE, DemandKind, DemandState
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
    from workflows.reclaim_ends import ENDED, UNANSWERED, End, Rest
    from workflows.reclaim_raise import Raise
    from workflows.reclaim_victims import OVER, Victims, names
    from workflows.waiting import unless, wait_until

SEND_AGAIN: Final = timedelta(seconds=60)
"""How often a Loan that has not answered is asked again; it may have been terminated and started anew."""

LOOK_AGAIN: Final = timedelta(seconds=15)
"""How often a demand that waits for time to pass is planned anew, for facts change too."""

PAUSE: Final = timedelta(seconds=1)
"""Between a plan that did not come true and the next."""

_MAY_BE_LATE: Final = frozenset({ReclaimPhase.PLANNING, ReclaimPhase.AWAITING_APPROVAL, ReclaimPhase.RECALLING})
"""Phases that maxTimeToReturn ends; what is being stopped or given back comes soonest if it goes on."""


class DemandRun:
    """Serves one demand."""

    def __init__(self, start: ReclaimInput, progress: DemandProgress, changed: Callable[[], None]) -> None:
        self._start = start
        self._acts = ReclaimActs(start, progress.demand)
        self._changed = changed
        self._kind = DemandKind.WORKLOAD
        self._victims = Victims(start, progress.demand, progress.victims)
        self._decision: tuple[bool, Decision] | None = None
        self._began: datetime | None = None
        self._watch: workflow.ActivityHandle[bool] | None = None
        """Ends when the demand does or is of another amount, for nobody may tell."""

        self._raise = Raise(self._acts)
        self._giving_up = False
        """Nobody has decided in time: a word that comes now comes too late, and is refused."""

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
        return self.progress.phase in ENDED

    @property
    def awaits_approval(self) -> bool:
        """Whether a person must decide."""
        waits = self.progress.phase is ReclaimPhase.AWAITING_APPROVAL and self._decision is None
        return waits and not (self._giving_up or self.resting)

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
        look = asyncio.create_task(self._look())
        try:
            while True:
                await self._serve(look)
        except Rest:
            pass
        except End as end:
            await self._finish(end)
        await look
        await self._raise.leave()
        if self._watch is not None:
            await unless(self._watch, lambda: True)

    async def _look(self) -> bool:
        """See what is asked for, while the first plan is made; False if the demand had ended already."""
        view = await self._acts.view()
        if view.live:
            self._kind = view.kind
            self._want(view.gpus, reason=view.reason, due_at=view.due_at)
            self._watch = self._acts.watch(view.gpus)
        return view.live

    async def _serve(self, look: asyncio.Task[bool]) -> None:
        """Take one plan as far as it goes; where it returns, the next is due."""
        plan = await self._plan()
        if not await look:
            raise End(ReclaimPhase.CANCELLED, "it had ended already", book=False)
        if plan.raised:
            await self._give_back()
            return
        self._want(plan.need)
        if not plan.complete and (self._kind in WHOLE or not plan.victims):
            if plan.leased:
                await self._release("a CapacityLease protects it", keep=self._victims.unleased(plan.leased))
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
            raise End(ReclaimPhase.PARTIAL, why)
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
                raise End(ReclaimPhase.CANCELLED, "nobody waits any more", book=False)
            if plan is not None:
                return plan
            await self._mind()

    # ---- approval

    async def _ask(self, plan: PlannedRecall) -> None:
        """Wait for a person, as long as this plan is what is asked for; a re-plan follows, for time has passed."""
        self._decision = None
        if self._late():
            await self._overdue()
        self._set(victims=self._victims.planned(plan))
        self._move(ReclaimPhase.AWAITING_APPROVAL)
        # What is overdue already, in a pool that evicts, can still be approved, but not for ever.
        until = self._due() or workflow.now() + plan.max_time_to_return
        while self._decision is None:
            await wait_until(lambda: self._disturbed() or self._decision is not None, until=lambda: until)
            self._giving_up = self._decision is None and workflow.now() >= until
            if self._decision is None and await self._mind() and self._decision is None and not self._giving_up:
                return
            if self._giving_up:
                raise End(ReclaimPhase.PARTIAL, UNANSWERED)
        approved, decision = self._decision
        who = decision.identity or "somebody"
        action = "approve" if approved else "deny"
        await self._acts.note(
            f"{self.progress.demand}/{action}/{workflow.info().run_id}",
            action,
            {"identity": decision.identity, "verified": str(decision.verified), "reason": decision.reason},
        )
        if not approved:
            raise End(ReclaimPhase.PARTIAL, f"denied by {who}: {decision.reason or 'no reason given'}")
        if self.progress.gpus <= plan.need:
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
                until=lambda again=again: min(again, self._due() or again),  # type: ignore[misc]
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
            self._raise.begin()  # it waits for the books, as this does for the answers: the first counts
            again = workflow.now() + SEND_AGAIN
            await wait_until(
                lambda: self._disturbed() or victims.stopped(plan.victims) or self._raise.raised,
                until=lambda again=again: again,  # type: ignore[misc]
            )
            if self._disturbed():
                await self._mind()
            elif self._raise.raised:
                self._spare(plan.victims)
                return True
            elif not victims.stopped(plan.victims):
                await self._note_late()
                if await self._pass_over(plan):
                    return False
            else:
                left_all = victims.all_left(plan.victims)
                self._spare(plan.victims)
                return left_all

    async def _pass_over(self, plan: PlannedRecall) -> bool:
        """Whether others are to be had for somebody who was stopped and does not go, as on a dead node."""

        def over() -> bool:
            return self._disturbed() or self._victims.stopped(plan.victims)

        fresh = await self._acts.plan(self.progress.spared, over, lambda: None)
        stopping = {victim.workload.uid for victim in plan.victims}
        return fresh is not None and fresh.complete and {v.workload.uid for v in fresh.victims} - stopping != set()

    # ---- return

    async def _give_back(self) -> None:
        """Raise the lender's queue once, and see its pods on nodes; where it returns, a new plan is due."""
        self._move(ReclaimPhase.RETURNING)
        while (raised := await self._raise.see(self._disturbed)) is None:
            await self._mind()
        if raised.outcome is RaiseOutcome.ENDED:
            raise End(ReclaimPhase.CANCELLED, "nobody waits any more", book=False)
        if raised.outcome is RaiseOutcome.REPLAN:
            await self._pause(PAUSE)
            return
        while (placed := await self._acts.await_placed(self._disturbed)) is None:
            await self._mind()
        if placed.outcome is PlacedOutcome.ENDED:
            raise End(ReclaimPhase.CANCELLED, placed.reason)
        if placed.outcome is PlacedOutcome.SLIPPED:
            return
        self._move(ReclaimPhase.SCHEDULED)
        raise End(ReclaimPhase.MET, "its pods are on nodes")

    # ---- ends

    async def _finish(self, end: End) -> None:
        """End the demand in the books first, so that nobody pledges to it again; then let go of who still runs."""
        if end.book:
            await self._acts.end_demand(DemandState(end.phase), end.reason)
        await self._release(end.reason)
        if end.phase is not ReclaimPhase.MET:
            self._set(reason=end.reason)
        elif self._began is not None:
            self._acts.measure(workflow.now() - self._began)
        self._move(end.phase)

    async def _release(self, reason: str, *, keep: Sequence[PlannedVictim | VictimProgress] = ()) -> None:
        """Let everybody go whom the demand does not need."""
        free = self._victims.let_go(keep)
        await self._acts.send([self._victims.release(victim, reason) for victim in free], f"let {names(free)} go")
        if free:
            self._show_victims()

    # ---- interruptions

    def _disturbed(self) -> bool:
        return self.missing or self.resting or (self._watch is not None and self._watch.done())

    async def _mind(self) -> bool:
        """See to what interrupted a wait; True if a new plan is due."""
        if self.resting:
            raise Rest
        if self._disturbed():
            view = await self._acts.view()
            if not view.live:
                raise End(ReclaimPhase.CANCELLED, "nobody waits any more", book=False)
            self.missing, before = False, self.progress.gpus
            self._want(view.gpus)
            if self._watch is not None and self._watch.done():  # it is of another amount, or was opened again
                self._watch = self._acts.watch(view.gpus)
            if view.gpus != before:
                return True
        if not self._late() or self.progress.phase not in _MAY_BE_LATE:
            return False
        await self._overdue()
        return True

    async def _overdue(self) -> None:
        """MaxTimeToReturn has passed: the pool decides between the victims and the lender, the lender for itself."""
        view = await self._acts.view()
        waited = self.progress.phase is ReclaimPhase.AWAITING_APPROVAL
        self._set(overdue=True)
        await self._acts.tell_overdue(self.progress, view.on_overdue)
        if waited:
            raise End(ReclaimPhase.PARTIAL, UNANSWERED)
        if view.on_overdue is OnOverdue.PROTECT:
            raise End(ReclaimPhase.PARTIAL, "maxTimeToReturn has passed and the pool protects who could not be saved")
        self._set(spared=())

    async def _note_late(self) -> None:
        """Say once that victims which are stopped already, as on a dead node, do not leave in time."""
        if self._late() and self._late_since != self._due():
            self._late_since = self._due()
            await self._acts.tell_overdue(self.progress, (await self._acts.view()).on_overdue)

    def _due(self) -> datetime | None:
        """When maxTimeToReturn passes; None once it has."""
        return None if self.progress.overdue else self.progress.due_at

    def _late(self) -> bool:
        due = self._due()
        return due is not None and workflow.now() >= due

    # ---- state

    def _show_victims(self) -> None:
        self._set(victims=self._victims.shown(self.progress.victims))

    def _want(self, gpus: int, **update: Any) -> None:
        """Take down how much is asked for; who approved less has not approved that."""
        grown = gpus > self.progress.gpus
        self._set(gpus=gpus, approved_by=None if grown else self.progress.approved_by, **update)

    def _set(self, **update: Any) -> None:
        self.progress = self.progress.model_copy(update=update)
        self._changed()

    def _move(self, phase: ReclaimPhase) -> None:
        if phase is not self.progress.phase:
            demand = self.progress.demand
            self._set(phase=moved(f"demand {demand!r}", RECLAIM_MOVES, self.progress.phase, phase))
            workflow.logger.info("demand %r is %s", demand, phase, extra={"demand": demand, "phase": phase})
