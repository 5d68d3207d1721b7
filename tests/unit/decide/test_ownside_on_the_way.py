"""Own work that is being stopped for more important work of its group: what stands for it, and how it comes back."""

from datetime import timedelta
from typing import Any

from gpubank.decide.comeback import may_come_back
from gpubank.decide.compile import nominals, revisions
from gpubank.decide.demand import has_slipped
from gpubank.decide.desk import Desk
from gpubank.decide.overview import overview
from gpubank.decide.slack import committed, overhang
from gpubank.decide.step import SignalKind, step
from gpubank.decide.sweep import Open, Sweep, sweep
from gpubank.domain.contract import Side
from gpubank.domain.demand import DemandKind, DemandState
from gpubank.domain.facts import Mark
from gpubank.domain.pool import Freeze
from gpubank.domain.recall import loan_id
from gpubank.domain.sweep import SweepKind
from gpubank.domain.transaction import DemandOpening, Transaction
from tests.unit.decide.crowd import DEMAND, LOWER, OWN, crowded, desk, ended, plan_of, runs, taken
from tests.unit.decide.model import Model
from tests.unit.decide.parts import CLUSTER, NOW, POOL, RETRYABLE, group_terms

# ---- on the way


def test_while_it_is_stopped_its_line_stands_for_it_and_nobody_else_comes_in() -> None:
    model = taken()
    (line,) = model.books.lines
    assert not line.is_chosen
    assert model.books.own_nominal("a") == 0
    assert model.books.stopping("a") == model.books.lent("a") == 8
    assert model.books.on_loan("a") == 0
    assert desk(model).free("a") == desk(model).reserved("a", OWN) == 0
    model.evict()  # its quota is gone, its pods are not
    model.submit("thief", "a", OWN, 8, priority=9)
    assert model.admit() == 0
    assert desk(model).free("a") == 0
    assert committed(desk(model), "a") == 8
    assert overhang(desk(model)) == 0


def test_a_count_that_tells_of_its_end_late_makes_no_overdraft() -> None:
    model = taken(guaranteed=16, nodes=3, others={"other": 1})
    facts, low = model.facts(), model.jobs["low"]
    low.reserved = False
    late = model.facts().model_copy(update={"queues": facts.queues})
    for seen in (facts, late, model.facts()):
        at = Desk(seen, model.books, model.terms, model.now)
        assert at.reserved("a", OWN) == 8
        assert at.free("a") == 0


def test_a_raise_is_not_taken_by_who_is_just_being_stopped_for_somebody_else() -> None:
    model = taken()
    facts = model.facts()
    queue, high = facts.queue("a", OWN), facts.workload("high")
    assert queue is not None
    assert high is not None
    raised = queue.model_copy(update={"nominal": 8})
    assert not has_slipped(facts, model.books, raised, high)
    chosen = crowded()
    runs(chosen)
    assert has_slipped(chosen.facts(), chosen.books, raised, high), "one that is only chosen holds its quota"


def test_a_policy_that_says_never_again_lets_go_of_who_was_chosen() -> None:
    model = crowded()
    runs(model)
    model.terms = model.terms.model_copy(update={"groups": (group_terms("a", 8), group_terms("b", 8))})
    model.step()
    assert not model.books.demands
    assert not model.books.lines
    assert model.jobs["low"].active


def test_who_is_being_stopped_when_the_policy_says_never_again_still_leaves_for_the_one_that_waits() -> None:
    model = taken()
    model.terms = model.terms.model_copy(update={"groups": (group_terms("a", 8), group_terms("b", 8))})
    model.settle()
    assert model.jobs["high"].reserved
    model.finish("high")
    model.settle()
    assert model.jobs["low"].reserved


def test_a_victim_that_ends_by_itself_leaves_its_place_once() -> None:
    model = crowded()
    runs(model)
    ended(model.jobs["low"])
    (signal,) = [s for s in model.step().signals if s.workload.uid == "low"]
    assert (signal.kind, signal.lenders, signal.own) == (SignalKind.ENDED, ("a",), True)
    model.settle()
    assert model.jobs["high"].reserved
    assert not model.books.lines


def test_a_victim_that_ends_while_it_is_stopped_comes_back_to_the_demand() -> None:
    model = taken()
    (line,) = model.books.lines
    ended(model.jobs["low"])
    plan = plan_of(model)
    assert plan.complete
    assert plan.victims == ()
    assert plan.covered == 8
    model.settle()
    assert model.jobs["high"].reserved
    assert model.books.line(line.line_id) is None


