"""The HTTP server: `/metrics`, `/healthz`, `/readyz`, over TLS and with basic auth where they are asked for.

prometheus_client's server and content negotiation, with what a process on every node needs besides: a fixed number of
threads, a time limit on every connection, and TLS handshakes in those threads. Its own `start_http_server` shakes hands
in the loop that accepts, where one client that says nothing keeps everybody out.
"""

import logging
import queue
import socket
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, ThreadingWSGIServer, choose_encoder, gzip_accepted
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as OPENMETRICS_TYPE

from gpubank.domain.errors import BackendError, PolicyError
from nodeagent.exporter.auth import Users
from nodeagent.exporter.page import Form, Page

log = logging.getLogger(__name__)

THREADS: Final = 4
WAITING: Final = 32
"""Connections that wait for a thread; more are closed at once."""

SECONDS: Final = 5.0
"""Longest silence on a connection."""

_OPENMETRICS: Final = "application/openmetrics-text"

Environment = dict[str, Any]
StartResponse = Callable[..., Any]


class Pages(Protocol):
    """Where pages come from."""

    def scraped(self) -> Page:
        """Return the newest page, and count the scrape."""
        ...

    @property
    def ready(self) -> bool:
        """Whether what is shown is not too old."""
        ...

    @property
    def alive(self) -> bool:
        """Whether anything is still collected."""
        ...


class Application:
    """Answers requests (WSGI)."""

    def __init__(self, pages: Pages, users: Users | None = None) -> None:
        self._pages, self._users = pages, users

    def __call__(self, environment: Environment, start: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        method, path = environment.get("REQUEST_METHOD", ""), environment.get("PATH_INFO", "")
        if method not in ("GET", "HEAD"):
            return _plain(start, "405 Method Not Allowed", "use GET\n", ("Allow", "GET, HEAD"))
        body = self._answer(path, environment, start)
        return [] if method == "HEAD" else body

    def _answer(self, path: str, environment: Environment, start: StartResponse) -> Iterable[bytes]:
        if path == "/healthz":
            alive = self._pages.alive
            return _plain(start, "200 OK", "ok\n") if alive else _plain(start, _UNAVAILABLE, "nothing is collected\n")
        if path == "/readyz":
            ready = self._pages.ready
            return _plain(start, "200 OK", "ok\n") if ready else _plain(start, _UNAVAILABLE, "no fresh collection\n")
        if path == "/":
            return _plain(start, "200 OK", "gpubank exporter: /metrics /healthz /readyz\n")
        if path != "/metrics":
            return _plain(start, "404 Not Found", "there is /metrics, /healthz and /readyz\n")
        if environment.get(_UNCERTIFIED):
            return _plain(start, "403 Forbidden", "show a certificate of yours\n")
        if self._users is not None and not self._users.allows(environment.get("HTTP_AUTHORIZATION", "")):
            return _plain(start, "401 Unauthorized", "who are you?\n", ("WWW-Authenticate", 'Basic realm="metrics"'))
        form = form_of(environment.get("HTTP_ACCEPT", ""), environment.get("HTTP_ACCEPT_ENCODING", ""))
        body = self._pages.scraped().answer(form)
        headers = [
            ("Content-Type", OPENMETRICS_TYPE if form.openmetrics else CONTENT_TYPE_PLAIN_0_0_4),
            ("Content-Length", str(len(body))),
            ("Vary", "Accept, Accept-Encoding"),
        ]
        if form.compressed:
            headers.append(("Content-Encoding", "gzip"))
        start("200 OK", headers)
        return [body]


_UNAVAILABLE: Final = "503 Service Unavailable"
_UNCERTIFIED: Final = "gpubank.uncertified"
"""In a request's environment: a certificate is asked for, and none was shown."""


def form_of(accept: str, accept_encoding: str) -> Form:
    """Choose how to answer from what a scrape accepts; only the first two kilobytes of either count."""
    content_type = choose_encoder(accept[:2048])[1]
    return Form(content_type.startswith(_OPENMETRICS), gzip_accepted(accept_encoding[:2048]))


def _plain(start: StartResponse, status: str, text: str, *headers: tuple[str, str]) -> Iterable[bytes]:
    body = text.encode()
    start(status, [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body))), *headers])
    return [body]


