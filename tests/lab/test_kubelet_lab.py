"""The lab's real node: what runs on it, and that a machine has one at a time."""

import platform
import tarfile
from pathlib import Path

import pytest

from gpubank.lab import Lab, StateError, machine, oci, podspec
from gpubank.lab.names import COMMAND, NODE_ADDRESS, REAL_NODE
from gpubank.lab.runtime import PAUSE_IMAGE, pause_archive
from tests.support.realnode import RealNode
from tests.support.waiting import until


def test_a_pod_is_a_container_with_an_address_of_its_own(node: RealNode) -> None:
    node.run("idle", podspec.idle_pod())
    status = node.await_phase("idle", "Running")["status"]
    assert status["podIP"].startswith("198.18.38.")
    assert status["hostIP"] == NODE_ADDRESS
    assert status["containerStatuses"][0]["containerID"].startswith("containerd://")


def test_a_pod_can_run_this_machines_python_on_shown_folders_and_write_where_it_may(
    node: RealNode, tmp_path: Path
) -> None:
    shown, out = tmp_path / "shown", tmp_path / "out"
    for folder in (shown, out):
        folder.mkdir()
    (shown / "word").write_text("hello")
    script = f"""
import pathlib, gpubank
pathlib.Path({str(out)!r}, "said").write_text(pathlib.Path({str(shown)!r}, "word").read_text())
try:
    pathlib.Path({str(shown)!r}, "more").write_text("no")
except OSError as error:
    print("refused:", error.strerror)
"""
    root = Path(__file__).parents[2]
    node.run("python", podspec.python_pod(["-c", script], read_only=[root, shown], writable=[out], folder=root))
    node.await_phase("python", "Succeeded")
    assert (out / "said").read_text() == "hello"
    assert node.output("python") == "refused: Read-only file system\n"


def test_a_pod_of_the_real_node_is_nobodys_but_the_kubelets(node: RealNode) -> None:
    spec = podspec.python_pod(["-c", "print('from the container')"])
    made = podspec.pod("annotated", spec)
    made["metadata"]["annotations"] = {COMMAND: '["false"]'}
    node.api.request("POST", "/api/v1/namespaces/default/pods", json=made)
    try:
        pod = node.await_phase("annotated", "Succeeded")
        assert "finalizers" not in pod["metadata"], "the runner keeps away"
        assert node.output("annotated") == "from the container\n"
    finally:
        node.api.request("DELETE", "/api/v1/namespaces/default/pods/annotated")
    until(lambda: not node.pod("annotated"), "its end")


def test_an_image_of_ones_own_runs(node: RealNode, tmp_path: Path) -> None:
    with tarfile.open(pause_archive()) as archive:
        blobs = [archive.extractfile(each) for each in archive.getmembers() if each.name.startswith("blobs/")]
        layers = [blob.read() for blob in blobs if blob is not None]
    layer = max(layers, key=len)
    (tmp_path / "layer.tar").write_bytes(layer)
    with tarfile.open(tmp_path / "layer.tar") as files:
        program = files.extractfile("pause")
        assert program is not None
        image = oci.archive(
            "gpubank.test/own:1", {"own": program.read()}, ["/own", "0"], machine=platform.machine(), folders=["tmp"]
        )
    (tmp_path / "own.tar").write_bytes(image)
    node.lab.load_image(tmp_path / "own.tar")
    spec = podspec.idle_pod()
    spec["containers"][0]["image"] = "gpubank.test/own:1"
    node.run("own", spec)
    node.await_phase("own", "Succeeded")


