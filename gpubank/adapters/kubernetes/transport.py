"""What carries httpx2's requests to an API server: aiohttp's connections in place of httpx2's own.

Everything above stays httpx2's: credentials, redirects, errors, answers. Only the bytes go through aiohttp, for two
reasons (ADR-0013): a call that is cancelled in the middle of a TLS handshake leaves no open socket behind, and a call
takes a half to a quarter of the processor time, which a pool of 1,000 groups feels.
"""

import asyncio
import io
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Final

import aiohttp
import httpx2
from yarl import URL

_CONNECTIONS: Final = 100
"""Open at a time, as httpx2 has it; each watch holds one."""

_KEPT: Final = 30.0
"""Seconds for which an idle connection is kept; an API server keeps it for longer."""

_HEADERS_OF_AIOHTTP: Final = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
"""What aiohttp would add, and httpx2 has written already or left out on purpose."""


class AiohttpTransport(httpx2.AsyncBaseTransport):
    """A transport of httpx2 that uses a pool of aiohttp's connections, made at the first request."""

    def __init__(self, trust: ssl.SSLContext) -> None:
        """Prepare; `trust` says whom to believe and who we are."""
        self._trust = trust
        self._session: aiohttp.ClientSession | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send `request` and return the answer as soon as its headers are there.

        The time-outs that count are those of the request: to connect, and between two bytes read. The three together
        (connect, write, read) are the longest time until the headers. Raises what httpx2's own transport would.
        """
        session = self._opened()
        timeouts = request.extensions.get("timeout", {})
        connect, write, read = (timeouts.get(each) for each in ("connect", "write", "read"))
        patience = None if None in (connect, write, read) else connect + write + read
        content = await request.aread()
        with _errors_of_httpx2(request):
            async with asyncio.timeout(patience):
                answer = await session.request(
                    request.method,
                    URL(str(request.url), encoded=True),
                    headers=request.headers.multi_items(),
                    data=io.BytesIO(content) if content else None,
                    allow_redirects=False,
                    timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect, sock_read=read),
                )
        extensions = {"http_version": b"HTTP/1.1", "reason_phrase": (answer.reason or "").encode()}
        return httpx2.Response(
            answer.status, headers=list(answer.raw_headers), stream=_Body(answer, request), extensions=extensions
        )

    async def aclose(self) -> None:
        """Close every socket."""
        if self._session is not None:
            await self._session.close()

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=self._trust, limit=_CONNECTIONS, keepalive_timeout=_KEPT),
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=_HEADERS_OF_AIOHTTP,
                auto_decompress=False,
            )
        return self._session


class _Body(httpx2.AsyncByteStream):
    """The bytes of an answer as they come; its connection goes back to the pool if all of them were read."""

    def __init__(self, answer: aiohttp.ClientResponse, request: httpx2.Request) -> None:
        self._answer, self._request = answer, request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _errors_of_httpx2(self._request):
            async for chunk in self._answer.content.iter_any():
                yield chunk

    async def aclose(self) -> None:
        self._answer.close()


@contextmanager
def _errors_of_httpx2(request: httpx2.Request) -> Iterator[None]:
    try:
        yield
    except aiohttp.ConnectionTimeoutError as error:
        raise httpx2.ConnectTimeout(str(error), request=request) from error
    except TimeoutError as error:
        raise httpx2.ReadTimeout(str(error), request=request) from error
    except aiohttp.ClientConnectorError as error:
        raise httpx2.ConnectError(str(error), request=request) from error
    except (aiohttp.ServerDisconnectedError, aiohttp.ClientPayloadError) as error:
        raise httpx2.RemoteProtocolError(str(error), request=request) from error
    except aiohttp.ClientError as error:
        raise httpx2.ReadError(str(error), request=request) from error