class Tls:
    """Certificates of the server; read anew when the files change."""

    def __init__(self, certificate: Path, key: Path, client_authorities: Path | None = None) -> None:
        """`client_authorities` asks scrapers for a certificate signed by one of them. Raises PolicyError.

        Whoever shows none is let in as far as the health endpoints, for a kubelet's probe has none to show.
        """
        self._files = [path for path in (certificate, key, client_authorities) if path is not None]
        self._certificate, self._key, self._authorities = certificate, key, client_authorities
        self._lock = threading.Lock()
        self._seen = self._stamps()
        self._context = self._load()

    @property
    def asks(self) -> bool:
        """Whether scrapers must show a certificate."""
        return self._authorities is not None

    def context(self) -> ssl.SSLContext:
        """Return the context for the next connection."""
        with self._lock:
            stamps = self._stamps()
            if stamps != self._seen:
                self._seen = stamps
                try:
                    self._context = self._load()
                except PolicyError as error:
                    log.warning("renewed certificates are not used: %s", error)
            return self._context

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self._certificate, self._key)
            if self._authorities is not None:
                context.load_verify_locations(self._authorities)
                context.verify_mode = ssl.CERT_OPTIONAL  # one that is shown must hold
        except (OSError, ssl.SSLError) as error:
            raise PolicyError(
                f"TLS files of the exporter cannot be used: {error}; name a certificate and its key"
            ) from error
        return context

    def _stamps(self) -> tuple[int, ...]:
        stamps = []
        for path in self._files:
            with suppress(OSError):
                stamps.append(path.stat().st_mtime_ns)
        return tuple(stamps)


class _Handler(WSGIRequestHandler):
    timeout = SECONDS
    server: "Server"

    def get_environ(self) -> Environment:
        """Add whether a certificate is missing."""
        environment: Environment = super().get_environ()
        environment[_UNCERTIFIED] = self.server.misses_certificate(self.connection)
        return environment

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a scrape is no event."""

    def version_string(self) -> str:
        """Tell nobody which Python this is."""
        return "gpubank-exporter"


class Server(ThreadingWSGIServer):
    """Serves an application with a fixed number of threads."""

    request_queue_size = 64
    allow_reuse_address = True

    def __init__(self, host: str, port: int, application: Application, tls: Tls | None = None) -> None:
        """Bind to an address. Raises BackendError."""
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._tls = tls
        self._waiting: queue.Queue[tuple[socket.socket, Any] | None] = queue.Queue(WAITING)
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise BackendError(f"{host}:{port} cannot be served: {error.strerror}; name a free address") from error
        self.set_app(application)
        names = [f"scrape-{number}" for number in range(THREADS)]
        self._threads = [threading.Thread(target=self._work, name=name, daemon=True) for name in names]
        self._acceptor = threading.Thread(target=self.serve_forever, name="http", daemon=True)

    @property
    def port(self) -> int:
        """The port that is served."""
        return int(self.server_address[1])

    def start(self) -> None:
        """Begin to serve."""
        for thread in (*self._threads, self._acceptor):
            thread.start()

    def stop(self) -> None:
        """End, giving what is being answered a moment."""
        if self._acceptor.is_alive():
            self.shutdown()
        self.server_close()
        for _ in self._threads:
            with suppress(queue.Full):
                self._waiting.put(None, timeout=1)
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout=1)

    def misses_certificate(self, connection: socket.socket) -> bool:
        """Whether a client had to show a certificate and did not."""
        if self._tls is None or not self._tls.asks:
            return False
        return not (isinstance(connection, ssl.SSLSocket) and connection.getpeercert())

    def server_bind(self) -> None:
        """Bind without asking DNS what this host is called."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "exporter", self.port
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Hand a connection to a thread, or close it where too many wait."""
        try:
            self._waiting.put_nowait((request, client_address))
        except queue.Full:
            self.shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Pass over what a client did wrong."""
        log.debug("scrape of %s ended early", client_address, exc_info=True)

    def server_close(self) -> None:
        """Close the listening socket; threads are ended by `stop`."""
        socketserver.TCPServer.server_close(self)

    def _work(self) -> None:
        while (taken := self._waiting.get()) is not None:
            connection, address = taken
            try:
                connection.settimeout(SECONDS)
                if self._tls is not None:
                    connection = self._tls.context().wrap_socket(connection, server_side=True)
                self.finish_request(connection, address)
            except Exception:
                self.handle_error(connection, address)
            finally:
                self.shutdown_request(connection)
