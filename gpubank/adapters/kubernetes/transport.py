"""The connections that carry calls to an API server: httpx2's, closed whenever they are left, and kept.

httpcore2 closes a connection whose TLS handshake fails, but not one whose handshake is cancelled, and any call or watch
may be cancelled at its first step: its socket stayed open until the garbage collector found it. See ADR-0013.
"""

import ssl
from collections.abc import Iterable
from typing import Any, Final

import httpcore2
import httpx2

CONNECTIONS: Final = 100
"""Open at a time, as httpx2 has it; each watch holds one. All of them are kept: a handshake costs as much as a call."""

KEPT: Final = 30.0
"""Seconds for which an idle connection is kept; an API server keeps it for longer."""


class KeptTransport(httpx2.AsyncHTTPTransport):
    """httpx2's transport over a pool whose connections leave no socket behind; without any proxy."""

    def __init__(self, trust: ssl.SSLContext) -> None:
        """Prepare; `trust` says whom to believe and who we are."""
        super().__init__(verify=trust, trust_env=False)
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=trust,
            max_connections=CONNECTIONS,
            max_keepalive_connections=CONNECTIONS,
            keepalive_expiry=KEPT,
            network_backend=_Backend(),
        )


class _Backend(httpcore2.AnyIOBackend):
    """Opens connections that close when their handshake is left."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Open one."""
        return _Stream(await super().connect_tcp(host, port, timeout, local_address, socket_options))


class _Stream(httpcore2.AsyncNetworkStream):
    """A connection before TLS, if there is any; what comes after the handshake is httpcore2's own."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return await self._stream.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        try:
            return await self._stream.start_tls(ssl_context, server_hostname, timeout)
        except BaseException:
            await self._stream.aclose()
            raise

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
