"""The exported file: one module, standard library only, old Pythons too, and it does what the package does."""

import ast
import json
import os
import signal
import subprocess
import sys
import time
import venv
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpubank.cli.hook import app
from gpubank.hook.export import single_file

TRAINER = """
import sys, time
sys.path.insert(0, sys.argv[1])
from gpubank_hook import Hook

with Hook.from_env() as hook:
    latest = hook.latest()
    step = latest.step if latest else 0
    print("from", step, flush=True)
    while not hook.stopping:
        time.sleep(0.01)
        step += 1
        request = hook.requested(step)
        if request:
            with hook.saving(request, step=step) as save:
                (save.path / "state").write_text(str(step))
sys.exit(143)
"""
COMMAND = ["checkpoint", "--id=loan/1", "--epoch=1", "--deadline=2099-01-01T00:00:00Z", "--reason=wanted back"]


@pytest.fixture(scope="module")
def empty_venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that sees no package but the standard library."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=False, symlinks=True)
    return folder / "bin" / "python"


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    result = CliRunner().invoke(app, ["export", str(tmp_path / "gpubank_hook.py")])
    assert result.exit_code == 0, result.output
    return tmp_path / "gpubank_hook.py"


def run(python: Path, exported: Path, arguments: list[str], **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-I", exported, *arguments], env={**os.environ, **env}, capture_output=True, text=True, timeout=60
    )


def test_every_import_is_of_the_standard_library() -> None:
    tree = ast.parse(single_file(), feature_version=(3, 9))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names
    assert "gpubank" not in " ".join(imported)


def test_nothing_is_evaluated_that_python_3_9_does_not_know() -> None:
    """Annotations are text there; outside of them, no union of types and nothing that came with 3.10 or later."""
    tree = ast.parse(single_file(), feature_version=(3, 9))
    younger = {"UTC", "StrEnum", "Self", "TypeAlias", "ExceptionGroup", "pairwise", "slots", "kw_only", "strict"}
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    used |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    used |= {str(node.arg) for node in ast.walk(tree) if isinstance(node, ast.keyword)}
    assert not used & younger
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Match)]
    unions = [node for node in ast.walk(tree) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)]
    annotations = [
        part
        for node in ast.walk(tree)
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if part is not None
    ]
    inside = {id(node) for part in annotations for node in ast.walk(part)}
    outside = [ast.unparse(node) for node in unions if id(node) not in inside]
    assert outside == []


def test_export_replaces_a_file_that_differs_only_when_told_to(tmp_path: Path) -> None:
    target = tmp_path / "gpubank_hook.py"
    target.write_text("mine\n")
    refused = CliRunner().invoke(app, ["export", str(tmp_path)])
    assert refused.exit_code == 1
    assert "--force" in refused.output
    assert target.read_text() == "mine\n"
    assert CliRunner().invoke(app, ["export", str(tmp_path), "--force"]).exit_code == 0
    assert CliRunner().invoke(app, ["export", str(tmp_path)]).exit_code == 0
    assert target.read_text() == single_file()
    assert CliRunner().invoke(app, ["export", "-"]).output == single_file()
    assert CliRunner().invoke(app, ["export", str(tmp_path / "no" / "where.py")]).exit_code == 1


def test_a_name_that_ends_in_a_slash_is_a_folder_and_is_made(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["export", f"{tmp_path}/images/train/"]).exit_code == 0
    assert (tmp_path / "images" / "train" / "gpubank_hook.py").read_text() == single_file()
    (tmp_path / "file").write_text("mine\n")
    refused = CliRunner().invoke(app, ["export", f"{tmp_path}/file/"])
    assert (refused.exit_code, "cannot write" in refused.output) == (1, True)
    assert (tmp_path / "file").read_text() == "mine\n"


def test_trainer_in_an_empty_venv_is_asked_by_command_stopped_and_resumed(
    empty_venv: Path, exported: Path, tmp_path: Path
) -> None:
    address = tmp_path / "address"
    env = {
        "GPUBANK_HOOK_STORAGE": str(tmp_path / "run"),
        "GPUBANK_HOOK_PORT": "0",
        "GPUBANK_HOOK_ADDRESS_FILE": str(address),
        "GPUBANK_HOOK_UID": "pod-1",
    }

    def start() -> subprocess.Popen[str]:
        address.unlink(missing_ok=True)
        process = subprocess.Popen(
            [empty_venv, "-I", "-c", TRAINER, exported.parent],
            env={**os.environ, **env},
            stdout=subprocess.PIPE,
            text=True,
        )
        end = time.monotonic() + 60
        while not address.exists():
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.02)
        return process

    with start() as process:
        done = run(empty_venv, exported, COMMAND, **env)
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout.splitlines()[-1])
        assert (answer["state"], answer["trainerUID"]) == ("durable", "pod-1")
        again = run(empty_venv, exported, ["checkpoint", "--id=loan/1", "--status"], **env)
        assert (again.returncode, json.loads(again.stdout)) == (0, answer)
        unknown = run(empty_venv, exported, ["checkpoint", "--id=loan/2", "--status"], **env)
        assert unknown.returncode == 66
        older = run(empty_venv, exported, [*COMMAND[:1], "--id=x", "--epoch=0", *COMMAND[3:]], **env)
        assert older.returncode == 1
        assert json.loads(older.stdout)["state"] == "failed"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
    with start() as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"from {answer['step']}\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143


def test_command_tells_apart_no_hook_no_trainer_and_wrong_use(empty_venv: Path, exported: Path) -> None:
    assert run(empty_venv, exported, COMMAND, GPUBANK_HOOK_PORT="").returncode == 64
    assert run(empty_venv, exported, ["checkpoint"]).returncode == 64
    assert run(empty_venv, exported, ["dance"]).returncode == 64
    assert run(empty_venv, exported, ["relay", "--pod=x"], KUBERNETES_SERVICE_HOST="").returncode == 64
    assert run(empty_venv, exported, [*COMMAND, "--url=http://127.0.0.1:1"]).returncode == 75
