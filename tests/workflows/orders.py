"""Orders to a Loan in the name of Reclaims that do not run: who gives them has every moment in hand."""

from datetime import UTC, datetime, timedelta
from typing import Any

from gpubank.domain.demand import DemandKind
from gpubank.domain.facts import WorkloadFacts
from gpubank.domain.policy import OnCheckpointFailure
from gpubank.domain.recall import LoanInput, RecallOrder, ReleaseOrder, StopOrder
from gpubank.domain.steps import LoanOrder
from tests.fakes.bank import POOL, FakeBank

RECLAIM = "reclaim/local/h100/nobody"


class Desk:
    """Gives orders in the name of Reclaims that do not run."""

    def __init__(self, bank: FakeBank, workload: WorkloadFacts) -> None:
        self.bank = bank
        self.start = LoanInput(
            cluster=bank.cluster, pool=POOL, borrower=workload.group, workload=workload.key, gpus=workload.gpus
        )

    async def recall(self, demand: str, *, saves: bool = False, **update: Any) -> None:
        order = RecallOrder(
            reclaim=RECLAIM,
            demand=demand,
            lender="serving",
            kind=DemandKind.WORKLOAD,
            reason="a test",
            line_ids=(),
            needs_checkpoint=saves,
            on_checkpoint_failure=OnCheckpointFailure.PROTECT,
            deadline=datetime.now(UTC) + timedelta(seconds=30),
        )
        await self.give(recall=order.model_copy(update=update))

    async def stop(self, demand: str) -> None:
        await self.give(stop=StopOrder(reclaim=RECLAIM, demand=demand))

    async def release(self, demand: str) -> None:
        await self.give(release=ReleaseOrder(reclaim=RECLAIM, demand=demand, reason="a test"))

    async def give(self, **order: Any) -> None:
        await self.bank.client.order(LoanOrder(start=self.start, **order))
