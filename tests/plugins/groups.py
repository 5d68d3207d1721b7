"""Which tests stay together when two labs stand side by side (`--dist loadfile`): a module's, on one lab.

A machine has one kubelet folder, so all modules `test_kubelet_*` go to one process. (Groups of pytest-xdist 3.8 have no
effect with pytest 9.2, which keeps a test's name elsewhere.)
"""

from importlib import import_module
from typing import Any, Final

import pytest

KUBELET: Final = "test_kubelet_"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out tests by module, the real kubelet's as if they were one."""
    if config.getoption("dist") != "loadfile":
        return None
    scheduler = import_module("xdist.scheduler").LoadFileScheduling(config, log)
    scheduler._split_scope = _together
    return scheduler


def _together(nodeid: str) -> str:
    module = nodeid.split("::", 1)[0]
    return KUBELET if KUBELET in module else module
