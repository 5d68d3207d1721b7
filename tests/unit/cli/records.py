"""What the bench's cluster and Temporal hold: loans, recalls, objects, facts, at fixed times."""

from datetime import UTC, datetime, timedelta
from typing import Any

from gpubank.client import LoanRow
from gpubank.domain.contract import Side, borrow_queue, own_queue
from gpubank.domain.facts import PoolFacts, QueueFacts, WorkloadFacts
from gpubank.domain.loan import WorkloadKey
from gpubank.domain.policy import OnCheckpointFailure
from gpubank.domain.recall import (
    CheckpointSummary,
    DemandProgress,
    LoanPhase,
    LoanState,
    RecallOrder,
    ReclaimPhase,
    ReclaimState,
    TermRecord,
    VictimProgress,
    loan_id,
    reclaim_id,
)

NINE = datetime(2026, 5, 4, 9, tzinfo=UTC)
FAR = datetime(2100, 1, 1, tzinfo=UTC)
"""No test waits so long that this is overdue."""

CLUSTER, POOL = "local", "h100"
RECLAIM = reclaim_id(CLUSTER, POOL, "ads")
DEMAND = f"{POOL}/ads/Workload/u-serve"
SAVED = CheckpointSummary(uri="s3://ckpt/tune/manifest.json", step=4200, verified_at=NINE, request_id="r-1")


def at(minutes: float) -> datetime:
    """An instant, counted from nine o'clock."""
    return NINE + timedelta(minutes=minutes)


def job(name: str, namespace: str = "search") -> WorkloadKey:
    """The Workload of a job."""
    return WorkloadKey(uid=f"u-{name}", namespace=namespace, name=f"job-{name}-1a2b", job=f"Job/{name}")


def loan(name: str) -> str:
    """Workflow id of a job's loan."""
    return loan_id(CLUSTER, f"u-{name}")


def loan_rows() -> list[LoanRow]:
    """What Temporal lists."""

    def row(name: str, phase: LoanPhase, gpus: int, **fields: Any) -> LoanRow:
        return LoanRow(
            loan=loan(name),
            running=phase is not LoanPhase.CLOSED,
            phase=phase,
            cluster=CLUSTER,
            pool=POOL,
            borrower="search",
            workload=f"search/{name}",
            gpus=gpus,
            **fields,
        )

    return [
        row("tune", LoanPhase.CHECKPOINTING, 4, started_at=at(5), wanted_by="ads", due_at=at(41), lenders=("ads",)),
        row("train", LoanPhase.ACTIVE, 12, started_at=at(0), lenders=("ads", "pool")),
        row("sweep", LoanPhase.PARKED, 4, started_at=at(-30), lenders=("ads",)),
        row("probe", LoanPhase.CLOSED, 2, started_at=at(-50), lenders=("ads",)),
    ]


def loan_states() -> dict[str, LoanState]:
    """What Loans answer."""
    order = RecallOrder(
        reclaim=RECLAIM,
        demand=DEMAND,
        lender="ads",
        kind="Workload",
        reason="ads waits for 8 GPUs",
        line_ids=("h100-5",),
        needs_checkpoint=True,
        on_checkpoint_failure=OnCheckpointFailure.PROTECT,
        deadline=at(41),
        latest_deadline=at(61),
    )
    running = TermRecord(term=1, started_at=at(0), gpus=12, lenders=("ads", "pool"))
    parked = TermRecord(
        term=1,
        started_at=at(-30),
        ended_at=at(-9.5),
        gpus=4,
        lenders=("ads",),
        ended_because="ads waits for 4 GPUs",
        checkpoint=SAVED,
    )
    return {
        loan("train"): LoanState(gpus=12, lenders=("ads", "pool"), history=(running,), note="runs on borrowed GPUs"),
        loan("tune"): LoanState(
            phase=LoanPhase.CHECKPOINTING,
            gpus=4,
            lenders=("ads",),
            recalls=1,
            orders=(order,),
            deadline=at(41),
            checkpoint=SAVED,
            last_step=4200,
            note="asked to save",
            history=(TermRecord(term=1, started_at=at(5), gpus=4, lenders=("ads",)),),
        ),
        loan("sweep"): LoanState(
            phase=LoanPhase.PARKED, gpus=4, lenders=("ads",), history=(parked,), checkpoint=SAVED, note="stopped"
        ),
        loan("probe"): LoanState(
            phase=LoanPhase.CLOSED,
            gpus=2,
            finished=True,
            history=(
                TermRecord(
                    term=1,
                    started_at=at(-50),
                    ended_at=at(-40),
                    gpus=2,
                    lenders=("ads",),
                    ended_because="the job finished or is gone",
                ),
            ),
        ),
    }


def reclaim_state() -> ReclaimState:
    """What the Reclaim of ads answers."""
    victim = VictimProgress(workload=job("tune"), borrower="search", gpus=4)
    demand = DemandProgress(
        demand=DEMAND,
        phase=ReclaimPhase.AWAITING_APPROVAL,
        gpus=8,
        reason="job-serve-1a2b of ads waits for 8 GPUs",
        due_at=FAR,
        victims=(victim,),
    )
    return ReclaimState(phase=ReclaimPhase.AWAITING_APPROVAL, demands=(demand,))


# ---- cluster


def objects() -> list[dict[str, Any]]:
    """The pool, its groups and their policies."""

    def body(kind: str, name: str, spec: dict[str, Any], namespace: str = "") -> dict[str, Any]:
        metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
        return {"apiVersion": "platform.aik8s.run/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}

    shares = [{"businessGroup": "ads", "guaranteed": 24}, {"businessGroup": "search", "guaranteed": 8, "maxBorrow": 24}]
    return [
        body("GPUPool", POOL, {"capacity": 36, "shares": shares}),
        body("BusinessGroup", "ads", {"owner": "ben", "admins": ["ben", "eva"], "namespaces": ["ads"]}),
        body("BusinessGroup", "search", {"owner": "mia", "namespaces": ["search"]}),
        body("GPUQuotaPolicy", "ads", {"businessGroup": "ads", "resourcePool": POOL, "guaranteed": 24}, "ads"),
        body(
            "GPUQuotaPolicy",
            "search",
            {"businessGroup": "search", "resourcePool": POOL, "guaranteed": 8, "borrowLimit": 24},
            "search",
        ),
    ]


def facts() -> PoolFacts:
    """What the scheduler sees."""
    queues = [
        QueueFacts(name=queue(group, POOL), group=group, kind=side, nominal=nominal, reserved=reserved)
        for group, side, queue, nominal, reserved in (
            ("ads", Side.OWN, own_queue, 8, 4),
            ("ads", Side.BORROW, borrow_queue, 0, 0),
            ("search", Side.OWN, own_queue, 6, 3),
            ("search", Side.BORROW, borrow_queue, 12, 16),
        )
    ]
    waiting = WorkloadFacts(
        key=job("serve", "ads"), group="ads", kind=Side.OWN, gpus=8, created_at=at(30), waiting_since=at(30)
    )
    return PoolFacts(cluster=CLUSTER, pool=POOL, at=at(35), queues=tuple(queues), workloads=(waiting,))
