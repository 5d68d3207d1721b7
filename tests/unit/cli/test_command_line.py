"""What holds for every command: names, help, exit codes, no stack trace, nothing imported in vain."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner, Result

from gpubank.cli import reference
from gpubank.cli.context import MEANINGS, ExitCode, exit_code
from gpubank.cli.lazy import load
from gpubank.cli.main import Root, app, program_name
from gpubank.domain.errors import BackendError, ConflictError, InvalidObjectError, PolicyError
from tests.unit.cli.bench import Bench

Call = Callable[..., Result]
HEAVY = ("temporalio", "sqlalchemy", "lightkube", "aiohttp", "rich.console", "gpubank.client")


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program of its own, for what it imports."""
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )


def imported(*words: str) -> list[str]:
    """Heavy modules that a command imports."""
    code = f"""
import sys
from gpubank.cli.main import app
try:
    app({list(words)!r}, prog_name="gpubank")
except SystemExit as stop:
    assert not stop.code, stop.code
print("HEAVY", *(name for name in {HEAVY!r} if name in sys.modules))
"""
    result = python(code)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()[-1].split()[1:]


# ---- help and names


@pytest.mark.parametrize("entry", Root.entries, ids=[entry.name for entry in Root.entries])
def test_every_command_loads_and_its_own_help_begins_as_the_list_says(entry: Any) -> None:
    command = load(entry)
    first = " ".join((command.help or "").split("\n\n")[0].split())
    assert first.startswith(entry.help.rstrip(".")), first


def test_help_lists_every_command_and_imports_none(call: Call) -> None:
    text = call("--help").stdout
    assert [name for name in (entry.name for entry in Root.entries) if f"\n  {name} " not in text] == []
    assert imported("--help") == []


def test_files_are_checked_offline_without_any_client(tmp_path: Path) -> None:
    policy = tmp_path / "group.yaml"
    policy.write_text(
        "apiVersion: platform.aik8s.run/v1alpha1\nkind: BusinessGroup\nmetadata: {name: a}\nspec: {owner: mia}\n"
    )
    assert imported("policy", "validate", str(policy)) == []


def test_a_setting_that_is_wrong_does_not_keep_files_from_being_checked(call: Call, tmp_path: Path) -> None:
    empty = tmp_path / "empty.yaml"
    empty.write_text("")
    assert "hold no object" in call("--log-level", "LOUD", "policy", "validate", str(empty)).stderr
    result = call("--log-level", "LOUD", "config", "show")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("gpubank: setting 'log_level' is 'LOUD'")


def test_as_a_plugin_of_kubectl_help_says_how_it_is_called() -> None:
    assert program_name("/usr/local/bin/kubectl-gpubank") == "kubectl gpubank"
    assert program_name("/usr/local/bin/gpubank") == "gpubank"
    result = CliRunner().invoke(app, ["loan", "list", "--help"], prog_name=program_name("kubectl-gpubank"))
    assert result.stdout.startswith("Usage: kubectl gpubank loan list")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["quoto"], "No such command 'quoto'. Did you mean 'quota'?"),
        (["loan", "lits"], "No such command 'lits'. Did you mean 'list'?"),
        (["--stat-dir", "x"], "No such option: --stat-dir (Possible options: --state-dir)"),
        (["--mode", "both", "quota"], "'both' is not one of 'embedded', 'cluster'"),
        (["quota", "-o", "csv"], "'csv' is not one of"),
        (["get", "Foo", "-o"], "Option '-o' requires an argument"),
    ],
)
def test_what_nobody_knows_is_a_usage_error_with_a_hint(call: Call, words: list[str], said: str) -> None:
    result = call(*words)
    assert result.exit_code == 2
    assert said in result.stderr


# ---- errors


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PolicyError("no"), 1),
        (InvalidObjectError("a", ()), 1),
        (ConflictError("no"), 4),
        (BackendError("no"), 5),
    ],
)
def test_errors_have_the_documented_exit_codes(error: Any, code: int) -> None:
    assert exit_code(error) == code
    assert set(MEANINGS) == set(ExitCode)


@pytest.mark.parametrize("words", [("quota",), ("loan", "list"), ("reclaim", "list"), ("get", "GPUPool")])
def test_a_bank_that_does_not_run_is_one_sentence(call: Call, home: Path, words: tuple[str, ...]) -> None:
    result = call("--state-dir", str(home), *words)
    assert (result.exit_code, result.stdout) == (5, "")
    assert result.stderr == (
        f"gpubank: no bank answers on {str(home / 'gpubank.sock')!r}; `gpubank up` starts the embedded one,"
        " `--mode cluster` reaches a cluster's\n"
    )


def test_a_cluster_without_kubeconfig_is_one_sentence(call: Call) -> None:
    result = call("--mode", "cluster", "--kubeconfig", "/nowhere", "quota")
    assert result.exit_code == 5
    assert result.stderr.startswith("gpubank: kubeconfig '/nowhere' cannot be used")
    assert result.stderr.count("\n") == 1


