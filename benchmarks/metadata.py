"""Node metadata under churn: how late nodes know a new pod, what it costs, and what a large cluster would cost.

    python -m benchmarks.metadata [--nodes 500] [--pods 110] [--churn 10000] [--rate 100] [--json FILE]

The controller's own sync and service, in this process, over an API server on paper that counts what it is asked. The
nodes are streams of another process over mutual TLS, one per node; every snapshot is received whole, and the moment at
which it first names a pod is noted. A churned pod is deleted and another one put in its place. Lag is from the event at
the API server to the snapshot at the node, the half second in which changes are folded included.

Figures for 5,000 nodes are computed, not measured: what a snapshot costs in bytes and processor time, times how many
there would be. Each node is told anew every two minutes, whether anything changed or not.
"""

import asyncio
import contextlib
import multiprocessing
import os
import re
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.report import Report, arguments, percentile, positive, rss_mib
from gpubank.adapters.kubernetes.kinds import Kind, Object
from gpubank.controller.metadata import MetadataSync, serving_metadata
from gpubank.metadata import channel
from gpubank.metadata.channel import TlsFiles
from gpubank.metadata.seal import Sealer
from gpubank.metadata.service import REFRESH
from tests.fakes.certificates import Certificates

LARGE: Final = 5000
"""Nodes of the cluster that is computed."""

PAGE: Final = 500
SHARED: Final = "gpubank-node"
_STREAMS_PER_CONNECTION: Final = 50
_BOOKMARK_EVERY: Final = 30.0
"""Seconds of silence after which a watch is told how far the server is."""

_LATEST: Final = 60.0
"""Seconds after the churn in which the last pods may still become known."""

_UID: Final = re.compile(rb'"uid":"([^"]+)"')


class PaperPods:
    """Lists pods and groups in pages, tells watches what changes, and counts requests."""

    def __init__(self) -> None:
        self._objects: dict[str, dict[str, Object]] = {}
        self._watches: list[tuple[str, asyncio.Queue[tuple[str, Object]]]] = []
        self._version = 1
        self.requests: dict[str, int] = {}
        """List pages and watches so far, by kind."""

    def put(self, kind: str, body: Object) -> None:
        """Create an object."""
        self._version += 1
        body["metadata"]["resourceVersion"] = str(self._version)
        self._objects.setdefault(kind, {})[body["metadata"]["name"]] = body
        self._tell(kind, "ADDED", body)

    def delete(self, kind: str, name: str) -> None:
        """Delete an object."""
        self._version += 1
        body = self._objects[kind].pop(name)
        metadata = {**body["metadata"], "resourceVersion": str(self._version)}
        self._tell(kind, "DELETED", {**body, "metadata": metadata})

    async def page(self, kind: Kind, *, selectors: Mapping[str, str], token: str = "") -> tuple[list[Object], str, str]:
        """List a page."""
        self._asked(kind)
        items, start = [*self._objects.get(kind.name, {}).values()], int(token or 0)
        more = str(start + PAGE) if start + PAGE < len(items) else ""
        return items[start : start + PAGE], str(self._version), more

    async def watch(
        self, kind: Kind, *, version: str, selectors: Mapping[str, str]
    ) -> AsyncGenerator[tuple[str, Object], None]:
        """Tell what changes from now on."""
        self._asked(kind)
        queue: asyncio.Queue[tuple[str, Object]] = asyncio.Queue()
        self._watches.append((kind.name, queue))
        while True:
            try:
                async with asyncio.timeout(_BOOKMARK_EVERY):
                    change = await queue.get()
            except TimeoutError:
                # As a real server: who hears nothing for two minutes takes what it knows for too old.
                change = "BOOKMARK", {"metadata": {"resourceVersion": str(self._version)}}
            yield change

    def _asked(self, kind: Kind) -> None:
        self.requests[kind.name] = self.requests.get(kind.name, 0) + 1

    def _tell(self, kind: str, change: str, body: Object) -> None:
        for name, queue in self._watches:
            if name == kind:
                queue.put_nowait((change, body))


def pod(number: int, node: str) -> Object:
    """Return a pod as a training operator writes them."""
    labels = {"kueue.x-k8s.io/queue-name": "h100-borrow", "platform.aik8s.run/workload-type": "training"}
    labels |= {"platform.aik8s.run/owner-id": "some.body", "platform.aik8s.run/model": "llama-3-70b"}
    return {
        "metadata": {
            "uid": f"00000000-0000-4000-8000-{number:012d}",
            "name": f"trainer-{number:06d}-worker-0",
            "namespace": f"team-{number % 100:02d}",
            "labels": labels,
            "ownerReferences": [{"uid": f"job-{number}", "controller": True}],
        },
        "spec": {"nodeName": node, "containers": [{"resources": {"limits": {"accelerator.aik8s.run/h100-80gb": "1"}}}]},
        "status": {"phase": "Running"},
    }


