"""Starting, stopping and finding again, with components that are shell scripts: no state may make a lab err."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpubank.lab import Lab, StartError, StateError, state
from gpubank.lab.components import Component
from gpubank.lab.state import MARKER, Record, State
from gpubank.simulation.processes import ProcessId, launch, stop


def script(name: str, text: str, *, ready: str | None = None, depends_on: tuple[str, ...] = ()) -> Component:
    return Component(
        name=name,
        command=lambda context: ["sh", "-c", text],
        ready=lambda context: ready,
        ports=("kube-apiserver",) if name == "first" else (),
        depends_on=depends_on,
        start_timeout=1,
        stop_grace=1,
    )


SLEEPS = (script("first", "exec sleep 300"), script("second", "exec sleep 300", depends_on=("first",)))


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUBANK_LAB_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def lab_of(*components: Component, name: str = "small") -> Lab:
    lab = Lab(name, nodes=0)
    lab.components = components
    return lab


@pytest.fixture
def lab() -> Iterator[Lab]:
    lab = lab_of(*SLEEPS)
    yield lab
    lab.clean()


@pytest.fixture
def stranger() -> Iterator[ProcessId]:
    """A process that is nobody's business."""
    process = subprocess.Popen(["sleep", "300"], start_new_session=True)
    identity = ProcessId.of(process.pid)
    assert identity is not None
    yield identity
    process.kill()
    process.wait()


def processes(lab: Lab) -> dict[str, ProcessId]:
    known = lab.state
    assert known is not None
    return {record.component: record.identity for record in known.processes}


def test_up_twice_changes_nothing_and_says_so(lab: Lab) -> None:
    assert lab.up()
    before = processes(lab)
    assert not lab.up()
    assert not lab_of(*SLEEPS).up(), "another command that names the same lab finds it up"
    assert processes(lab) == before
    assert lab.is_up()


def test_down_stops_everything_and_keeps_the_logs(lab: Lab) -> None:
    lab.up()
    before = processes(lab)
    assert lab.down()
    assert not any(each.alive() for each in before.values())
    assert lab.state is None
    assert lab.log("first").exists()
    assert not lab.kubeconfig.exists()
    assert not lab.down()


def test_a_lab_with_a_dead_process_is_cleared_and_started_anew(lab: Lab) -> None:
    lab.up()
    before = processes(lab)
    lab.kill("second")
    assert not lab.is_up()
    assert lab.up()
    assert not before["first"].alive()
    assert lab.is_up()


def test_a_component_that_dies_at_start_shows_its_last_words_and_takes_the_rest_along() -> None:
    lab = lab_of(SLEEPS[0], script("broken", "echo no such flag >&2; exit 3", ready="not yet", depends_on=("first",)))
    with pytest.raises(StartError, match="no such flag") as failure:
        lab.up()
    assert str(lab.log("broken")) in str(failure.value)
    assert lab.state is None
    assert list(state.strays(lab.folder)) == []


def test_a_component_that_never_serves_is_given_up_with_what_is_missing() -> None:
    lab = lab_of(script("first", "exec sleep 300", ready="/readyz says 500"))
    with pytest.raises(StartError, match="/readyz says 500"):
        lab.up()
    assert list(state.strays(lab.folder)) == []


def test_a_process_that_no_state_file_knows_is_found_and_stopped(lab: Lab) -> None:
    lab.folder.mkdir(parents=True)
    orphan = launch(["sleep", "300"], env=os.environ | {MARKER: str(lab.folder)}, log=lab.folder / "log")
    assert lab.down()
    assert not orphan.alive()


@pytest.mark.parametrize("broken", ["", "{", '{"name": "small"}'])
def test_an_unreadable_state_file_is_no_obstacle(lab: Lab, broken: str) -> None:
    lab.up()
    before = processes(lab)
    (lab.folder / state.FILE).write_text(broken)
    assert not lab.is_up()
    assert lab.up()
    assert not any(each.alive() for each in before.values())


def record_of(lab: Lab, process: ProcessId, *, boot: str, started: str) -> None:
    record = Record(component="first", pid=process.pid, started=started, log=lab.log("first"))
    known = State(name="small", phase="ready", boot=boot, ports={}, processes=(record,), components=("first",))
    state.write(lab.folder, known)


def test_a_pid_that_went_to_another_process_is_left_alone(lab: Lab, stranger: ProcessId) -> None:
    record_of(lab, stranger, boot=state.boot_id(), started="1")
    assert not lab.is_up()
    lab.down()
    assert stranger.alive()


def test_a_pid_of_before_the_reboot_is_left_alone(lab: Lab, stranger: ProcessId) -> None:
    record_of(lab, stranger, boot="another boot", started=stranger.started)
    assert not lab.is_up()
    lab.up()
    assert stranger.alive()


def test_a_killed_component_comes_back_on_its_old_ports(lab: Lab) -> None:
    lab.up()
    before = lab.state
    assert before is not None
    with pytest.raises(StateError, match="runs"):
        lab.start("second")
    lab.kill("second")
    assert not lab.is_up()
    lab.kill("first")
    lab.start("first")
    lab.start("second")
    after = lab.state
    assert after is not None
    assert lab.is_up()
    assert after.ports == before.ports
    assert [each.component for each in after.processes] == ["first", "second"], "the last to start is the first to stop"


def test_two_labs_promise_no_port_twice(lab: Lab, root: Path) -> None:
    other = lab_of(*SLEEPS, name="other")
    try:
        lab.up()
        other.up()
        ours, theirs = lab.state, other.state
        assert ours is not None
        assert theirs is not None
        assert not set(ours.ports.values()) & set(theirs.ports.values())
        other.down()
        assert lab.is_up()
    finally:
        other.clean()


@pytest.mark.parametrize("name", ["", "Default", "a/b", "..", "-a", "x" * 41])
def test_a_name_that_is_no_dns_label_is_refused(name: str) -> None:
    with pytest.raises(StateError, match="DNS label"):
        Lab(name)


def test_an_unknown_component_is_refused_with_those_there_are() -> None:
    with pytest.raises(StateError, match=r"'nonsense'.*etcd"):
        Lab("small", extra=["nonsense"])


def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    stubborn = launch(
        ["sh", "-c", f"trap '' TERM; touch {ready}; while :; do sleep 0.05; done"], env=os.environ, log=tmp_path / "log"
    )
    while not ready.exists():
        assert stubborn.alive()
    assert not stop(stubborn, 0.2)
    assert not stubborn.alive()