def test_an_error_of_the_program_itself_is_a_sentence_too(
    bench: Bench, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(kind: str) -> Any:
        raise RuntimeError("boom\nsecond line")

    monkeypatch.setattr(bench.cluster, "list", broken)
    result = call("quota")
    assert (result.exit_code, result.stdout) == (70, "")
    assert result.stderr == (
        "gpubank: error of the program itself (RuntimeError: boom); nothing is known to be wrong with the input."
        " GPUBANK_TRACE=1 shows where, for a report\n"
    )
    monkeypatch.setenv("GPUBANK_TRACE", "1")
    assert "Traceback" in call("quota").stderr


def test_an_interrupt_ends_with_130(bench: Bench, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    async def interrupted(kind: str) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(bench.cluster, "list", interrupted)
    result = call("quota")
    assert (result.exit_code, result.output) == (130, "")


def test_ctrl_c_ends_a_running_command_with_130_and_no_word(home: Path) -> None:
    code = """
import asyncio, signal, sys, typer
from gpubank.cli.context import run
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs tests in the background has it ignored
async def main():
    print("ready", flush=True)
    await asyncio.sleep(60)
try:
    run(main)
except typer.Exit as stop:
    sys.exit(stop.exit_code)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
        assert (process.wait(30), said) == (130, "")


def test_a_reader_that_leaves_early_is_no_error_to_talk_about(home: Path) -> None:
    # `config show` writes more than one line; nobody reads any of it.
    read, write = os.pipe()
    os.close(read)
    try:
        result = subprocess.run(
            [sys.executable, "-u", "-m", "gpubank.cli.main", "schema", "show", "GPUPool"],
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(write)
    assert (result.returncode, result.stderr) == (141, "")


# ---- objects


def test_objects_are_read_by_any_name_of_their_kind(bench: Bench, call: Call) -> None:
    for kind in ("GPUPool", "gpupools", "gpool"):
        assert call("get", kind, "-o", "name").stdout == "gpupool/h100\n"
    result = call("get", "GPUPol")
    assert result.exit_code == 3
    assert result.stderr.endswith("; did you mean 'GPUPool'?\n")
    assert call("get", "job").stderr == "there is no Job\n"


def test_an_object_that_is_not_there_is_not_found(bench: Bench, call: Call) -> None:
    for words in (("get", "gpool", "a100"), ("delete", "gpool", "a100")):
        result = call(*words)
        assert result.exit_code == 3
        assert result.stderr.startswith("gpubank: GPUPool 'a100' does not exist")


def test_objects_are_applied_in_order_into_the_namespace_that_is_asked_for(bench: Bench, call: Call) -> None:
    text = """
kind: GPUPool
metadata: {name: a100}
---
kind: GPUQuotaPolicy
metadata: {name: p}
---
kind: GPUQuotaPolicy
metadata: {name: q, namespace: own}
"""
    result = call("apply", "-f", "-", "-n", "search", stdin=text)
    assert result.stdout.split("\n")[:3] == [
        "gpupool/a100 applied",
        "gpuquotapolicy/p applied",
        "gpuquotapolicy/q applied",
    ]
    assert [body["metadata"].get("namespace") for body in bench.cluster.applied] == [None, "search", "own"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "nothing to apply: the files hold no object"),
        ("kind: GPUPool", "an object lacks kind or metadata.name"),
        ("kind: GPUPool\nmetadata: [a]", "an object lacks kind or metadata.name"),
        ("a: [", "standard input"),
    ],
)
def test_what_is_no_object_is_applied_by_nobody(bench: Bench, call: Call, text: str, said: str) -> None:
    result = call("apply", "-f", "-", stdin=text)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())
    assert bench.cluster.applied == []


def test_a_file_that_is_not_there_is_a_usage_error(bench: Bench, call: Call) -> None:
    result = call("apply", "-f", "/nowhere.yaml")
    assert (result.exit_code, result.stderr) == (
        2,
        "gpubank: /nowhere.yaml cannot be read: No such file or directory; name a file that can\n",
    )


# ---- reference


def test_the_reference_tells_of_every_command_and_exit_code(tmp_path: Path) -> None:
    text = reference.page()
    root: Any = get_command(app)
    paths = [f"### {path}\n" for path, _ in reference._commands(root, "gpubank")]
    assert len(paths) > 20
    assert [path for path in paths if path not in text] == []
    assert [code for code in ExitCode if f"| {code.value} | " not in text] == []
    assert reference.write(tmp_path) == [reference.PATH]
    assert reference.write(tmp_path, check=True) == []
    (tmp_path / reference.PATH).write_text("changed")
    assert reference.write(tmp_path, check=True) == [reference.PATH]
    assert (tmp_path / reference.PATH).read_text() == "changed"