def group(number: int) -> Object:
    """Return the group of a namespace."""
    return {
        "apiVersion": "platform.aik8s.run/v1alpha1",
        "kind": "BusinessGroup",
        "metadata": {"name": f"group-{number:02d}", "uid": f"g{number}"},
        "spec": {"namespaces": [f"team-{number:02d}"], "costCenter": f"CC-{number}", "owner": "somebody"},
    }


# ---- nodes, in a process of their own


def listen(pipe: Connection, port: int, nodes: int, files: tuple[bytes, bytes, bytes]) -> None:
    """Subscribe for every node, say when all have been told once, and at the end what each heard when."""
    asyncio.run(_listen(pipe, port, nodes, files))


async def _listen(pipe: Connection, port: int, nodes: int, files: tuple[bytes, bytes, bytes]) -> None:
    seen: dict[str, float] = {}
    told, first, received, snapshots = set[int](), asyncio.Event(), [0] * nodes, 0
    key, certificate, authorities = files
    credentials = grpc.ssl_channel_credentials(authorities, key, certificate)

    async def follow(connection: grpc.aio.Channel, number: int) -> None:
        nonlocal snapshots
        watch: Any = connection.unary_stream(channel.METHOD)
        async for sealed in watch(channel.request(f"gpu-{number}")):
            at = time.time()
            for uid in _UID.findall(sealed):
                seen.setdefault(uid.decode(), at)
            received[number] += len(sealed)
            snapshots += 1
            told.add(number)
            if len(told) == nodes:
                first.set()

    async with contextlib.AsyncExitStack() as stack:
        tasks = []
        for start in range(0, nodes, _STREAMS_PER_CONNECTION):
            # A pool of its own: else connections to one address with the same options are one.
            options = (("grpc.ssl_target_name_override", "localhost"), ("grpc.use_local_subchannel_pool", 1))
            connection = await stack.enter_async_context(
                grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options=options)
            )
            tasks += [
                asyncio.create_task(follow(connection, number))
                for number in range(start, min(start + _STREAMS_PER_CONNECTION, nodes))
            ]
        await first.wait()
        pipe.send({"bytes": sum(received), "snapshots": snapshots})
        wanted, deadline = await asyncio.to_thread(pipe.recv), time.monotonic() + _LATEST
        while time.monotonic() < deadline:
            if wanted <= seen.keys():
                break
            await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    pipe.send({"seen": seen, "bytes": sum(received), "snapshots": snapshots})


# ---- the controller


async def measure(nodes: int, pods: int, churn: int, rate: float) -> dict[str, Any]:
    """Run it and say what was seen."""
    cluster = PaperPods()
    for number in range(100):
        cluster.put("BusinessGroup", group(number))
    current = [(number, f"gpu-{number % nodes}") for number in range(nodes * pods)]
    for number, node in current:
        cluster.put("Pod", pod(number, node))
    with tempfile.TemporaryDirectory() as folder:
        certificates = await asyncio.to_thread(Certificates, Path(folder))
        server, client = certificates.issue("localhost"), certificates.issue(SHARED)
        sync = MetadataSync(cluster)
        sealer = Sealer(Ed25519PrivateKey.generate())
        async with serving_metadata(sync, "127.0.0.1:0", server, sealer, shared_name=SHARED) as port:
            return await _measured(cluster, port, client, current, nodes, churn, rate)


async def _measured(
    cluster: PaperPods,
    port: int,
    client: TlsFiles,
    current: list[tuple[int, str]],
    nodes: int,
    churn: int,
    rate: float,
) -> dict[str, Any]:
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=listen, args=(theirs, port, nodes, client.read()), daemon=True)
    cpu, started = time.process_time(), time.monotonic()
    process.start()
    try:
        subscribed = await asyncio.to_thread(_received, ours, 600)
        subscribing = {"seconds": time.monotonic() - started, "cpu_seconds": time.process_time() - cpu}
        sent, before = await _churn(cluster, current, churn, rate), dict(cluster.requests)
        ours.send(sent["there"])
        heard = await asyncio.to_thread(_received, ours, _LATEST + 60)
    finally:
        process.terminate()
        await asyncio.to_thread(process.join)
    lags = [heard["seen"][uid] - at for uid, at in sent["at"].items() if uid in heard["seen"]]
    snapshots = heard["snapshots"] - subscribed["snapshots"]
    return {
        "subscribing": subscribing,
        "snapshot_bytes": subscribed["bytes"] / subscribed["snapshots"],
        "never_heard": churn - len(lags),
        "lags": lags,
        "churn_seconds": sent["seconds"],
        "snapshots": snapshots,
        "snapshot_cpu_ms": sent["cpu_seconds"] * 1000 / max(snapshots, 1),
        "cpu_share": sent["cpu_seconds"] / sent["seconds"],
        "bytes_per_node": (heard["bytes"] - subscribed["bytes"]) / nodes,
        "requests": cluster.requests,
        "requests_while_churning": sum(cluster.requests.values()) - sum(before.values()),
        "rss_mib": rss_mib(os.getpid()),
    }


