"""The device plugin against NVIDIA's: registering, registering anew after a kubelet's restart, handing out.

Both run as processes on the tests' stand-in for `libnvidia-ml.so.1`, with the same eight GPUs, under the same fake
kubelet, one after the other. NVIDIA's is built from its Go module into a cache; that needs a Go toolchain, a C compiler
and the module proxy, and takes minutes the first time. The folder of its sockets is a constant, so it runs in a mount
namespace of its own (`unshare`, as root or with user namespaces). Where that cannot be had, ours is measured alone and
no ratio is told.
"""

import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc
import grpc.aio

from benchmarks import report
from benchmarks.exporter import end, launch_command
from gpubank.lab import golang
from gpubank.lab.errors import BuildError
from nodeagent.pb.deviceplugin import api_pb2, api_pb2_grpc
from tests.fakes.kubelet import AUTHORITY, FakeKubelet
from tests.native.build import build
from tests.native.facts import NvmlFacts

GPUS: Final = 8
ROOT: Final = Path(__file__).parents[1]
MODULE: Final = "github.com/NVIDIA/k8s-device-plugin"
VERSION: Final = "v0.19.0"
_PLUGINS: Final = "/var/lib/kubelet/device-plugins"
_ENTER: Final = (
    f'mount -t tmpfs none /var/lib && mkdir -p {_PLUGINS} && mount --bind "$1" {_PLUGINS} && shift && exec "$@"'
)


class Peer(NamedTuple):
    """One plugin."""

    name: str
    resource: str
    command: Callable[[Path], Sequence[str]]
    """Command line, given the run's folder."""


def ours(folder: Path) -> Sequence[str]:
    """Write the settings and return the command of the bank's plugin."""
    settings = {
        "pluginDirectory": str(folder / "plugins"),
        "registryDirectory": str(folder / "registry"),
        "stateDirectory": str(folder / "state"),
        "driverDirectory": str(folder / "driver"),
    }
    (folder / "nodeagent.yaml").write_text(json.dumps(settings))
    return [sys.executable, "-m", "nodeagent.plugin", "--config", str(folder / "nodeagent.yaml")]


def nvidias(binary: Path) -> Callable[[Path], Sequence[str]]:
    """Return what makes the command of NVIDIA's plugin."""
    enter = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"]), "sh", "-c", _ENTER, "sh"]
    return lambda folder: [*enter, str(folder / "plugins"), str(binary)]


