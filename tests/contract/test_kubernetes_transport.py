"""What carries calls to the API server does what httpx2's own transport does; both are held to it here.

The server is a small one of our own behind TLS, for it must stall, break off and hide in the middle of an answer.
"""

import asyncio
import gc
import gzip
import ssl
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx2
import pytest

from gpubank.adapters.kubernetes.transport import KeptTransport
from gpubank.lab.pki import Authority

LARGE = 32 * 1024 * 1024
"""Bytes; more than the sockets between two processes of one machine take in."""

Build = Callable[[ssl.SSLContext], httpx2.AsyncBaseTransport]


@pytest.fixture(params=["kept", "httpx2"])
def build(request: pytest.FixtureRequest) -> Build:
    """Make the transport of the bank, and the one that it stands in for."""
    if request.param == "kept":
        return KeptTransport
    return lambda trust: httpx2.AsyncHTTPTransport(verify=trust)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("pki"))


class Server:
    """Answers as its path says, and remembers what it was asked."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.connections = 0
        self.go_on = asyncio.Event()
        self._open: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open.add(writer)
        with suppress(asyncio.IncompleteReadError, OSError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.heard.append(head)
                await self._answer(head.split()[1], reader, writer)
        writer.close()

    async def _answer(self, path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        match path.strip("/"):
            case "silent" | "deaf":
                await self.go_on.wait()
            case "moved":
                writer.write(b"HTTP/1.1 307 Temporary Redirect\r\nlocation: /plain\r\ncontent-length: 0\r\n\r\n")
            case "zipped":
                body = gzip.compress(b"many words " * 100)
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n")
                writer.write(b"content-length: %d\r\n\r\n%s" % (len(body), body))
            case "broken":
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
                writer.close()
            case "gone":
                writer.close()
            case "drip":
                writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n6\r\nfirst\n\r\n")
                await self.go_on.wait()
                writer.write(b"7\r\nsecond\n\r\n0\r\n\r\n")
            case _:
                writer.write(b"HTTP/1.1 200 Fine\r\nx-twice: 1\r\nx-twice: 2\r\ncontent-length: 5\r\n\r\nplain")
        await writer.drain()

    def end(self) -> None:
        self.go_on.set()
        for writer in self._open:
            writer.close()


@asynccontextmanager
async def listening(authority: Authority) -> AsyncIterator[tuple[Server, str]]:
    mine = authority.issue("server")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.certificate))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(mine.certificate, mine.key)
    server = Server()
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=context) as there:
        try:
            yield server, f"https://127.0.0.1:{there.sockets[0].getsockname()[1]}"
        finally:
            server.end()


def client(build: Build, authority: Authority, address: str, seconds: float = 20.0) -> httpx2.AsyncClient:
    trust = authority.client_context(authority.issue("client"))
    timeout = httpx2.Timeout(seconds, pool=None)
    return httpx2.AsyncClient(transport=build(trust), base_url=address, timeout=timeout)


async def test_an_answer_comes_with_status_headers_and_body_and_the_connection_is_used_again(
    build: Build, authority: Authority
) -> None:
    async with listening(authority) as (server, address), client(build, authority, address) as http:
        for _ in range(3):
            answer = await http.get("/plain", params={"labelSelector": "a=b,c in (d)"}, headers={"X-Ours": "yes"})
            assert (answer.status_code, answer.reason_phrase, answer.text) == (200, "Fine", "plain")
            assert answer.headers.get_list("x-twice") == ["1", "2"]
    assert server.connections == 1
    assert len(server.heard) == 3
    asked, _, headers = server.heard[0].partition("\r\n")
    assert asked == "GET /plain?labelSelector=a%3Db%2Cc+in+%28d%29 HTTP/1.1"
    told = sorted(line.split(":")[0].lower() for line in headers.split("\r\n") if line)
    assert told == sorted(["host", "accept", "accept-encoding", "connection", "user-agent", "x-ours"])


async def test_a_redirect_is_not_followed_and_what_is_zipped_is_unzipped_once(
    build: Build, authority: Authority
) -> None:
    async with listening(authority) as (_, address), client(build, authority, address) as http:
        assert (await http.get("/moved")).status_code == 307
        assert (await http.get("/zipped")).text == "many words " * 100


async def test_a_stream_is_read_as_it_comes_and_left_when_nobody_reads_on(build: Build, authority: Authority) -> None:
    async with listening(authority) as (server, address), client(build, authority, address) as http:
        async with http.stream("GET", "/drip") as answer:
            lines = answer.aiter_lines()
            assert await anext(lines) == "first"
            server.go_on.set()
            assert [line async for line in lines] == ["second"]
        server.go_on.clear()
        async with http.stream("GET", "/drip") as answer:
            assert await anext(answer.aiter_lines()) == "first"
        assert (await http.get("/plain")).text == "plain"


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("silent", httpx2.ReadTimeout),
        ("drip", httpx2.ReadTimeout),
        ("broken", httpx2.RemoteProtocolError),
        ("gone", httpx2.RemoteProtocolError),
    ],
)
async def test_what_fails_on_the_way_has_the_error_of_httpx2(
    build: Build, authority: Authority, path: str, error: type[Exception]
) -> None:
    async with listening(authority) as (_, address), client(build, authority, address, 0.5) as http:
        with pytest.raises(error):
            await http.get(f"/{path}")


async def test_a_server_that_takes_nothing_in_is_given_up(build: Build, authority: Authority) -> None:
    async with listening(authority) as (_, address), client(build, authority, address, 0.5) as http:
        with pytest.raises(httpx2.TimeoutException):
            await http.put("/deaf", content=b" " * LARGE)


async def test_nobody_there_and_a_stranger_there_are_connect_errors(
    build: Build, authority: Authority, tmp_path: Path
) -> None:
    async with listening(Authority(tmp_path)) as (_, address), client(build, authority, address) as http:
        with pytest.raises(httpx2.ConnectError, match=r"(?i)certificate"):
            await http.get("/plain")
    async with client(build, authority, address) as http:
        with pytest.raises(httpx2.ConnectError):
            await http.get("/plain")


async def test_a_call_that_is_cancelled_at_any_moment_leaves_no_socket_open(authority: Authority) -> None:
    with warnings.catch_warnings(record=True) as left:
        warnings.simplefilter("always", ResourceWarning)
        async with listening(authority) as (server, address):
            steps = 0
            while "GET /plain" not in "".join(server.heard):
                steps += 1
                async with client(KeptTransport, authority, address) as http:
                    call = asyncio.create_task(http.get("/plain"))
                    for _ in range(steps):
                        await asyncio.sleep(0)
                    call.cancel()
                    await asyncio.gather(call, return_exceptions=True)
                    del call
                del http
                await asyncio.sleep(0.005)
                gc.collect()
    assert steps > 5, "calls were cancelled before they had connected"
    assert [str(each.message) for each in left] == []
