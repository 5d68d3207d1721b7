"""What a scrape costs, and a node's whole agent: 8 GPUs, each cut into 7 MIG devices, and 110 pods, in real processes.

The exporter runs as on a node: NVIDIA's binding on the tests' stand-in for `libnvidia-ml.so.1`, the kubelet's two APIs
on Unix sockets, a signed snapshot on disk. 56 of the pods hold a MIG device each; the others hold none. Every answer is
taken over HTTP as Prometheus takes it, OpenMetrics and gzip. Growth counts from after 2,000 scrapes and two looks at
the GPUs, when every path was taken often. The agent's memory is that of its three processes, device plugin, exporter
and reporter (whose Temporal is away), each as the system counts it: pages that they share are counted for each.
"""

import argparse
import gzip
import http.client
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from benchmarks.report import rss_mib
from gpubank.domain.attribution import NodeMetadata, OrgSpan, PodMetadata
from gpubank.metadata.seal import Sealer
from gpubank.simulation.processes import free_port
from tests.fakes.podsockets import FakePod, PodSockets
from tests.native.build import build
from tests.native.facts import ENVIRONMENT, NvmlFacts

GPUS: Final = 8
MIGS: Final = 7
PODS: Final = 110
NODE: Final = "gpu-0"
ROOT: Final = Path(__file__).parents[1]
ACCEPT: Final = {
    "Accept": "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.1",
    "Accept-Encoding": "gzip",
}
WARM_UP: Final = 2000
WARM_UP_SECONDS: Final = 15
"""Long enough for the GPUs to be looked up thrice."""

PEER_RSS_MIB: Final = (405, 512)
"""Working set of dcgm-exporter that a public cluster's operators report for such nodes, and their limit."""


def pod_uid(number: int) -> str:
    """UID of a pod."""
    return f"00000000-0000-4000-8000-{number:012d}"


def write_facts(path: Path) -> list[str]:
    """Write the node's GPUs and return the UUIDs of its MIG devices."""
    facts, migs = NvmlFacts(path), []
    with facts.at_once():
        for gpu in range(GPUS):
            uuid = facts.gpu(
                f"GPU-{gpu:08d}-0000-4000-8000-000000000000",
                power=412_000, energy=987_654_321_000, clock=1980, pcie_replay=3, gpm=1, used=40_000,
            )  # fmt: skip
            for number in range(MIGS):
                gi = number + 7
                migs.append(facts.mig(uuid, f"MIG-{gpu:04d}{number:04d}-0000-4000-8000-000000000000", "1g.10gb", gi))
                for metric in (1, 2, 3, 5, 10, 11, 12, 13):
                    facts.add("gpm", gpu=uuid, gi=gi, id=metric, value=12.5 + metric)
    return migs


def fake_pods(migs: list[str]) -> list[FakePod]:
    """Pods of the node; the first hold the MIG devices."""
    resource = "accelerator.aik8s.run/h100-80gb.mig-1g.10gb"
    return [
        FakePod(
            f"team-{number % 7}",
            f"trainer-{number:03d}-worker-0",
            pod_uid(number),
            {resource: [migs[number]]} if number < len(migs) else {},
        )
        for number in range(PODS)
    ]


def snapshot(pods: list[FakePod]) -> NodeMetadata:
    """Build what the control plane says about them."""
    now = datetime.now(UTC)
    claims = {
        "owner_id": "some.body@example",
        "queue": "h100-borrow",
        "workload_type": "training",
        "workload_uid": pod_uid(999),
        "model": "llama-3-70b",
        "model_version": "2026-11-30",
    }
    told = {
        pod.uid: PodMetadata(
            pod.uid, pod.namespace, pod.name, (OrgSpan(now.replace(year=2000), pod.namespace, "CC-4711"),), claims
        )
        for pod in pods
    }
    return NodeMetadata(NODE, now, told)


