"""Gates around the activities of a recall, for crash tests only: a worker has them where `faults.folder` is set."""

from typing import Any, Final

from temporalio import activity
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from activities.pools import Pools
from gpubank.domain.books import Books
from gpubank.domain.faults import FaultPoint, Position, Spot
from gpubank.domain.steps import CheckpointStep, DemandStep, EndDemand, LoanOrders, LoanStep, PlanStep
from gpubank.domain.transaction import Transaction
from gpubank.faultgate import FaultGate

POINTS: Final = {
    "reclaim.plan": FaultPoint.PLAN,
    "loan.recall_lines": FaultPoint.RECALL,
    "checkpoint.request": FaultPoint.ASK,
    "checkpoint.await_durable": FaultPoint.VERIFY,
    "loan.stop": FaultPoint.STOP,
    "loan.await_gone": FaultPoint.GONE,
    "reclaim.raise_queue": FaultPoint.RAISE,
    "reclaim.await_placed": FaultPoint.PLACED,
    "reclaim.end_demand": FaultPoint.MET,
    "loan.resume": FaultPoint.RESUME,
}
"""Activities that are one step each; orders are told apart by what they say."""


class FaultInterceptor(Interceptor):
    """Has every activity come by its gates."""

    def __init__(self, gate: FaultGate) -> None:
        self._gate = gate

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """Wrap every activity."""
        return _Gated(next, self._gate)


class _Gated(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, gate: FaultGate) -> None:
        super().__init__(next)
        self._gate = gate

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        message = input.args[0] if input.args else None
        place = place_of(activity.info().activity_type, message)
        if place is None:
            return await super().execute_activity(input)
        pool, point = place
        await self._gate.at(pool, Spot(point, Position.BEFORE))
        result = await super().execute_activity(input)
        await self._gate.at(pool, Spot(point, Position.AFTER))
        return result


class GatedPools(Pools):
    """Pools whose books have a gate behind every transaction."""

    def __init__(self, gate: FaultGate, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._gate = gate

    async def commit(self, transaction: Transaction) -> Books:
        """Write one transaction, and come by the gate of the step that it is of."""
        books = await super().commit(transaction)
        point = POINTS.get(activity.info().activity_type)
        if point is not None:
            await self._gate.at(transaction.pool, Spot(point, Position.BOOKED))
        return books


def place_of(name: str, message: Any) -> tuple[str, FaultPoint] | None:
    """Return the pool that an activity is about and the step that it is; None if it is none of a recall."""
    if isinstance(message, LoanOrders):
        first = message.orders[0]
        if first.release is not None:
            return None
        ordered = FaultPoint.STOP_ORDER if any(order.stop for order in message.orders) else FaultPoint.RECALL_ORDER
        return first.start.pool, ordered
    step = message.step if isinstance(message, CheckpointStep | EndDemand | PlanStep) else message
    point = POINTS.get(name)
    if point is None or not isinstance(step, LoanStep | DemandStep):
        return None
    return step.pool, point
