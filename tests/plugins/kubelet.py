"""Fixture `kubelet_lab`: one lab with a real kubelet for the whole session.

It needs root, a C compiler and what the lab needs. Where one of them is missing its tests are skipped and say why;
with `CI=true` or `GPUBANK_LAB_REQUIRED=1` they fail instead.
"""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.plugins.lab import missing

if TYPE_CHECKING:
    from gpubank.lab import Lab

FIXTURE = "kubelet_lab"
_NOT_BUILT = pytest.StashKey[str]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Compile kubelet and containerd before the first test: no test's time-out should count it."""
    wanted = any(FIXTURE in getattr(item, "fixturenames", ()) for item in session.items)
    if session.config.option.collectonly or not wanted or os.geteuid() != 0:
        return
    from gpubank.lab import Lab, LabError

    try:
        Lab(extra=["kubelet"]).build()
    except LabError as error:
        session.config.stash[_NOT_BUILT] = str(error)


@pytest.fixture(scope="session")
def kubelet_lab(request: pytest.FixtureRequest) -> "Iterator[Lab]":
    """A lab without fake nodes whose one node, `real-0`, a real kubelet looks after."""
    from gpubank.lab import Lab, LabError
    from gpubank.lab.machine import claimed
    from gpubank.lab.state import strays

    if os.geteuid() != 0:
        missing(f"a real kubelet needs root, and this is uid {os.geteuid()}")
    if reason := request.config.stash.get(_NOT_BUILT, None):
        missing(f"the kubelet's lab cannot be built: {reason}")
    if (other := claimed()) and any(strays(other.folder)):
        missing(f"this machine's kubelet is in use by lab {other.lab!r}")
    lab = Lab(f"kubelet-{uuid.uuid4().hex[:8]}", nodes=0, extra=["kubelet"])
    try:
        lab.up()
    except LabError as error:
        lab.clean()
        pytest.fail(f"the kubelet's lab does not start: {error}")
    try:
        yield lab
    finally:
        # The harder case: what a lab that was killed leaves behind must go as well.
        for component in ("kubelet", "containerd"):
            lab.kill(component)
        lab.clean()
        if left := _left():
            pytest.fail(f"the lab left on the machine: {left}")


def _left() -> list[str]:
    from gpubank.lab.machine import KUBELET, RUN

    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    groups = [str(each) for each in Path("/sys/fs/cgroup").glob("*/k8s.io")]
    places = [str(each) for each in (KUBELET, RUN, Path("/var/lib/cni"), Path("/var/log/containers")) if each.exists()]
    return [*places, *groups, *(line for line in mounts if str(RUN) in line or str(KUBELET) in line)]
