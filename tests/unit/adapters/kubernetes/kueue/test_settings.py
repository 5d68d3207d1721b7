import copy
from typing import Any

import pytest

from gpubank.adapters.kubernetes.kueue.settings import config_problems

GOOD: dict[str, Any] = {
    "resources": {"quotaCheckStrategy": "IgnoreUndeclared"},
    "waitForPodsReady": {"timeout": "24h"},
    "integrations": {"frameworks": ["batch/job", "pod", "deployment", "jobset.x-k8s.io/jobset"]},
}


def test_settings_as_needed_have_no_problems() -> None:
    assert config_problems(GOOD) == []


@pytest.mark.parametrize(
    ("path", "value", "names"),
    [
        (("resources",), None, "quotaCheckStrategy"),
        (("resources", "quotaCheckStrategy"), "BlockUndeclared", "'BlockUndeclared'"),
        (("waitForPodsReady",), None, "waitForPodsReady.timeout"),
        (("waitForPodsReady",), {}, "waitForPodsReady.timeout"),
        (("waitForPodsReady", "blockAdmission"), True, "blockAdmission"),
        (("integrations",), None, "batch/job, pod, deployment"),
        (("integrations", "frameworks"), ["batch/job", "deployment"], "lacks pod,"),
    ],
)
def test_a_setting_that_is_not_as_needed_is_named(path: tuple[str, ...], value: object, names: str) -> None:
    config = copy.deepcopy(GOOD)
    place = config
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    (problem,) = config_problems(config)
    assert names in problem
