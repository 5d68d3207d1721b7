"""The sweep of one pool: every class of what does not fit, and nothing where all fits."""

from datetime import timedelta

import pytest

from gpubank.decide.compile import revisions
from gpubank.decide.sweep import ON_ITS_WAY, YOUNG, Open, Sweep, seen_twice, sweep
from gpubank.domain.contract import Side
from gpubank.domain.demand import DemandState
from gpubank.domain.facts import Mark
from gpubank.domain.loan import LineState
from gpubank.domain.pool import Freeze
from gpubank.domain.recall import loan_id
from gpubank.domain.sweep import SweepKind
from tests.unit.decide.model import Model
from tests.unit.decide.parts import CLUSTER, group_terms, pool_terms

OWN, BORROW = Side.OWN, Side.BORROW
LOAN = loan_id(CLUSTER, "x")
ALL = Open(frozenset({LOAN}), frozenset({"a", "b"}), True)
LONG = timedelta(minutes=10)


@pytest.fixture
def model() -> Model:
    """B lends 8 GPUs to x of a, for long enough that nothing is young."""
    model = Model(pool_terms(group_terms("a", 8), group_terms("b", 8), capacity=16), {"n1": 8, "n2": 8})
    model.submit("own", "a", OWN, 8)
    model.settle()
    model.submit("x", "a", BORROW, 8)
    model.settle()
    assert [line.state for line in model.books.lines] == [LineState.GRANTED]
    model.now += LONG
    return model


def swept(model: Model, running: Open = ALL) -> Sweep:
    return sweep(model.facts(), model.books, model.terms, model.now, running)


def found(sweep: Sweep) -> list[tuple[SweepKind, str]]:
    return [(finding.kind, finding.subject) for finding in sweep.findings]


def recalled(model: Model) -> None:
    """Have an owner wait, and the loan recalled and stopped."""
    model.submit("want", "b", OWN, 8)
    for _ in range(20):
        model.round()
        model.now += timedelta(milliseconds=600)
        if any(line.state is LineState.RECALLED for line in model.books.lines):
            return
    raise AssertionError("nothing was recalled")


def test_where_all_fits_nothing_is_found(model: Model) -> None:
    assert swept(model) == Sweep(())


def test_a_loan_that_was_terminated_is_started_and_told_what_it_missed(model: Model) -> None:
    result = swept(model, ALL._replace(loans=frozenset()))
    assert found(result) == [(SweepKind.LOAN_MISSING, "x")]
    assert [(start.workload.uid, start.borrower, start.gpus) for start in result.starts] == [("x", "a", 8)]
    (signal,) = result.signals
    assert (signal.kind, signal.term, signal.gpus, signal.lenders) == ("granted", 1, 8, ("b",))
    assert signal.at == model.jobs["x"].admitted_at
    assert result.findings[0].mended


def test_a_loan_of_a_job_that_is_gone_while_its_lines_are_open_is_started_and_told_nothing(model: Model) -> None:
    model.finish("x", deleted=True)
    result = swept(model, ALL._replace(loans=frozenset()))
    assert found(result) == [(SweepKind.LOAN_MISSING, "x")]
    assert result.signals == ()


def test_a_line_that_has_just_been_granted_misses_nobody_yet(model: Model) -> None:
    model.now = model.books.lines[0].moved_at + YOUNG - timedelta(seconds=1)
    assert swept(model, ALL._replace(loans=frozenset())).findings == ()


def test_a_loan_whose_job_is_gone_is_told(model: Model) -> None:
    other = loan_id(CLUSTER, "long-gone")
    result = swept(model, ALL._replace(loans=frozenset({LOAN, other})))
    assert found(result) == [(SweepKind.LOAN_LEFT_OVER, other)]
    assert result.left_over == (other,)


def test_a_reclaim_that_was_terminated_is_started_with_its_demands(model: Model) -> None:
    recalled(model)
    model.now += YOUNG
    result = swept(model, ALL._replace(reclaims=frozenset({"a"})))
    assert (SweepKind.RECLAIM_MISSING, "b") in found(result)
    assert result.needs == (("b", tuple(demand.demand_id for demand in model.books.demands)),)


