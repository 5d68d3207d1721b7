"""The plugin as a process of its own: started, asked, told to stop; one per node."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from gpubank.cli.context import ExitCode
from gpubank.cli.main import app
from nodeagent.plugin.control import CONTROL_SOCKET
from tests.native.facts import ENVIRONMENT, NvmlFacts

ROOT = Path(__file__).parents[3]
Start = Callable[[], "subprocess.Popen[str]"]


@pytest.fixture
def start(folder: Path, nvml_library: Path, nvml_facts: NvmlFacts) -> Iterator[Start]:
    """Start the plugin; what still runs at the end is killed."""
    config = folder / "nodeagent.yaml"
    names = {"pluginDirectory": "plugins", "registryDirectory": "registry", "stateDirectory": "state"}
    config.write_text(yaml.safe_dump({key: str(folder / name) for key, name in names.items()}))
    environment = {**os.environ, "LD_LIBRARY_PATH": str(nvml_library.parent), ENVIRONMENT: str(nvml_facts.path)}
    running: list[subprocess.Popen[str]] = []

    def run() -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "nodeagent.plugin", "--config", str(folder)]
        with (folder / f"agent-{len(running)}.log").open("w") as log:
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=log, text=True)
        running.append(process)
        return process

    yield run
    for process in running:
        if process.poll() is None:
            process.kill()
        process.wait()


def up(folder: Path, process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 60
    while not (folder / "state" / CONTROL_SOCKET).exists():
        assert process.poll() is None, (folder / "agent-0.log").read_text()
        assert time.monotonic() < deadline, "the agent does not come up"
        time.sleep(0.05)


def gpubank(folder: Path, *words: str) -> Result:
    return CliRunner().invoke(app, ["nodeagent", *words, "--state-dir", str(folder / "state")])


def test_it_serves_is_asked_and_stops_when_told(folder: Path, start: Start, nvml_facts: NvmlFacts) -> None:
    nvml_facts.gpu("GPU-0")
    process = start()
    up(folder, process)
    assert gpubank(folder, "inspect", "-o", "name").stdout == "GPU-0\n"
    assert gpubank(folder, "quarantine", "GPU-0", "--reason", "smell").stdout == "GPU-0: in quarantine\n"
    assert "quarantine" in gpubank(folder, "inspect").stdout
    assert gpubank(folder, "release", "GPU-0").stdout == "GPU-0: released\n"
    assert gpubank(folder, "release", "GPU-0").stdout == "GPU-0: nothing was held against it\n"
    unknown = gpubank(folder, "release", "GPU-9")
    assert (unknown.exit_code, "none of this node's" in unknown.stderr) == (ExitCode.REFUSED, True)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    assert not (folder / "state" / CONTROL_SOCKET).exists()
    gone = gpubank(folder, "inspect")
    assert (gone.exit_code, "does not answer" in gone.stderr) == (ExitCode.UNREACHABLE, True)


def test_a_second_one_on_the_node_ends_at_once_and_says_who_is_there(
    folder: Path, start: Start, nvml_facts: NvmlFacts
) -> None:
    first = start()
    up(folder, first)
    second = start()
    assert second.wait(60) == ExitCode.CONFLICT
    assert f"has an agent already: process {first.pid} holds" in (folder / "agent-1.log").read_text()
    assert first.poll() is None


def test_it_stops_when_told_although_a_gpu_hangs(folder: Path, start: Start, nvml_facts: NvmlFacts) -> None:
    nvml_facts.gpu("GPU-0")
    process = start()
    up(folder, process)
    nvml_facts.change("GPU-0", hang=1)
    time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def test_settings_that_cannot_be_read_end_it_with_a_sentence(folder: Path, start: Start) -> None:
    (folder / "nodeagent.yaml").write_text("gpus: 8\n")
    process = start()
    assert process.wait(60) == ExitCode.REFUSED
    error = (folder / "agent-0.log").read_text()
    assert "gpus: is no field that exists here" in error
    assert "Traceback" not in error


def test_the_light_parts_import_no_heavy_library() -> None:
    light = "nodeagent.classes.classify, nodeagent.nvml.guard, nodeagent.nvml.library, nodeagent.health.marks"
    code = f"import sys, {light}; print(sorted({{'pydantic', 'grpc', 'temporalio', 'yaml'}} & set(sys.modules)))"
    assert (
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        == "[]\n"
    )


def test_the_plugin_runs_without_temporal() -> None:
    code = "import sys, nodeagent.plugin.__main__; print('temporalio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
