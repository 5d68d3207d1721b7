"""Who else has the node: one agent, one provider for a GPU, and old files prove nothing."""

import json
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpubank.domain.errors import ConflictError
from nodeagent.plugin.instance import Instance
from nodeagent.plugin.provider import other_provider

Listen = Callable[[str], Path]


@pytest.fixture
def folders() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="gpb-"))  # a socket's path is short
    (folder / "plugins").mkdir()
    (folder / "registry").mkdir()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def listen(folders: Path) -> Iterator[Listen]:
    with ExitStack() as stack:

        def start(name: str) -> Path:
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(folders / name))
            listener.listen()
            return folders / name

        yield start


def found(folders: Path, *uuids: str, ours: tuple[str, ...] = ()) -> str | None:
    return other_provider(folders / "plugins", folders / "registry", uuids, ours)


def test_an_empty_node_is_ours(folders: Path) -> None:
    assert found(folders, "GPU-a") is None
    assert other_provider(folders / "no", folders / "no", ["GPU-a"]) is None


@pytest.mark.parametrize("name", ["nvidia-gpu.sock", "nvidia.sock", "nvidia-mig-1g.10gb.sock"])
def test_nvidias_plugin_is_named(folders: Path, listen: Listen, name: str) -> None:
    listen(f"plugins/{name}")
    reason = found(folders, "GPU-a") or ""
    assert reason.startswith("NVIDIA's device plugin answers on")
    assert name in reason
    assert "a GPU has one provider" in reason


def test_nvidias_dra_driver_is_named_but_its_compute_domains_are_no_gpus(folders: Path, listen: Listen) -> None:
    listen("registry/compute-domain.nvidia.com-reg.sock")
    assert found(folders, "GPU-a") is None
    listen("registry/gpu.nvidia.com-reg.sock")
    assert (found(folders, "GPU-a") or "").startswith("NVIDIA's DRA driver answers on")


def test_a_socket_of_a_program_that_is_gone_proves_nothing(folders: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folders / "plugins" / "nvidia-gpu.sock"))
        listener.listen()
    assert found(folders, "GPU-a") is None


@pytest.mark.parametrize(
    ("uuids", "want"),
    [(("GPU-a",), "'example.com/gpu' is registered for GPUs of this node"), (("GPU-z",), "")],
)
def test_another_plugin_counts_if_the_kubelet_knows_our_gpus_by_it(
    folders: Path, listen: Listen, uuids: tuple[str, ...], want: str
) -> None:
    registered = {"example.com/gpu": ["GPU-a::1"], "accelerator.aik8s.run/h100-80gb": ["GPU-z"]}
    (folders / "plugins" / "kubelet_internal_checkpoint").write_text(
        json.dumps({"Data": {"RegisteredDevices": registered}})
    )
    listen("plugins/gpubank-h100-80gb.sock")
    listen("plugins/kubelet.sock")
    assert found(folders, *uuids, ours=("gpubank-h100-80gb.sock",)) is None  # registered once, but nobody answers now
    listen("plugins/other.sock")
    assert want in (found(folders, *uuids, ours=("gpubank-h100-80gb.sock",)) or "")


@pytest.mark.parametrize(
    "text", ["", "[]", '{"Data": {"RegisteredDevices": []}}', '{"Data": {"RegisteredDevices": {"a": 1}}}']
)
def test_a_checkpoint_of_another_form_is_no_evidence(folders: Path, listen: Listen, text: str) -> None:
    (folders / "plugins" / "kubelet_internal_checkpoint").write_text(text)
    listen("plugins/other.sock")
    assert found(folders, "GPU-a") is None


def test_a_second_agent_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    with Instance(tmp_path), pytest.raises(ConflictError, match="has an agent already: process"), Instance(tmp_path):
        pass
    with Instance(tmp_path):
        pass
