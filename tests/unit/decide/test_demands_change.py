"""How demands change while they stand: what is tried again, what grows, and what has come back by itself."""

from datetime import timedelta

import pytest

from gpubank.decide.demand import ASTRAY, end_stale
from gpubank.decide.desk import Desk
from gpubank.domain.contract import Side
from gpubank.domain.demand import Demand, DemandKind, DemandState
from gpubank.domain.facts import PoolFacts, Wait
from gpubank.domain.loan import WorkloadKey
from gpubank.domain.pool import Freeze
from tests.unit.decide.lent import OWN_DEMAND, demand, edit, end, lent_out
from tests.unit.decide.model import Model
from tests.unit.decide.parts import CLUSTER, POOL, group_terms, pool_terms

OWN, BORROW = Side.OWN, Side.BORROW
LENDING = f"{POOL}/b/Limit/lending"
PLACEMENT = f"{POOL}/b/Placement/own"
FREEZE = Freeze(by="ops", reason="upgrade")
MINUTE = timedelta(minutes=1)


def waiting(gpus: int = 8) -> Model:
    """B's own work waits for GPUs that are lent, and its demand stands."""
    model = lent_out()
    model.submit("own", "b", OWN, gpus)
    model.now += timedelta(seconds=1)
    model.step()
    assert demand(model).is_open
    return model


def test_a_demand_grows_and_shrinks_with_what_its_workload_asks_for() -> None:
    model = waiting()
    model.jobs["own"].pods = 12
    model.step()
    assert demand(model).gpus == 12
    model.jobs["own"].pods = 4
    model.step()
    assert demand(model).gpus == 4


def test_a_demand_ends_when_its_workload_waits_for_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    model = waiting()
    facts = model.facts()
    workloads = tuple(w.model_copy(update={"wait": Wait.CHECK}) if w.key.uid == "own" else w for w in facts.workloads)
    monkeypatch.setattr(model, "facts", lambda: facts.model_copy(update={"workloads": workloads}))
    model.step()
    assert model.books.demand(OWN_DEMAND) is None
    reasons = [change.reason for transaction in model.last.transactions for change in transaction.demands]
    assert reasons == ["its Workload waits for something else (Check)"]


