"""Recall plans and demands under facts that move while a recall runs."""

from datetime import timedelta

import pytest

from gpubank.decide.compile import nominals
from gpubank.decide.step import step
from gpubank.domain.contract import Side
from gpubank.domain.demand import DemandKind, DemandState
from gpubank.domain.facts import Mark, PoolFacts
from gpubank.domain.loan import LineState, WorkloadKey
from gpubank.domain.pool import OnOverdue
from gpubank.domain.transaction import DemandChange, DemandOpening, Transaction
from tests.unit.decide.model import Model
from tests.unit.decide.parts import CLUSTER, HOOKED, NOW, POOL, group_terms, pool_terms

OWN, BORROW = Side.OWN, Side.BORROW


def lending(capacity: int = 16, **terms: object) -> Model:
    """B guarantees itself everything; a has nothing of its own."""
    groups = (group_terms("a", 0), group_terms("b", capacity))
    model = Model(pool_terms(*groups, capacity=capacity, **terms), {f"n{i}": 8 for i in range(capacity // 8)})
    model.settle()
    return model


def write(model: Model, **rows: object) -> None:
    head = {"key": f"test/{model.books.revision}", "cluster": CLUSTER, "pool": POOL, "at": model.now, "actor": "test"}
    model.commit(Transaction.model_validate({**head, **rows}))


def demand_of(uid: str, kind: DemandKind = DemandKind.WORKLOAD) -> str:
    return f"{POOL}/b/{kind}/{uid}"


def in_state(model: Model, demand: str, state: DemandState) -> None:
    row = model.books.demand(demand)
    assert row is not None
    write(model, demands=(DemandChange(demand_id=demand, version=row.version, state=state),))


def test_a_victim_that_ends_by_itself_is_no_reason_to_stop_another() -> None:
    model = lending()
    for uid in ("x", "y"):
        model.submit(uid, "a", BORROW, 8)
        model.settle()
    model.submit("own", "b", OWN, 8)
    model.now += timedelta(seconds=1)
    model.step()
    plan = model.plan(demand_of("own"))
    assert plan.transaction is not None
    model.commit(plan.transaction)
    (victim,) = plan.victims
    model.finish(victim.workload.uid)
    again = model.plan(demand_of("own"))
    assert again.complete
    assert not again.victims
    assert again.transaction is not None
    model.commit(again.transaction)
    assert [(line.state, line.demand) for line in model.books.lines_of(victim.workload.uid)] == [
        (LineState.CLOSING, demand_of("own"))
    ]


def test_what_an_admitted_workload_has_taken_is_not_kept_for_it_a_second_time() -> None:
    """The first demand stays RAISED until its pods are on nodes; what it has taken is not promised to it again."""
    model = lending()
    model.submit("x", "a", BORROW, 8)
    model.settle()
    model.submit("first", "b", OWN, 8)
    model.settle()
    model.submit("z", "a", BORROW, 8)
    model.settle()
    assert {uid for uid, job in model.jobs.items() if job.reserved} == {"x", "first"}
    model.finish("first")
    model.settle()
    model.submit("one", "b", OWN, 8)
    model.now += timedelta(seconds=1)
    model.step()
    assert model.books.demand(demand_of("one")) is not None
    for uid in ("x", "z"):
        model.finish(uid)
    in_state(model, demand_of("one"), DemandState.RAISED)
    for _ in range(6):
        model.step()
        model.write()
        model.fence()
        model.now += timedelta(milliseconds=300)
    model.jobs["one"].reserved, model.jobs["one"].admitted_at = True, model.now  # and no pod is on a node yet
    model.submit("two", "b", OWN, 8)
    model.now += timedelta(seconds=1)
    model.step()
    assert model.queues["b", OWN].nominal == 16
    assert model.books.demand(demand_of("two")) is None


@pytest.mark.parametrize(("borrowed", "state"), [(True, DemandState.OPEN), (False, DemandState.PARTIAL)])
def test_a_demand_for_nodes_that_somebody_else_took_is_not_left_as_it_is(borrowed: bool, state: DemandState) -> None:
    model = lending(24)
    if borrowed:
        model.submit("x", "a", BORROW, 1, 8)
        model.settle()
    for uid in ("own", "other", "alien"):
        job = model.submit(uid, "b", OWN, 1, 8)
        job.reserved, job.admitted_at = True, model.now
    free = [name for name in model.nodes if name not in model.jobs["x"].nodes] if borrowed else ["n0", "n1"]
    model.jobs["other"].nodes, model.jobs["alien"].nodes = free[:1], free[1:]
    model.jobs["alien"].finished = True  # pods that are not the bank's
    if not borrowed:
        model.nodes.pop("n2")
    demand = demand_of("own", DemandKind.PLACEMENT)
    opening = DemandOpening(
        demand_id=demand,
        lender="b",
        kind=DemandKind.PLACEMENT,
        gpus=8,
        workload=WorkloadKey(uid="own", namespace="team-b", name="job-own"),
        due_at=model.now + timedelta(hours=1),
    )
    write(model, openings=(opening,))
    in_state(model, demand, DemandState.RAISED)
    model.now += timedelta(minutes=2)
    model.step()
    row = model.books.demand(demand)
    assert row is not None
    assert row.state is state


def test_a_demand_that_is_tried_again_has_time_to_be_met() -> None:
    """A pool that protects ends a late demand PARTIAL: its next try would end before it began."""
    model = lending()
    model.submit("x", "a", BORROW, 16, contract=HOOKED)
    model.settle()
    model.submit("own", "b", OWN, 8)
    model.now += timedelta(seconds=1)
    model.step()
    model.now += timedelta(hours=2)
    in_state(model, demand_of("own"), DemandState.PARTIAL)
    model.now += timedelta(minutes=6)
    model.step()
    row = model.books.demand(demand_of("own"))
    assert row is not None
    assert row.state is DemandState.OPEN
    assert row.due_at > model.now + timedelta(minutes=1)


def test_a_demand_of_a_pool_that_evicts_stays_overdue_when_it_is_tried_again() -> None:
    model = lending(on_overdue=OnOverdue.EVICT)
    model.submit("x", "a", BORROW, 16, contract=HOOKED)
    model.settle()
    model.submit("own", "b", OWN, 8)
    model.now += timedelta(seconds=1)
    model.step()
    model.now += timedelta(hours=2)
    in_state(model, demand_of("own"), DemandState.PARTIAL)
    model.now += timedelta(minutes=6)
    model.step()
    row = model.books.demand(demand_of("own"))
    assert row is not None
    assert row.due_at < model.now


def test_a_victim_with_a_hook_is_saved_even_if_its_pods_start_after_the_plan() -> None:
    model = lending()
    model.submit("x", "a", BORROW, 16, contract=HOOKED)
    model.settle()
    model.jobs["x"].nodes = []
    model.submit("own", "b", OWN, 8)
    model.now += timedelta(seconds=1)
    model.step()
    (victim,) = model.plan(demand_of("own")).victims
    assert victim.needs_checkpoint


def test_a_fence_of_a_revision_that_the_books_do_not_know_is_none() -> None:
    """After the ledger was restored from a backup, stamps on the queues may be ahead of it."""
    model = lending()
    model.submit("x", "a", BORROW, 8)
    model.now += timedelta(milliseconds=300)
    model.step()
    assert [line.state for line in model.books.lines] == [LineState.OFFERED]
    queue = model.queues["b", OWN]
    queue.stamp = queue.fenced = model.books.revision + 50
    model.step()
    assert queue.nominal == 16, "nothing may be written over a higher stamp"
    assert [line.state for line in model.books.lines] == [LineState.OFFERED]
    assert nominals(model.books)["a", BORROW] == 0


def test_a_parked_gang_may_gather_like_any_other() -> None:
    model = Model(pool_terms(group_terms("a", 0), group_terms("b", 16), capacity=16), {"n0": 8, "n1": 8})
    model.settle()
    gang = model.submit("gang", "a", BORROW, 16)
    gang.active, gang.mark = False, Mark(loan="loan/gang", term=1, step="stop")
    keeper = model.submit("keeper", "b", OWN, 4)
    keeper.reserved, keeper.admitted_at = True, NOW
    model.place()
    model.now += timedelta(minutes=11)
    model.step()
    assert [(line.state, line.gpus) for line in model.books.lines_of("gang")] == [(LineState.OFFERED, 12)]


def test_parked_work_that_nobody_can_resume_holds_up_nobody() -> None:
    """The scheduler deactivated it for reasons of its own: the bank will not bring it back."""
    model = lending(8)
    stuck = model.submit("stuck", "a", BORROW, 8)
    stuck.active, stuck.mark = False, Mark(loan="loan/stuck", term=1, step="stop")
    model.submit("next", "a", BORROW, 8)
    facts = model.facts()
    workloads = tuple(
        w.model_copy(update={"evicted": "DeactivatedDueToRequeuingLimitExceeded"}) if w.key.uid == "stuck" else w
        for w in facts.workloads
    )
    seen: PoolFacts = facts.model_copy(update={"workloads": workloads})
    decided = step(seen, model.books, model.terms, model.now)
    offers = [offer.workload.uid for transaction in decided.transactions for offer in transaction.offers]
    assert offers == ["next"]


def test_work_that_the_scheduler_never_admits_does_not_keep_its_gpus_from_everybody_else() -> None:
    groups = (group_terms("a", 0), group_terms("b", 8), group_terms("c", 0))
    model = Model(pool_terms(*groups, capacity=8), {"n0": 8})
    model.settle()
    model.submit("stuck", "a", BORROW, 8)
    for _ in range(3):
        model.step()
        model.write()
        model.fence()
        model.now += timedelta(milliseconds=300)
    assert [line.state for line in model.books.lines] == [LineState.GRANTED]
    model.submit("next", "c", BORROW, 8)
    model.now += timedelta(seconds=6)
    assert model.step().lapsed == ("stuck",)
    for _ in range(3):
        model.write()
        model.fence()
        decided = step(model.facts(), model.books, model.terms, model.now, resting=frozenset({"stuck"}))
        for transaction in decided.transactions:
            model.commit(transaction)
        model.now += timedelta(milliseconds=300)
    assert {line.workload.uid for line in model.books.lines} == {"next"}
    assert [note.reason for note in decided.waiting if note.workload.uid == "stuck"] == ["NotTaken"]