def test_a_demand_that_has_just_been_opened_misses_nobody_yet(model: Model) -> None:
    recalled(model)
    assert swept(model, ALL._replace(reclaims=frozenset())).needs == ()


def test_a_pool_without_a_heartbeat_gets_one(model: Model) -> None:
    assert found(swept(model, ALL._replace(heartbeat=False))) == [(SweepKind.HEARTBEAT_MISSING, "h100")]


def parked(model: Model, loan: str) -> None:
    """Have x stopped by a Loan, and its line returned."""
    job = model.jobs["x"]
    job.active, job.reserved, job.nodes, job.admitted_at = False, False, [], None
    job.mark, job.waiting_since = Mark(loan=loan, term=1, step="stop"), model.now - LONG
    for _ in range(5):
        model.round()
        model.now += timedelta(seconds=2)
    assert model.books.lines_of("x") == ()
    model.now += LONG


def test_a_parked_job_without_a_loan_gets_one_that_brings_it_back(model: Model) -> None:
    model.terms = model.terms.model_copy(update={"freeze": Freeze(by="ops", reason="so that it stays parked")})
    parked(model, LOAN)
    result = swept(model, ALL._replace(loans=frozenset()))
    assert found(result) == [(SweepKind.ORPHAN_PARKED, "x")]
    assert [start.workload.uid for start in result.starts] == ["x"]
    assert swept(model).findings == ()


def test_a_job_that_has_just_been_parked_misses_nobody_yet(model: Model) -> None:
    model.terms = model.terms.model_copy(update={"freeze": Freeze(by="ops", reason="so that it stays parked")})
    parked(model, LOAN)
    model.jobs["x"].waiting_since = model.now
    assert swept(model, ALL._replace(loans=frozenset())).findings == ()


def test_a_demand_that_ended_partial_has_no_reclaim_until_it_is_tried_again(model: Model) -> None:
    recalled(model)
    demands = tuple(d.model_copy(update={"state": DemandState.PARTIAL}) for d in model.books.demands)
    model.books = model.books.model_copy(update={"demands": demands})
    model.now += LONG
    assert swept(model, ALL._replace(reclaims=frozenset())).needs == ()


def test_a_job_that_somebody_elses_loan_has_parked_is_a_matter_for_people(model: Model) -> None:
    model.terms = model.terms.model_copy(update={"freeze": Freeze(by="ops", reason="so that it stays parked")})
    parked(model, "loan/another-cluster/x")
    result = swept(model, ALL._replace(loans=frozenset()))
    assert found(result) == [(SweepKind.ORPHAN_PARKED, "x")]
    assert (result.starts, result.findings[0].mended) == ((), False)
    assert result.findings[0].workload is not None


def test_a_job_that_its_owner_switched_off_is_no_orphan(model: Model) -> None:
    model.jobs["x"].active = False
    assert all(kind is not SweepKind.ORPHAN_PARKED for kind, _ in found(swept(model)))


@pytest.mark.parametrize("state", [LineState.OFFERED, LineState.CLOSING])
def test_a_step_that_takes_too_long_is_reported(model: Model, state: LineState) -> None:
    (line,) = model.books.lines
    late = line.model_copy(update={"state": state, "moved_at": model.now - LONG})
    model.books = model.books.model_copy(update={"lines": (late,)})
    assert (SweepKind.STEP_INTERRUPTED, line.line_id) in found(swept(model))
    soon = late.model_copy(update={"moved_at": model.now - ON_ITS_WAY})
    model.books = model.books.model_copy(update={"lines": (soon,)})
    assert (SweepKind.STEP_INTERRUPTED, line.line_id) not in found(swept(model))