@contextmanager
def running(folder: Path, interval: float) -> Iterator[tuple[subprocess.Popen[bytes], int, PodSockets]]:
    """Run an exporter and its surroundings; yields the process, its port, and the kubelet."""
    migs = write_facts(folder / "nvml.facts")
    sockets = PodSockets(folder)
    sockets.pods = fake_pods(migs)
    key = Ed25519PrivateKey.generate()
    (folder / "public.pem").write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    (folder / "metadata.snapshot").write_bytes(Sealer(key).seal(snapshot(sockets.pods)))
    port = free_port()
    settings = {
        "node": NODE,
        "holders": str(folder / "holders.json"),
        "listen": {"address": "127.0.0.1", "port": port},
        "kubelet": {
            "podResourcesSocket": str(sockets.pod_resources),
            "podsSocket": str(sockets.pods_api),
            "checkpoint": str(folder / "no-checkpoint"),
        },
        "metadata": {"publicKeys": [str(folder / "public.pem")], "file": str(folder / "metadata.snapshot")},
        "timing": {"collect": interval, "inventory": max(5.0, interval)},
    }
    (folder / "exporter.yaml").write_text(json.dumps(settings))
    process = start(folder, port)
    try:
        yield process, port, sockets
    finally:
        end(process)
        sockets.close()


def start(folder: Path, port: int) -> subprocess.Popen[bytes]:
    """Start the exporter whose settings lie in the folder, and wait until it is ready."""
    process = launch(folder, "exporter", "nodeagent.exporter", "--config", str(folder / "exporter.yaml"))
    try:
        _wait_until_ready(process, port, folder / "exporter.log")
    except BaseException:
        end(process)
        raise
    return process


