"""The switch to the scheduler's own borrowing: which write comes when, wherever a watchdog dies."""

from collections.abc import Mapping
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubank.decide.failsafe import own_quotas, switch
from gpubank.domain.contract import Side
from gpubank.domain.failsafe import Begin, CohortFacts, CohortQueue, End, Enter, FailSafeWrite, Lend
from gpubank.domain.pool import Freeze
from gpubank.domain.terms import PoolTerms
from tests.unit.decide.parts import NOW, POOL, group_terms, pool_terms

TERMS = pool_terms(group_terms("a", 16, borrow_limit=8), group_terms("b", 16, borrow_limit=24), capacity=40)


def queue(group: str, side: Side, nominal: int, reserved: int = 0) -> CohortQueue:
    return CohortQueue(
        name=f"{group}.{POOL}.{side}",
        group=group,
        kind=side,
        version="1",
        nominal=nominal,
        reserved=reserved,
        acknowledged=True,
    )


LENT = CohortFacts(
    pool=POOL,
    queues=(
        queue("a", Side.BORROW, 8, 8),
        queue("a", Side.OWN, 16, 16),
        queue("b", Side.BORROW, 0),
        queue("b", Side.OWN, 8),
    ),
)
"""b lends 8 GPUs to a."""


def done(facts: CohortFacts, write: FailSafeWrite) -> CohortFacts:
    """The facts after one write, not yet acknowledged."""
    match write:
        case Begin(epoch, _):
            return facts.model_copy(update={"epoch": epoch, "last_epoch": epoch, "surplus": 0})
        case Lend(surplus):
            return facts.model_copy(update={"surplus": surplus})
        case End():
            return facts.model_copy(update={"epoch": 0})
        case Enter(entered, nominal, limit, reclaims, epoch):
            changed = entered.model_copy(
                update={
                    "nominal": nominal,
                    "borrowing_limit": limit,
                    "reclaims": reclaims,
                    "epoch": epoch,
                    "in_cohort": True,
                    "best_effort": True,
                    "acknowledged": False,
                }
            )
            queues = tuple(changed if each.name == entered.name else each for each in facts.queues)
            return facts.model_copy(update={"queues": queues})


def acknowledged(facts: CohortFacts) -> CohortFacts:
    return facts.model_copy(
        update={"queues": tuple(each.model_copy(update={"acknowledged": True}) for each in facts.queues)}
    )


def due(
    facts: CohortFacts,
    terms: PoolTerms = TERMS,
    promises: Mapping[str, int] | None = None,
    *,
    stale: bool = True,
    well: bool = False,
) -> tuple[FailSafeWrite, ...]:
    return switch(facts, terms, promises or {}, NOW, stale=stale, well=well)


def entered(writes: tuple[FailSafeWrite, ...]) -> dict[str, tuple[int, int, bool]]:
    assert all(isinstance(write, Enter) for write in writes)
    return {w.queue.name: (w.nominal, w.borrowing_limit, w.reclaims) for w in writes if isinstance(w, Enter)}


def test_the_epoch_comes_first_and_alone() -> None:
    assert due(LENT) == (Begin(1, NOW),)
    assert due(LENT.model_copy(update={"last_epoch": 6})) == (Begin(7, NOW),)


def test_then_the_borrow_queues_come_in_at_nothing_with_limit_and_guarantee_to_borrow() -> None:
    begun = done(LENT, Begin(1, NOW))
    assert entered(due(begun)) == {f"a.{POOL}.borrow": (0, 24, False), f"b.{POOL}.borrow": (0, 40, False)}


def test_the_own_queues_wait_until_every_borrow_queue_is_acknowledged() -> None:
    facts = done(LENT, Begin(1, NOW))
    for write in due(facts):
        facts = done(facts, write)
    assert due(facts) == ()
    surplus, *own = due(acknowledged(facts))
    assert surplus == Lend(8, 1), "ahead of owners, who would take from borrowers what the surplus has for them"
    assert entered(tuple(own)) == {f"a.{POOL}.own": (16, 0, True), f"b.{POOL}.own": (16, 0, True)}


def test_a_frozen_pool_is_not_switched_but_one_that_is_switched_is_finished() -> None:
    frozen = TERMS.model_copy(update={"freeze": Freeze(by="ops", reason="an incident")})
    assert due(LENT, frozen) == ()
    assert due(done(LENT, Begin(1, NOW)), frozen) != ()
    over = TERMS.model_copy(update={"freeze": Freeze(by="ops", reason="an incident", until=NOW - timedelta(seconds=1))})
    assert due(LENT, over) == (Begin(1, NOW),)


def test_nothing_is_done_to_a_pool_whose_bank_is_neither_dead_nor_switched() -> None:
    assert due(LENT, stale=False) == ()
    assert due(LENT, stale=False, well=True) == ()


def test_a_switch_is_finished_although_the_bank_shows_signs_of_life_again() -> None:
    assert due(done(LENT, Begin(3, NOW)), stale=False) != ()