def test_a_recalled_job_that_runs_has_its_notice_and_one_that_is_gone_has_none(model: Model) -> None:
    (line,) = model.books.lines
    late = line.model_copy(update={"state": LineState.RECALLED, "moved_at": model.now - LONG})
    model.books = model.books.model_copy(update={"lines": (late,)})
    assert all(kind is not SweepKind.STEP_INTERRUPTED for kind, _ in found(swept(model)))
    model.finish("x")
    assert (SweepKind.STEP_INTERRUPTED, line.line_id) in found(swept(model))


def test_a_frozen_pool_takes_no_steps_and_none_is_missed(model: Model) -> None:
    (line,) = model.books.lines
    late = line.model_copy(update={"state": LineState.CLOSING, "moved_at": model.now - LONG})
    model.books = model.books.model_copy(update={"lines": (late,)})
    model.terms = model.terms.model_copy(update={"freeze": Freeze(by="ops", reason="an incident")})
    assert all(kind is not SweepKind.STEP_INTERRUPTED for kind, _ in found(swept(model)))


def test_a_ledger_from_an_older_backup_is_noticed(model: Model) -> None:
    model.queues["b", OWN].stamp = model.books.revision + 1
    assert found(swept(model)) == [(SweepKind.STEP_INTERRUPTED, "b.h100.own")]


def test_a_quota_that_somebody_edited_is_reported(model: Model) -> None:
    model.queues["a", BORROW].nominal = 12
    result = swept(model)
    assert found(result) == [(SweepKind.QUOTA_EDITED, "a.h100.borrow")]
    assert "12 GPUs, and the books say 8" in result.findings[0].message


def test_a_quota_that_the_bank_is_about_to_write_is_not(model: Model) -> None:
    model.queues["a", BORROW].nominal = 12
    model.queues["a", BORROW].stamp = revisions(model.books)["a", BORROW] - 1
    assert swept(model).findings == ()
    model.queues["a", BORROW].nominal, model.queues["a", BORROW].stamp = 0, -1  # a queue that was made just now
    assert swept(model).findings == ()


def test_a_quota_that_lost_its_stamp_with_the_edit_is_reported(model: Model) -> None:
    model.queues["a", BORROW].nominal = 12
    model.queues["a", BORROW].stamp = -1
    assert found(swept(model)) == [(SweepKind.QUOTA_EDITED, "a.h100.borrow")]


def test_work_that_runs_in_a_borrow_queue_without_a_loan_is_reported(model: Model) -> None:
    job = model.submit("stranger", "b", BORROW, 4)
    job.reserved, job.admitted_at = True, model.now - LONG
    result = swept(model)
    assert found(result) == [(SweepKind.UNKNOWN_WORK, "stranger")]
    assert result.findings[0].workload is not None
    job.admitted_at = model.now
    assert swept(model).findings == ()


def test_work_that_could_never_be_recalled_is_reported_before_it_runs(model: Model) -> None:
    model.submit("pod", "b", BORROW, 4)
    facts = model.facts()
    bare = tuple(w.model_copy(update={"suspendable": w.key.uid != "pod"}) for w in facts.workloads)
    result = sweep(facts.model_copy(update={"workloads": bare}), model.books, model.terms, model.now, ALL)
    assert found(result) == [(SweepKind.UNKNOWN_WORK, "pod")]


def test_under_the_fail_safe_quotas_and_work_are_the_schedulers_matter(model: Model) -> None:
    model.queues["a", BORROW].nominal = 12
    job = model.submit("stranger", "b", BORROW, 4)
    job.reserved, job.admitted_at = True, model.now - LONG
    facts = model.facts().model_copy(update={"fail_safe_epoch": 3})
    assert sweep(facts, model.books, model.terms, model.now, ALL).findings == ()


def test_only_what_was_seen_twice_counts(model: Model) -> None:
    nobody = ALL._replace(loans=frozenset())
    one = swept(model, nobody)
    assert seen_twice(one, one) == one
    assert seen_twice(Sweep(()), one) == Sweep(())
    assert seen_twice(one, Sweep(())) == Sweep(())