def launch(folder: Path, name: str, module: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a process of the agent on the folder's GPUs."""
    return launch_command(folder, name, [sys.executable, "-m", module, *arguments])


def launch_command(folder: Path, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start any process on the folder's GPUs; what it says goes to a log of its name."""
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(build().parent),
        ENVIRONMENT: str(folder / "nvml.facts"),
        "PYTHONPATH": str(ROOT),
    }
    with (folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(command, env=environment, stderr=log, stdout=log)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def reporter(folder: Path) -> Iterator[int]:
    """Run a reporter whose Temporal is away; yields its process id."""
    settings = {
        "node": NODE,
        "pluginDirectory": str(folder / "state"),
        "spoolDirectory": str(folder / "spool"),
        "podResourcesSocket": str(folder / "pod-resources.sock"),
        "temporal": {"address": f"127.0.0.1:{free_port()}"},
    }
    (folder / "reporter.yaml").write_text(json.dumps(settings))
    process = launch(folder, "reporter", "nodeagent.reporter", "--config", str(folder / "reporter.yaml"))
    try:
        deadline = time.monotonic() + 60
        while "does not answer" not in (folder / "reporter.log").read_text():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the reporter does not run: {(folder / 'reporter.log').read_text()[-2000:]}")
            time.sleep(0.1)
        yield process.pid
    finally:
        end(process)


@contextmanager
def plugin(folder: Path) -> Iterator[int]:
    """Run a device plugin on the same GPUs, which no kubelet asks; yields its process id."""
    for name in ("plugins", "registry", "state", "driver"):
        (folder / name).mkdir()
    settings = {
        "pluginDirectory": str(folder / "plugins"),
        "registryDirectory": str(folder / "registry"),
        "stateDirectory": str(folder / "state"),
        "driverDirectory": str(folder / "driver"),
    }
    (folder / "nodeagent.yaml").write_text(json.dumps(settings))
    process = launch(folder, "plugin", "nodeagent.plugin", "--config", str(folder / "nodeagent.yaml"))
    try:
        deadline = time.monotonic() + 30
        while not list((folder / "plugins").glob("*.sock")):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the plugin does not serve: {(folder / 'plugin.log').read_text()[-2000:]}")
            time.sleep(0.1)
        yield process.pid
    finally:
        end(process)


def scrape(port: int) -> tuple[float, bytes]:
    """Scrape once; returns milliseconds and the answer as it came."""
    started = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/metrics", headers=ACCEPT)
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    if answer.status != 200:
        raise RuntimeError(f"a scrape was answered with {answer.status}")
    return (time.perf_counter() - started) * 1000, body


def measure(scrapes: int, interval: float) -> dict[str, Any]:
    """Scrape that often and say what it cost."""
    folder = Path(tempfile.mkdtemp(prefix="gpb-exporter-"))
    try:
        with running(folder, interval) as (process, port, sockets), plugin(folder) as beside, reporter(folder) as third:
            since = time.monotonic()
            for _ in range(WARM_UP):
                scrape(port)
            time.sleep(max(5 * interval + 0.5, since + WARM_UP_SECONDS - time.monotonic()))
            warm, cpu, lists = rss_mib(process.pid), cpu_seconds(process.pid), sockets.lists
            started, times, body = time.monotonic(), [], b""
            before = _number(scrape(port)[1], "gpubank_exporter_collections_total")
            for _ in range(scrapes):
                took, body = scrape(port)
                times.append(took)
            seconds = time.monotonic() - started
            after = _number(scrape(port)[1], "gpubank_exporter_collections_total")
            asked, collected = sockets.lists - lists, after - before
            text = gzip.decompress(body).decode()
            times.sort()
            exporter, others = rss_mib(process.pid), [rss_mib(beside), rss_mib(third)]
            return {
                "scrapes": scrapes,
                "scrape_p50_ms": round(statistics.median(times), 3),
                "scrape_p99_ms": round(times[int(len(times) * 0.99) - 1], 3),
                "scrape_max_ms": round(times[-1], 3),
                "exporter_rss_mib": round(exporter, 1),
                "exporter_rss_warm_mib": round(warm, 1),
                "exporter_rss_growth_mib": round(exporter - warm, 2),
                "plugin_rss_mib": round(others[0], 1),
                "reporter_rss_mib": round(others[1], 1),
                "agent_rss_mib": round(exporter + sum(others), 1),
                # A collection may be half done at either end; what is beyond one per collection came from scrapes.
                "api_calls_per_scrape": max(asked - collected - 1, 0) / scrapes,
                "collections": collected,
                "pod_resources_lists": asked,
                "cpu_percent_of_a_core_while_scraped": round((cpu_seconds(process.pid) - cpu) / seconds * 100, 1),
                "series": sum(not line.startswith("#") for line in text.splitlines()),
                "body_kib": round(len(text) / 1024, 1),
                "body_gzip_kib": round(len(body) / 1024, 1),
            }
    finally:
        shutil.rmtree(folder)


def cpu_seconds(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _number(body: bytes, name: str) -> int:
    text = gzip.decompress(body).decode()
    return int(next(line for line in text.splitlines() if line.startswith(f"{name} ")).split()[1])


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the exporter ended: {log.read_text()[-2000:]}")
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
            connection.request("GET", "/readyz")
            status = connection.getresponse().status
            connection.close()
        except OSError:
            status = 0
        if status == 200:
            return
        time.sleep(0.1)
    raise RuntimeError(f"the exporter is not ready: {log.read_text()[-2000:]}")


def main() -> None:
    """Run, print a table, write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scrapes", type=int, default=10_000)
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between two collections")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    found = measure(arguments.scrapes, arguments.interval)
    low, high = PEER_RSS_MIB
    found["exporter_rss_ratio"] = round(found["exporter_rss_mib"] / low, 3)
    rows = [*found.items(), ("peer_rss_reported_mib", f"{low}-{high}"), ("machine", platform.machine())]
    width = max(len(name) for name, _ in rows)
    sys.stdout.write("".join(f"{name:<{width}}  {value}\n" for name, value in rows))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
