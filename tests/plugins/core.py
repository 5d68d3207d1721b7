"""Marks the examples of domain and decisions, which are run once under branch coverage and not again with the rest.

Property tests are left out: what they draw may not decide whether a branch was reached.
"""

from pathlib import Path
from typing import Final

import pytest

UNIT: Final = Path(__file__).parents[1] / "unit"
FOLDERS: Final = tuple(UNIT / name for name in ("attack", "decide", "domain", "nodeagent_attribution"))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where nothing but these examples is asked for, import no test module that can have none."""
    if config.option.markexpr != "core" or collection_path.is_dir():
        return None
    return None if any(folder in collection_path.parents for folder in FOLDERS) else True


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        drawn = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
        if not drawn and any(folder in item.path.parents for folder in FOLDERS):
            item.add_marker(pytest.mark.core)
