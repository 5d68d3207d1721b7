"""Who holds what was raised for somebody: others, or the one who waits and whose admission is not seen yet."""

from gpubank.decide.demand import has_slipped
from gpubank.domain.contract import Side
from gpubank.domain.facts import PoolFacts, QueueFacts, WorkloadFacts
from tests.unit.decide.crowd import crowded, runs, taken
from tests.unit.decide.model import Model
from tests.unit.decide.parts import group_terms, pool_terms


def seen(*, other: int = 0, elsewhere: int = 0, counted: int = 0, needs: int = 8) -> bool:
    """Look at a queue of 12 GPUs in which `own` waits for some of them, while another job holds others."""
    model = Model(pool_terms(group_terms("b", 12), group_terms("a", 12), capacity=24), {"n1": 8, "n2": 8, "n3": 8})
    own = model.submit("own", "b", Side.OWN, needs)
    for name, group, gpus in (("other", "b", other), ("elsewhere", "a", elsewhere)):
        if gpus:
            model.submit(name, group, Side.OWN, gpus).reserved = True
    facts: PoolFacts = model.facts()
    queue = QueueFacts(name="b.h100.own", group="b", kind=Side.OWN, nominal=12, reserved=counted)
    waiting: WorkloadFacts | None = facts.workload(own.uid)
    assert waiting is not None
    return has_slipped(facts, model.books, queue, waiting)


def test_a_queue_with_room_has_lost_nothing() -> None:
    assert not seen(other=4, counted=4)


def test_what_another_job_holds_has_slipped() -> None:
    assert seen(other=8, counted=8)


def test_a_count_that_may_be_of_the_waiting_jobs_own_admission_is_no_loss() -> None:
    assert not seen(counted=8)
    assert not seen(other=4, counted=12)


def test_jobs_of_other_groups_hold_nothing_of_it() -> None:
    assert not seen(elsewhere=8, counted=8)


def test_room_that_the_queue_itself_counts_is_there_whatever_is_seen_of_other_jobs() -> None:
    assert not seen(other=12, counted=4)


def test_work_that_is_being_stopped_for_the_waiting_job_holds_nothing_and_work_that_is_only_chosen_does() -> None:
    chosen = crowded()
    runs(chosen)
    for model, slipped in ((chosen, True), (taken(), False)):
        facts = model.facts()
        high = facts.workload("high")
        assert high is not None
        queue = QueueFacts(name="a.h100.own", group="a", kind=Side.OWN, nominal=8, reserved=8)
        assert has_slipped(facts, model.books, queue, high) is slipped
