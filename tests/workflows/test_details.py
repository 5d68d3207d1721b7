"""What Temporal's UI shows is for somebody who has never seen the code."""

from datetime import UTC, datetime, timedelta

from gpubank.domain.loan import WorkloadKey
from gpubank.domain.policy import OnCheckpointFailure
from gpubank.domain.recall import (
    CheckpointSummary,
    DemandProgress,
    LoanInput,
    LoanOutcome,
    LoanPhase,
    LoanState,
    RecallOrder,
    ReclaimInput,
    ReclaimPhase,
    TermRecord,
    VictimProgress,
)
from workflows import attributes
from workflows.details import loan_details, loan_summary, reclaim_details, reclaim_summary

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
JOB = WorkloadKey(uid="u-1", namespace="team-a", name="job-train-1", job="Job/train")
START = LoanInput(cluster="east", pool="h100", borrower="a", workload=JOB, gpus=16)
ORDER = RecallOrder(
    reclaim="reclaim/east/h100/b",
    demand="h100/b/Workload/u-2",
    lender="b",
    kind="Workload",
    reason="serve waits for 8 GPUs",
    line_ids=("h100-1",),
    needs_checkpoint=True,
    on_checkpoint_failure=OnCheckpointFailure.PROTECT,
    deadline=NOON + timedelta(minutes=10),
)


def test_a_loan_tells_who_how_many_why_which_phase_due_when_and_what_comes_next() -> None:
    saved = CheckpointSummary(uri="s3://runs/7", step=42, verified_at=NOON, request_id="r")
    state = LoanState(
        phase=LoanPhase.CHECKPOINTING,
        term=2,
        gpus=16,
        lenders=("b", "c"),
        orders=(ORDER,),
        deadline=ORDER.deadline,
        checkpoint=saved,
        history=(TermRecord(term=1, started_at=NOON, gpus=16, lenders=("b",), ended_because="b wanted 8"),),
    )
    shown = loan_details(START, state)
    for part in (
        "Checkpointing: a · 16 GPUs of h100 (cluster east)",
        "Job **Job/train** in namespace `team-a`, term 2, lent by b, c",
        "asked to save while it runs on",
        "notice ends 2026-01-05 12:10:00 UTC",
        "by b: serve waits for 8 GPUs",
        "step 42",
        "| 1 | 2026-01-05 12:00:00 UTC |",
    ):
        assert part in shown
    assert loan_summary(START) == "a has 16 GPUs of h100 for Job/train"


def test_a_reclaim_tells_of_every_demand_and_of_everybody_whom_it_asked() -> None:
    start = ReclaimInput(cluster="east", pool="h100", lender="b")
    victim = VictimProgress(workload=JOB, borrower="a", gpus=16, answer=LoanOutcome.DURABLE)
    demand = DemandProgress(
        demand="h100/b/Workload/u-2",
        phase=ReclaimPhase.AWAITING_APPROVAL,
        gpus=8,
        reason="serve waits for 8 GPUs",
        due_at=NOON,
        victims=(victim,),
    )
    shown = reclaim_details(start, (demand,))
    for part in (
        "b wants GPUs of h100 back (cluster east)",
        "waits for an admin of the lender to approve or deny",
        "| team-a/Job/train | a | 16 | Durable |",
    ):
        assert part in shown
    assert reclaim_summary(start) == "b wants its GPUs of h100 back"


def test_search_attributes_stay_within_what_temporals_sql_visibility_holds() -> None:
    kinds = list(attributes.KINDS.values())
    assert kinds.count("Keyword") <= 10
    assert all(kinds.count(kind) <= 3 for kind in set(kinds) - {"Keyword"})
    assert all(name.startswith("GpuBank") for name in attributes.KINDS)
    assert attributes.workload_name(JOB) == "team-a/train"


def test_a_loan_of_own_work_says_that_nobody_lends_anything() -> None:
    parked = loan_details(START, LoanState(phase=LoanPhase.PARKED, gpus=16, lenders=("a",), own=True))
    assert "term 1, own work of its group." in parked
    assert "made room for more important work of its group" in parked
    recalled = loan_details(START, LoanState(phase=LoanPhase.RECALLED, gpus=16, lenders=("a",), own=True))
    assert "Its owner has been told." in recalled
