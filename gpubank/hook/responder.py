"""How requests reach the desk: a small HTTP responder, and a file that the kubelet projects an annotation into."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import uuid
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from gpubank.hook.desk import Answer, Desk
from gpubank.hook.protocol import MAX_REQUEST_BYTES, RequestRefusedError, parse_request

CHECKPOINT_PATH = "/v1/checkpoint"
_CONNECTION_SECONDS = 10.0
_MAX_CONNECTIONS = 16


class Responder:
    """Answers `POST /v1/checkpoint` and `GET /v1/checkpoint/{id}` in threads of its own.

    A connection lives 10 s at most and 16 are served at once, so that no client can hold the responder up.
    """

    def __init__(self, desk: Desk, *, host: str, port: int) -> None:
        self._server = _Server((host, port), desk)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, name="gpubank-hook-http", daemon=True
        )

    @property
    def address(self) -> str:
        """The base URL, with the port that was really taken."""
        host, port = self._server.server_address[:2]
        name = host.decode() if isinstance(host, bytes) else str(host)
        return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Stop answering and free the port."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class RequestFile:
    """Feeds the desk with the request in a file, as a downward-API volume writes it, whenever its content changes.

    What the desk refuses is told to `tell` as a failed answer, for a file has no status code.
    """

    def __init__(self, desk: Desk, path: Path, *, every: float, tell: Callable[[Answer], None]) -> None:
        self._desk = desk
        self._path = path
        self._every = every
        self._tell = tell
        self._seen = b""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="gpubank-hook-file", daemon=True)

    def start(self) -> None:
        """Begin to watch; what lies in the file already is a request too."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        self._look()
        while not self._stop.wait(self._every):
            self._look()

    def _look(self) -> None:
        try:
            with self._path.open("rb") as file:
                content = file.read(MAX_REQUEST_BYTES + 1).strip()
        except OSError:
            return  # the volume is not mounted yet, or is being replaced
        if content in (b"", self._seen):
            return
        self._seen = content
        try:
            self._desk.ask(parse_request(content))
        except RequestRefusedError as refusal:
            self._tell({"id": _id_in(content), "state": "failed", "message": str(refusal)})


class StatusFile:
    """A file that always holds one whole answer; a sidecar copies it into the pod's status annotation."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, answer: Answer) -> None:
        """Replace the content; a failure to write is told on stderr and does not stop the training."""
        scratch = self._path.with_name(f".{self._path.name}.{uuid.uuid4().hex[:8]}")
        try:
            scratch.write_text(json.dumps(answer) + "\n", encoding="utf-8")
            os.replace(scratch, self._path)
        except OSError as error:
            sys.stderr.write(f"gpubank hook: cannot write the status to {str(self._path)!r}: {error}\n")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 32

    def __init__(self, address: tuple[str, int], desk: Desk) -> None:
        self.desk = desk
        self._free = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        # A socket's own time-out starts anew with every byte; this one does not, so slow drips end too.
        limit = threading.Timer(_CONNECTION_SECONDS, _cut, [request])
        limit.daemon = True
        limit.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            limit.cancel()
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news for the log of a training run."""


class _Handler(BaseHTTPRequestHandler):
    timeout = _CONNECTION_SECONDS
    server_version = "gpubank-hook"
    sys_version = ""
    server: _Server

    def do_POST(self) -> None:
        """Take a request."""
        if self.path != CHECKPOINT_PATH:
            self._refuse(HTTPStatus.NOT_FOUND, f"{self.path!r} is not served; post to {CHECKPOINT_PATH}")
            return
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            self._refuse(HTTPStatus.LENGTH_REQUIRED, "send the length of the request as Content-Length")
            return
        if len(length) > 9 or int(length) > MAX_REQUEST_BYTES:
            self._refuse(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"the request has {length[:20]} bytes; at most {MAX_REQUEST_BYTES} are read",
            )
            return
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            return  # cut off on the way: there is nobody to answer
        try:
            answer = self.server.desk.ask(parse_request(body))
        except RequestRefusedError as refusal:
            self._refuse(refusal.status, str(refusal))
            return
        self._reply(HTTPStatus.ACCEPTED, answer)

    def do_GET(self) -> None:
        """Tell how far a request is."""
        prefix, _, name = self.path.partition(CHECKPOINT_PATH + "/")
        if prefix or not name:
            self._refuse(HTTPStatus.NOT_FOUND, f"{self.path!r} is not served; get {CHECKPOINT_PATH}/{{id}}")
            return
        request_id = unquote(name)
        answer = self.server.desk.answer(request_id)
        if answer is None:
            self._refuse(HTTPStatus.NOT_FOUND, f"request {request_id!r} is unknown here; post it first")
            return
        self._reply(HTTPStatus.OK, answer)

    def _refuse(self, status: int, message: str) -> None:
        self._reply(status, {"message": message})

    def _reply(self, status: int, body: Answer) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """The log belongs to the training run."""


def _cut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it ended by itself in the meantime
        connection.shutdown(socket.SHUT_RDWR)


def _id_in(content: bytes) -> str | None:
    try:
        found = json.loads(content).get("id")
    except (ValueError, AttributeError, RecursionError):
        return None
    return found if isinstance(found, str) else None
