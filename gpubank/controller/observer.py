"""What the controller lets others see of its work: whoever counts or measures, and steers nothing."""

from typing import Protocol

from gpubank.domain.books import Books
from gpubank.domain.facts import PoolFacts
from gpubank.domain.terms import PoolTerms
from gpubank.domain.transaction import Transaction


class Observer(Protocol):
    """Hears of every turn; must not fail and must not take long."""

    def reconciled(self, problem: str) -> None:
        """Hear that the agreements were looked at, or why that failed."""
        ...

    def turned(
        self, pool: str, seconds: float, facts: PoolFacts | None, books: Books | None, terms: PoolTerms | None
    ) -> None:
        """Hear of a turn that came to an end."""
        ...

    def failed(self, pool: str, seconds: float) -> None:
        """Hear of a turn that failed and is tried again."""
        ...

    def committed(self, books: Books, transaction: Transaction) -> None:
        """Hear of a transaction that the controller committed on top of `books`."""
        ...

    def gone(self, pool: str) -> None:
        """Hear that a pool is not looked after any more."""
        ...

    def posting_failed(self) -> None:
        """Hear that what is due could not be posted in the ledger."""
        ...
