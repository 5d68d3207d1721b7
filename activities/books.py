"""The ledger alone: use and audit notes."""

from temporalio import activity

from activities.interfaces import BookCalls
from gpubank.domain.ledger import WorkloadUse
from gpubank.domain.steps import LedgerNote
from gpubank.ports import LedgerStore


class BookActivities(BookCalls):
    """Implements `BookCalls` on any ledger."""

    def __init__(self, ledger: LedgerStore) -> None:
        self._ledger = ledger

    @activity.defn(name="books.use")
    async def use(self, use: WorkloadUse) -> None:
        """Record when a Workload's term was admitted, and when its pods were gone."""
        await self._ledger.use(use)

    @activity.defn(name="books.note")
    async def note(self, note: LedgerNote) -> None:
        """Append one audit event, once per key."""
        await self._ledger.note(
            key=note.key, at=note.at, actor=note.actor, subject=note.subject, action=note.action, detail=note.detail
        )