async def _churn(cluster: PaperPods, current: list[tuple[int, str]], churn: int, rate: float) -> dict[str, Any]:
    """Replace pods one after the other at a steady rate; returns when each new one was told to watches."""
    at: dict[str, float] = {}
    following = len(current)
    cpu, started = time.process_time(), time.monotonic()
    for turn in range(churn):
        place = turn % len(current)
        old, node = current[place]
        new = pod(following + turn, node)
        cluster.delete("Pod", f"trainer-{old:06d}-worker-0")
        cluster.put("Pod", new)
        at[new["metadata"]["uid"]] = time.time()
        current[place] = following + turn, node
        await asyncio.sleep(max(started + (turn + 1) / rate - time.monotonic(), 0))
    there = {pod(number, node)["metadata"]["uid"] for number, node in current if number >= following}
    return {
        "at": at,
        "there": there,
        "seconds": time.monotonic() - started,
        "cpu_seconds": time.process_time() - cpu,
    }


def _received(pipe: Connection, seconds: float) -> dict[str, Any]:
    if not pipe.poll(seconds):
        raise RuntimeError("the nodes' process does not answer")
    found: dict[str, Any] = pipe.recv()
    return found


def main() -> None:
    """Run, print a table, write JSON if asked."""
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=positive, default=500)
    parser.add_argument("--pods", type=positive, default=110, help="pods of each node")
    parser.add_argument("--churn", type=positive, default=10_000, help="pods that are replaced")
    parser.add_argument("--rate", type=float, default=100.0, help="pods replaced per second")
    options = parser.parse_args()
    report = Report("node metadata", ("what", "value"))
    found = asyncio.run(measure(options.nodes, options.pods, options.churn, options.rate))
    lags = [lag * 1000 for lag in found.pop("lags")]
    if found["never_heard"]:
        sys.stderr.write(
            f"{found['never_heard']} pods became known too late to be counted: the machine did not keep up\n"
        )
    refreshes = LARGE / REFRESH.total_seconds()
    churned = options.rate * found["snapshots"] / options.churn  # snapshots a second that the churn causes
    figures = {
        "nodes": options.nodes,
        "pods_per_node": options.pods,
        "churned_pods": options.churn,
        "churned_per_second": round(options.churn / found["churn_seconds"], 1),
        "lag_p50_ms": round(percentile(lags, 0.5), 1),
        "lag_p95_ms": round(percentile(lags, 0.95), 1),
        "lag_max_ms": round(max(lags), 1),
        "never_heard": found["never_heard"],
        "snapshot_kib": round(found["snapshot_bytes"] / 1024, 1),
        "snapshots_while_churning": found["snapshots"],
        "snapshot_cpu_ms": round(found["snapshot_cpu_ms"], 2),
        "controller_cpu_share": round(found["cpu_share"], 3),
        "kib_per_node_while_churning": round(found["bytes_per_node"] / 1024, 1),
        "first_snapshots_seconds": round(found["subscribing"]["seconds"], 1),
        "api_requests_to_list": sum(found["requests"].values()) - len(found["requests"]),
        "api_watches": len(found["requests"]),
        "api_requests_while_churning": found["requests_while_churning"],
        "controller_rss_mib": round(found["rss_mib"], 1),
        f"computed_{LARGE}_nodes_snapshots_mib": round(LARGE * found["snapshot_bytes"] / 2**20, 1),
        f"computed_{LARGE}_nodes_refresh_mib_per_second": round(refreshes * found["snapshot_bytes"] / 2**20, 2),
        f"computed_{LARGE}_nodes_refresh_cpu_share": round(refreshes * found["snapshot_cpu_ms"] / 1000, 3),
        f"computed_{LARGE}_nodes_churn_cpu_share": round(churned * found["snapshot_cpu_ms"] / 1000, 3),
        f"computed_{LARGE}_nodes_api_watches": len(found["requests"]),
        f"computed_{LARGE}_nodes_list_pages": -(-LARGE * options.pods // PAGE),
    }
    for name, value in figures.items():
        report.row(name.replace("_", " "), value)
    report.figures.update(figures)
    report.finish(options.json)


if __name__ == "__main__":
    main()
