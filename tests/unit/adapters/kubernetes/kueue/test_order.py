from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubank.adapters.kubernetes.kinds import Object
from gpubank.adapters.kubernetes.kueue.entries import PodSet, WorkloadEntry
from gpubank.adapters.kubernetes.kueue.order import IN_ORDER_ANNOTATION, LONGEST, MOST, first_in_line, is_momentary
from gpubank.domain.facts import Wait

GPU = "nvidia.com/gpu"
NOW = datetime(2026, 11, 2, 9, 0, tzinfo=UTC)


def waiting(
    name: str,
    gpus: int,
    *,
    age: int = 0,
    priority: int = 0,
    wait: Wait = Wait.QUOTA,
    requeue_in: int | None = None,
) -> WorkloadEntry:
    created = NOW - timedelta(seconds=age)
    return WorkloadEntry(
        uid=name,
        namespace="team",
        name=name,
        version="1",
        queue="pool",
        cluster_queue="",
        owners=(),
        priority=priority,
        created_at=created,
        active=wait is not Wait.INACTIVE,
        pod_sets=(PodSet(1, 1, {GPU: gpus}, {}, {}),),
        conditions={},
        requeue_at=None if requeue_in is None else NOW + timedelta(seconds=requeue_in),
        wait=wait,
        mark=None,
        state_since=created,
    )


@pytest.mark.parametrize(
    ("entries", "free", "want"),
    [
        pytest.param([waiting("gang", 16, age=9), waiting("small", 8, age=1)], 16, ["gang"], id="older-first"),
        pytest.param([waiting("gang", 16, age=9), waiting("small", 8, age=1)], 24, ["gang", "small"], id="both-fit"),
        pytest.param([waiting("old", 8, age=9), waiting("urgent", 8, priority=5)], 8, ["urgent"], id="priority"),
        pytest.param([waiting("huge", 32, age=9), waiting("gang", 16, age=1)], 16, [], id="one-in-the-way"),
        pytest.param(
            [waiting("odd", 8, age=9, wait=Wait.OTHER), waiting("gang", 8, age=1)], 16, [], id="one-that-never-fits"
        ),
        pytest.param(
            [waiting("parked", 8, age=9, wait=Wait.INACTIVE), waiting("gang", 8)],
            8,
            ["gang"],
            id="parked",
        ),
        pytest.param([waiting("late", 8, age=9, requeue_in=60), waiting("gang", 8)], 8, ["gang"], id="backoff"),
        pytest.param([waiting("back", 8, age=9, requeue_in=-1)], 8, ["back"], id="backoff-over"),
        pytest.param([waiting("gang", 16)], 8, [], id="too-little"),
        pytest.param([], 8, [], id="nobody"),
    ],
)
def test_who_is_next_in_line(entries: list[WorkloadEntry], free: int, want: list[str]) -> None:
    assert [entry.name for entry in first_in_line(entries, GPU, free, NOW)] == want


@given(st.lists(st.tuples(st.integers(1, 16), st.integers(0, 3), st.integers(0, 99)), max_size=12), st.integers(0, 64))
def test_who_is_next_fits_and_nobody_who_stays_behind_comes_before(asks: list[tuple[int, int, int]], free: int) -> None:
    entries = [waiting(f"w{i}", gpus, priority=rank, age=age) for i, (gpus, rank, age) in enumerate(asks)]
    chosen = first_in_line(entries, GPU, free, NOW)
    assert sum(entry.gpus(GPU) for entry in chosen) <= free
    assert len(chosen) <= MOST
    order = sorted(entries, key=lambda each: (-each.priority, each.created_at, each.uid))
    assert chosen == order[: len(chosen)]


def queue(since: str | None) -> Object:
    return {"metadata": {"annotations": {} if since is None else {IN_ORDER_ANNOTATION: since}}}


@pytest.mark.parametrize(
    ("since", "momentary"),
    [
        (NOW.isoformat(), True),
        ((NOW - timedelta(seconds=LONGEST + 1)).isoformat(), False),
        ((NOW + timedelta(hours=1)).isoformat(), False),
        ("yesterday", False),
        ("2026-11-02T09:00:00", False),
        (None, False),
    ],
)
def test_a_queue_is_strict_for_a_moment_only(since: str | None, momentary: bool) -> None:
    assert is_momentary(queue(since), NOW) is momentary
