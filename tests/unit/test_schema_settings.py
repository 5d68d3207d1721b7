"""The page of the settings names every one of them."""

from collections.abc import Iterator
from typing import Any

import pytest

from gpubank.schema.settings import settings_page
from gpubank.settings import Settings


def names(value: dict[str, Any], before: str = "") -> Iterator[str]:
    for name, inner in value.items():
        path = f"{before}{name}"
        if isinstance(inner, dict) and path != "incidents.policy":  # whose own reference is elsewhere
            yield from names(inner, f"{path}.")
        else:
            yield path


def rows() -> dict[str, list[str]]:
    lines = (line for line in settings_page().splitlines() if line.startswith("| `"))
    split = ([cell.strip() for cell in line.strip("|").replace("\\|", "¦").split("|")] for line in lines)
    return {cells[0].strip("`"): cells[1:] for cells in split}


def test_every_setting_has_a_row_and_every_row_is_a_setting() -> None:
    assert set(rows()) == set(names(Settings().model_dump()))


def test_every_row_says_what_the_setting_means() -> None:
    assert [name for name, (_, kind, default, meaning) in rows().items() if not (kind and default and meaning)] == []


def test_a_variable_of_the_page_sets_its_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    variable = rows()["incidents.webhook.timeout_seconds"][0].strip("`")
    monkeypatch.setenv(variable, "3")
    assert Settings().incidents.webhook.timeout_seconds == 3


@pytest.mark.parametrize(
    ("name", "kind", "default"),
    [
        ("mode", "`embedded` or `cluster`", "`embedded`"),
        ("ledger.url", "secret", "–"),
        ("worker.cached_workflows", "whole number, at least 10, at most 100000", "`500`"),
        ("checkpoint.request_timeout_seconds", "number, more than 0, at most 60", "`5.0`"),
        ("checkpoint.hash_files", "true or false", "`true`"),
        ("incidents.policy", "mapping", "as shipped"),
        ("cluster.kubeconfig", "path", "–"),
    ],
)
def test_a_row_says_what_may_stand_there_and_what_does_by_default(name: str, kind: str, default: str) -> None:
    assert rows()[name][1:3] == [kind, default]
