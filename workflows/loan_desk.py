"""What a Loan remembers, and how it shows it: state, deadlines, answers to Reclaims, Temporal's UI."""

import asyncio
from collections.abc import Collection, Coroutine
from datetime import datetime
from typing import Any

from temporalio import workflow
from temporalio.exceptions import FailureError

with workflow.unsafe.imports_passed_through():
    from gpubank.domain.policy import OnCheckpointFailure
    from gpubank.domain.recall import (
        LOAN_MOVES,
        LoanInput,
        LoanOutcome,
        LoanPhase,
        LoanReport,
        LoanState,
        RecallOrder,
        moved,
    )
    from gpubank.domain.steps import LoanStep
    from workflows import attributes
    from workflows.details import loan_details
    from workflows.loan_calls import LoanActs


class LoanDesk:
    """The one place where a Loan's state changes."""

    def __init__(self, start: LoanInput) -> None:
        self.start = start
        self.state = start.state or LoanState(gpus=start.gpus)
        self.acts = LoanActs(start)
        self.told: set[str] = set()
        """Demands that know that the Workload may be stopped."""

        self.stops: set[str] = set()
        """Demands that can be met once it is stopped."""

        self.lost = False
        """It will be stopped without the checkpoint that its class asks for."""

        self._aside: list[asyncio.Task[None]] = []

    def aside(self, word: Coroutine[Any, Any, None]) -> None:
        """Say something to somebody, while the Loan goes on: nothing that follows rests on its being heard."""
        self._aside = [task for task in self._aside if not task.done()]
        self._aside.append(asyncio.create_task(word))

    async def settled(self) -> None:
        """Wait until everything has been said, and everybody been answered."""
        await workflow.wait_condition(workflow.all_handlers_finished)
        await asyncio.gather(*self._aside)

    # ---- what is wanted

    @property
    def unwanted(self) -> bool:
        """Whether nobody wants its GPUs back any more, or there is nothing left to want."""
        return not self.state.orders or self.state.finished

    @property
    def untold(self) -> bool:
        """Whether somebody does not know yet that the Workload may be stopped."""
        return any(self._is_untold(order) for order in self.state.orders)

    def _is_untold(self, order: RecallOrder) -> bool:
        """Whether it may be stopped for an order, and whoever gave it does not know.

        What could not be saved may be stopped for an order that evicts, and not for another one.
        """
        return bool(order.reclaim) and order.demand not in self.told and (evicts(order) or not self.lost)

    @property
    def stop_wanted(self) -> bool:
        """Whether a demand that still wants it can be met, or a person asked for the return."""
        return any(not order.reclaim or order.demand in self.stops for order in self.state.orders)

    @property
    def deadline(self) -> datetime | None:
        """End of the notice: as extended, but at once for an overdue demand."""
        overdue = [order.deadline for order in self.state.orders if order.overdue]
        return min(overdue) if overdue else self.state.deadline

    @property
    def past_notice(self) -> bool:
        """Whether the notice is over."""
        return self.deadline is None or workflow.now() >= self.deadline

    @property
    def evicts(self) -> bool:
        """Whether it is stopped at the end of the notice although it could not be saved."""
        return any(evicts(order) for order in self.state.orders)

    @property
    def may_be_lost(self) -> bool:
        """Whether one of those who want it stopped now has it stopped unsaved; of all, while nobody wants that yet."""
        asking = [order for order in self.state.orders if not order.reclaim or order.demand in self.stops]
        return any(evicts(order) for order in asking or self.state.orders)

    def step(self, recall: int | None = None, reason: str = "") -> LoanStep:
        """Name a step of the term and recall that run."""
        return self.acts.step(self.state.term, self.state.recalls if recall is None else recall, reason)

    async def end_term(self, because: str, at: datetime) -> None:
        """Close the record of the term, and book when its pods were gone."""
        state = self.state
        if not state.history or state.history[-1].ended_at is not None:
            return
        last = state.history[-1]
        ended = last.model_copy(update={"ended_at": at, "ended_because": because, "checkpoint": state.checkpoint})
        self.set(history=(*state.history[:-1], ended))
        await self.acts.use(last.term, last.gpus, last.started_at, at)

    def keep_wanted(self, live_demands: Collection[str], heard: Collection[RecallOrder]) -> None:
        """Forget those of the orders heard before a look whose demands it did not find."""
        over = [order for order in heard if order.reclaim and order.demand not in live_demands]
        kept = tuple(order for order in self.state.orders if order not in over)
        self.stops &= {order.demand for order in kept}
        self.set(orders=kept, stop_ordered=bool(self.stops))

    # ---- answers

    def tell_durable(self) -> None:
        """Tell everybody who does not know yet that the Workload may be stopped."""
        for order in self.state.orders:
            if self._is_untold(order):
                self.told.add(order.demand)
                self.aside(self._report(order, LoanOutcome.DURABLE, self.state.note))

    def answer(self, outcome: LoanOutcome, reason: str) -> None:
        """Answer everybody who waits; the recall is over for them."""
        orders = self.state.orders
        self.set(orders=(), stop_ordered=False)
        self.stops.clear()
        for order in orders:
            if order.reclaim:
                self.aside(self._report(order, outcome, reason))

    async def _report(self, order: RecallOrder, outcome: LoanOutcome, reason: str) -> None:
        report = LoanReport(loan=workflow.info().workflow_id, demand=order.demand, outcome=outcome, reason=reason[:300])
        try:
            await workflow.get_external_workflow_handle(order.reclaim).signal("report", report)
        except FailureError as error:
            # Its Reclaim has ended or was terminated; one that follows plans from the books.
            workflow.logger.info("nobody hears %s of %s: %s", outcome, order.demand, error)

    # ---- state

    def set(self, **update: Any) -> None:
        """Remember something."""
        self.state = self.state.model_copy(update=update)

    def move(self, phase: LoanPhase, note: str) -> None:
        """Enter a phase that the table allows."""
        self.set(phase=moved(workflow.info().workflow_id, LOAN_MOVES, self.state.phase, phase))
        self.show(note)
        order = self.state.order
        workflow.logger.info(
            "%s of %s is %s: %s",
            attributes.workload_name(self.start.workload),
            self.start.borrower,
            phase,
            note,
            extra={
                "phase": phase,
                "reclaim": order.reclaim if order else None,
                "demand": order.demand if order else None,
            },
        )

    def show(self, note: str = "") -> None:
        """Tell the UI, in one upsert."""
        if note:
            self.set(note=note)
        start, state = self.start, self.state
        order, due = state.order, self.deadline
        workflow.upsert_search_attributes(
            [
                attributes.PHASE.value_set(state.phase),
                attributes.CLUSTER.value_set(start.cluster),
                attributes.POOL.value_set(start.pool),
                attributes.BORROWER.value_set(start.borrower),
                attributes.WORKLOAD.value_set(attributes.workload_name(start.workload)),
                attributes.LENDERS.value_set(list(state.lenders)),
                attributes.GPUS.value_set(state.gpus),
                attributes.REASON.value_set(order.kind) if order else attributes.REASON.value_unset(),
                attributes.GROUP.value_set(order.lender) if order else attributes.GROUP.value_unset(),
                attributes.DUE_AT.value_set(due) if due else attributes.DUE_AT.value_unset(),
            ]
        )
        workflow.set_current_details(loan_details(start, state))


def evicts(order: RecallOrder) -> bool:
    """Whether an order has the Workload stopped although it could not be saved."""
    return order.overdue or order.on_checkpoint_failure is OnCheckpointFailure.EVICT
