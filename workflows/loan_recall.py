"""One recall of one Loan: notice, verified checkpoint, stop, return; or release, or protection."""

from collections.abc import Callable
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import Any, Final

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from gpubank.domain.base import clock
    from gpubank.domain.recall import LOAN_MOVES, CheckpointSummary, LoanInput, LoanOutcome, LoanPhase
    from gpubank.domain.steps import CheckpointOutcome, CheckpointStep, LoanStep, StopResult
    from workflows.loan_desk import LoanDesk
    from workflows.waiting import wait_until

ASK_AGAIN: Final = 2
"""Times that a trainer which says that it failed is asked at once; under `evict` again and again after that."""

ASK_PAUSE: Final = timedelta(seconds=15)
"""Between two of those later requests, until the notice ends: what keeps it from saving may pass."""

REFRESH: Final = timedelta(seconds=30)
"""Time for a fresh checkpoint where the first one became too old; what was verified before stands if none comes."""

STALE_PAUSE: Final = timedelta(seconds=1)
"""Before a stop is ordered again that waited for too long."""

CHECK_DEMANDS: Final = timedelta(seconds=60)
"""How often a Loan that may be stopped makes sure that somebody still wants it."""

ENDED: Final = "the job finished or is gone"
"""Why a term ends that nobody ended."""

_RECALL_PHASES: Final = frozenset({LoanPhase.RECALLED, LoanPhase.CHECKPOINTING, LoanPhase.DURABLE})


class _Next(Enum):
    """How a stage of a recall ended."""

    READY = auto()
    RELEASED = auto()
    FINISHED = auto()
    FAILED = auto()
    STOPPED = auto()
    LEASED = auto()


