"""The Loan of one Workload: its only stopper and resumer, from its first GPUs to its end.

    ACTIVE ─▶ RECALLED ─▶ CHECKPOINTING ─▶ DURABLE ─▶ STOPPING ─▶ PARKED ─▶ ACTIVE …
      ▲           └──────────────┴────────────┤                      │
      └────────── PROTECTED, or released ◀────┘                      └─▶ CLOSED

A Workload that borrows has one from its first GPUs on; own work that makes room for more important work of its group
has one from the recall until it runs on, or waits in its queue again.

Signals only write down what is wanted; one loop acts, so that no two steps of a Loan ever overlap. The GPUs of the
books move in activities, each of which reads again what it is about to change.
"""

from collections import deque
from typing import Final

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from gpubank.domain.base import clock, format_duration
    from gpubank.domain.notice import extension_refusal, return_refusal
    from gpubank.domain.recall import (
        Decision,
        Ended,
        Extension,
        Granted,
        LoanInput,
        LoanPhase,
        LoanState,
        Offered,
        RecallOrder,
        ReleaseOrder,
        StopOrder,
        TermRecord,
    )
    from workflows.loan_recall import LoanRecalls
    from workflows.refusals import refuse

MAX_TERMS: Final = 500
"""Terms that a Loan remembers; what is older stands in the ledger."""


