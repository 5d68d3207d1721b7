"""Demands and guarantees: when one begins, what is kept for it, when it ends."""

from datetime import timedelta

import pytest

from gpubank.decide.compile import nominals, revisions, writes
from gpubank.domain.contract import Side
from gpubank.domain.demand import Demand, DemandKind, DemandState
from gpubank.domain.facts import Mark, Wait
from gpubank.domain.loan import SURPLUS, LineState
from gpubank.domain.pool import Freeze
from gpubank.domain.terms import GroupTerms
from gpubank.domain.transaction import DemandChange, Transaction
from tests.unit.decide.model import CLUSTER, POOL, Model, group_terms, pool_terms

OWN, BORROW = Side.OWN, Side.BORROW
OWN_DEMAND = f"{POOL}/b/Workload/own"


def lent_out(*groups: GroupTerms, capacity: int = 16, gpus: int = 16, **terms: object) -> Model:
    """B's GPUs are lent to a's job x."""
    groups = groups or (group_terms("a", 0), group_terms("b", 16))
    model = Model(pool_terms(*groups, capacity=capacity, **terms), {f"n{i}": 8 for i in range(capacity // 8)})
    model.settle()
    model.submit("x", "a", BORROW, gpus)
    model.settle()
    assert model.jobs["x"].reserved
    return model


def edit(model: Model, group: str, **update: object) -> None:
    groups = tuple(g.model_copy(update=update) if g.group == group else g for g in model.terms.groups)
    model.terms = model.terms.model_copy(update={"groups": groups})


def demand(model: Model, demand_id: str = OWN_DEMAND) -> Demand:
    found = model.books.demand(demand_id)
    assert found is not None, [d.demand_id for d in model.books.demands]
    return found


def end(model: Model, state: DemandState, demand_id: str = OWN_DEMAND) -> None:
    row = DemandChange(demand_id=demand_id, version=demand(model, demand_id).version, state=state)
    head = {"key": f"end/{model.books.revision}", "cluster": CLUSTER, "pool": POOL, "at": model.now, "actor": "test"}
    model.commit(Transaction.model_validate({**head, "demands": (row,)}))


# ---- own work


def test_a_demand_begins_half_a_second_after_its_workload_waits() -> None:
    model = lent_out(gpus=10)
    model.submit("own", "b", OWN, 12)
    model.now += timedelta(milliseconds=499)
    model.step()
    assert not model.books.demands
    assert model.last.wake_at == model.now + timedelta(milliseconds=1)
    model.now += timedelta(milliseconds=1)
    model.step()
    assert (demand(model).gpus, demand(model).idle, demand(model).pods) == (12, 6, 12)
    assert demand(model).due_at == model.now + model.terms.max_time_to_return
    assert [(n.lender, n.demand_ids) for n in model.last.needs] == [("b", (OWN_DEMAND,))]
    assert nominals(model.books)["b", OWN] == 0


def test_work_that_fits_what_its_queue_has_free_is_no_demand() -> None:
    model = lent_out(gpus=10)
    model.submit("own", "b", OWN, 6)
    model.now += timedelta(seconds=5)
    model.step()
    assert not model.books.demands


@pytest.mark.parametrize("wait", [Wait.BACKOFF, Wait.CHECK, Wait.OTHER])
def test_work_that_waits_for_something_else_is_no_demand(wait: Wait, monkeypatch: pytest.MonkeyPatch) -> None:
    model = lent_out()
    model.submit("own", "b", OWN, 8)
    model.now += timedelta(seconds=5)
    facts = model.facts()
    workloads = tuple(w.model_copy(update={"wait": wait}) if w.key.uid == "own" else w for w in facts.workloads)
    monkeypatch.setattr(model, "facts", lambda: facts.model_copy(update={"workloads": workloads}))
    model.step()
    assert not model.books.demands


def test_demands_are_taken_in_the_schedulers_order_within_the_guarantee() -> None:
    model = lent_out()
    model.submit("big", "b", OWN, 12, priority=1)
    model.submit("over", "b", OWN, 5)
    model.submit("small", "b", OWN, 4)
    model.now += timedelta(seconds=1)
    model.step()
    assert {d.workload.uid for d in model.books.demands if d.workload} == {"big", "small"}
    assert [note.reason for note in model.last.waiting] == ["Recalling", "AboveGuarantee", "Recalling"]


def test_freed_quota_goes_to_the_gang_before_smaller_jobs_of_the_same_owner() -> None:
    model = lent_out(gpus=12)
    model.submit("before", "b", OWN, 4)
    model.settle()
    model.submit("own", "b", OWN, 12)
    model.now += timedelta(seconds=1)
    model.step()
    model.write()
    model.finish("before")
    model.submit("later", "b", OWN, 4)
    model.step()
    assert demand(model).idle == 4
    model.write()
    model.admit()
    assert not model.jobs["later"].reserved


@pytest.mark.parametrize("how", ["deleted", "finished", "switched off", "admitted"])
def test_a_demand_ends_when_nobody_waits_any_more(how: str) -> None:
    model = lent_out()
    model.submit("own", "b", OWN, 8)
    model.now += timedelta(seconds=1)
    model.step()
    assert demand(model).is_open
    job = model.jobs["own"]
    if how == "switched off":
        job.active = False
    elif how == "admitted":
        job.reserved, job.admitted_at = True, model.now
    else:
        model.finish("own", deleted=how == "deleted")
    model.step()
    assert model.books.demand(OWN_DEMAND) is None
    assert not [need for need in model.last.needs if OWN_DEMAND in need.demand_ids]


def test_a_demand_that_the_guarantee_has_no_room_for_any_more_ends() -> None:
    model = lent_out()
    model.submit("own", "b", OWN, 12)
    model.now += timedelta(seconds=1)
    model.step()
    edit(model, "b", guaranteed=8, lending_limit=8)
    model.step()
    assert model.books.demand(OWN_DEMAND) is None


def test_a_raised_demand_whose_room_was_taken_opens_again_behind_the_fence() -> None:
    model = lent_out()
    model.submit("own", "b", OWN, 12)
    model.now += timedelta(seconds=1)
    while not any(d.state is DemandState.RAISED for d in model.books.demands):
        model.step()
        model.write()
        model.fence()
        model.work()
        model.evict()
    model.submit("thief", "b", OWN, 8, priority=9)
    model.write()
    model.admit()
    assert model.jobs["thief"].reserved
    model.step()
    assert demand(model).state is DemandState.RAISED, "not before the raise is fenced"
    model.fence()
    model.step()
    assert demand(model).state is DemandState.OPEN
    model.step()
    assert model.books.demand(OWN_DEMAND) is None, "the guarantee has no room for it any more"
    model.finish("thief")
    model.settle()
    assert model.jobs["own"].reserved


def test_a_partial_demand_is_tried_again_after_five_minutes() -> None:
    model = lent_out()
    model.submit("own", "b", OWN, 16)
    model.now += timedelta(seconds=1)
    model.step()
    end(model, DemandState.PARTIAL)
    model.now += timedelta(minutes=5) - timedelta(seconds=1)
    model.step()
    assert demand(model).state is DemandState.PARTIAL
    assert not model.last.needs
    assert [note.reason for note in model.last.waiting] == ["RecallIncomplete"]
    model.now += timedelta(seconds=1)
    model.step()
    assert demand(model).state is DemandState.OPEN


def test_a_partial_demand_is_tried_at_once_when_nobody_needs_to_be_stopped_for_it() -> None:
    model = Model(pool_terms(group_terms("a", 0), group_terms("b", 16), group_terms("c", 8), capacity=24),
                  {f"n{i}": 8 for i in range(3)})  # fmt: skip
    model.settle()
    model.submit("busy", "c", OWN, 8)
    model.settle()
    model.submit("x", "a", BORROW, 8)
    model.settle()
    model.submit("own", "b", OWN, 16)
    model.now += timedelta(seconds=1)
    model.step()
    end(model, DemandState.PARTIAL)
    model.step()
    assert demand(model).state is DemandState.PARTIAL
    model.finish("busy")
    model.step()
    assert demand(model).state is DemandState.OPEN
    model.settle()
    assert model.jobs["own"].reserved
    assert model.jobs["x"].reserved, "c took the loan over"


def test_a_frozen_pool_opens_no_demand_and_tells_the_owner_why() -> None:
    model = lent_out()
    model.terms = model.terms.model_copy(update={"freeze": Freeze(by="ops", reason="upgrade")})
    model.submit("own", "b", OWN, 8)
    model.now += timedelta(seconds=5)
    model.step()
    assert not model.books.demands
    assert [(n.workload.uid, n.reason) for n in model.last.waiting] == [("own", "Frozen")]


# ---- limits, shrinking, overadmission, placement


def test_a_lowered_lending_limit_demands_what_is_lent_beyond_it() -> None:
    model = lent_out()
    edit(model, "b", lending_limit=10)
    model.step()
    found = demand(model, f"{POOL}/b/Limit/lending")
    assert (found.kind, found.gpus, found.state) == (DemandKind.LIMIT, 6, DemandState.OPEN)
    model.settle()
    assert not model.books.demands
    assert model.books.lent_to_others("b") <= 10
    assert model.queues["b", OWN].nominal == 16 - model.books.lent_to_others("b")


def test_a_lowered_limit_withdraws_offers_before_it_demands_anything() -> None:
    model = Model(pool_terms(group_terms("a", 0), group_terms("b", 16), capacity=16), {"n0": 8, "n1": 8})
    model.settle()
    model.submit("x", "a", BORROW, 16)
    model.step()
    edit(model, "b", lending_limit=10)
    model.step()
    assert not model.books.demands
    assert not model.books.lines


def test_a_guarantee_falls_as_soon_as_its_use_allows_behind_its_fence() -> None:
    model = Model(pool_terms(group_terms("b", 16), capacity=16), {"n0": 8, "n1": 8})
    model.settle()
    model.submit("own", "b", OWN, 10)
    model.settle()
    edit(model, "b", guaranteed=4, lending_limit=4)
    model.step()
    guarantee = model.books.guarantee("b")
    assert (guarantee.in_force, guarantee.releasing) == (16, 6)
    assert model.books.surplus == 0, "not free before the own queue is fenced"
    model.write()
    model.step()
    assert model.books.guarantee("b").in_force == 16
    model.fence()
    model.step()
    assert (model.books.guarantee("b").in_force, model.books.surplus) == (10, 6)
    model.finish("own")
    model.settle()
    assert (model.books.guarantee("b").in_force, model.books.surplus) == (4, 12)


def test_an_own_job_that_slips_in_keeps_what_was_being_given_up() -> None:
    model = Model(pool_terms(group_terms("b", 16), capacity=16), {"n0": 8, "n1": 8})
    model.settle()
    edit(model, "b", guaranteed=4, lending_limit=4)
    model.step()
    model.write()
    model.submit("own", "b", OWN, 10)
    model.admit(stale=True)
    model.fence()
    model.step()
    assert (model.books.guarantee("b").in_force, model.books.guarantee("b").releasing) == (16, 6)
    model.settle()
    assert model.books.guarantee("b").in_force == 10


def test_a_guarantee_that_is_asked_for_again_is_not_given_up() -> None:
    model = Model(pool_terms(group_terms("b", 16), capacity=16), {"n0": 8, "n1": 8})
    model.settle()
    edit(model, "b", guaranteed=4, lending_limit=4)
    model.step()
    edit(model, "b", guaranteed=16, lending_limit=16)
    model.step()
    assert (model.books.guarantee("b").in_force, model.books.guarantee("b").releasing) == (16, 0)


def test_guarantees_rise_by_free_surplus_only_in_the_order_of_their_names() -> None:
    model = Model(pool_terms(*(group_terms(g, 4) for g in "abc"), capacity=16), {"n0": 8, "n1": 8})
    model.settle()
    model.submit("x", "a", BORROW, 8)
    model.settle()
    assert model.books.lent(SURPLUS) == 4
    for group in "bc":
        edit(model, group, guaranteed=6)
    model.step()
    assert demand(model, f"{POOL}/pool/Limit/surplus").gpus == 4
    assert model.books.surplus == 0
    model.settle()
    assert [model.books.guarantee(g).in_force for g in "abc"] == [4, 6, 6]
    assert not model.books.demands


def test_a_fall_makes_room_for_a_rise_of_somebody_else() -> None:
    model = Model(pool_terms(group_terms("a", 16), group_terms("b", 0), capacity=16), {"n0": 8, "n1": 8})
    model.settle()
    edit(model, "a", guaranteed=4, lending_limit=4)
    edit(model, "b", guaranteed=12, lending_limit=12)
    model.settle()
    assert [model.books.guarantee(g).in_force for g in "ab"] == [4, 12]
    assert [model.queues[g, OWN].nominal for g in "ab"] == [4, 12]


def test_what_is_lent_of_a_falling_guarantee_comes_back() -> None:
    model = lent_out()
    edit(model, "b", guaranteed=6, lending_limit=6)
    model.step()
    assert {d.demand_id: d.gpus for d in model.books.demands} == {f"{POOL}/b/Limit/lending": 10}
    model.settle()
    assert not model.books.demands
    assert model.books.guarantee("b").in_force == 6


def test_a_shrunken_pool_demands_the_surplus_that_is_missing() -> None:
    model = lent_out(group_terms("a", 0), group_terms("b", 4), capacity=16, gpus=12)
    model.jobs["x"].nodes = []
    model.nodes = {"n0": 8}
    model.step()
    found = demand(model, f"{POOL}/pool/Shrunk/capacity")
    assert (found.lender, found.gpus) == (SURPLUS, 8)


def test_a_pool_of_which_no_node_is_seen_has_not_shrunk() -> None:
    model = lent_out(group_terms("a", 0), group_terms("b", 4), capacity=16, gpus=12)
    model.jobs["x"].nodes, model.nodes = [], {}
    model.step()
    assert not model.books.demands


def test_an_own_job_that_slips_in_after_the_grant_gets_the_loan_back_first() -> None:
    model = lent_out()
    model.submit("own", "b", OWN, 6)
    model.jobs["own"].reserved, model.jobs["own"].admitted_at = True, model.now
    model.step()
    found = demand(model, f"{POOL}/b/Overadmitted/own")
    assert (found.kind, found.gpus) == (DemandKind.OVERADMITTED, 6)
    model.settle()
    assert not model.books.demands
    assert model.books.lent("b") + model.reserved("b", OWN) <= 16


def test_idle_that_was_kept_goes_to_the_own_job_that_slipped_in() -> None:
    model = lent_out(gpus=10)
    model.submit("own", "b", OWN, 12)
    model.now += timedelta(seconds=1)
    model.step()
    assert demand(model).idle == 6
    model.write()
    model.submit("quick", "b", OWN, 4)
    model.admit(stale=True)
    model.step()
    assert demand(model).idle == 2
    assert [d.kind for d in model.books.demands] == [DemandKind.WORKLOAD]


def scattered() -> Model:
    """Borrowed work on both nodes; b's pod of 8 is admitted and finds no node."""
    model = Model(pool_terms(group_terms("a", 0), group_terms("b", 16), capacity=16), {"n0": 8, "n1": 8})
    model.settle()
    for uid, node in (("x", "n0"), ("y", "n1")):
        model.submit(uid, "a", BORROW, 1, 4)
        model.settle()
        model.jobs[uid].nodes = [node]
    model.submit("own", "b", OWN, 1, 8)
    model.admit()
    assert model.jobs["own"].reserved
    return model


def test_admitted_work_that_finds_no_node_for_thirty_seconds_demands_nodes() -> None:
    model = scattered()
    name = f"{POOL}/b/Placement/own"
    model.now += timedelta(seconds=29)
    model.step()
    assert model.books.demand(name) is None
    model.now += timedelta(seconds=1)
    model.step()
    assert (demand(model, name).gpus, demand(model, name).pods) == (8, 1)
    assert len(model.plan(name).victims) == 1
    model.settle()
    assert model.jobs["own"].nodes
    assert not model.books.demands


def test_work_that_no_stop_would_place_demands_no_nodes() -> None:
    model = scattered()
    model.nodes = {"n0": 4, "n1": 4}
    model.now += timedelta(minutes=1)
    model.step()
    assert not model.books.demands


def test_work_that_has_room_anyway_demands_no_nodes() -> None:
    model = scattered()
    model.nodes["n2"] = 8
    model.now += timedelta(minutes=1)
    model.step()
    assert not model.books.demands


# ---- bystanders and policies, at every step of a recall


@pytest.mark.parametrize("at", range(14))
def test_others_may_do_what_they_like_at_every_step_of_a_recall(at: int) -> None:
    groups = (group_terms("a", 4), group_terms("b", 12), group_terms("c", 8))
    model = lent_out(*groups, capacity=24, gpus=24)
    model.submit("own", "b", OWN, 12)
    model.now += timedelta(seconds=1)
    for i in range(60):
        if i == at:
            model.submit("bystander", "c", OWN, 8)
            model.submit("greedy", "b", BORROW, 4)
            model.submit("more", "a", BORROW, 4)
            model.submit("later", "b", OWN, 4)
        if not (model.step().transactions or model.write() or model.admit() or model.work() or model.evict()):
            model.fence()
            model.place()
            model.now += timedelta(milliseconds=100)
        model.check()
        if model.jobs["own"].reserved:
            assert not any(model.jobs[uid].reserved for uid in ("greedy", "later") if uid in model.jobs)
    model.settle()
    assert model.jobs["own"].reserved
    assert model.jobs["bystander"].reserved
    assert not model.jobs["later"].reserved, "it is above the guarantee"


@pytest.mark.parametrize("at", range(0, 14, 2))
def test_a_policy_edited_in_the_middle_of_a_recall_ends_with_the_right_quotas(at: int) -> None:
    model = lent_out(group_terms("a", 4), group_terms("b", 12), capacity=16, gpus=16)
    model.submit("own", "b", OWN, 12)
    model.now += timedelta(seconds=1)
    for i in range(40):
        if i == at:
            edit(model, "b", guaranteed=8, lending_limit=4)
            edit(model, "a", guaranteed=8, lending_limit=8)
        if not (model.step().transactions or model.write() or model.admit() or model.work() or model.evict()):
            model.fence()
            model.now += timedelta(milliseconds=100)
        model.check()
    model.settle()
    own = model.reserved("b", OWN)
    assert model.books.guarantee("b").in_force == max(8, own)
    assert model.books.guarantee("a").in_force == min(8, 16 - max(8, own))
    assert {key: queue.nominal for key, queue in model.queues.items()} == nominals(model.books)


def test_two_lenders_of_one_victim_both_get_their_gpus_back() -> None:
    model = lent_out(group_terms("a", 0), group_terms("b", 8), group_terms("c", 8), capacity=16, gpus=16)
    model.submit("own", "b", OWN, 8)
    model.submit("other", "c", OWN, 8)
    model.settle()
    assert model.jobs["own"].reserved
    assert model.jobs["other"].reserved
    assert not model.jobs["x"].active
    model.finish("own")
    model.finish("other")
    model.settle()
    assert model.jobs["x"].reserved
    assert {line.term for line in model.books.lines} == {2}


def test_a_victim_that_refuses_runs_on_and_another_is_taken() -> None:
    model = lent_out(gpus=8)
    model.submit("y", "a", BORROW, 8)
    model.settle()
    model.submit("own", "b", OWN, 8)
    model.now += timedelta(seconds=1)
    while not (recalled := [x for x in model.books.lines if x.state is LineState.RECALLED]):
        model.step()
        model.write()
        model.work()
    first = recalled[0].workload.uid
    assert model.protect(first)
    model.settle()
    assert model.jobs["own"].reserved
    assert model.jobs[first].reserved


def test_a_recall_nobody_needs_any_more_stops_nobody() -> None:
    model = lent_out()
    model.submit("own", "b", OWN, 16)
    model.now += timedelta(seconds=1)
    while not any(x.state is LineState.RECALLED for x in model.books.lines):
        model.step()
        model.write()
        model.work()
    model.finish("own", deleted=True)
    model.settle()
    assert model.jobs["x"].active
    assert [line.state for line in model.books.lines] == [LineState.GRANTED]


# ---- quotas


def test_quotas_are_lowered_before_any_is_raised_and_bear_the_books_revision() -> None:
    model = lent_out()
    model.queues["a", BORROW].nominal, model.queues["b", OWN].nominal = 7, 9
    asked = writes(model.books, model.facts())
    assert [(w.group, w.kind, w.nominal) for w in asked] == [("b", OWN, 0), ("a", BORROW, 16)]
    assert {w.revision for w in asked} == {model.books.revision}


def test_a_queue_is_stamped_anew_when_a_row_that_concerns_it_is_newer() -> None:
    model = lent_out()
    assert writes(model.books, model.facts()) == ()
    model.queues["b", OWN].stamp = 0
    model.queues["a", OWN].stamp = revisions(model.books).get(("a", OWN), 0)
    assert [(w.group, w.kind) for w in writes(model.books, model.facts())] == [("b", OWN)]


def test_drift_is_repaired_and_a_higher_stamp_is_left_alone() -> None:
    model = lent_out()
    model.queues["b", OWN].nominal = 5
    assert [(w.group, w.kind, w.nominal) for w in writes(model.books, model.facts())] == [("b", OWN, 0)]
    model.queues["b", OWN].stamp = model.books.revision + 1
    assert writes(model.books, model.facts()) == ()


def test_a_queue_that_the_books_do_not_know_gets_nothing() -> None:
    model = lent_out()
    facts = model.facts()
    stranger = facts.queues[0].model_copy(update={"group": "z", "nominal": 3, "stamp": -1})
    asked = writes(model.books, facts.model_copy(update={"queues": (*facts.queues, stranger)}))
    assert [(w.group, w.nominal) for w in asked] == [("z", 0)]


def test_only_a_job_that_the_bank_stopped_is_brought_back() -> None:
    model = lent_out()
    job = model.jobs["x"]
    job.active = False
    model.evict()
    model.evict()
    model.settle()
    assert not model.books.lines
    assert not job.reserved
    job.mark = Mark(loan="loan/x", term=1, step="stop")
    model.settle()
    assert job.reserved
