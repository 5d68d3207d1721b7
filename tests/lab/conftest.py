"""What the lab's own tests share."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpubank.lab import Lab
from gpubank.lab.access import Api
from tests.lab.objects import Tenant
from tests.support.realnode import RealNode


@pytest.fixture
def api(lab: Lab) -> Iterator[Api]:
    with lab.api() as api:
        yield api


@pytest.fixture
def tenant(api: Api) -> Iterator[Callable[..., Tenant]]:
    """Makes tenants that leave when the test ends, so that the lab's nodes are free for the next."""
    made: list[Tenant] = []

    def make(**quotas: int) -> Tenant:
        made.append(Tenant(api, **quotas))
        return made[-1]

    yield make
    for each in made:
        each.leave()


@pytest.fixture
def node(kubelet_lab: Lab, nvml_library: Path, tmp_path: Path) -> Iterator[RealNode]:
    """The real node, without GPUs and without agent."""
    with kubelet_lab.api() as api:
        found = RealNode(kubelet_lab, api, tmp_path, nvml_library)
        try:
            yield found
        finally:
            found.close()
