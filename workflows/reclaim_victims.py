"""The victims of one demand: what they were told, and what they have answered."""

from collections.abc import Iterable
from datetime import datetime

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from gpubank.domain.demand import DemandKind
    from gpubank.domain.policy import OnCheckpointFailure
    from gpubank.domain.recall import (
        DemandProgress,
        LoanInput,
        LoanOutcome,
        LoanReport,
        RecallOrder,
        ReclaimInput,
        ReleaseOrder,
        StopOrder,
        VictimProgress,
        loan_id,
    )
    from gpubank.domain.steps import LoanOrder, PlannedRecall, PlannedVictim

OVER = frozenset({LoanOutcome.RETURNED, LoanOutcome.GONE})
"""Answers of whoever holds nothing any more."""

RUNS_ON = frozenset({LoanOutcome.PROTECTED, LoanOutcome.LEASED})
"""Answers of whoever is not stopped after all."""


class Victims:
    """Whoever was recalled for a demand and has not been released."""

    def __init__(self, start: ReclaimInput, demand: str, earlier: Iterable[VictimProgress] = ()) -> None:
        """`earlier`: victims of an earlier run of the Reclaim; who was asked and not let go is let go of here."""
        self._start = start
        self._demand = demand
        self._recalled: dict[str, PlannedVictim] = {}
        self._left_over = {self._loan(row): row for row in earlier if row.asked}
        self._deadlines: dict[str, datetime] = {}
        self._answers: dict[str, LoanReport] = {}

    # ---- answers

    def hear(self, report: LoanReport) -> None:
        """Take a Loan's answer down; the last one counts."""
        self._answers[report.loan] = report

    def outcome(self, victim: PlannedVictim | VictimProgress) -> LoanOutcome | None:
        """Return the last answer; None while it is awaited."""
        report = self._answers.get(self._loan(victim))
        return report.outcome if report is not None else None

    def answered(self, victims: Iterable[PlannedVictim]) -> bool:
        """Whether all have answered, or one answer changes the plan."""
        outcomes = [self.outcome(victim) for victim in victims]
        return None not in outcomes or any(o not in (None, LoanOutcome.DURABLE) for o in outcomes)

    def stopped(self, victims: Iterable[PlannedVictim]) -> bool:
        """Whether all have left, or run on after all."""
        return all(self.outcome(victim) in OVER | RUNS_ON for victim in victims)

    def all_left(self, victims: Iterable[PlannedVictim]) -> bool:
        """Whether all have left."""
        return all(self.outcome(victim) in OVER for victim in victims)

    def protected(self, victims: Iterable[PlannedVictim]) -> tuple[str, ...]:
        """Return the uids of those that have refused."""
        return tuple(v.workload.uid for v in victims if self.outcome(v) is LoanOutcome.PROTECTED)

    # ---- who they are

    def ask(self, victims: Iterable[PlannedVictim]) -> None:
        """Await a new answer of each."""
        for victim in victims:
            self._recalled[self._loan(victim)] = victim
            self._left_over.pop(self._loan(victim), None)
            self._answers.pop(self._loan(victim), None)

    def forget_ended(self, victims: Iterable[PlannedVictim]) -> None:
        """Forget whoever has left or runs on: nobody needs to be let go."""
        for victim in victims:
            if self.stopped([victim]):
                self._recalled.pop(self._loan(victim), None)

    def let_go(self, keep: Iterable[PlannedVictim | VictimProgress]) -> "list[PlannedVictim | VictimProgress]":
        """Forget and return everybody else who still runs."""
        kept = {self._loan(victim) for victim in keep}
        known: dict[str, PlannedVictim | VictimProgress] = {**self._left_over, **self._recalled}
        free = [v for loan, v in known.items() if loan not in kept and self.outcome(v) not in OVER]
        for victim in free:
            self._recalled.pop(self._loan(victim), None)
            self._left_over.pop(self._loan(victim), None)
            self._answers.pop(self._loan(victim), None)
        return free

    def unleased(self, leased: Iterable[str]) -> "list[PlannedVictim | VictimProgress]":
        """Return those who were recalled and whom no lease keeps."""
        kept = frozenset(leased)
        known: tuple[PlannedVictim | VictimProgress, ...] = (*self._left_over.values(), *self._recalled.values())
        return [victim for victim in known if victim.workload.uid not in kept]

    def planned(self, plan: PlannedRecall) -> tuple[VictimProgress, ...]:
        """Return whom a plan names and nobody has asked yet."""
        return tuple(VictimProgress(workload=v.workload, borrower=v.borrower, gpus=v.gpus) for v in plan.victims)

    def shown(self, earlier: Iterable[VictimProgress]) -> tuple[VictimProgress, ...]:
        """Return everybody with the last answer, those of earlier plans included."""
        rows = {r.workload.uid: r.model_copy(update={"asked": self._loan(r) in self._left_over}) for r in earlier}
        for loan, victim in self._recalled.items():
            report = self._answers.get(loan)
            rows[victim.workload.uid] = VictimProgress(
                workload=victim.workload,
                borrower=victim.borrower,
                gpus=victim.gpus,
                answer=report.outcome if report is not None else None,
                reason=report.reason if report is not None else "",
                asked=report is None or report.outcome is LoanOutcome.DURABLE,
            )
        return tuple(rows.values())

    # ---- orders

    def recall(
        self, victim: PlannedVictim, plan: PlannedRecall, progress: DemandProgress, kind: DemandKind
    ) -> LoanOrder:
        """Order one to give its GPUs back; the notice runs from its first order, and ends now once overdue."""
        now = workflow.now()
        deadline = self._deadlines.setdefault(self._loan(victim), now + victim.grace)
        evicts = progress.overdue
        return LoanOrder(
            start=self._input(victim),
            recall=RecallOrder(
                reclaim=workflow.info().workflow_id,
                demand=self._demand,
                lender=self._start.lender,
                kind=kind,
                reason=progress.reason or f"{self._start.lender} wants its GPUs back",
                line_ids=victim.line_ids,
                needs_checkpoint=victim.needs_checkpoint,
                on_checkpoint_failure=OnCheckpointFailure.EVICT if evicts else victim.on_checkpoint_failure,
                deadline=min(deadline, now) if evicts else deadline,
                latest_deadline=deadline - victim.grace + max(victim.grace, plan.max_grace),
                max_checkpoint_age=plan.max_checkpoint_age,
                overdue=evicts,
            ),
        )

    def stop(self, victim: PlannedVictim) -> LoanOrder:
        """Order one to stop."""
        order = StopOrder(reclaim=workflow.info().workflow_id, demand=self._demand)
        return LoanOrder(start=self._input(victim), stop=order)

    def release(self, victim: PlannedVictim | VictimProgress, reason: str) -> LoanOrder:
        """Order one to go on."""
        order = ReleaseOrder(reclaim=workflow.info().workflow_id, demand=self._demand, reason=reason)
        return LoanOrder(start=self._input(victim), release=order)

    def _loan(self, victim: PlannedVictim | VictimProgress) -> str:
        return loan_id(self._start.cluster, victim.workload.uid)

    def _input(self, victim: PlannedVictim | VictimProgress) -> LoanInput:
        return LoanInput(
            cluster=self._start.cluster,
            pool=self._start.pool,
            borrower=victim.borrower,
            workload=victim.workload,
            gpus=victim.gpus,
        )


def names(victims: Iterable[PlannedVictim | VictimProgress]) -> str:
    """Name them for people."""
    return ", ".join(victim.workload.title for victim in victims)
