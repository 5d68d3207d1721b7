"""What the lab's own tests share."""

from collections.abc import Callable, Iterator

import pytest

from gpubank.lab import Lab
from gpubank.lab.access import Api
from tests.lab.objects import Tenant


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