def test_a_second_lab_gets_no_kubelet_and_is_told_who_has_it(kubelet_lab: Lab) -> None:
    other = Lab("kubelet-second", nodes=0, extra=["kubelet"])
    try:
        with pytest.raises(StateError, match=rf"belongs to lab '{kubelet_lab.name}'.*gpubank lab down"):
            other.up()
    finally:
        other.clean()
    claim = machine.claimed()
    assert claim is not None
    assert claim.lab == kubelet_lab.name
    assert kubelet_lab.is_up()


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a kubelet, as far as the lab's claims go."""
    places = {"KUBELET": "kubelet", "RUN": "run", "_LOCK": "lock"}
    # A lab with a real kubelet may run meanwhile.
    places |= dict.fromkeys(("_CNI_RESULTS", "_LOG_LINKS", "_SHIM_SOCKETS", "_CGROUPS"), "nothing")
    for name, folder in places.items():
        monkeypatch.setattr(machine, name, tmp_path / folder)
    monkeypatch.setattr(machine, "TASKS", tmp_path / "run" / "tasks")
    monkeypatch.setattr(machine, "_SYSCTLS", ())
    for name in ("add", "remove"):
        monkeypatch.setattr(f"gpubank.lab.loopback.{name}", lambda *_: None)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(machine, "_kubelets", lambda: [])
    return tmp_path


def test_a_claim_is_given_back_with_everything_that_came_to_the_folder(elsewhere: Path) -> None:
    machine.claim("mine", elsewhere / "mine")
    (elsewhere / "kubelet" / "pods" / "uid").mkdir(parents=True)
    (elsewhere / "kubelet" / "pods" / "uid" / "file").touch()
    machine.release(elsewhere / "another")
    assert (elsewhere / "kubelet" / "pods").exists(), "who has no claim gives nothing back"
    machine.release(elsewhere / "mine")
    assert not (elsewhere / "kubelet").exists()
    assert not (elsewhere / "run").exists()


def test_the_claim_of_a_lab_that_is_gone_is_cleared_away_for_the_next(elsewhere: Path) -> None:
    machine.claim("gone", elsewhere / "gone")
    (elsewhere / "kubelet" / "rest").touch()
    machine.claim("next", elsewhere / "next")
    assert not (elsewhere / "kubelet" / "rest").exists()
    claim = machine.claimed()
    assert claim is not None
    assert claim.lab == "next"


def test_the_folder_of_a_strangers_kubelet_is_left_alone(elsewhere: Path) -> None:
    (elsewhere / "kubelet").mkdir()
    (elsewhere / "kubelet" / "config.yaml").write_text("precious")
    with pytest.raises(StateError, match=r"holds the files of a kubelet that is no lab's; use a machine"):
        machine.claim("mine", elsewhere / "mine")
    assert (elsewhere / "kubelet" / "config.yaml").read_text() == "precious"
    assert machine.claimed() is None


def test_a_strangers_running_kubelet_is_named(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_kubelets", lambda: [4711])
    with pytest.raises(StateError, match=r"pid 4711; use a machine"):
        machine.claim("mine", elsewhere / "mine")


def test_without_root_it_says_so_before_it_touches_anything(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(StateError, match=r"needs root, and this is uid 1000; run the command as root"):
        machine.claim("mine", elsewhere / "mine")
    assert list(elsewhere.iterdir()) == []


def test_equal_images_are_equal_bytes() -> None:
    one, other = (oci.archive(PAUSE_IMAGE, {"pause": b"x"}, ["/pause"], machine="x86_64") for _ in range(2))
    assert one == other
    assert b'"amd64"' in one


def test_python_pods_mount_nothing_into_what_is_already_read_only(tmp_path: Path) -> None:
    spec = podspec.python_pod(["-V"], read_only=[Path("/usr/share"), tmp_path], writable=[tmp_path / "out"])
    mounts = {each["mountPath"]: each["readOnly"] for each in spec["containers"][0]["volumeMounts"]}
    assert "/usr/share" not in mounts
    assert (mounts["/usr"], mounts[str(tmp_path)], mounts[str(tmp_path / "out")]) == (True, True, False)
    assert podspec.pod("x", spec)["spec"]["nodeName"] == REAL_NODE
