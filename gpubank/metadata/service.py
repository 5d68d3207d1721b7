"""The control plane's end: a gRPC server with mutual TLS that streams every node its own snapshot.

A snapshot goes out when what it says has changed, and after `refresh` anew all the same: its time of issue is the proof
that the control plane still knows it to be so. While the cluster cannot be seen nothing is issued, and the node's copy
grows old, which its metrics show.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, Final

import grpc
import grpc.aio

from gpubank.domain.attribution import NodeMetadata
from gpubank.domain.errors import BackendError
from gpubank.metadata import body, channel
from gpubank.metadata.channel import TlsFiles
from gpubank.metadata.seal import Sealer

log = logging.getLogger(__name__)

REFRESH: Final = timedelta(minutes=2)
"""How often an unchanged snapshot is issued anew."""

FOLD: Final = 0.5
"""Seconds in which changes that follow each other are told as one."""

_RETRY: Final = 5.0
_OPTIONS: Final = (
    ("grpc.max_send_message_length", 8 * 1024 * 1024),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ("grpc.so_reuseport", 0),
)


class MetadataService:
    """Streams snapshots; `changed` tells it which nodes to look at anew."""

    def __init__(
        self,
        snapshot: Callable[[str], NodeMetadata],
        sealer: Sealer,
        *,
        refresh: timedelta = REFRESH,
        shared_name: str = "",
    ) -> None:
        """`snapshot(node)` says what a node is told now; BackendError while the cluster cannot be seen."""
        self._snapshot, self._sealer = snapshot, sealer
        self._refresh, self._shared_name = refresh, shared_name
        self._watchers: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self.issued = 0
        """Snapshots signed so far."""

    @property
    def watchers(self) -> int:
        """Streams that are open."""
        return sum(len(events) for events in self._watchers.values())

    def changed(self, nodes: Iterable[str] | None = None) -> None:
        """Look at these nodes anew, or at all."""
        for node in [*self._watchers] if nodes is None else nodes:
            for event in self._watchers.get(node, ()):
                event.set()

    async def watch(self, raw: bytes, context: Any) -> AsyncIterator[bytes]:
        """Handle one stream: the snapshot at once, then whenever it changes, and anew after `refresh`."""
        node = channel.requested_node(raw)
        if node is None:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the request names no node")
        assert node is not None
        if not channel.may_watch(context.auth_context(), node, self._shared_name):
            log.warning("metadata of node %s refused: the client's certificate is another's", node)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"the certificate is not that of node {node!r}")
        async for sealed in self.stream(node):
            yield sealed

    async def stream(self, node: str) -> AsyncIterator[bytes]:
        """Yield a node's sealed snapshots, for as long as somebody listens."""
        event = asyncio.Event()
        self._watchers[node].add(event)
        try:
            told: bytes | None = None
            told_at: datetime | None = None
            while True:
                event.clear()
                pause = self._refresh.total_seconds()
                try:
                    metadata = self._snapshot(node)
                except BackendError as error:
                    log.debug("no metadata for node %s: %s", node, error)
                    pause = min(_RETRY, pause)
                else:
                    said = body.content(metadata)
                    if said != told or told_at is None or metadata.issued_at - told_at >= self._refresh:
                        told, told_at = said, metadata.issued_at
                        self.issued += 1
                        yield self._sealer.seal_body(body.issued(said, metadata.issued_at))
                    else:
                        pause = max((told_at + self._refresh - metadata.issued_at).total_seconds(), 0.01)
                try:
                    # No wait_for: before Python 3.12 it swallows a cancellation that comes with the event.
                    async with asyncio.timeout(pause):
                        await event.wait()
                    await asyncio.sleep(FOLD)
                except TimeoutError:
                    continue
        finally:
            self._watchers[node].discard(event)
            if not self._watchers[node]:
                del self._watchers[node]


@asynccontextmanager
async def serving(service: MetadataService, address: str, tls: TlsFiles) -> AsyncIterator[int]:
    """Serve on `address` (host:port) while the context lasts; yields the port. Raises BackendError, PolicyError."""
    server = grpc.aio.server(options=_OPTIONS)
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_stream_rpc_method_handler(service.watch)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(channel.SERVICE, {channel.WATCH: handler}),))
    try:
        port = server.add_secure_port(address, _credentials(tls))
    except RuntimeError as error:
        raise BackendError(f"node metadata cannot be served on {address!r}: {error}; name a free address") from error
    await server.start()
    log.info("node metadata is served on %s", address)
    try:
        yield port
    finally:
        await server.stop(grace=1)


def _credentials(tls: TlsFiles) -> grpc.ServerCredentials:
    """Credentials that ask clients for a certificate, and follow the files when they are renewed."""
    seen = tls.read()

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        nonlocal seen
        try:
            found = tls.read()
        except Exception as error:
            log.warning("renewed TLS files cannot be read, the old ones serve on: %s", error)
            return None
        if found == seen:
            return None
        seen = found
        return _configuration(found)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(seen),
        fetch,  # type: ignore[arg-type]  # None means "unchanged"; the stubs do not know it
        require_client_authentication=True,
    )


def _configuration(files: tuple[bytes, bytes, bytes]) -> grpc.ServerCertificateConfiguration:
    key, certificate, authorities = files
    return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=authorities)
