"""The runner: pods on fake nodes get real processes, and a pod is gone only when its process is."""

import json
import os
import sys
import urllib.request
from pathlib import Path

import pytest

from gpubank.lab import Lab
from gpubank.lab.names import ENDPOINT, FINALIZER
from gpubank.simulation.processes import ProcessId
from tests.lab.objects import Tenants
from tests.support.waiting import until

# Serves its uid on the port it was given; says when SIGTERM comes and ends when the test lets it.
SERVER = """
import http.server, os, pathlib, signal, sys, threading, time
folder = pathlib.Path(sys.argv[1])

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(os.environ["GPUBANK_POD_UID"].encode())

def told(number, frame):
    (folder / "told").touch()

signal.signal(signal.SIGTERM, told)
server = http.server.HTTPServer(("127.0.0.1", int(os.environ["GPUBANK_HOOK_PORT"])), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
(folder / "pid").write_text(str(os.getpid()))
while not (folder / "go").exists():
    time.sleep(0.02)
sys.exit(int((folder / "go").read_text() or 0))
"""


def server(folder: Path) -> list[str]:
    return [sys.executable, "-c", SERVER, str(folder)]


def pid_in(folder: Path) -> int:
    until(lambda: (folder / "pid").exists() and bool((folder / "pid").read_text()), "the process")
    return int((folder / "pid").read_text())


def test_a_job_of_kueue_runs_as_a_process_and_ends_before_its_pod_does(tenant: Tenants, tmp_path: Path) -> None:
    group = tenant(own=8)
    group.submit("train", "own", command=server(tmp_path), grace=30)
    until(lambda: [each["status"].get("phase") for each in group.pods("train")] == ["Running"], "its pod to run")
    pid_in(tmp_path)
    pod = group.pods("train")[0]
    assert FINALIZER in pod["metadata"]["finalizers"]
    with urllib.request.urlopen(pod["metadata"]["annotations"][ENDPOINT], timeout=10) as answer:
        assert answer.read().decode() == pod["metadata"]["uid"]

    group.set_active("train", False)
    until((tmp_path / "told").exists, "SIGTERM after the Workload was deactivated")
    held = group.pods("train")[0]
    assert held["metadata"]["uid"] == pod["metadata"]["uid"]
    assert FINALIZER in held["metadata"]["finalizers"]

    (tmp_path / "go").write_text("0")
    until(lambda: not group.pods("train"), "the pod to go once its process has")


@pytest.mark.parametrize(("code", "phase"), [(0, "Succeeded"), (3, "Failed")])
def test_the_exit_code_decides_the_phase(tenant: Tenants, code: int, phase: str) -> None:
    group = tenant()
    group.create_pod("once", command=["sh", "-c", f"exit {code}"])
    until(lambda: group.phase("once") == phase, f"phase {phase}")
    container = group.pod("once")["status"]["containerStatuses"][0]
    assert container["state"]["terminated"]["exitCode"] == code
    until(lambda: FINALIZER not in group.pod("once")["metadata"].get("finalizers", ()), "the finalizer's removal")


def test_environment_comes_from_container_and_annotation(tenant: Tenants, tmp_path: Path) -> None:
    group = tenant()
    script = f'echo "$GPUBANK_POD_NAMESPACE/$GPUBANK_POD_NAME $COLOR" > {tmp_path}/said'
    group.create_pod("env", command=["sh", "-c", script], env=json.dumps({"COLOR": "green"}))
    until(lambda: group.phase("env") == "Succeeded", "the end")
    assert (tmp_path / "said").read_text() == f"{group.namespace}/env green\n"


def test_a_process_that_ignores_sigterm_is_killed_after_its_grace(tenant: Tenants, tmp_path: Path) -> None:
    group = tenant()
    group.create_pod("stubborn", command=server(tmp_path), grace=1)
    process = ProcessId.of(pid_in(tmp_path))
    assert process is not None
    group.delete_pod("stubborn")
    until(lambda: not group.pod("stubborn"), "the pod's end")
    assert (tmp_path / "told").exists()
    assert not process.alive()


def test_a_command_that_cannot_be_read_fails_its_pod_and_says_why(tenant: Tenants) -> None:
    group = tenant()
    group.create_pod("bad", command=["true"], env="[]")
    until(lambda: group.phase("bad") == "Failed", "a refusal")
    assert "JSON object of strings" in group.pod("bad")["status"]["message"]
    group.delete_pod("bad")
    until(lambda: not group.pod("bad"), "a refused pod to go when it is deleted")


def test_a_pod_with_restart_policy_always_is_started_again(tenant: Tenants, tmp_path: Path) -> None:
    group = tenant()
    script = f"echo x >> {tmp_path}/starts; test $(wc -l < {tmp_path}/starts) -gt 1 && exec sleep 60"
    group.create_pod("again", command=["sh", "-c", script], policy="Always", grace=1)

    def restarts() -> int:
        return sum(each["restartCount"] for each in group.pod("again")["status"].get("containerStatuses", ()))

    until(lambda: restarts() == 1 and group.phase("again") == "Running", "a second start")
    group.delete_pod("again")
    until(lambda: not group.pod("again"), "the end")


def test_a_new_runner_goes_on_with_what_a_killed_one_left(lab: Lab, tenant: Tenants, tmp_path: Path) -> None:
    group = tenant()
    folders = [tmp_path / "stays", tmp_path / "ends"]
    for folder in folders:
        folder.mkdir()
        group.create_pod(folder.name, command=server(folder))
    stays, ends = (pid_in(folder) for folder in folders)
    until(lambda: [group.phase(each.name) for each in folders] == ["Running", "Running"], "both pods")

    lab.kill("runner")
    (tmp_path / "ends" / "go").write_text("5")
    until(lambda: ProcessId.of(ends) is None, "the process that ends while no runner looks")
    assert ProcessId.of(stays) is not None
    lab.start("runner")

    until(lambda: group.phase("ends") == "Failed", "the exit code of a process that is not the runner's child")
    ended = group.pod("ends")["status"]["containerStatuses"][0]["state"]["terminated"]
    assert ended["exitCode"] == 5
    assert group.phase("stays") == "Running"
    assert pid_in(tmp_path / "stays") == stays

    (tmp_path / "stays" / "go").write_text("0")
    group.delete_pod("stays")
    until(lambda: not group.pod("stays"), "the pod's end")
    assert not os.path.exists(f"/proc/{stays}")
