"""The raise of a lender's queue: begun while the last victims leave, for it waits for the books and not for them."""

from collections.abc import Callable

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from gpubank.domain.steps import RaiseOutcome, RaiseResult
    from workflows.reclaim_calls import ReclaimActs
    from workflows.waiting import unless


class Raise:
    """Gives the set of one demand back when all of it is there."""

    def __init__(self, acts: ReclaimActs) -> None:
        self._acts = acts
        self._handle: workflow.ActivityHandle[RaiseResult] | None = None

    def begin(self) -> workflow.ActivityHandle[RaiseResult]:
        """Return the raise that is under way; another one where its answer is none, or of a moment that has passed."""
        if self._handle is None or (self._handle.done() and not self.raised):
            self._handle = self._acts.begin_raise()
        return self._handle

    @property
    def raised(self) -> bool:
        """Whether the whole set was given back."""
        handle = self._handle
        return handle is not None and handle.done() and handle.result().outcome is RaiseOutcome.RAISED

    async def see(self, stop: Callable[[], bool]) -> RaiseResult | None:
        """See the queue raised; None if `stop` came first."""
        result = await unless(self.begin(), stop)
        self._handle = None
        return result

    async def leave(self) -> None:
        """Leave a raise that nobody waits for any more; if it was just done, the next plan says so."""
        handle, self._handle = self._handle, None
        if handle is not None:
            await unless(handle, lambda: True)
