"""Who is let go of by a Reclaim that continues as new."""

from datetime import timedelta

from gpubank.domain.contract import ReclaimClass
from gpubank.domain.loan import WorkloadKey
from gpubank.domain.policy import OnCheckpointFailure
from gpubank.domain.recall import LoanOutcome, LoanReport, ReclaimInput, VictimProgress, loan_id
from gpubank.domain.steps import PlannedVictim
from workflows.reclaim_victims import Victims

START = ReclaimInput(cluster="local", pool="h100", lender="serving")
DEMAND = "h100/serving/Workload/u"


def victim(uid: str) -> PlannedVictim:
    return PlannedVictim(
        workload=WorkloadKey(uid=uid, namespace="team", name=f"job-{uid}"),
        borrower="research",
        gpus=8,
        line_ids=(),
        reclaim_class=ReclaimClass.RETRYABLE,
        needs_checkpoint=False,
        on_checkpoint_failure=OnCheckpointFailure.PROTECT,
        grace=timedelta(minutes=1),
    )


def report(uid: str, outcome: LoanOutcome) -> LoanReport:
    return LoanReport(loan=loan_id("local", uid), demand=DEMAND, outcome=outcome)


def earlier() -> tuple[VictimProgress, ...]:
    """What a run hands over that asked four, heard of three, and let one go."""
    victims = Victims(START, DEMAND)
    asked = [victim(uid) for uid in ("waits", "ready", "left", "protected", "let-go")]
    victims.ask(asked)
    victims.hear(report("ready", LoanOutcome.DURABLE))
    victims.hear(report("left", LoanOutcome.RETURNED))
    victims.hear(report("protected", LoanOutcome.PROTECTED))
    rows = victims.shown(())
    victims.let_go([each for each in asked if each.workload.uid != "let-go"])
    return victims.shown(rows)


def test_who_is_not_in_the_next_plan_is_let_go_of_by_the_next_run() -> None:
    victims = Victims(START, DEMAND, earlier())
    free = victims.let_go([victim("ready")])
    assert [each.workload.uid for each in free] == ["waits"]
    assert victims.let_go([victim("ready")]) == []


def test_nobody_is_let_go_of_who_has_left_or_refused_or_was_never_asked() -> None:
    planned = VictimProgress(workload=victim("planned").workload, borrower="research", gpus=8)
    victims = Victims(START, DEMAND, (*earlier(), planned))
    assert sorted(each.workload.uid for each in victims.let_go([])) == ["ready", "waits"]
    assert victims.let_go([]) == []


def test_who_is_asked_again_is_let_go_of_once() -> None:
    victims = Victims(START, DEMAND, earlier())
    victims.ask([victim("waits")])
    assert [each.workload.uid for each in victims.let_go([victim("ready")])] == ["waits"]
    assert not any(row.asked for row in victims.shown(earlier()) if row.workload.uid == "waits")
