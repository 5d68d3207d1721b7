"""The HTTP responder and the request file, over real sockets and files on this machine."""

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from gpubank.hook import responder as module
from gpubank.hook.desk import Answer, Desk
from gpubank.hook.responder import RequestFile, Responder, StatusFile

BODY = {"id": "loan/local/uid-1/2", "epoch": 2, "deadline": "2026-03-01T12:00:00Z", "reason": "wanted back"}


@pytest.fixture
def desk() -> Desk:
    return Desk(uid="pod-1", world_size=1, uri="file:///run", on_change=lambda answer: None)


@pytest.fixture
def there(desk: Desk) -> Iterator[Responder]:
    responder = Responder(desk, host="127.0.0.1", port=0)
    responder.start()
    yield responder
    responder.stop()


def call(there: Responder, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(there.address.removeprefix("http://"), timeout=20)
    try:
        content = body if isinstance(body, bytes | None) else json.dumps(body)
        connection.request(method, path, body=content, headers=headers)
        response = connection.getresponse()
        raw = response.read()
        is_json = response.headers.get_content_type() == "application/json"
        return response.status, json.loads(raw) if is_json else raw
    finally:
        connection.close()


def raw_call(there: Responder, content: bytes) -> bytes:
    host, _, port = there.address.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(content)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(4096), b""))


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "did not come true in 30 s"
        time.sleep(0.01)


def test_post_is_accepted_and_get_tells_how_far_it_is(there: Responder, desk: Desk) -> None:
    desk.step = 12
    status, answer = call(there, "POST", "/v1/checkpoint", BODY)
    assert (status, answer["state"], answer["stepAtRequest"]) == (202, "accepted", 12)
    assert call(there, "POST", "/v1/checkpoint", BODY) == (202, answer)
    assert call(there, "GET", f"/v1/checkpoint/{quote(str(BODY['id']), safe='')}") == (200, answer)
    assert call(there, "GET", f"/v1/checkpoint/{BODY['id']}") == (200, answer)
    assert desk.waiting is not None


def test_older_epoch_is_409_and_unknown_id_is_404(there: Responder) -> None:
    call(there, "POST", "/v1/checkpoint", BODY)
    status, body = call(there, "POST", "/v1/checkpoint", {**BODY, "id": "old", "epoch": 1})
    assert status == 409
    assert "older than 2" in body["message"]
    status, body = call(there, "GET", "/v1/checkpoint/old")
    assert status == 404
    assert "'old' is unknown" in body["message"]


@pytest.mark.parametrize(
    ("method", "path", "body", "want"),
    [
        ("POST", "/v1/checkpoint", b"{", 400),
        ("POST", "/v1/checkpoint", b"x" * 20_000, 413),
        ("POST", "/v1/other", b"{}", 404),
        ("GET", "/", None, 404),
        ("GET", "/v1/checkpoint/", None, 404),
        ("GET", "/v1/checkpoint", None, 404),
        ("GET", "/elsewhere/v1/checkpoint/x", None, 404),
        ("PUT", "/v1/checkpoint", b"{}", 501),
    ],
)
def test_what_is_not_the_contract_is_refused(
    there: Responder, method: str, path: str, body: bytes | None, want: int
) -> None:
    assert call(there, method, path, body)[0] == want


def test_body_without_a_length_is_refused(there: Responder) -> None:
    reply = raw_call(there, b"POST /v1/checkpoint HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
    assert b" 411 " in reply.splitlines()[0]
    reply = raw_call(there, b"POST /v1/checkpoint HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n")
    assert b" 411 " in reply.splitlines()[0]


def test_body_that_is_cut_off_starts_nothing(there: Responder, desk: Desk) -> None:
    content = json.dumps(BODY).encode()
    head = f"POST /v1/checkpoint HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content) + 10}\r\n\r\n".encode()
    assert raw_call(there, head + content) == b""
    assert desk.waiting is None


def test_slow_drip_is_cut_although_every_byte_comes_in_time(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CONNECTION_SECONDS", 0.3)
    there = Responder(desk, host="127.0.0.1", port=0)
    there.start()
    host, _, port = there.address.removeprefix("http://").partition(":")
    ended = threading.Event()

    def drip(connection: socket.socket) -> None:
        while not ended.wait(0.05):
            try:
                connection.send(b"x")
            except OSError:
                return

    with socket.create_connection((host, int(port)), timeout=30) as connection:
        thread = threading.Thread(target=drip, args=[connection])
        thread.start()
        with contextlib.suppress(ConnectionResetError):
            connection.recv(1)  # ends, with or without an error, only when the responder cuts
        ended.set()
        thread.join()
    there.stop()


def test_clients_that_hold_every_place_are_cut_and_the_bank_gets_through(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CONNECTION_SECONDS", 0.5)
    there = Responder(desk, host="127.0.0.1", port=0)
    there.start()
    host, _, port = there.address.removeprefix("http://").partition(":")
    idle = [socket.create_connection((host, int(port)), timeout=30) for _ in range(16)]

    def gets_through() -> bool:
        try:
            return call(there, "POST", "/v1/checkpoint", BODY)[0] == 202
        except (OSError, http.client.HTTPException):
            return False

    until(gets_through)
    for connection in idle:
        connection.close()
    there.stop()


def test_port_is_free_again_after_stop(desk: Desk) -> None:
    first = Responder(desk, host="127.0.0.1", port=0)
    port = int(first.address.rpartition(":")[2])
    first.start()
    first.stop()
    second = Responder(desk, host="127.0.0.1", port=port)
    second.start()
    assert call(second, "POST", "/v1/checkpoint", BODY)[0] == 202
    second.stop()


def test_request_file_is_read_whenever_it_changes_and_refusals_are_told(tmp_path: Path, desk: Desk) -> None:
    path, told = tmp_path / "request", list[Answer]()
    watcher = RequestFile(desk, path, every=0.01, tell=told.append)
    watcher.start()
    path.write_text(json.dumps(BODY))
    until(lambda: desk.waiting is not None and desk.waiting.id == BODY["id"])
    path.write_text(json.dumps({**BODY, "id": "old", "epoch": 1}))
    until(lambda: len(told) == 1)
    path.write_text("{")
    until(lambda: len(told) == 2)
    path.unlink()
    path.write_text(json.dumps({**BODY, "id": "new", "epoch": 3}))
    until(lambda: desk.waiting is not None and desk.waiting.id == "new")
    watcher.stop()

    assert (told[0]["id"], told[0]["state"]) == ("old", "failed")
    assert (told[1]["id"], told[1]["state"]) == (None, "failed")


def test_status_file_always_holds_one_whole_answer(tmp_path: Path) -> None:
    status = StatusFile(tmp_path / "status")
    status.write({"id": "r-1", "state": "accepted"})
    status.write({"id": "r-1", "state": "saving"})
    assert json.loads((tmp_path / "status").read_text()) == {"id": "r-1", "state": "saving"}
    assert [path.name for path in tmp_path.iterdir()] == ["status"]


def test_status_that_cannot_be_written_does_not_stop_the_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    StatusFile(tmp_path / "missing" / "status").write({"state": "accepted"})
    assert "cannot write the status" in capsys.readouterr().err