class LoanRecalls(LoanDesk):
    """Carries the recalls of one Loan out, one after the other."""

    def __init__(self, start: LoanInput) -> None:
        super().__init__(start)
        self._saved = False
        """A checkpoint of this recall is verified; those of earlier ones say nothing about the work since."""

        self._asks = 0
        """Requests of this recall."""

    async def recall(self) -> None:
        """Carry out the recall that the first order asks for, for everybody who asks meanwhile."""
        if self.state.finished and await self._has_ended():
            await self.see_off(ENDED)
            return
        if not self.state.orders:
            return
        order = self.state.orders[0]
        number = self.state.recalls + 1
        self.set(recalls=number, deadline=order.deadline)
        self.told.clear()
        self.lost, self._saved, self._asks = False, False, 0
        step = self.step(number, order.reason)
        found = await self.acts.recall_lines(step, lambda: self.unwanted)
        if found is None:
            if not self.state.orders:
                await self._let_go(step, "nobody wants it any more")
            return
        self.set(own=found.own)
        if not found.lines:
            why = ENDED if found.finished else "it holds no loan now"
            self.set(deadline=None, finished=found.finished)
            self.answer(LoanOutcome.GONE if found.finished else LoanOutcome.RETURNED, why)
            return
        if self.state.phase is LoanPhase.PARKED:
            self.move(LoanPhase.ACTIVE, "came back")
        self.set(term=found.term, gpus=found.gpus, lenders=found.lenders)
        self.move(LoanPhase.RECALLED, f"recalled: {order.reason}")
        step = self.step(number, order.reason)
        end = _Next.FINISHED if found.finished else await self._save(step)
        if end is _Next.READY:
            end = await self._await_stop(step)
        await self._conclude(end, step)

    async def _has_ended(self) -> bool:
        """Look whether the Workload has ended, as was said; where it was said in error, it is forgotten."""
        sight = await self.acts.look(self.step())
        self.set(finished=sight.finished)
        return sight.finished

    async def _conclude(self, end: _Next, step: LoanStep) -> None:
        if end is _Next.RELEASED:
            await self._let_go(step, "nobody wants it any more")
        elif end is _Next.FAILED:
            await self._protect(step, LoanOutcome.PROTECTED, "CheckpointFailed")
        elif end is _Next.LEASED:
            await self._protect(step, LoanOutcome.LEASED, "LoanLeased")
        elif end is _Next.STOPPED:
            self.move(LoanPhase.STOPPING, "deactivated")
            await self.see_off(step.reason)
        else:
            await self.see_off(ENDED)

    async def _save(self, step: LoanStep) -> _Next:
        """Tell the owner, and have a checkpoint verified where the class asks for one."""
        saves = any(order.needs_checkpoint for order in self.state.orders)
        what = f"saved and stopped; the notice ends at {clock(self.deadline)}" if saves else "stopped soon"
        word = f"Its GPUs are wanted back ({step.reason}): it is {what}."
        self.aside(self.acts.tell(step.key(f"notice-{step.recall}"), "LoanRecalled", word))
        if not saves:
            return _Next.RELEASED if self.unwanted else _Next.READY
        self.move(LoanPhase.CHECKPOINTING, "asked for a checkpoint")
        end = await self._ask_until_saved(step)
        if end is _Next.FAILED and self.evicts:
            self.lost = True
            return _Next.READY
        return end

    async def _ask_until_saved(self, step: LoanStep) -> _Next:
        """Ask, and again where it failed: under `protect` soon given up, under `evict` only when the notice ends."""
        while True:
            end = self._judge(await self._checkpoint(step, lambda: self.deadline, last_look=True))
            given_up = self._asks >= ASK_AGAIN and not self.evicts
            if end is not _Next.FAILED or self.past_notice or given_up:
                return end
            if self._asks >= ASK_AGAIN:
                if await self._pause():
                    return self._judge(None)
                if self.past_notice:
                    return end

    async def _pause(self) -> bool:
        """Let time pass before it is asked again, within the notice; True if nobody waits for it any more."""
        again = workflow.now() + ASK_PAUSE
        return await wait_until(
            lambda: self.unwanted,
            until=lambda: min(again, self.deadline or again),
            summary="before it is asked again",
        )

    def _judge(self, outcome: CheckpointOutcome | None) -> _Next:
        """What an outcome means, and how long it will be remembered."""
        if outcome is not None and outcome.finished:
            return _Next.FINISHED
        if outcome is not None and outcome.nothing_to_save:
            self.set(note="no pod runs: nothing is lost by stopping it")
            return _Next.READY
        if outcome is not None and outcome.checkpoint is not None:
            self._keep(outcome.checkpoint)
            self.set(note=f"its checkpoint of step {outcome.checkpoint.step} is verified")
            return _Next.READY
        if self.state.finished:
            return _Next.FINISHED
        if not self.state.orders:
            return _Next.RELEASED
        self.set(note=outcome.failure if outcome is not None else f"no verified checkpoint by {clock(self.deadline)}")
        return _Next.FAILED

    def _keep(self, saved: CheckpointSummary) -> None:
        self._saved = True
        self.set(checkpoint=saved, last_step=max(self.state.last_step, saved.step))

    async def _checkpoint(
        self, step: LoanStep, until: Callable[[], datetime | None], *, last_look: bool = False
    ) -> CheckpointOutcome | None:
        """Ask, and see it verified; None when nobody waits for it any more, or the time is over.

        With `last_look` the end of the time is no silence: one look more tells what came, or what is wrong.
        """
        self._asks += 1
        asked = CheckpointStep(
            step=step,
            request_id=step.key(f"checkpoint-{step.recall}-{self._asks}"),
            epoch=step.recall,
            deadline=until() or workflow.now(),
            last_step=self.state.last_step,
        )
        outcome = await self.acts.request_checkpoint(asked, lambda: self.unwanted, until)
        if outcome is not None and outcome.is_last:
            return outcome
        if outcome is not None:
            asked = asked.model_copy(update={"requested_at": outcome.requested_at})
            outcome = await self.acts.await_checkpoint(asked, lambda: self.unwanted, until)
        if outcome is not None or not last_look or self.unwanted:
            return outcome
        outcome = await self.acts.last_look(asked)
        late = f"no verified checkpoint by {clock(until())}: {outcome.failure}"
        return outcome.model_copy(update={"failure": late}) if outcome.failure else outcome

    async def _await_stop(self, step: LoanStep) -> _Next:
        """Say that it may be stopped, and stop it when a demand can be met."""
        self.move(LoanPhase.DURABLE, self.state.note or "may be stopped")
        while True:
            if self.lost and not self.evicts and not self.unwanted and not await self._refresh(step):
                return _Next.FAILED  # whoever would have had it stopped unsaved has let go of it
            self.tell_durable()
            check = workflow.now() + CHECK_DEMANDS
            heard = await wait_until(
                lambda: self.unwanted or self.stop_wanted or self.untold,
                until=lambda check=check: check,  # type: ignore[misc]
                summary="make sure that somebody still wants it",
            )
            if not heard:
                await self._drop_ended_demands(step)
            if self.state.finished:
                return _Next.FINISHED
            if not self.state.orders:
                return _Next.RELEASED
            if self.stop_wanted and (end := await self._stop(step)) is not None:
                return end

    async def _stop(self, step: LoanStep) -> _Next | None:
        """Stop it; None if those who could be met have let go of it, and others still wait for it."""
        if not await self._refresh(step):
            return _Next.FAILED
        result = await self.acts.stop(self._as_things_are(step), self._is_off)
        if result is StopResult.STALE:  # at once after a freeze; with clocks that differ it could be so again and again
            again = workflow.now() + STALE_PAUSE
            await wait_until(lambda: self.unwanted, until=lambda: again, summary="before it is looked at anew")
        if result is StopResult.STOPPED:
            await self._book_loss(step)
            return _Next.STOPPED
        if result is StopResult.GONE:
            return _Next.FINISHED
        if result is StopResult.LEASED:
            self.set(note="a CapacityLease protects it now")
            return _Next.LEASED
        if result is StopResult.PROTECTED:
            self.set(note=f"{self.state.note}, and its policy protects it now")
            return _Next.FAILED
        if result is StopResult.REFUSED:
            self.set(note="its lines were not recalled any more")
            return _Next.FAILED
        if self.state.finished:
            return _Next.FINISHED
        return None if self.state.orders else _Next.RELEASED

    def _is_off(self) -> bool:
        """Whether a stop that waits is not to be carried out as it was ordered."""
        return self.unwanted or not self.stop_wanted or (self.lost and not self.may_be_lost)

    def _as_things_are(self, step: LoanStep) -> LoanStep:
        """Say how long it may be stopped on what is saved: in a freeze a stop waits, and the job works on."""
        order, now = self.state.order, workflow.now()
        update: dict[str, Any] = {"asked": any(not each.reclaim for each in self.state.orders)}
        saves = any(each.needs_checkpoint for each in self.state.orders)
        if saves and not self.lost and order is not None:
            saved = self.state.checkpoint if self._saved else None
            update["idle"] = saved is None
            if saved is not None:
                update["good_until"] = max(saved.verified_at + order.max_checkpoint_age, now + REFRESH)
        elif saves:
            update["unsaved"] = not any(order.overdue for order in self.state.orders)
        return step.model_copy(update=update)

    async def _refresh(self, step: LoanStep) -> bool:
        """Ask once more where the checkpoint has grown old, or where nothing ran when it was asked before.

        An older checkpoint of this recall stands if no fresh one comes in time. False if there is none at all, though
        pods run now, and its policy protects it.
        """
        order = self.state.order
        lost = self.lost and self.may_be_lost
        if lost or order is None or not any(each.needs_checkpoint for each in self.state.orders):
            return True
        self.lost = False
        saved = self.state.checkpoint if self._saved else None
        if saved is not None and workflow.now() - saved.verified_at <= order.max_checkpoint_age:
            return True
        why = "its checkpoint has grown old" if saved is not None else "nothing ran when it was asked before"
        self.move(LoanPhase.CHECKPOINTING, f"{why}: asked once more")
        until = max(self.deadline or workflow.now(), workflow.now() + REFRESH)
        outcome = await self._checkpoint(step, lambda: until)
        if outcome is not None and outcome.checkpoint is not None:
            self._keep(outcome.checkpoint)
        nothing = outcome is not None and (outcome.nothing_to_save or outcome.finished)
        if not self._saved and not nothing and not self.unwanted:
            if not self.may_be_lost:
                self._judge(outcome)
                return False
            self.lost = True
        stands = f"its checkpoint of step {self.state.last_step} stands" if self._saved else "may be stopped"
        self.move(LoanPhase.DURABLE, stands)
        return True

    async def see_off(self, because: str) -> None:
        """See pods and quota gone and the lines returned; then it is parked, or the Loan is over."""
        step = self.step(reason=because)
        gone = await self.acts.await_gone(step)
        if gone is None:
            return
        await self.end_term(because, gone.at)
        self.set(finished=gone.finished, deadline=None, stop_ordered=False)
        self.answer(LoanOutcome.GONE if gone.finished else LoanOutcome.RETURNED, because)
        if gone.finished:
            self.move(LoanPhase.CLOSED, ENDED)
            return
        if self.state.phase is LoanPhase.PARKED:
            return
        self._pass_through(LoanPhase.DURABLE, LoanPhase.STOPPING, note=because)
        self.move(LoanPhase.PARKED, f"stopped: {because}")
        self.aside(self.acts.tell(step.key("parked"), "LoanParked", "Stopped; it comes back when there is room."))

    async def _protect(self, step: LoanStep, outcome: LoanOutcome, event: str) -> None:
        why = self.state.note or "it could not be saved in time"
        if not await self.acts.release_lines(step.model_copy(update={"reason": why})):
            await self.finish_stop(step)
            return
        self.move(LoanPhase.PROTECTED, why)
        self.answer(outcome, why)
        await self.acts.tell(step.key(f"protected-{step.recall}"), event, f"It runs on and was not stopped: {why}.")
        self.set(deadline=None, stop_ordered=False)
        self.move(LoanPhase.ACTIVE, f"protected: {why}")

    async def _let_go(self, step: LoanStep, why: str) -> None:
        if not await self.acts.release_lines(step.model_copy(update={"reason": why})):
            await self.finish_stop(step)
            return
        self.set(deadline=None, stop_ordered=False)
        if self.state.phase in _RECALL_PHASES:
            self.move(LoanPhase.ACTIVE, why)

    async def finish_stop(self, step: LoanStep) -> None:
        """Follow a stop that happened although its answer was lost."""
        note = "it turned out to be stopped already"
        self._pass_through(LoanPhase.RECALLED, LoanPhase.DURABLE, LoanPhase.STOPPING, note=note)
        await self.see_off(step.reason)

    def _pass_through(self, *phases: LoanPhase, note: str) -> None:
        for phase in phases:
            if phase in LOAN_MOVES[self.state.phase]:
                self.move(phase, note)

    async def _book_loss(self, step: LoanStep) -> None:
        """Book the GPU time whose work is lost, where a job was stopped without the checkpoint it should have."""
        state = self.state
        if not self.lost:
            return
        term = state.history[-1] if state.history and state.history[-1].term == state.term else None
        begins = [term.started_at] if term is not None else []
        saved = [state.checkpoint.verified_at] if state.checkpoint is not None else []
        since = max(begins + saved, default=workflow.now())
        until = workflow.now()
        gpu_ms = state.gpus * ((until - since) // timedelta(milliseconds=1))
        detail: dict[str, str | int | float | None] = {
            "gpus": state.gpus,
            "since": since.isoformat(),
            "until": until.isoformat(),
            "gpu_ms": gpu_ms,
            "gpu_hours": round(gpu_ms / 3_600_000, 4),
            "reason": state.note,
        }
        await self.acts.note(step.key(f"loss-{step.recall}"), "work lost", detail)

    async def _drop_ended_demands(self, step: LoanStep) -> None:
        """Forget recalls whose demand has ended although nobody said so, as when a Reclaim was terminated."""
        heard = self.state.orders
        sight = await self.acts.look(step)
        self.keep_wanted(sight.live_demands, heard)
        self.set(finished=self.state.finished or sight.finished)
