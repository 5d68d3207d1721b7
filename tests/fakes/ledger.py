"""A ledger in memory: the books change through `Books.applied` as in the real one, and nothing is kept."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from gpubank.domain.books import Books
from gpubank.domain.errors import BackendError, ConflictError, LedgerError
from gpubank.domain.ledger import GENESIS, AuditEvent, Posting, VerifyReport, WorkloadUse
from gpubank.domain.loan import Line
from gpubank.domain.transaction import Transaction


class MemoryLedger:
    """Implements `LedgerStore` as far as workflows and the controller use it."""

    def __init__(self) -> None:
        self._books: dict[tuple[str, str], Books] = {}
        self._keys: set[tuple[str, str, str]] = set()
        self.rows: dict[str, Line] = {}
        """Every line that ever was, as it is now."""

        self.history: list[Transaction] = []
        self.uses: list[WorkloadUse] = []
        self.notes: dict[str, AuditEvent] = {}
        self.gone = False
        """Whether its database is away."""

    def _ask(self) -> None:
        if self.gone:
            raise BackendError("ledger database: it is gone; see that it runs and try again")

    async def books(self, cluster: str, pool: str) -> Books:
        self._ask()
        return self._books.get((cluster, pool), Books(cluster=cluster, pool=pool))

    async def commit(self, transaction: Transaction) -> Books:
        before = await self.books(transaction.cluster, transaction.pool)
        key = (transaction.cluster, transaction.pool, transaction.key)
        if key in self._keys:
            return before
        applied = before.applied(transaction)
        self._keys.add(key)
        self._books[transaction.cluster, transaction.pool] = applied.books
        self.rows |= {line.line_id: line for line in applied.lines}
        self.history.append(transaction)
        return applied.books

    async def commit_all(self, transactions: Sequence[Transaction]) -> Sequence[Books]:
        after: list[Books] = []
        for transaction in transactions:
            try:
                after.append(await self.commit(transaction))
            except (ConflictError, LedgerError):
                if not after:
                    raise
                break
        return after

    async def beat(self, cluster: str, pool: str) -> None:
        """Take a write; tests make it fail."""
        self._ask()

    async def pools(self) -> Sequence[tuple[str, str]]:
        return sorted(self._books)

    async def lines(
        self,
        *,
        cluster: str | None = None,
        pool: str | None = None,
        group: str | None = None,
        workload_uid: str | None = None,
        open_only: bool = False,
        limit: int = 1000,
    ) -> Sequence[Line]:
        found = [
            line
            for line in self.rows.values()
            if workload_uid in (None, line.workload.uid) and (line.is_open or not open_only)
        ]
        return found[-limit:]

    async def use(self, use: WorkloadUse) -> None:
        self.uses.append(use)

    async def note(
        self, *, key: str, at: datetime, actor: str, subject: str, action: str, detail: Mapping[str, Any] | None = None
    ) -> None:
        self.notes.setdefault(
            key,
            AuditEvent(
                sequence=len(self.notes) + 1,
                at=at,
                actor=actor,
                subject=subject,
                action=action,
                detail=dict(detail or {}),
                previous=GENESIS,
                digest=GENESIS,
            ),
        )

    async def post(self, *, until: datetime) -> int:
        return 0

    async def postings(
        self, *, cluster: str | None = None, pool: str | None = None, account: str | None = None, limit: int = 1000
    ) -> Sequence[Posting]:
        return ()

    async def audit(self, *, subject: str | None = None, limit: int = 1000) -> Sequence[AuditEvent]:
        return [event for event in reversed(self.notes.values()) if subject in (None, event.subject)][:limit]

    async def verify(self) -> VerifyReport:
        return VerifyReport(postings=0, lines=len(self.rows), audit_events=len(self.notes), head=GENESIS)

    def actions(self) -> list[str]:
        """Actions of all notes, oldest first."""
        return [event.action for event in self.notes.values()]


def noon() -> datetime:
    """A moment for tests that need any."""
    return datetime(2026, 1, 5, 12, tzinfo=UTC)
