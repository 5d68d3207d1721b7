"""What a call to an API server costs its caller: over aiohttp's connections, as in the bank, and over httpx2's own.

    python -m benchmarks.transport [--calls 2000] [--at-once 1 10 50] [--rounds 5] [--json FILE]

A small TLS server in a process of its own answers 4 KiB to each PATCH, and a watch with events of as much. Both
transports take turns in every round. Milliseconds of this process's processor time per call, and per thousand events.
"""

import asyncio
import json
import multiprocessing
import ssl
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Final

import httpx2

from benchmarks.report import Report, arguments, positive, ratio
from gpubank.adapters.kubernetes.transport import AiohttpTransport
from gpubank.lab.pki import Authority

BODY: Final = json.dumps({"metadata": {"name": "queue"}, "spec": {"rows": ["x" * 60] * 64}}).encode()
EVENT: Final = json.dumps({"type": "MODIFIED", "object": json.loads(BODY)}).encode() + b"\n"
CHANGE: Final = json.dumps({"spec": {"rows": ["y" * 60] * 8}}).encode()

TRANSPORTS: Final[dict[str, Callable[[ssl.SSLContext], httpx2.AsyncBaseTransport]]] = {
    "aiohttp": AiohttpTransport,
    "httpx2": lambda trust: httpx2.AsyncHTTPTransport(verify=trust),
}


def serve(folder: str, pipe: Pipe) -> None:
    """Answer on loopback until the process is ended; say the port through `pipe`."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, OSError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = next((int(row[15:]) for row in head.split(b"\r\n") if row.startswith(b"content-length:")), 0)
                await reader.readexactly(length)
                asked = head.split()[1]
                events = int(asked.rpartition(b"=")[2]) if b"events=" in asked else 0
                if events:
                    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
                    for _ in range(events):
                        writer.write(b"%x\r\n%s\r\n" % (len(EVENT), EVENT))
                        await writer.drain()
                    writer.write(b"0\r\n\r\n")
                else:
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(BODY), BODY))
                await writer.drain()
        writer.close()

    async def run() -> None:
        mine = Authority(Path(folder)).issue("server")
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(mine.certificate, mine.key)
        async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context) as server:
            pipe.send(server.sockets[0].getsockname()[1])
            await server.serve_forever()

    asyncio.run(run())


@contextmanager
def server() -> Iterator[tuple[str, ssl.SSLContext]]:
    """Run the server; yield its address and whom to trust."""
    with tempfile.TemporaryDirectory() as folder:
        authority = Authority(Path(folder))
        trust = authority.client_context(authority.issue("client"))
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(target=serve, args=(folder, theirs), daemon=True)
        process.start()
        try:
            yield f"https://127.0.0.1:{ours.recv()}", trust
        finally:
            process.terminate()
            process.join()


async def calls(http: httpx2.AsyncClient, count: int, at_once: int) -> None:
    """Make `count` calls, `at_once` at a time."""

    async def one(number: int) -> None:
        path = f"/apis/kueue.x-k8s.io/v1beta2/clusterqueues/{number}"
        headers = {"Content-Type": "application/merge-patch+json"}
        answer = await http.request("PATCH", path, content=CHANGE, params={"fieldManager": "gpubank"}, headers=headers)
        answer.json()

    for _ in range(count // at_once):
        await asyncio.gather(*(one(number) for number in range(at_once)))


async def watch(http: httpx2.AsyncClient, events: int) -> None:
    """Read a watch of `events` events."""
    async with http.stream("GET", "/apis/kueue.x-k8s.io/v1beta2/workloads", params={"events": str(events)}) as answer:
        async for line in answer.aiter_lines():
            json.loads(line)


async def cost(transport: httpx2.AsyncBaseTransport, address: str, count: int, at_once: int) -> float:
    """Return milliseconds of processor time per call, or with none at once per thousand events of a watch."""
    async with httpx2.AsyncClient(transport=transport, base_url=address) as http:
        await calls(http, at_once or 1, at_once or 1)
        before = time.process_time()
        await (calls(http, count, at_once) if at_once else watch(http, count))
        return (time.process_time() - before) / count * (1000 if at_once else 1_000_000)


def measure(count: int, at_once: Sequence[int], rounds: int) -> Report:
    """Measure both at every number of calls at a time, and on a watch."""
    report = Report("transport", ("what", "aiohttp ms", "httpx2 ms", "ratio"))
    with server() as (address, trust):
        for number in (*at_once, 0):
            taken: dict[str, list[float]] = {name: [] for name in TRANSPORTS}
            for _ in range(rounds):
                for name, transport in TRANSPORTS.items():
                    taken[name].append(asyncio.run(cost(transport(trust), address, count, number)))
            median = {name: statistics.median(values) for name, values in taken.items()}
            what = f"a call, {number} at a time" if number else "a thousand events of a watch"
            name = f"{number}_at_once" if number else "watch"
            report.figures |= {f"{name}_cpu_ms": median}
            report.figures[f"{name}_cpu_ratio"] = ratio(median["aiohttp"], median["httpx2"])
            report.row(what, median["aiohttp"], median["httpx2"], report.figures[f"{name}_cpu_ratio"])
    return report


def main(arguments_: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = arguments("What a call to an API server costs the caller, over aiohttp and over httpx2's own transport.")
    parser.add_argument("--calls", type=positive, default=2000, help="calls, and events of a watch, in a round")
    parser.add_argument("--at-once", type=positive, nargs="+", default=[1, 10, 50], help="calls at a time")
    parser.add_argument("--rounds", type=positive, default=5)
    given = parser.parse_args(arguments_)
    measure(given.calls, given.at_once, given.rounds).finish(given.json)


if __name__ == "__main__":
    main()
