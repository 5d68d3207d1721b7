"""The Reclaim of one lender in one pool: every demand that it has open, each served by a coroutine of its own.

The controller tells which demands are open; what is missing from its list is given up once the books agree. Updates
are for people: a lender whose policy asks for approval approves or denies what the plan would take.
"""

import asyncio
from datetime import timedelta
from typing import Final

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from gpubank.domain.recall import (
        Decision,
        DemandProgress,
        LoanReport,
        Needs,
        ReclaimInput,
        ReclaimPhase,
        ReclaimState,
    )
    from workflows import attributes
    from workflows.details import reclaim_details
    from workflows.reclaim_demand import DemandRun

FIRST_NEWS: Final = timedelta(minutes=1)
"""How long a Reclaim that was started without a demand waits to be told of one."""

OUT_OF_ORDER: Final = timedelta(minutes=1)
"""How much older than the last one a list may be that only comes late; an older one is of a clock that was wrong."""

AT_ONCE: Final = 200
"""Demands that are served at a time: each has up to four activities open, and Temporal refuses more than 2,000."""

KEPT: Final = 20
"""Demands that have ended and are still shown."""

_ORDER: Final = (
    ReclaimPhase.AWAITING_APPROVAL,
    ReclaimPhase.PLANNING,
    ReclaimPhase.RECALLING,
    ReclaimPhase.STOPPING,
    ReclaimPhase.RETURNING,
    ReclaimPhase.SCHEDULED,
    ReclaimPhase.PARTIAL,
    ReclaimPhase.MET,
    ReclaimPhase.CANCELLED,
)
"""Which phase speaks for the whole where its demands differ: what a person must do, then what is farthest behind."""


