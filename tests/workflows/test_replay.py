"""Recorded histories replay on the code as it is, and a change of commands that nothing guards is noticed."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer
from temporalio.workflow import NondeterminismError

from gpubank.converter import DATA_CONVERTER
from tests.workflows import fingerprints
from workers.wiring import WORKFLOWS, sandbox
from workflows.loan_calls import LoanActs

HISTORIES = {path.stem: path for path in sorted((Path(__file__).parent / "histories").glob("*.json"))}


def replayer() -> Replayer:
    return Replayer(workflows=WORKFLOWS, data_converter=DATA_CONVERTER, workflow_runner=sandbox())


def history(name: str) -> WorkflowHistory:
    return WorkflowHistory.from_json(name, HISTORIES[name].read_text())


@pytest.mark.parametrize("name", HISTORIES)
async def test_a_recorded_history_replays(name: str) -> None:
    await replayer().replay_workflow(history(name))


@pytest.mark.parametrize("name", ["loan-returned_and_resumed", "loan-own_side_returned_and_resumed"])
async def test_a_notice_that_is_left_out_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def tell(self: LoanActs, key: str, reason: str, message: str) -> None:
        """Say nothing."""

    monkeypatch.setattr(LoanActs, "tell", tell)
    with pytest.raises(NondeterminismError):
        await replayer().replay_workflow(history(name))


def test_histories_tell_nothing_of_the_machine_that_recorded_them() -> None:
    for path in HISTORIES.values():
        text = path.read_text()
        assert "stackTrace" not in text
        assert [found for found in _texts(json.loads(text)) if "@" in found] == []


def test_no_command_has_changed_without_a_patch_and_a_new_baseline() -> None:
    changed = fingerprints.changed(fingerprints.baseline(), fingerprints.current())
    assert not changed, (
        f"commands changed in {', '.join(changed)}: guard them by workflow.patched, then record anew with"
        " `python -m tests.workflows.record`"
    )


@pytest.mark.parametrize(
    ("before", "after", "differs"),
    [
        pytest.param("await self.acts.a()", "await self.acts.a()\n    x = 1", False, id="computing does not count"),
        pytest.param("await self.acts.a()", "await self.acts.a('text')", False, id="texts do not count"),
        pytest.param("await self.acts.a()", "await self.acts.a()\n    await self.acts.a()", True, id="once more"),
        pytest.param(
            "await self.acts.a()\n    await self.acts.b()",
            "await self.acts.b()\n    await self.acts.a()",
            True,
            id="another order",
        ),
        pytest.param("await self.acts.a()", "if self.x:\n        await self.acts.a()", True, id="a condition"),
        pytest.param(
            "await self.acts.a()", "if self.x:\n        return\n    await self.acts.a()", True, id="an early return"
        ),
    ],
)
def test_a_fingerprint_sees_commands_and_nothing_else(before: str, after: str, differs: bool) -> None:
    leading = fingerprints.COMMANDS | {"a", "b"}

    def outline(body: str) -> list[Any]:
        (function,) = ast.parse(f"async def run(self):\n    {body}").body
        assert isinstance(function, ast.AsyncFunctionDef)
        return fingerprints._outline(function.body, leading)

    assert (outline(before) != outline(after)) is differs


def test_a_new_patch_makes_a_change_a_versioned_one() -> None:
    old = {"loan.run": fingerprints.Fingerprint("1", ())}
    assert fingerprints.unversioned(old, {"loan.run": fingerprints.Fingerprint("2", ())}) == ["loan.run"]
    assert fingerprints.unversioned(old, {"loan.run": fingerprints.Fingerprint("2", ("notice-first",))}) == []


def _texts(value: Any) -> list[str]:
    """Every string in it but payloads, which are encoded."""
    if isinstance(value, dict):
        return [text for name, inner in value.items() if name != "data" for text in _texts(inner)]
    if isinstance(value, list):
        return [text for inner in value for text in _texts(inner)]
    return [value] if isinstance(value, str) else []