def build_nvidias() -> Path:
    """Return NVIDIA's plugin, built where it is not in the cache. Raises BuildError, CalledProcessError."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = home / "gpubank" / "benchmarks" / f"k8s-device-plugin-{VERSION}"
    binary = folder / "nvidia-device-plugin"
    if binary.exists():
        return binary
    toolchain = golang.find_toolchain()
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**toolchain.environment(), "CGO_ENABLED": "1"}  # it loads NVML with the C library's own loader
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        package = f"{MODULE}/cmd/nvidia-device-plugin"
        for arguments in (
            ("mod", "init", "benchmark"),
            ("get", f"{package}@{VERSION}"),
            ("build", "-o", "plugin", package),
        ):
            subprocess.run([toolchain.go, *arguments], cwd=scratch, env=environment, check=True, capture_output=True)
        (Path(scratch) / "plugin").rename(binary)
    return binary


@asynccontextmanager
async def running(peer: Peer) -> AsyncIterator[tuple[FakeKubelet, subprocess.Popen[bytes], float, NvmlFacts]]:
    """Run a plugin under a kubelet; yields both, and the seconds until its GPUs were counted."""
    folder = Path(tempfile.mkdtemp(prefix="gpb-plugin-"))
    for name in ("plugins", "registry", "state", "driver"):
        (folder / name).mkdir()
    facts = NvmlFacts(folder / "nvml.facts")
    with facts.at_once():
        uuids = [facts.gpu(f"GPU-{number:08d}-0000-4000-8000-000000000000") for number in range(GPUS)]
        for place, one in enumerate(uuids):
            for other in uuids[place + 1 :]:
                facts.near(one, other, 30)
    kubelet = FakeKubelet(folder / "plugins")
    await kubelet.start()
    await asyncio.to_thread(build)  # before the clock runs
    started = time.perf_counter()
    process = launch_command(folder, "plugin", peer.command(folder))
    try:
        try:
            await kubelet.until({peer.resource: GPUS}, timeout=60)
        except AssertionError as error:
            raise RuntimeError(f"{peer.name}: {error}\n{(folder / 'plugin.log').read_text()[-3000:]}") from error
        yield kubelet, process, time.perf_counter() - started, facts
    finally:
        await asyncio.to_thread(end, process)
        await kubelet.stop()
        await asyncio.to_thread(shutil.rmtree, folder)


async def measure(peer: Peer, calls: int, restarts: int) -> dict[str, float]:
    """Measure one plugin; times in milliseconds."""
    async with running(peer) as (kubelet, process, start, facts):
        found = {"start_ms": start * 1000}
        (path,) = [each for each in kubelet.folder.glob("*.sock") if each.name != "kubelet.sock"]
        uuids = sorted(kubelet.healthy(peer.resource))
        async with grpc.aio.insecure_channel(f"unix://{path}", options=AUTHORITY) as channel:
            stub: Any = api_pb2_grpc.DevicePluginStub(channel)
            preferred = api_pb2.PreferredAllocationRequest(
                container_requests=[
                    api_pb2.ContainerPreferredAllocationRequest(available_deviceIDs=uuids, allocation_size=4)
                ]
            )
            allocate = api_pb2.AllocateRequest(
                container_requests=[api_pb2.ContainerAllocateRequest(devices_ids=uuids[:4])]
            )
            for name, call, request in (
                ("preferred", stub.GetPreferredAllocation, preferred),
                ("allocate", stub.Allocate, allocate),
            ):
                taken = await _times(call, request, calls)
                found[f"{name}_p50_ms"] = statistics.median(taken)
                found[f"{name}_p99_ms"] = report.percentile(taken, 0.99)
        found["rss_mib"] = report.rss_mib(process.pid)
        again = []
        for _ in range(restarts):
            await kubelet.restart()
            started = time.perf_counter()
            await kubelet.until({peer.resource: GPUS}, timeout=60)
            again.append((time.perf_counter() - started) * 1000)
        found["registered_again_p50_ms"] = statistics.median(again)
        found["registered_again_max_ms"] = max(again)
        started = time.perf_counter()
        facts.event(uuids[0], xid=79)
        await kubelet.until({peer.resource: GPUS - 1}, timeout=60)
        found["unhealthy_ms"] = (time.perf_counter() - started) * 1000
        return found


async def _times(call: Callable[[Any], Any], request: Any, calls: int) -> list[float]:
    taken = []
    for number in range(calls + 20):
        started = time.perf_counter()
        await call(request)
        if number >= 20:
            taken.append((time.perf_counter() - started) * 1000)
    return taken


_MEANING: Final = {
    "start_ms": "process started to GPUs counted",
    "preferred_p50_ms": "GetPreferredAllocation, 4 of 8, median",
    "preferred_p99_ms": "GetPreferredAllocation, 99th percentile",
    "allocate_p50_ms": "Allocate, 4 GPUs, median",
    "allocate_p99_ms": "Allocate, 99th percentile",
    "registered_again_p50_ms": "kubelet restarted to GPUs counted, median",
    "registered_again_max_ms": "kubelet restarted to GPUs counted, worst",
    "unhealthy_ms": "XID 79 to GPU not allocatable",
    "rss_mib": "resident memory, MiB",
}


def main() -> None:
    """Run, print a table, write JSON if asked."""
    parser = report.arguments(__doc__.splitlines()[0])
    parser.add_argument("--calls", type=report.positive, default=1000)
    parser.add_argument("--restarts", type=report.positive, default=10)
    options = parser.parse_args()
    table = report.Report("device plugin", ("what", "gpubank", f"NVIDIA {VERSION}", "ratio"))
    peers = [Peer("gpubank", "accelerator.aik8s.run/h100-80gb", ours)]
    try:
        peers.append(Peer("nvidia", "nvidia.com/gpu", nvidias(build_nvidias())))
    except BuildError as error:
        sys.stderr.write(f"without NVIDIA's plugin: {error}\n")
    except subprocess.CalledProcessError as error:
        sys.stderr.write(f"without NVIDIA's plugin: {error.cmd} failed: {error.stderr.decode()[-1000:]}\n")
    found = {peer.name: asyncio.run(measure(peer, options.calls, options.restarts)) for peer in peers}
    for name, meaning in _MEANING.items():
        mine, theirs = found["gpubank"][name], found.get("nvidia", {}).get(name)
        table.figures[name] = round(mine, 3)
        if theirs is None:
            table.row(meaning, mine, "–", "–")
            continue
        quotient = report.ratio(mine, theirs)
        table.figures[f"nvidia_{name}"] = round(theirs, 3)
        table.figures[f"{name}_ratio"] = round(quotient, 3)
        table.row(meaning, mine, theirs, quotient)
    table.finish(options.json)


if __name__ == "__main__":
    main()
