import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubank.adapters.kubernetes.kinds import Object
from gpubank.adapters.kubernetes.quantities import ceil, floor, pod_requests
from gpubank.domain.base import MAX_GPUS

GPU = "nvidia.com/gpu"


def container(gpus: int | str | None = None, **more: object) -> Object:
    amounts = {} if gpus is None else {GPU: str(gpus)}
    return {"name": "c", "resources": {"requests": {"cpu": "1", **amounts}}, **more}


@pytest.mark.parametrize(
    ("quantity", "low", "high"),
    [
        ("8", 8, 8),
        (8, 8, 8),
        ("7500m", 7, 8),
        ("1k", 1000, 1000),
        (None, 0, 0),
        ("0", 0, 0),
        ("1Ki", 1024, 1024),
        ("2G", MAX_GPUS, MAX_GPUS),
        ("-1", 0, 0),
    ],
)
def test_a_quota_is_rounded_down_and_a_use_up(quantity: object, low: int, high: int) -> None:
    assert (floor(quantity), ceil(quantity)) == (low, high)


def test_an_absurd_quantity_is_read_as_the_most_or_the_least_that_is_reckoned_with() -> None:
    assert [(floor(each), ceil(each)) for each in ("2G", "-1")] == [(MAX_GPUS, MAX_GPUS), (0, 0)]


@pytest.mark.parametrize(
    ("spec", "gpus"),
    [
        pytest.param({"containers": [container(2), container(3)]}, 5, id="containers-add-up"),
        pytest.param({"containers": [container(2)], "initContainers": [container(4)]}, 4, id="greedy-init"),
        pytest.param({"containers": [container(4)], "initContainers": [container(2), container(3)]}, 4, id="init"),
        pytest.param(
            {"containers": [container(2)], "initContainers": [container(1, restartPolicy="Always")]}, 3, id="sidecar"
        ),
        pytest.param(
            {"containers": [container(1)], "initContainers": [container(1, restartPolicy="Always"), container(4)]},
            5,
            id="init-beside-a-sidecar",
        ),
        pytest.param({"containers": [{"resources": {"limits": {GPU: "2"}}}]}, 2, id="limit-alone"),
        pytest.param({"containers": [container()]}, 0, id="no-gpu"),
        pytest.param({}, 0, id="nothing"),
    ],
)
def test_a_pod_asks_for_what_the_scheduler_counts(spec: Object, gpus: int) -> None:
    assert pod_requests(spec).get(GPU, 0) == gpus
    assert "cpu" not in pod_requests(spec)


@given(running=st.lists(st.integers(0, 8), max_size=4), init=st.lists(st.integers(0, 8), max_size=4))
def test_a_pod_never_asks_for_less_than_any_of_its_moments(running: list[int], init: list[int]) -> None:
    spec = {"containers": [container(each) for each in running], "initContainers": [container(each) for each in init]}
    assert pod_requests(spec).get(GPU, 0) == max([sum(running), *init])