def test_a_victim_that_is_gone_is_told_of_by_its_line() -> None:
    model = taken()
    del model.jobs["low"]
    (signal,) = [s for s in model.step().signals if s.workload.uid == "low"]
    assert (signal.kind, signal.own, signal.borrower) == (SignalKind.ENDED, True, "a")


def test_what_was_taken_for_a_demand_that_is_gone_serves_the_next_one() -> None:
    model = taken()
    model.finish("high", deleted=True)
    model.step()
    (line,) = model.books.lines
    assert line.demand is None
    model.submit("next", "a", OWN, 8, priority=0)
    model.notice = True
    model.now += timedelta(seconds=1)
    model.step()
    plan = model.plan("h100/a/Workload/next")
    assert plan.complete
    assert [victim.workload.uid for victim in plan.victims] == ["low"]
    model.notice = False
    model.settle()
    assert model.jobs["next"].reserved


def test_what_is_being_stopped_needs_no_nodes() -> None:
    model = taken()
    model.jobs["low"].nodes = []
    model.now += timedelta(minutes=1)
    model.step()
    assert [demand.demand_id for demand in model.books.demands] == [DEMAND]


def test_a_guarantee_that_falls_asks_nothing_of_own_work_that_is_being_stopped() -> None:
    model = taken()
    model.terms = model.terms.model_copy(
        update={"groups": (group_terms("a", 4, within_group=LOWER), group_terms("b", 8))}
    )
    model.step()
    assert not [demand for demand in model.books.demands if demand.workload is None]


def test_what_own_work_leaves_meets_no_demand_that_a_limit_makes() -> None:
    model = taken()
    ended(model.jobs["low"])
    name = "h100/a/Limit/lending"
    opening = DemandOpening(demand_id=name, lender="a", kind=DemandKind.LIMIT, gpus=4, due_at=NOW + timedelta(hours=1))
    head = {"key": "limit", "cluster": CLUSTER, "pool": POOL, "at": model.now, "actor": "test"}
    model.commit(Transaction.model_validate({**head, "openings": (opening,)}))
    plan = model.plan(name)
    assert (plan.covered, plan.complete, plan.transaction) == (0, False, None)


def test_a_pool_that_shrinks_counts_it_once() -> None:
    model = taken()
    model.nodes["n1"] = 4
    assert overhang(desk(model)) == 0
    chosen = crowded()
    runs(chosen)
    chosen.nodes["n1"] = 4
    assert overhang(desk(chosen)) == 0


def test_quotas_depend_on_what_was_taken_and_not_on_what_was_chosen() -> None:
    model = crowded()
    runs(model)
    assert nominals(model.books)["a", OWN] == 8
    (line,) = model.books.lines
    assert revisions(model.books)["a", OWN] < line.revision
    model = taken()
    (line,) = model.books.lines
    assert nominals(model.books)["a", OWN] == 0
    assert revisions(model.books)["a", OWN] >= line.revision
    assert ("a", Side.BORROW) not in revisions(model.books)


def test_its_group_has_nothing_idle_while_it_is_stopped() -> None:
    model = taken()
    (row,) = [row for row in overview(model.facts(), model.books, model.terms) if row.group == "a"]
    assert (row.used, row.lent, row.lendable, row.pending) == (8, 0, 0, 8)


# ---- back


def parked(**how: Any) -> Model:
    """A pool in which `high` runs in the place of `low`."""
    model = crowded(**how)
    model.notice = False
    model.settle()
    assert model.jobs["high"].reserved
    return model


def may_return(model: Model, uid: str = "low") -> bool:
    workload = model.facts().workload(uid)
    assert workload is not None
    return may_come_back(desk(model), workload)


def test_it_stays_away_while_there_is_no_room() -> None:
    model = parked()
    assert not may_return(model)
    model.finish("high")
    assert may_return(model)
    (signal,) = [s for s in model.step().signals if s.workload.uid == "low"]
    assert (signal.kind, signal.term, signal.gpus, signal.own, signal.lenders) == (SignalKind.OFFERED, 2, 8, True, ())


def test_what_waits_before_it_comes_first_and_what_waits_behind_it_does_not() -> None:
    model = parked(priority=5)
    model.finish("high")
    model.submit("behind", "a", OWN, 4, priority=-1)
    assert may_return(model)
    model.submit("before", "a", OWN, 4, priority=1)
    assert not may_return(model)


def test_its_owner_is_told_what_is_missing_for_its_way_back() -> None:
    model = parked()
    (note,) = [note for note in model.step().waiting if note.workload.uid == "low"]
    assert note.reason == "MadeRoom"
    assert "it needs 8 GPUs of the guarantee, which has 0 left for it" in note.message
    model.finish("high")
    assert not [note for note in model.step().waiting if note.workload.uid == "low"]


