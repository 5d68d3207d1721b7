"""The Loan of a build to come, for tests of upgrades: one command more, guarded and not."""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from gpubank.domain.recall import LoanInput, LoanState
    from workflows.loan import LoanWorkflow

CHANGE = "told-of-every-resume"
"""Id of the patch."""

REASON = "LoanComesBack"
"""Reason of the notice that is new."""


@workflow.defn(name="Loan")
class NextLoan(LoanWorkflow):
    """Tells the owner before a parked job is resumed; Loans that resumed one before the change did not."""

    @workflow.init
    def __init__(self, start: LoanInput) -> None:
        super().__init__(start)

    @workflow.run
    async def run(self, start: LoanInput) -> LoanState:
        """Do as the Loan of this build does."""
        return await super().run(start)

    async def _resume(self) -> None:
        if workflow.patched(CHANGE):
            await self._announce()
        await super()._resume()

    async def _announce(self) -> None:
        loan = self._loan
        key = loan.acts.step(loan.state.term + 1, loan.state.recalls).key("comes-back")
        await loan.acts.tell(key, REASON, "There is room again: the job is about to be resumed.")


@workflow.defn(name="Loan")
class HastyLoan(NextLoan):
    """The same change with nothing that guards it."""

    @workflow.init
    def __init__(self, start: LoanInput) -> None:
        super().__init__(start)

    @workflow.run
    async def run(self, start: LoanInput) -> LoanState:
        """Do as the Loan of this build does."""
        return await super().run(start)

    async def _resume(self) -> None:
        await self._announce()
        await LoanWorkflow._resume(self)
