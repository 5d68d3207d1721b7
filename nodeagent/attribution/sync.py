"""The node's end of the metadata stream: a thread that listens, and comes back when the control plane does."""

import logging
import random
import threading
from typing import Any, Final

import grpc

from gpubank.domain.errors import BankError
from gpubank.metadata import channel
from gpubank.metadata.channel import TlsFiles
from gpubank.metadata.seal import LARGEST
from nodeagent.attribution.store import SnapshotStore

log = logging.getLogger(__name__)

_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 60.0
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", LARGEST + 1024),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.enable_http_proxy", 0),
)


class MetadataClient:
    """Listens for one node's snapshots and hands them to the store."""

    def __init__(self, address: str, node: str, tls: TlsFiles, store: SnapshotStore, *, server_name: str = "") -> None:
        """`server_name` is the name in the server's certificate, where it is not the host of `address`."""
        self._address, self._node, self._tls, self._store = address, node, tls, store
        self._server_name = server_name
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metadata", daemon=True)
        self._call: Any = None
        self._lock = threading.Lock()
        self.connected = False
        """Whether a stream is open that has said something."""
        self.failures = 0
        """Streams that ended."""

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def stop(self) -> None:
        """End the stream and the thread."""
        with self._lock:
            self._stopped.set()
            call = self._call
        if call is not None:
            call.cancel()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while not self._stopped.is_set():
            try:
                told = self._listen()
            except (grpc.RpcError, BankError, OSError) as error:
                told = self.connected
                if not self._stopped.is_set():
                    self.failures += 1
                    log.log(logging.INFO if told else logging.DEBUG, "metadata stream ended: %s", _words(error))
            self.connected = False
            pause = _FIRST_PAUSE if told else min(pause * 2, _LONGEST_PAUSE)
            # Jitter, so that a fleet does not come back in step.
            self._stopped.wait(pause * random.uniform(0.5, 1.5))

    def _listen(self) -> bool:
        """Listen until the stream ends; whether it said anything."""
        key, certificate, authorities = self._tls.read()
        credentials = grpc.ssl_channel_credentials(authorities, key, certificate)
        options = [*_OPTIONS]
        if self._server_name:
            options.append(("grpc.ssl_target_name_override", self._server_name))  # type: ignore[arg-type]
        with grpc.secure_channel(self._address, credentials, options=options) as connection:
            watch: Any = connection.unary_stream(channel.METHOD)
            with self._lock:
                if self._stopped.is_set():
                    return False
                self._call = watch(channel.request(self._node))
            for sealed in self._call:
                self._store.accept(sealed)
                self.connected = True
        return self.connected


def _words(error: BaseException) -> str:
    if isinstance(error, grpc.RpcError):
        return f"{error.code().name.lower()} ({(error.details() or '')[:200]})"
    return str(error)
