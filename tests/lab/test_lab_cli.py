"""`gpubank lab`: what it prints and how it exits, on a lab of two shell scripts."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gpubank.cli.lab import app
from gpubank.lab import Lab
from gpubank.lab import lab as module
from gpubank.lab.components import Component


def script(name: str, text: str = "exec sleep 300", *ports: str) -> Component:
    return Component(
        name=name,
        command=lambda context: ["sh", "-c", text],
        ready=lambda context: None if text.startswith("exec") else "it has not served yet",
        ports=ports,
        stop_grace=1,
    )


BROKEN = script("broken", "echo cannot bind >&2; exit 1")


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make every lab one of shell scripts, in a state folder of the test's own."""
    components = {"base": script("base", "exec sleep 300", "kube-apiserver"), "more": script("more"), "broken": BROKEN}

    def choose(extra: tuple[str, ...] = ()) -> tuple[Component, ...]:
        return tuple(components[name] for name in ("base", *extra))

    monkeypatch.setenv("GPUBANK_LAB_STATE", str(tmp_path))
    monkeypatch.setattr(module, "choose", choose)
    monkeypatch.setattr(module, "EXTRA", tuple(components.values()))
    yield
    Lab("cli").clean()


def lab(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "--name", "cli"])


def facts(*arguments: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(lab(*arguments, "--json").stdout)
    return found


def test_up_prints_the_kubeconfig_and_a_second_up_says_that_it_did_nothing() -> None:
    first = lab("up", "--nodes", "0")
    assert first.exit_code == 0, first.output
    assert f"export KUBECONFIG={Lab('cli').kubeconfig}" in first.stdout
    second = lab("up", "--nodes", "0")
    assert second.exit_code == 0
    assert "was up already" in second.stdout


def test_json_of_up_is_one_object_with_stable_keys() -> None:
    found = facts("up", "--nodes", "0")
    assert sorted(found) == ["kubeconfig", "name", "seconds", "started"]
    assert found["started"] is True


def test_status_exits_with_1_unless_everything_runs() -> None:
    assert lab("status").exit_code == 1
    lab("up", "--nodes", "0")
    assert lab("status").exit_code == 0
    Lab("cli").kill("base")
    dead = lab("status")
    assert dead.exit_code == 1
    assert "dead" in dead.stdout


def test_a_component_asked_for_later_joins_the_running_lab() -> None:
    lab("up", "--nodes", "0")
    before = {each["component"]: each["pid"] for each in facts("status")["processes"]}  # type: ignore[attr-defined]
    assert lab("up", "--nodes", "0", "--with", "more").exit_code == 0
    after = {each["component"]: each["pid"] for each in facts("status")["processes"]}  # type: ignore[attr-defined]
    assert after == before | {"more": after["more"]}
    assert lab("status").exit_code == 0


def test_a_component_that_does_not_start_leaves_the_running_lab_as_it_was() -> None:
    lab("up", "--nodes", "0")
    failed = lab("up", "--nodes", "0", "--with", "broken")
    assert failed.exit_code == 1
    assert "cannot bind" in failed.stderr
    assert lab("status").exit_code == 0


def test_a_start_that_fails_says_why_and_exits_with_1() -> None:
    failed = lab("up", "--nodes", "0", "--with", "broken")
    assert failed.exit_code == 1
    assert "cannot bind" in failed.stderr
    assert "Traceback" not in failed.output
    assert lab("status").exit_code == 1


def test_down_says_whether_there_was_something_to_stop() -> None:
    assert facts("down") == {"name": "cli", "stopped": False}
    lab("up", "--nodes", "0")
    assert facts("down") == {"name": "cli", "stopped": True}


def test_clean_leaves_no_file(tmp_path: Path) -> None:
    lab("up", "--nodes", "0")
    lab("clean")
    assert [each.name for each in tmp_path.iterdir()] == [".ports.lock"]