@workflow.defn(name="Loan")
class LoanWorkflow:
    """Takes what is wanted down, and has one thing done after the other."""

    @workflow.init
    def __init__(self, start: LoanInput) -> None:
        self._loan = LoanRecalls(start)
        self._grants: deque[Granted] = deque()
        self._return: Decision | None = None

    # ---- the loop

    @workflow.run
    async def run(self, start: LoanInput) -> LoanState:
        """Act until the Workload has ended and nobody wants an answer."""
        loan = self._loan
        loan.show()
        if start.state is None:
            await self._settle_in()
        while loan.state.phase is not LoanPhase.CLOSED:
            if self._grants and loan.state.phase is LoanPhase.ACTIVE:
                await self._begin_term(self._grants.popleft())
            elif loan.state.orders:
                await loan.recall()
            elif loan.state.finished:
                await self._close()
            elif self._grants:
                await self._begin_term(self._grants.popleft())
            elif self._return is not None:
                await self._order_return(self._return)
            elif loan.state.offered:
                await self._resume()
            elif loan.state.own and loan.state.phase is LoanPhase.ACTIVE:
                loan.move(LoanPhase.CLOSED, "own work, which makes no room now")
            elif workflow.info().is_continue_as_new_suggested():
                await loan.settled()
                if not self._busy():
                    workflow.continue_as_new(start.model_copy(update={"state": loan.state}))
            else:
                await self._idle()
        await loan.settled()
        return loan.state

    def _busy(self) -> bool:
        state = self._loan.state
        return bool(state.orders or state.finished or self._grants or self._return or state.offered)

    def _stirs(self) -> bool:
        return self._busy() or workflow.info().is_continue_as_new_suggested()

    async def _idle(self) -> None:
        """Wait for something to do, and look whether a parked Workload ends: the controller may not see it gone."""
        loan = self._loan
        if loan.state.phase is LoanPhase.PARKED:
            ended = await loan.acts.await_end(loan.step(), self._stirs)
            loan.set(finished=ended or loan.state.finished)
        else:
            await workflow.wait_condition(self._stirs)

    async def _settle_in(self) -> None:
        """Take over what an earlier run left, as after it was terminated."""
        loan = self._loan
        heard = loan.state.orders
        sight = await loan.acts.look(loan.step())
        loan.set(term=sight.term, gpus=sight.gpus, lenders=sight.lenders, recalls=sight.recalls, own=sight.own)
        # A Loan that is reset hears again what was wanted long ago; what it heard since the look may be newer.
        loan.keep_wanted(sight.live_demands, heard)
        if sight.finished:
            loan.set(finished=True)
        elif sight.stopped and sight.recalled_lines:
            for phase in (LoanPhase.RECALLED, LoanPhase.DURABLE, LoanPhase.STOPPING):
                loan.move(phase, "an earlier run had stopped it")
            await loan.see_off("it was stopped before this run began")
        elif sight.stopped:
            loan.move(LoanPhase.PARKED, "an earlier run had parked it")
        elif sight.recalled_lines and not loan.state.orders:
            await loan.acts.release_lines(loan.step(reason="its recall was left unfinished"), drop_pledges=False)
        runs = loan.state.phase is LoanPhase.ACTIVE and not loan.state.finished and sight.lenders
        if runs and sight.admitted_at is not None and not self._grants:
            # A recall may come before the news of the grant: what it runs on, and since when, is booked all the same.
            await self._begin_term(
                Granted(term=sight.term, gpus=sight.gpus, lenders=sight.lenders, at=sight.admitted_at)
            )

    # ---- terms

    async def _begin_term(self, grant: Granted) -> None:
        loan = self._loan
        if grant.term < loan.state.term or (loan.state.phase is LoanPhase.PARKED and grant.term == loan.state.term):
            return
        earlier = tuple(term for term in loan.state.history if term.term != grant.term)
        begins = len(earlier) == len(loan.state.history)
        since = grant.at or workflow.now()
        record = TermRecord(term=grant.term, started_at=since, gpus=grant.gpus, lenders=grant.lenders)
        loan.set(
            term=grant.term,
            gpus=grant.gpus,
            lenders=grant.lenders,
            history=(*earlier, record)[-MAX_TERMS:],
            offered=False,
        )
        if loan.state.phase is LoanPhase.PARKED:
            loan.move(LoanPhase.ACTIVE, f"came back for term {grant.term}")
        elif begins:
            whose = "GPUs of its group" if loan.state.own else "borrowed GPUs"
            loan.show(f"runs on {whose} since {clock(since)}")
        else:
            loan.show(f"its GPUs are lent by {', '.join(grant.lenders)} now")
        if begins and not loan.state.own:  # of own work only what it is stopped after is booked, at its end
            await loan.acts.use(grant.term, grant.gpus, since)

    async def _resume(self) -> None:
        """Reactivate it; it stays PARKED until its lines are granted."""
        loan = self._loan
        loan.set(offered=False)
        if loan.state.phase is LoanPhase.ACTIVE and (await loan.acts.look(loan.step())).stopped:
            # The API server took a stop in that it was thought not to have got: nobody knew, and it was let go on.
            await loan.finish_stop(loan.step(reason="it was stopped while it was let go"))
        if loan.state.phase is not LoanPhase.PARKED:
            return
        step = loan.acts.step(loan.state.term + 1, loan.state.recalls, "there is room again")
        resumed = await loan.acts.resume(step, lambda: bool(loan.state.orders or loan.state.finished))
        if resumed:
            word = "There is room again: the job is resumed."
            loan.aside(loan.acts.tell(step.key("resumed"), "LoanResumed", word))
        if resumed and loan.state.own:
            loan.move(LoanPhase.CLOSED, "resumed; it waits in its own queue")
            return
        loan.show("resumed; waits for its grant" if resumed else "the room it was offered is taken")

    async def _close(self) -> None:
        loan = self._loan
        gone = await loan.acts.await_gone(loan.step(), lambda: bool(loan.state.orders))
        if gone is None or loan.state.orders:
            return
        loan.set(finished=gone.finished)
        if gone.finished:
            await loan.end_term("the job finished or is gone", gone.at)
        if gone.finished and not loan.state.orders:
            loan.move(LoanPhase.CLOSED, "the job finished or is gone")

    async def _order_return(self, decision: Decision) -> None:
        loan = self._loan
        if decision.term is not None and decision.term < loan.state.term:
            self._return = None
            loan.show("it was asked for in an earlier term")
            return
        reason = f"{decision.identity or 'somebody'} returns it: {decision.reason or 'no reason given'}"
        order = await loan.acts.return_order(loan.step(loan.state.recalls + 1, reason))
        self._return = None
        if order is None:
            loan.show("there was nothing to return")
        else:
            loan.set(orders=(*loan.state.orders, order))

    # ---- signals of the controller

    @workflow.signal
    def granted(self, grant: Granted) -> None:
        """Take down that its lines are granted and it is admitted; repeated news is none."""
        state = self._loan.state
        running = state.history[-1:] if state.history and state.history[-1].ended_at is None else ()
        if all((t.term, t.gpus, t.lenders) != (grant.term, grant.gpus, grant.lenders) for t in running):
            self._grants.append(grant)

    @workflow.signal
    def offered(self, offer: Offered) -> None:
        """Take down that GPUs for the whole parked Workload lie ready; it may be parked, and the Loan not know it."""
        is_known = self._loan.state.phase in (LoanPhase.PARKED, LoanPhase.ACTIVE)
        if is_known and offer.term == self._loan.state.term + 1:
            self._loan.set(offered=True, own=self._loan.state.own or offer.own)

    @workflow.signal
    def ended(self, end: Ended) -> None:
        """Take down that the Workload finished or is gone; it is looked at before the Loan closes."""
        self._loan.set(finished=True)

    # ---- signals of Reclaims

    @workflow.signal
    def recall(self, order: RecallOrder) -> None:
        """Take a recall down; the same demand again replaces its order and is answered anew."""
        loan = self._loan
        known = [other.demand for other in loan.state.orders]
        if order.demand in known:
            orders = tuple(order if other.demand == order.demand else other for other in loan.state.orders)
        else:
            orders = (*loan.state.orders, order)
        loan.told.discard(order.demand)
        loan.set(orders=orders)

    @workflow.signal
    def stop(self, order: StopOrder) -> None:
        """Take down that a demand can be met; counts only for one that recalled this loan."""
        if any(other.demand == order.demand for other in self._loan.state.orders):
            self._loan.stops.add(order.demand)
            self._loan.set(stop_ordered=True)

    @workflow.signal
    def release(self, order: ReleaseOrder) -> None:
        """Take down that a demand does not want it any more; a job that is stopping already goes on stopping."""
        loan = self._loan
        if loan.state.phase is not LoanPhase.STOPPING:
            loan.stops.discard(order.demand)
            orders = tuple(other for other in loan.state.orders if other.demand != order.demand)
            loan.set(orders=orders, stop_ordered=bool(loan.stops))

    # ---- updates of people

    @workflow.update
    async def extend(self, extension: Extension) -> LoanState:
        """Give the recalled job more time, and return the loan as it stands then."""
        loan = self._loan
        deadline = loan.deadline
        if deadline is None:
            raise ApplicationError("the notice has just ended: there is nothing to extend", type="PolicyError")
        loan.set(deadline=deadline + extension.by)
        loan.show(f"{extension.identity or 'somebody'} gave it {format_duration(extension.by)} more")
        state = loan.state
        await loan.acts.note(
            loan.step().key(f"extend-{workflow.uuid4()}"),
            "extend",
            {
                "by": format_duration(extension.by),
                "identity": extension.identity,
                "verified": str(extension.verified),
                "reason": extension.reason,
            },
        )
        return state

    @extend.validator
    def _check_extend(self, extension: Extension) -> None:
        refuse(extension_refusal(workflow.info().workflow_id, self._loan.state, extension.by))

    @workflow.update
    async def return_now(self, decision: Decision) -> LoanState:
        """Have the job saved and stopped, and its GPUs returned; it comes back when there is room."""
        loan = self._loan
        self._return = decision
        loan.show(f"{decision.identity or 'somebody'} asked for its return")
        state = loan.state
        await loan.acts.note(
            loan.step().key(f"return-{workflow.uuid4()}"),
            "return",
            {"identity": decision.identity, "verified": str(decision.verified), "reason": decision.reason},
        )
        return state

    @return_now.validator
    def _check_return(self, decision: Decision) -> None:
        asked = self._return is not None
        refuse(return_refusal(workflow.info().workflow_id, self._loan.state, asked=asked))

    # ---- queries

    @workflow.query(name="state")
    def read_state(self) -> LoanState:
        """Return the loan as it stands, every term so far included."""
        return self._loan.state
