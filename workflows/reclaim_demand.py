"""One demand of a lender, from its plan to its pods on nodes: one coroutine of the lender's Reclaim.

    PLANNING ─▶ [AWAITING_APPROVAL] ─▶ RECALLING ─▶ STOPPING ─▶ RETURNING ─▶ SCHEDULED ─▶ MET
        ▲               │                  │            │           │
        └───────────────┴──── facts changed: plan anew ─┴───────────┘        PARTIAL, CANCELLED

Nobody is stopped before everybody who must be may be: after the last answer it is planned once more, and only a plan
whose victims are all durable goes on to the stop.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from gpubank.domain.demand import DemandKind, DemandState
    from gpubank.domain.policy import OnCheckpointFailure
    from gpubank.domain.pool import OnOverdue
    from gpubank.domain.recall import (
        RECLAIM_MOVES,
        Decision,
        DemandProgress,
        LoanInput,
        LoanOutcome,
        LoanReport,
        RecallOrder,
        ReclaimInput,
        ReclaimPhase,
        ReleaseOrder,
        StopOrder,
        VictimProgress,
        loan_id,
        moved,
    )
    from gpubank.domain.steps import LoanOrder, PlacedOutcome, PlannedRecall, PlannedVictim, RaiseOutcome
    from workflows.reclaim_calls import ReclaimActs
    from workflows.waiting import wait_until

SEND_AGAIN: Final = timedelta(seconds=60)
"""How often a Loan that has not answered is asked again; it may have been terminated and started anew."""

PAUSE: Final = timedelta(seconds=1)
"""Between a plan that did not come true and the next."""

_ENDED: Final = frozenset({ReclaimPhase.MET, ReclaimPhase.PARTIAL, ReclaimPhase.CANCELLED})
_GIVEN_UP: Final = frozenset({LoanOutcome.RETURNED, LoanOutcome.GONE})
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
        self._victims: dict[str, PlannedVictim] = {}
        """Whoever was recalled and has not been released, by Loan."""

        self._deadlines: dict[str, datetime] = {}
        self._answers: dict[str, LoanReport] = {}
        self._decision: tuple[bool, Decision] | None = None
        self._began: datetime | None = None
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
        self._answers[report.loan] = report
        self._show_victims()

    # ---- the whole way

    async def run(self) -> None:
        """Serve the demand until it ends, or the Reclaim rests."""
        self._began = workflow.now()
        try:
            await self._look()
            while not await self._serve():
                await wait_until(self._disturbed, until=self._in(PAUSE), summary="before the next plan")
                await self._mind()
        except _Rest:
            return
        except _End as end:
            await self._finish(end)

    async def _look(self) -> None:
        view = await self._acts.view()
        if not view.live:
            raise _End(ReclaimPhase.CANCELLED, "it had ended already", book=False)
        self._kind = view.kind
        self._set(gpus=view.gpus, reason=view.reason, due_at=view.due_at)

    async def _serve(self) -> bool:
        """Take one plan as far as it goes; False asks for the next."""
        plan = await self._plan()
        if plan.raised:
            return await self._give_back()
        if not plan.complete and (self._kind in _WHOLE or not plan.victims):
            had = f"{plan.covered} of {plan.need} GPUs can be had"
            raise _End(ReclaimPhase.PARTIAL, f"{had}: {plan.reason}" if plan.reason else had)
        await self._release(keep={self._loan(victim) for victim in plan.victims}, reason="it is not needed any more")
        if plan.approval_required and plan.victims and self.progress.approved_by is None:
            await self._ask(plan)
            return False
        if plan.victims:
            if not await self._recall(plan):
                return False
            if not await self._stop(plan):
                return False
        return await self._give_back()

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
        if not approved:
            raise _End(ReclaimPhase.PARTIAL, f"denied by {who}: {decision.reason or 'no reason given'}")
        self._set(approved_by=who)

    # ---- recall

    async def _recall(self, plan: PlannedRecall) -> bool:
        """Have every victim made ready; True if all of this plan were ready already."""
        self._move(ReclaimPhase.RECALLING)
        waiting = [victim for victim in plan.victims if self._outcome(victim) is not LoanOutcome.DURABLE]
        if not waiting:
            return True
        for victim in plan.victims:
            self._victims[self._loan(victim)] = victim
        for victim in waiting:
            self._answers.pop(self._loan(victim), None)
        self._show_victims()
        while True:
            unheard = [victim for victim in waiting if self._outcome(victim) is None]
            await self._acts.send(
                [self._order(victim, plan) for victim in unheard],
                f"recall {', '.join(victim.workload.job or victim.workload.name for victim in unheard)}",
            )
            again = workflow.now() + SEND_AGAIN
            heard = await wait_until(
                lambda: self._disturbed() or self._settled(waiting), until=lambda again=again: self._first(again)
            )
            if heard and not self._disturbed():
                self._spare(waiting)
                return False
            if await self._mind():
                return False

    def _settled(self, waiting: list[PlannedVictim]) -> bool:
        """Whether all have answered, or one answer changes the plan."""
        answers = [self._outcome(victim) for victim in waiting]
        return None not in answers or any(a not in (None, LoanOutcome.DURABLE) for a in answers)

    def _spare(self, victims: list[PlannedVictim]) -> None:
        """Remember who runs on, and forget whoever has no answer to give any more."""
        for victim in victims:
            outcome = self._outcome(victim)
            if outcome is LoanOutcome.PROTECTED:
                self._set(spared=(*self.progress.spared, victim.workload.uid))
            if outcome is LoanOutcome.PROTECTED or outcome in _GIVEN_UP:
                self._victims.pop(self._loan(victim), None)

    def _order(self, victim: PlannedVictim, plan: PlannedRecall) -> LoanOrder:
        now, loan = workflow.now(), self._loan(victim)
        deadline = self._deadlines.setdefault(loan, now + victim.grace)
        evicts = self.progress.overdue
        return LoanOrder(
            start=self._loan_input(victim),
            recall=RecallOrder(
                reclaim=workflow.info().workflow_id,
                demand=self.progress.demand,
                lender=self._start.lender,
                kind=self._kind,
                reason=self.progress.reason or f"{self._start.lender} wants its GPUs back",
                line_ids=victim.line_ids,
                needs_checkpoint=victim.needs_checkpoint,
                on_checkpoint_failure=OnCheckpointFailure.EVICT if evicts else victim.on_checkpoint_failure,
                deadline=min(deadline, now) if evicts else deadline,
                latest_deadline=deadline - victim.grace + max(victim.grace, plan.max_grace),
                max_checkpoint_age=plan.max_checkpoint_age,
                overdue=evicts,
            ),
        )

    # ---- stop

    async def _stop(self, plan: PlannedRecall) -> bool:
        """Stop every victim; False if one runs on after all."""
        self._move(ReclaimPhase.STOPPING)
        stop = StopOrder(reclaim=workflow.info().workflow_id, demand=self.progress.demand)
        first = True
        while True:
            left = [victim for victim in plan.victims if self._outcome(victim) not in _GIVEN_UP]
            orders = [LoanOrder(start=self._loan_input(victim), stop=stop) for victim in left]
            if not first:  # a Loan that was started anew knows nothing of the recall
                orders = [order for v in left for order in (self._order(v, plan), orders[left.index(v)])]
            await self._acts.send(orders, f"stop {', '.join(v.workload.job or v.workload.name for v in left)}")
            first = False
            again = workflow.now() + SEND_AGAIN
            await wait_until(
                lambda: self._disturbed() or self._stopped(plan),
                until=lambda again=again: again,  # type: ignore[misc]
            )
            if self._disturbed():
                await self._mind()
            elif self._stopped(plan):
                self._spare(list(plan.victims))
                return not any(self._outcome(victim) is LoanOutcome.PROTECTED for victim in plan.victims)

    def _stopped(self, plan: PlannedRecall) -> bool:
        return all(
            (outcome := self._outcome(victim)) in _GIVEN_UP or outcome is LoanOutcome.PROTECTED
            for victim in plan.victims
        )

    # ---- return

    async def _give_back(self) -> bool:
        """Raise the lender's queue once, and see its pods on nodes; False asks for a new plan."""
        self._move(ReclaimPhase.RETURNING)
        while (raised := await self._acts.raise_queue(self._disturbed)) is None:
            await self._mind()
        if raised.outcome is RaiseOutcome.ENDED:
            raise _End(ReclaimPhase.CANCELLED, "nobody waits any more", book=False)
        if raised.outcome is RaiseOutcome.REPLAN:
            return False
        while (placed := await self._acts.await_placed(self._disturbed)) is None:
            await self._mind()
        if placed.outcome is PlacedOutcome.ENDED:
            raise _End(ReclaimPhase.CANCELLED, placed.reason)
        if placed.outcome is PlacedOutcome.SLIPPED:
            return False
        self._move(ReclaimPhase.SCHEDULED)
        raise _End(ReclaimPhase.MET, "its pods are on nodes")

    # ---- ends

    async def _finish(self, end: _End) -> None:
        """End the demand in the books first, so that nobody pledges to it again; then let go of who still runs."""
        if end.book:
            await self._acts.end_demand(DemandState(end.phase), end.reason)
        await self._release(keep=set(), reason=end.reason)
        if end.phase is not ReclaimPhase.MET:
            self._set(reason=end.reason)
        elif self._began is not None:
            meter = workflow.metric_meter()
            seconds = meter.create_histogram_timedelta("gpubank_recall_seconds", "From a demand to its pods on nodes")
            seconds.record(workflow.now() - self._began, {"pool": self._start.pool, "lender": self._start.lender})
        self._move(end.phase)

    async def _release(self, *, keep: set[str], reason: str) -> None:
        """Let everybody go whom the demand does not need."""
        free = [v for loan, v in self._victims.items() if loan not in keep and self._outcome(v) not in _GIVEN_UP]
        order = ReleaseOrder(reclaim=workflow.info().workflow_id, demand=self.progress.demand, reason=reason)
        await self._acts.send(
            [LoanOrder(start=self._loan_input(victim), release=order) for victim in free],
            f"let {', '.join(victim.workload.job or victim.workload.name for victim in free)} go",
        )
        for victim in free:
            self._victims.pop(self._loan(victim), None)
            self._answers.pop(self._loan(victim), None)

    # ---- interruptions

    def _disturbed(self) -> bool:
        return self.missing or self.resting

    async def _mind(self) -> bool:
        """See to what interrupted a wait; True if a new plan is due."""
        if self.resting:
            raise _Rest
        if self.missing:
            view = await self._acts.view()
            if not view.live:
                raise _End(ReclaimPhase.CANCELLED, "nobody waits any more", book=False)
            self.missing = False
        due = self._due()
        if due is None or workflow.now() < due:
            return False
        await self._overdue()
        return True

    async def _overdue(self) -> None:
        """MaxTimeToReturn has passed: the pool decides between the victims and the lender, the lender for itself."""
        view = await self._acts.view()
        waited = self.progress.phase is ReclaimPhase.AWAITING_APPROVAL
        meter = workflow.metric_meter()
        meter.create_counter("gpubank_recalls_overdue_total", "Demands not met within maxTimeToReturn").add(
            1, {"pool": self._start.pool, "lender": self._start.lender}
        )
        self._set(overdue=True)
        await self._acts.note(
            f"{self.progress.demand}/overdue/{self._due_text()}",
            "overdue",
            {"on_overdue": view.on_overdue, "phase": self.progress.phase},
        )
        if waited:
            raise _End(ReclaimPhase.PARTIAL, "nobody approved or denied it within maxTimeToReturn")
        if view.on_overdue is OnOverdue.PROTECT:
            raise _End(ReclaimPhase.PARTIAL, "maxTimeToReturn has passed and the pool protects who could not be saved")
        self._set(spared=())

    def _due(self) -> datetime | None:
        """When maxTimeToReturn passes; None once it has."""
        return None if self.progress.overdue else self.progress.due_at

    def _due_text(self) -> str:
        return self.progress.due_at.isoformat() if self.progress.due_at is not None else ""

    def _first(self, moment: datetime) -> datetime:
        due = self._due()
        return moment if due is None else min(moment, due)

    @staticmethod
    def _in(span: timedelta) -> Callable[[], datetime]:
        end = workflow.now() + span
        return lambda: end

    # ---- state

    def _loan(self, victim: PlannedVictim) -> str:
        return loan_id(self._start.cluster, victim.workload.uid)

    def _loan_input(self, victim: PlannedVictim) -> LoanInput:
        return LoanInput(
            cluster=self._start.cluster,
            pool=self._start.pool,
            borrower=victim.borrower,
            workload=victim.workload,
            gpus=victim.gpus,
        )

    def _outcome(self, victim: PlannedVictim) -> LoanOutcome | None:
        report = self._answers.get(self._loan(victim))
        return report.outcome if report is not None else None

    def _victims_planned(self, plan: PlannedRecall) -> None:
        shown = (VictimProgress(workload=v.workload, borrower=v.borrower, gpus=v.gpus) for v in plan.victims)
        self._set(victims=tuple(shown))

    def _show_victims(self) -> None:
        earlier = {victim.workload.uid: victim for victim in self.progress.victims}
        for loan, victim in self._victims.items():
            report = self._answers.get(loan)
            earlier[victim.workload.uid] = VictimProgress(
                workload=victim.workload,
                borrower=victim.borrower,
                gpus=victim.gpus,
                answer=report.outcome if report is not None else None,
                reason=report.reason if report is not None else "",
            )
        self._set(victims=tuple(earlier.values()))

    def _set(self, **update: Any) -> None:
        self.progress = self.progress.model_copy(update=update)
        self._changed()

    def _move(self, phase: ReclaimPhase) -> None:
        if phase is not self.progress.phase:
            self._set(phase=moved(f"demand {self.progress.demand!r}", RECLAIM_MOVES, self.progress.phase, phase))
