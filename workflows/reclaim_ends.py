"""How one demand leaves its coroutine: it ends, or its Reclaim rests."""

from typing import Final

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from gpubank.domain.recall import ReclaimPhase

ENDED: Final = frozenset({ReclaimPhase.MET, ReclaimPhase.PARTIAL, ReclaimPhase.CANCELLED})
"""Phases that nothing follows."""

UNANSWERED: Final = "nobody approved or denied it within maxTimeToReturn"
"""Why a demand ends whose approval was asked for in vain."""


class Rest(Exception):  # noqa: N818 - it is no error
    """The Reclaim continues as new: leave everything as it is."""


class End(Exception):  # noqa: N818 - it is no error
    """The demand ends here."""

    def __init__(self, phase: ReclaimPhase, reason: str, *, book: bool = True) -> None:
        super().__init__(reason)
        self.phase = phase
        self.reason = reason
        self.book = book
        """Whether the books do not know yet."""