@workflow.defn(name="Reclaim")
class ReclaimWorkflow:
    """Serves every open demand of one lender."""

    @workflow.init
    def __init__(self, start: ReclaimInput) -> None:
        self._start = start
        self._runs: dict[str, DemandRun] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._needs: Needs | None = None
        self._resting = False
        self._served = 0
        self._shown: tuple[object, ...] = ()

    # ---- the loop

    @workflow.run
    async def run(self, start: ReclaimInput) -> ReclaimState:
        """Serve until every demand has ended."""
        for progress in start.demands:
            self._begin(progress)
        if not self._runs:
            try:
                await workflow.wait_condition(
                    lambda: self._needs is not None, timeout=FIRST_NEWS, timeout_summary="until told of a demand"
                )
            except TimeoutError:
                return self.read_state()
        while True:
            await workflow.wait_condition(lambda: self._idle() or bool(self._failed()) or self._rests())
            for task in self._failed():
                task.result()
            if self._idle():
                await workflow.wait_condition(workflow.all_handlers_finished)
                if self._idle():
                    return self.read_state()
            elif self._rests():
                await self._rest()

    def _idle(self) -> bool:
        return all(task.done() for task in self._tasks.values()) and not self._failed()

    def _failed(self) -> list[asyncio.Task[None]]:
        return [task for task in self._tasks.values() if task.done() and task.exception() is not None]

    def _rests(self) -> bool:
        return workflow.info().is_continue_as_new_suggested()

    async def _rest(self) -> None:
        """Continue as new; plans are idempotent and Loans answer again, so little needs to be carried."""
        self._resting = True
        for run in self._runs.values():
            run.resting = True
        await workflow.wait_condition(lambda: self._idle() or bool(self._failed()))
        await workflow.wait_condition(workflow.all_handlers_finished)
        open_demands = tuple(run.progress for run in self._runs.values() if not run.ended)
        if open_demands and not self._failed():
            workflow.continue_as_new(self._start.model_copy(update={"demands": open_demands}))
        self._resting = False

    def _begin(self, progress: DemandProgress) -> None:
        ended = [demand for demand, known in self._runs.items() if known.ended and self._tasks[demand].done()]
        for demand in ended[:-KEPT]:
            del self._runs[demand], self._tasks[demand]
        run = DemandRun(self._start, progress, self._show)
        run.resting = self._resting  # one that comes while others rest is taken along, not served
        self._runs[progress.demand] = run
        self._tasks[progress.demand] = asyncio.create_task(self._serve(run))
        self._show()

    async def _serve(self, run: DemandRun) -> None:
        """Serve a demand when its turn has come, which is at once but where very many are open."""
        while self._served >= AT_ONCE and not run.resting:
            await workflow.wait_condition(lambda: self._served < AT_ONCE or run.resting)
        if run.resting:
            return
        self._served += 1
        try:
            await run.run()
        finally:
            self._served -= 1

    # ---- signals

    @workflow.signal
    def needs(self, needs: Needs) -> None:
        """Take down which demands are open; an older list than the last one is no news, unless a clock was set back."""
        if self._needs is not None and needs.at < self._needs.at < needs.at + OUT_OF_ORDER:
            return
        self._needs = needs
        for demand, run in self._runs.items():
            run.missing = demand not in needs.demands and not run.ended
        for demand in needs.demands:
            known = self._runs.get(demand)
            if known is None or known.ended:
                self._begin(DemandProgress(demand=demand))

    @workflow.signal
    def report(self, report: LoanReport) -> None:
        """Take a Loan's answer down."""
        run = self._runs.get(report.demand)
        if run is not None and not run.ended:
            run.hear(report)

    # ---- updates of people

    @workflow.update
    async def approve(self, decision: Decision) -> ReclaimState:
        """Let what the plan would take be recalled."""
        return self._decide(decision, approved=True)

    @workflow.update
    async def deny(self, decision: Decision) -> ReclaimState:
        """Have nothing recalled; the demand ends PARTIAL and says why."""
        return self._decide(decision, approved=False)

    @approve.validator
    def _check_approve(self, decision: Decision) -> None:
        self._check(decision)

    @deny.validator
    def _check_deny(self, decision: Decision) -> None:
        self._check(decision)

    def _check(self, decision: Decision) -> None:
        if not self._asked(decision):
            what = f"demand {decision.demand!r}" if decision.demand else "no demand"
            raise ApplicationError(
                f"reclaim {workflow.info().workflow_id!r} is {self.read_state().phase}: {what} waits for approval"
                if not decision.demand
                else f"{what} does not wait for approval; `gpubank reclaim show` lists those that do",
                type="PolicyError",
            )

    def _asked(self, decision: Decision) -> list[DemandRun]:
        return [run for demand, run in self._runs.items() if run.awaits_approval and decision.demand in ("", demand)]

    def _decide(self, decision: Decision, *, approved: bool) -> ReclaimState:
        for run in self._asked(decision):
            run.decide(decision, approved=approved)
        return self.read_state()

    # ---- state

    @workflow.query(name="state")
    def read_state(self) -> ReclaimState:
        """Return every demand of this run as it stands."""
        demands = tuple(run.progress for run in self._runs.values())
        phases = {demand.phase for demand in demands}
        phase = next((phase for phase in _ORDER if phase in phases), ReclaimPhase.CANCELLED)
        return ReclaimState(phase=phase, demands=demands)

    def _show(self) -> None:
        """Tell the UI; search attributes only when one has changed."""
        state, start = self.read_state(), self._start
        running = [run for run in self._runs.values() if not run.ended]
        due = min((run.progress.due_at for run in running if run.progress.due_at is not None), default=None)
        shown = (
            state.phase,
            sum(run.progress.gpus for run in running),
            any(run.awaits_approval for run in running),
            due,
            running[0].kind if running else None,
        )
        workflow.set_current_details(reclaim_details(start, state.demands))
        if shown == self._shown:
            return
        self._shown = shown
        workflow.upsert_search_attributes(
            [
                attributes.PHASE.value_set(state.phase),
                attributes.CLUSTER.value_set(start.cluster),
                attributes.POOL.value_set(start.pool),
                attributes.GROUP.value_set(start.lender),
                attributes.LENDERS.value_set([start.lender]),
                attributes.GPUS.value_set(shown[1]),
                attributes.NEEDS_APPROVAL.value_set(shown[2]),
                attributes.DUE_AT.value_set(due) if due else attributes.DUE_AT.value_unset(),
                attributes.REASON.value_set(shown[4]) if shown[4] else attributes.REASON.value_unset(),
            ]
        )