@pytest.mark.parametrize("stage", range(4))
def test_the_way_back_is_the_epoch_alone_however_far_the_switch_has_got(stage: int) -> None:
    facts = done(LENT, Begin(3, NOW))
    for _ in range(stage):
        for write in due(facts):
            facts = done(facts, write)
        facts = acknowledged(facts)
    assert due(facts, stale=False, well=True) == (End(3),)


def test_a_queue_that_came_in_for_an_earlier_epoch_is_written_again_so_that_no_old_write_can_follow() -> None:
    facts = done(LENT, Begin(1, NOW))
    for write in due(facts):
        facts = done(facts, write)
    again = done(acknowledged(facts), Begin(2, NOW))
    assert len(entered(due(again))) == 2


def test_a_queue_left_in_a_moment_of_strict_order_is_relaxed() -> None:
    strict = LENT.queues[0].model_copy(
        update={"in_cohort": True, "best_effort": False, "epoch": 1, "nominal": 0, "borrowing_limit": 24}
    )
    facts = LENT.model_copy(update={"epoch": 1, "queues": (strict, *LENT.queues[1:])})
    assert strict.name in entered(due(facts))


def test_own_work_beyond_a_guarantee_that_has_yet_to_fall_is_not_put_at_others_mercy() -> None:
    terms = pool_terms(group_terms("a", 8), group_terms("b", 16), group_terms("c", 8), capacity=32)
    facts = CohortFacts(
        pool=POOL,
        queues=(queue("a", Side.OWN, 16, 16), queue("b", Side.OWN, 8), queue("c", Side.OWN, 8)),
    )
    assert own_quotas(facts, terms, {"b": 8, "a": 16}) == {"a": 16, "b": 8, "c": 8}
    assert own_quotas(facts, terms, {}) == {"a": 16, "b": 16, "c": 0}, "without the bank's last word, by name"


names = ("a", "b", "c")
pools = st.fixed_dictionaries({name: st.tuples(st.integers(0, 16), st.integers(0, 16)) for name in names})


@given(pools, st.integers(0, 16), st.dictionaries(st.sampled_from(names), st.integers(0, 20)))
def test_quotas_never_promise_more_than_the_pool_nor_less_than_what_runs(
    groups: dict[str, tuple[int, int]], spare: int, promised: dict[str, int]
) -> None:
    capacity = sum(guaranteed for guaranteed, _ in groups.values()) + spare
    terms = pool_terms(*(group_terms(name, gpus) for name, (gpus, _) in groups.items()), capacity=capacity)
    facts = CohortFacts(pool=POOL, queues=tuple(queue(name, Side.OWN, 0, used) for name, (_, used) in groups.items()))
    quotas = own_quotas(facts, terms, promised)
    used = sum(used for _, used in groups.values())
    assert all(quotas[name] >= used for name, (_, used) in groups.items())
    assert sum(quotas.values()) <= max(capacity, used)
    if all(used <= guaranteed for guaranteed, used in groups.values()):
        assert quotas == {name: guaranteed for name, (guaranteed, _) in groups.items()}, "everybody has its guarantee"


@given(st.data())
def test_wherever_a_watchdog_dies_the_next_one_ends_at_the_same_and_never_lends_twice_on_the_way(
    data: st.DataObject,
) -> None:
    facts = LENT
    own = {each.name: each.nominal for each in LENT.queues if each.kind is Side.OWN}
    for _ in range(data.draw(st.integers(0, 12), label="runs that die")):
        writes = due(facts)
        kept = data.draw(st.integers(0, len(writes)), label="writes before it dies")
        for write in data.draw(st.permutations(writes))[:kept] if writes else ():
            if isinstance(write, Enter):
                assert facts.epoch == write.epoch, "no queue before the epoch"
            if isinstance(write, Enter) and write.queue.kind is Side.OWN:
                borrow = [each for each in facts.queues if each.kind is Side.BORROW]
                assert all(each.in_cohort and each.acknowledged and each.nominal == 0 for each in borrow)
            facts = done(facts, write)
            if any(each.kind is Side.BORROW and not each.in_cohort for each in facts.queues):
                assert {q.name: q.nominal for q in facts.queues if q.kind is Side.OWN} == own
        if data.draw(st.booleans(), label="the scheduler takes it in"):
            facts = acknowledged(facts)
    for _ in range(5):  # one run that lives
        for write in due(facts):
            facts = done(facts, write)
        facts = acknowledged(facts)
    assert due(facts) == ()
    assert (facts.epoch, facts.last_epoch, facts.surplus) == (1, 1, 8)
    assert {each.name: (each.nominal, each.borrowing_limit, each.reclaims) for each in facts.queues} == {
        f"a.{POOL}.borrow": (0, 24, False),
        f"a.{POOL}.own": (16, 0, True),
        f"b.{POOL}.borrow": (0, 40, False),
        f"b.{POOL}.own": (16, 0, True),
    }
