"""Orders of a Reclaim to Loans, which may have to be started to get them."""

from typing import Protocol

from temporalio import activity

from activities.interfaces import OrderCalls
from gpubank.domain.steps import LoanOrder, LoanOrders


class LoanDispatch(Protocol):
    """Reaches the Loan of a Workload whether it runs or not."""

    async def order(self, order: LoanOrder) -> None:
        """Signal the Loan, and start it first where it does not run; a repeated order changes nothing."""
        ...


class OrderActivities(OrderCalls):
    """Implements `OrderCalls` on Temporal's signal-with-start."""

    def __init__(self, dispatch: LoanDispatch) -> None:
        self._dispatch = dispatch

    @activity.defn(name="orders.send")
    async def send(self, orders: LoanOrders) -> None:
        """Hand every order to its Loan; a retry repeats orders, which Loans take as the same."""
        for order in orders.orders:
            await self._dispatch.order(order)