def test_a_demand_outlives_what_a_scheduler_that_has_just_started_says_of_its_workload(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = waiting()
    facts, astray = model.facts, model.now
    said = {"wait": Wait.OTHER, "waiting_since": astray}

    def seen() -> PoolFacts:
        found = facts()
        workloads = (w.model_copy(update=said) if w.key.uid == "own" else w for w in found.workloads)
        return found.model_copy(update={"workloads": tuple(workloads)})

    monkeypatch.setattr(model, "facts", seen)
    model.now = astray + ASTRAY - timedelta(milliseconds=1)
    model.step()
    assert demand(model).is_open
    assert model.last.wake_at is not None
    assert model.last.wake_at <= astray + ASTRAY
    model.now = astray + ASTRAY
    model.step()
    assert model.books.demand(OWN_DEMAND) is None
    reasons = [change.reason for transaction in model.last.transactions for change in transaction.demands]
    assert reasons == ["its Workload waits for something else (Other)"]


def test_nothing_is_tried_again_in_a_frozen_pool() -> None:
    model = waiting()
    end(model, DemandState.PARTIAL)
    model.terms = model.terms.model_copy(update={"freeze": FREEZE})
    model.now += 6 * MINUTE
    model.step()
    assert demand(model).state is DemandState.PARTIAL
    model.terms = model.terms.model_copy(update={"freeze": None})
    model.step()
    assert demand(model).state is DemandState.OPEN


def test_a_demand_that_is_tried_again_at_its_very_end_gets_its_whole_time_anew() -> None:
    model = waiting()
    end(model, DemandState.PARTIAL)
    before = demand(model).due_at
    model.now = before
    model.step()
    assert demand(model).state is DemandState.OPEN
    assert demand(model).due_at == before + model.terms.max_time_to_return


def test_a_demand_that_is_tried_again_in_time_keeps_its_end() -> None:
    model = waiting()
    end(model, DemandState.PARTIAL)
    before = demand(model).due_at
    model.now += 5 * MINUTE
    model.step()
    assert (demand(model).state, demand(model).due_at) == (DemandState.OPEN, before)


def test_in_a_freeze_nothing_comes_back_from_a_group_whose_policy_is_gone() -> None:
    model = lent_out()
    groups = model.terms.groups
    model.terms = model.terms.model_copy(update={"groups": groups[1:], "freeze": FREEZE})
    model.step()
    assert not model.books.demands
    model.terms = model.terms.model_copy(update={"freeze": None})
    model.step()
    assert [each.kind for each in model.books.demands] == [DemandKind.RETURN]


# ---- limits


def test_a_demand_of_a_limit_follows_what_is_lent_beyond_it() -> None:
    model = lent_out()
    edit(model, "b", lending_limit=10)
    model.step()
    edit(model, "b", lending_limit=6)
    model.step()
    assert (demand(model, LENDING).gpus, demand(model, LENDING).reason) == (10, "b lends at most 6 GPUs")
    edit(model, "b", lending_limit=16)
    model.step()
    assert model.books.demand(LENDING) is None


def test_a_limit_that_could_not_be_kept_is_tried_again_after_five_minutes_and_not_in_a_freeze() -> None:
    model = lent_out()
    edit(model, "b", lending_limit=10)
    model.step()
    end(model, DemandState.PARTIAL, LENDING)
    model.now += 5 * MINUTE - timedelta(seconds=1)
    model.step()
    assert demand(model, LENDING).state is DemandState.PARTIAL
    model.now += timedelta(seconds=1)
    model.terms = model.terms.model_copy(update={"freeze": FREEZE})
    model.step()
    assert demand(model, LENDING).state is DemandState.PARTIAL
    model.terms = model.terms.model_copy(update={"freeze": None})
    model.step()
    assert demand(model, LENDING).state is DemandState.OPEN


def test_a_limit_that_was_kept_opens_again_when_more_is_lent_beyond_it() -> None:
    model = lent_out()
    edit(model, "b", lending_limit=10)
    model.step()
    end(model, DemandState.RAISED, LENDING)
    model.step()
    assert (demand(model, LENDING).state, demand(model, LENDING).gpus) == (DemandState.OPEN, 6)


def test_what_comes_back_for_a_falling_guarantee_is_not_demanded_a_second_time() -> None:
    """What own work waits for does not lower a guarantee; what is pledged to a limit does."""
    model = lent_out(group_terms("a", 0), group_terms("b", 16, lending_limit=4), gpus=4)
    model.submit("own", "b", OWN, 12)
    model.settle()
    edit(model, "b", guaranteed=12)
    model.step()
    falling = f"{POOL}/b/Limit/guarantee"
    assert demand(model, falling).gpus == 4
    assert model.work().startswith("plan")
    assert [line.demand for line in model.books.lines] == [falling]
    model.books = model.books.model_copy(
        update={"demands": tuple(d.model_copy(update={"demand_id": "other"}) for d in model.books.demands)}
    )
    model.books = model.books.model_copy(
        update={"lines": tuple(line.model_copy(update={"demand": "other"}) for line in model.books.lines)}
    )
    model.step()
    assert model.books.demand(falling) is None


def test_an_own_job_that_slips_in_takes_what_is_kept_for_the_newest_demand_first() -> None:
    model = lent_out(gpus=10)
    for uid, gpus in (("own", 8), ("later", 6)):
        model.submit(uid, "b", OWN, gpus)
        model.now += timedelta(seconds=1)
        model.step()
    kept = tuple(each.model_copy(update={"idle": 3}) for each in model.books.demands)
    model.books = model.books.model_copy(update={"demands": kept})
    quick = model.submit("quick", "b", OWN, 2)
    quick.reserved, quick.admitted_at = True, model.now
    model.step()
    assert (demand(model).idle, demand(model, f"{POOL}/b/Workload/later").idle) == (3, 1)


# ---- nodes


def scattered() -> Model:
    """Borrowed work on both nodes; b's pod of 8 is admitted, finds no node, and its demand stands."""
    model = Model(pool_terms(group_terms("a", 0), group_terms("b", 16), capacity=16), {"n0": 8, "n1": 8})
    model.settle()
    for uid, node in (("x", "n0"), ("y", "n1")):
        model.submit(uid, "a", BORROW, 1, 4)
        model.settle()
        model.jobs[uid].nodes = [node]
    model.submit("own", "b", OWN, 1, 8)
    model.admit()
    model.now += MINUTE
    model.step()
    assert demand(model, PLACEMENT).is_open
    return model


def test_a_demand_for_nodes_is_met_once_the_pods_are_on_nodes_however_they_came_there() -> None:
    model = scattered()
    model.finish("x")
    model.place()
    model.step()
    assert model.books.demand(PLACEMENT) is None
    states = [change.state for transaction in model.last.transactions for change in transaction.demands]
    assert states == [DemandState.MET]


@pytest.mark.parametrize("how", ["evicted", "finished", "deleted"])
def test_a_demand_for_nodes_ends_when_its_workload_holds_no_quota_any_more(how: str) -> None:
    model = scattered()
    if how == "evicted":
        model.jobs["own"].reserved, model.jobs["own"].admitted_at = False, None
    else:
        model.finish("own", deleted=how == "deleted")
    model.step()
    assert model.books.demand(PLACEMENT) is None


def test_no_nodes_are_demanded_in_a_frozen_pool_nor_for_who_was_not_admitted_yet() -> None:
    model = scattered()
    model.finish("own")
    model.step()
    late = model.submit("late", "b", OWN, 1, 8)
    late.reserved = True
    model.now += MINUTE
    model.step()
    assert not model.books.demands, "reserved, and still before its admission"
    late.admitted_at = model.now - MINUTE
    model.terms = model.terms.model_copy(update={"freeze": FREEZE})
    model.step()
    assert not model.books.demands
    model.terms = model.terms.model_copy(update={"freeze": None})
    model.step()
    assert [each.kind for each in model.books.demands] == [DemandKind.PLACEMENT]


def test_whose_demand_ended_in_part_is_planned_for_anew_only_when_it_opens_again() -> None:
    model = scattered()
    end(model, DemandState.PARTIAL, PLACEMENT)
    model.step()
    assert demand(model, PLACEMENT).state is DemandState.PARTIAL
    model.now += 5 * MINUTE
    model.step()
    assert demand(model, PLACEMENT).state is DemandState.OPEN


@pytest.mark.parametrize(
    ("others", "nominal", "state", "idle"),
    [
        pytest.param(4, 16, DemandState.RAISED, 0, id="there is room"),
        pytest.param(5, 16, DemandState.OPEN, 11, id="one GPU is missing"),
        pytest.param(16, 16, DemandState.OPEN, 0, id="nothing is left"),
        pytest.param(4, 8, DemandState.RAISED, 0, id="the queue was lowered by somebody, and the books have room"),
    ],
)
def test_a_raised_demand_whose_quota_others_hold_is_open_again_and_keeps_what_is_left(
    others: int, nominal: int, state: DemandState, idle: int
) -> None:
    model = lent_out()
    model.finish("x")
    model.settle()
    quick = model.submit("quick", "b", OWN, others)
    quick.reserved, quick.admitted_at = True, model.now
    model.submit("own", "b", OWN, 12)
    raised = Demand(
        demand_id=OWN_DEMAND,
        cluster=CLUSTER,
        pool=POOL,
        lender="b",
        kind=DemandKind.WORKLOAD,
        workload=WorkloadKey(uid="own", namespace="team-b", name="job-own"),
        gpus=12,
        pods=12,
        state=DemandState.RAISED,
        revision=0,
        opened_at=model.now,
        due_at=model.now + timedelta(hours=1),
    )
    model.books = model.books.model_copy(update={"demands": (raised,)})
    model.queues["b", OWN].nominal = nominal
    desk = Desk(model.facts(), model.books, model.terms, model.now)
    end_stale(desk)
    (after,) = desk.books.demands
    assert (after.state, after.idle) == (state, idle)