def test_of_two_that_were_stopped_the_more_important_comes_back_first() -> None:
    model = parked()
    model.finish("high")
    other = model.submit("other", "a", OWN, 8, priority=1)
    other.active, other.mark = False, Mark(loan="loan/other", term=1, step="stop")
    assert may_return(model, "other")
    assert not may_return(model)
    other.pods = 9
    assert may_return(model)


def test_it_stays_away_while_gpus_are_gathered_or_were_just_given_back() -> None:
    model = taken(guaranteed=16, less=8, more=16, nodes=3)
    model.evict()
    model.evict()
    assert any(demand.state is DemandState.OPEN for demand in model.books.demands)
    assert not may_return(model)
    while not any(demand.state is DemandState.RAISED for demand in model.books.demands):
        assert model.work()
    assert not may_return(model)


def test_it_stays_away_while_the_pool_is_frozen_or_the_scheduler_is_in_charge() -> None:
    model = parked()
    model.finish("high")
    facts = model.facts()
    low = facts.workload("low")
    assert low is not None
    switched = facts.model_copy(update={"fail_safe_epoch": 1})
    assert not may_come_back(Desk(switched, model.books, model.terms, model.now), low)
    model.terms = model.terms.model_copy(update={"freeze": Freeze(by="ops", reason="upgrade")})
    assert not may_return(model)


def test_what_the_scheduler_has_given_up_and_what_somebody_else_switched_off_stays_so() -> None:
    model = parked()
    model.finish("high")
    facts = model.facts()
    low = facts.workload("low")
    assert low is not None
    for change in ({"evicted": "DeactivatedDueToRequeuingLimitExceeded"}, {"mark": None}, {"gpus": 0}):
        other = low.model_copy(update=change)
        seen = facts.model_copy(update={"workloads": (other,)})
        assert not may_come_back(Desk(seen, model.books, model.terms, model.now), other)
    model.jobs["low"].mark = None
    assert not [s for s in model.step().signals if s.workload.uid == "low"]


def test_its_pods_have_to_be_gone_first() -> None:
    model = parked()
    model.finish("high")
    model.jobs["low"].nodes = ["n1"]
    assert not may_return(model)


# ---- when the scheduler was in charge


def settled(model: Model) -> Model:
    """Decide once under the fail-safe."""
    facts = model.facts().model_copy(update={"fail_safe_epoch": 1, "fail_safe_since": model.now})
    for transaction in step(facts, model.books, model.terms, model.now).transactions:
        model.commit(transaction)
    return model


def test_the_fail_safe_lets_go_of_who_was_chosen_and_bills_nobody() -> None:
    model = crowded()
    runs(model)
    settled(model)
    assert not model.books.lines
    (demand,) = model.books.demands
    assert (demand.state, demand.idle) == (DemandState.OPEN, 0)


def test_the_fail_safe_keeps_the_line_of_who_is_being_stopped_until_it_has_left() -> None:
    model = taken()
    settled(model)
    assert len(model.books.lines) == 1
    model.evict()
    settled(model)
    assert len(model.books.lines) == 1
    model.evict()
    settled(model)
    assert not model.books.lines


def test_who_was_taken_and_is_not_switched_off_runs_on_under_the_fail_safe() -> None:
    model = taken()
    model.jobs["low"].active, model.jobs["low"].mark = True, None
    settled(model)
    assert not model.books.lines


# ---- sweeps


def swept(model: Model, *loans: str) -> Sweep:
    model.now += timedelta(minutes=10)
    running = Open(frozenset(loan_id("local", uid) for uid in loans), frozenset({"a"}), True)
    return sweep(model.facts(), model.books, model.terms, model.now, running)


def test_a_choice_needs_no_loan_and_what_was_taken_does() -> None:
    model = crowded()
    runs(model)
    assert swept(model).starts == ()
    model = taken()
    (start,) = swept(model).starts
    assert (start.workload.uid, start.borrower, start.gpus) == ("low", "a", 8)
    (finding,) = [f for f in swept(model).findings if f.kind is SweepKind.LOAN_MISSING]
    assert finding.message.startswith("job-low of a is to give 8 GPUs back and no Loan runs for it")
    assert swept(model, "low").starts == ()


def test_parked_own_work_has_somebody_who_brings_it_back() -> None:
    model = parked()
    model.jobs["low"].mark = Mark(loan=loan_id("local", "low"), term=1, step="stop")
    (start,) = swept(model).starts
    assert (start.workload.uid, start.borrower) == ("low", "a")


def test_retryable_own_work_needs_no_checkpoint() -> None:
    model = crowded(contract=RETRYABLE)
    runs(model)
    (victim,) = plan_of(model).victims
    assert not victim.needs_checkpoint
