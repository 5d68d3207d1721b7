"""A pool in which the books are what a test says, for tests of the recall plan."""

from datetime import timedelta

from gpubank.decide.recall import RecallPlan, plan_recall
from gpubank.domain.books import Books, Guarantee
from gpubank.domain.contract import Side, WorkloadContract, WorkloadType
from gpubank.domain.demand import Demand, DemandKind
from gpubank.domain.loan import Line, LineState, WorkloadKey
from gpubank.domain.policy import PreemptClass
from gpubank.domain.terms import GroupTerms
from tests.unit.decide.model import Model
from tests.unit.decide.parts import CLUSTER, NOW, POOL, Job, pool_terms

OWN, BORROW = Side.OWN, Side.BORROW
NOTEBOOK = WorkloadContract(workload_type=WorkloadType.NOTEBOOK)
LONG = WorkloadContract(retryable=True, expected_duration=timedelta(hours=9))
ALL = frozenset(PreemptClass)
DEMAND = f"{POOL}/b/Workload/own"


class Scene:
    """A pool in which the books are what the test says, and `own` of group b waits."""

    def __init__(self, *groups: GroupTerms, nodes: dict[str, int], **terms: object) -> None:
        capacity = sum(nodes.values())
        self.model = Model(pool_terms(*groups, capacity=capacity, **terms), nodes)
        self.lines: list[Line] = []

    def runs(self, uid: str, group: str, loans: dict[str, int], *, on: list[str] | None = None, size: int = 1,
             age: timedelta = timedelta(minutes=5), **update: object) -> Job:  # fmt: skip
        """Have a borrow job run on lines of these lenders."""
        gpus = sum(loans.values())
        job = self.model.submit(uid, group, BORROW, gpus // size, size, **update)
        job.reserved, job.admitted_at = True, NOW - age
        job.nodes = on if on is not None else []
        if on is None:
            self.model.place()
        for lender, part in loans.items():
            self.lines.append(
                Line(
                    line_id=f"{POOL}-{len(self.lines) + 1}",
                    cluster=CLUSTER,
                    pool=POOL,
                    lender=lender,
                    borrower=group,
                    gpus=part,
                    workload=WorkloadKey(uid=uid, namespace=f"team-{group}", name=f"job-{uid}"),
                    term=1,
                    state=LineState.GRANTED,
                    revision=1,
                    offered_at=NOW - age,
                    granted_at=NOW - age,
                    moved_at=NOW - age,
                )
            )
        return job

    def wants(self, pods: int, size: int = 1, *, due: timedelta = timedelta(hours=1)) -> None:
        """Have `own` of group b wait, and its demand be open."""
        self.model.submit("own", "b", OWN, pods, size)
        demand = Demand(
            demand_id=DEMAND,
            cluster=CLUSTER,
            pool=POOL,
            lender="b",
            kind=DemandKind.WORKLOAD,
            workload=WorkloadKey(uid="own", namespace="team-b", name="job-own"),
            gpus=pods * size,
            pods=pods,
            opened_at=NOW,
            due_at=NOW + due,
        )
        terms = self.model.terms
        self.model.books = Books(
            cluster=CLUSTER,
            pool=POOL,
            revision=1,
            capacity=terms.capacity,
            next_line=len(self.lines) + 1,
            guarantees=tuple(Guarantee(group=g.group, in_force=g.guaranteed) for g in terms.groups),
            lines=tuple(self.lines),
            demands=(demand,),
        )

    def plan(self, **options: object) -> RecallPlan:
        """Plan, check that the plan applies, and that planning again on its books changes nothing."""
        now = self.model.now
        facts, terms = self.model.facts(), self.model.terms
        plan = plan_recall(facts, self.model.books, terms, DEMAND, now=now, **options)  # type: ignore[arg-type]
        if plan.transaction is not None:
            after = self.model.books.applied(plan.transaction).books
            again = plan_recall(facts, after, terms, DEMAND, now=now, **options)  # type: ignore[arg-type]
            assert again.transaction is None
            assert again.victims == plan.victims
            assert (again.covered, again.complete) == (plan.covered, plan.complete)
        return plan

    def after(self, plan: RecallPlan) -> Books:
        """The books once the plan is committed."""
        assert plan.transaction is not None
        return self.model.books.applied(plan.transaction).books


def victims(plan: RecallPlan) -> list[str]:
    return [victim.workload.uid for victim in plan.victims]
