"""The fence."""

from math import inf

import pytest

from gpubank.decide.fence import MINIMUM_WAIT, Fence

QUEUE = "a.h100.own"


def test_a_stamp_is_fenced_a_quarter_second_after_it_was_acknowledged() -> None:
    fence = Fence()
    assert fence.seen(QUEUE, 5, False, 10.0) == -1
    assert fence.seen(QUEUE, 5, True, 10.1) == -1
    assert fence.seen(QUEUE, 5, True, 10.34) == -1
    assert fence.seen(QUEUE, 5, True, 10.1 + MINIMUM_WAIT) == 5


def test_slow_admission_cycles_make_the_wait_twice_their_p99() -> None:
    fence = Fence(cycle_p99=0.4)
    fence.seen(QUEUE, 1, True, 0.0)
    assert fence.seen(QUEUE, 1, True, 0.79) == -1
    assert fence.seen(QUEUE, 1, True, 0.8) == 1


def test_a_newer_stamp_does_not_take_the_older_ones_fence() -> None:
    fence = Fence()
    fence.seen(QUEUE, 1, True, 0.0)
    fence.seen(QUEUE, 2, False, 0.2)
    assert fence.seen(QUEUE, 2, True, 0.3) == 1
    assert fence.seen(QUEUE, 3, False, 0.54) == 1
    assert fence.seen(QUEUE, 3, False, 0.55) == 2


def test_every_stamp_is_fenced_even_if_they_follow_faster_than_the_wait() -> None:
    fence = Fence()
    fenced = [fence.seen(QUEUE, n, True, n * 0.1) for n in range(10)]
    assert fenced[-1] == 6
    assert fenced == sorted(fenced)


def test_an_edit_by_somebody_else_takes_the_fence_back() -> None:
    fence = Fence()
    fence.seen(QUEUE, 4, True, 0.0)
    assert fence.seen(QUEUE, 4, True, 1.0) == 4
    assert fence.seen(QUEUE, 4, False, 2.0) == -1
    assert fence.seen(QUEUE, 4, True, 2.1) == -1
    assert fence.seen(QUEUE, 4, True, 2.4) == 4


def test_an_edit_by_somebody_else_brings_back_no_older_stamp_either() -> None:
    fence = Fence()
    fence.seen(QUEUE, 3, True, 0.0)
    fence.seen(QUEUE, 4, True, 0.1)
    assert fence.seen(QUEUE, 4, True, 1.0) == 4
    assert fence.seen(QUEUE, 4, False, 2.0) == -1


def test_a_queue_that_is_gone_leaves_no_fence_to_the_next_of_its_name() -> None:
    fence = Fence()
    fence.seen(QUEUE, 9, True, 0.0)
    assert fence.seen(QUEUE, 9, True, 1.0) == 9
    fence.forget(QUEUE)
    assert fence.seen(QUEUE, 9, True, 2.0) == -1


def test_a_queue_that_was_made_anew_starts_without_a_fence() -> None:
    fence = Fence()
    fence.seen(QUEUE, 9, True, 0.0)
    assert fence.seen(QUEUE, 9, True, 1.0) == 9
    assert fence.seen(QUEUE, -1, False, 2.0) == -1
    assert fence.seen(QUEUE, 3, True, 3.0) == -1
    fence.forget(QUEUE)
    assert fence.seen(QUEUE, 3, True, 9.0) == -1


def test_queues_do_not_share_their_fences() -> None:
    fence = Fence()
    fence.seen(QUEUE, 7, True, 0.0)
    assert fence.seen("b.h100.own", 7, True, 1.0) == -1


@pytest.mark.parametrize(("p99", "wait"), [(0.0, 0.25), (0.1, 0.25), (0.2, 0.4), (3.0, 6.0)])
def test_the_wait_is_the_longer_of_both(p99: float, wait: float) -> None:
    fence = Fence()
    fence.measured(p99)
    assert fence.wait == pytest.approx(wait)


def test_a_fence_says_since_when_its_stamp_is_known_to_be_fenced() -> None:
    fence = Fence()
    assert fence.since(QUEUE) == inf
    fence.seen(QUEUE, 1, True, 0.0)
    assert fence.since(QUEUE) == inf
    fence.seen(QUEUE, 1, True, 1.0)
    fence.seen(QUEUE, 2, True, 1.1)
    assert fence.since(QUEUE) == 1.0, "a newer stamp that is not fenced yet changes nothing"
    fence.seen(QUEUE, 2, True, 2.0)
    fence.seen(QUEUE, 2, True, 3.0)
    assert fence.since(QUEUE) == 2.0


def test_a_fence_that_was_taken_back_and_earned_again_is_as_young_as_that() -> None:
    fence = Fence()
    fence.seen(QUEUE, 1, True, 0.0)
    fence.seen(QUEUE, 1, True, 1.0)
    fence.seen(QUEUE, 1, False, 2.0)
    fence.seen(QUEUE, 1, True, 2.1)
    assert fence.seen(QUEUE, 1, True, 3.0) == 1
    assert fence.since(QUEUE) == 3.0
    fence.forget(QUEUE)
    assert fence.since(QUEUE) == inf
