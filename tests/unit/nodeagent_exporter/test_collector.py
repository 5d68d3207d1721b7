"""The collector, the page and the server together: a scrape waits for nobody."""

import base64
import gc
import gzip
import http.client
import socket
import ssl
import threading
import time
import weakref
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from gpubank.domain.errors import BackendError, PolicyError
from gpubank.metadata.channel import TlsFiles
from nodeagent.attribution.allocations import Allocation
from nodeagent.attribution.attributor import Attributor
from nodeagent.exporter.auth import Users, line
from nodeagent.exporter.collector import Collector
from nodeagent.exporter.hardware import Hardware
from nodeagent.exporter.naming import Naming
from nodeagent.exporter.page import Form
from nodeagent.exporter.server import Application, Server, Tls, form_of
from nodeagent.exporter.telemetry import Reading
from nodeagent.nvml.snapshot import Gpu, NodeSnapshot
from tests.fakes.certificates import Certificates
from tests.unit.nodeagent_attribution.worlds import a_gpu, held
from tests.unit.nodeagent_exporter.worlds import VALUES, options

OPENMETRICS = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3"
ROUNDS = 1000


class FakeNode:
    """A node with one GPU that measures what it is told, and hangs if told to."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.release.set()
        self.entered = threading.Event()
        self.reads = 0

    def open(self) -> str:
        return "580"

    def look(self, driver: str) -> NodeSnapshot:
        return NodeSnapshot((a_gpu(),), driver="580")

    def read(self, gpu: Gpu) -> Reading:
        self.reads += 1
        self.entered.set()
        assert self.release.wait(30)
        return Reading(VALUES | {"power": float(self.reads * 1000)})

    def keep(self, uuids: Sequence[str]) -> None:
        return

    def close(self) -> None:
        return


class NodeTelemetry:
    """The same as a telemetry, whose `open` returns nothing."""

    def __init__(self, node: FakeNode) -> None:
        self._node = node
        self.read, self.keep, self.close = node.read, node.keep, node.close

    def open(self) -> None:
        return


class Kubelet:
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.lists = 0

    def list(self) -> Sequence[Allocation]:
        self.lists += 1
        return (held(),)

    def uids(self) -> dict[tuple[str, str], frozenset[str]]:
        return {("team-a", "train-0"): frozenset({f"u{self.lists}"})}


def a_collector(node: FakeNode, kubelet: Kubelet | None = None, **changes: Any) -> Collector:
    kubelet = kubelet or Kubelet()
    return Collector(
        Naming(host="gpu-0"),
        options(),
        hardware=Hardware(node, NodeTelemetry(node)),
        attributor=Attributor(kubelet, pods=kubelet),
        **{"interval": 0.05, **changes},
    )


@pytest.fixture
def node() -> Iterator[FakeNode]:
    found = FakeNode()
    yield found
    found.release.set()


@pytest.fixture
def serve() -> Iterator[Any]:
    """Serve an application; everything is stopped at the end."""
    servers: list[Server] = []

    def start(collector: Collector, **changes: Any) -> Server:
        server = Server("127.0.0.1", 0, Application(collector, changes.get("users")), changes.get("tls"))
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.stop()


def get(port: int, path: str = "/metrics", method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def power(body: bytes) -> float:
    line = next(line for line in body.decode().splitlines() if line.startswith("DCGM_FI_DEV_POWER_USAGE{"))
    return float(line.split()[-1])


def test_a_scrape_gets_the_last_page_and_its_age_while_a_collection_hangs(node: FakeNode, serve: Any) -> None:
    collector = a_collector(node)
    collector.collect()
    server = serve(collector)
    node.entered.clear()
    node.release.clear()
    collector.start()
    assert node.entered.wait(10)
    first, second = get(server.port)[2], get(server.port)[2]
    assert (power(first), power(second)) == (1, 1)
    assert b"gpubank_exporter_collection_age_seconds" in first
    assert not node.release.is_set(), "the collection hung all the while"
    node.release.set()
    deadline = time.monotonic() + 10
    while power(get(server.port)[2]) < 2:
        assert time.monotonic() < deadline
    collector.stop()


def test_scrapes_ask_nobody_anything(node: FakeNode, serve: Any) -> None:
    kubelet = Kubelet()
    collector = a_collector(node, kubelet)
    collector.collect()
    server = serve(collector)
    asked = (node.reads, kubelet.lists)
    for _ in range(50):
        get(server.port)
    assert (node.reads, kubelet.lists) == asked


def test_a_collection_that_fails_leaves_the_page_and_is_counted(node: FakeNode, serve: Any) -> None:
    collector = a_collector(node, classes=_explode_on_second_call())
    collector.collect()
    before = collector.page
    collector._known = None
    collector.start()
    deadline = time.monotonic() + 10
    while collector._crashes == 0:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert collector.alive
    assert collector.page.answer(Form()).startswith(before.answer(Form())[:100])
    collector.stop()


def _explode_on_second_call() -> Any:
    calls = [0]

    def classes(snapshot: NodeSnapshot) -> dict[str, dict[str, str]]:
        calls[0] += 1
        if calls[0] == 2:
            raise RuntimeError("told to")
        return {}

    return classes


def test_health_and_readiness_say_what_they_mean(node: FakeNode, serve: Any) -> None:
    clock = [0.0]
    collector = a_collector(node, clock=lambda: clock[0], interval=10)
    server = serve(collector)
    assert get(server.port, "/healthz")[0] == 503
    assert get(server.port, "/readyz")[0] == 503
    collector.collect()
    assert get(server.port, "/readyz")[0] == 200
    clock[0] = 31
    assert get(server.port, "/readyz")[0] == 503
    assert get(server.port, "/metrics")[0] == 200, "an old page is better than none"


def test_both_formats_and_gzip_are_served_and_can_be_read(node: FakeNode, serve: Any) -> None:
    collector = a_collector(node)
    collector.collect()
    server = serve(collector)
    status, headers, body = get(server.port)
    assert (status, headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    names = {metric.name for metric in parse_text(body.decode())}
    assert {"DCGM_FI_DEV_POWER_USAGE", "gpubank_gpu_pod_info", "gpubank_exporter_collection_age_seconds"} <= names
    _, headers, body = get(server.port, Accept=OPENMETRICS, Accept_Encoding="gzip")
    assert headers["content-type"].startswith("application/openmetrics-text")
    assert headers["content-encoding"] == "gzip"
    text = gzip.decompress(body).decode()
    first = zlib.decompressobj(wbits=31)
    assert first.decompress(body).decode() == text, "readers that take one gzip member only miss nothing"
    assert first.eof
    assert not first.unused_data
    assert text.endswith("# EOF\n")
    assert text.count("# EOF") == 1
    assert "gpubank_gpu_pod" in {metric.name for metric in parse_openmetrics(text)}  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("accept", "encoding", "form"),
    [
        ("", "", Form()),
        ("*/*", "gzip, deflate", Form(False, True)),
        (OPENMETRICS, "", Form(True, False)),
        ("text/plain;version=1.0.0;escaping=allow-utf-8", "identity", Form()),
        ("nonsense;;;,=,", "\x00", Form()),
        ("application/openmetrics-text;version=1.0.0," * 10_000, "gzip," * 10_000, Form(True, True)),
    ],
)
def test_what_a_scraper_accepts_decides_the_form(accept: str, encoding: str, form: Form) -> None:
    assert form_of(accept, encoding) == form


def test_paths_and_methods_that_are_not_there_are_refused(node: FakeNode, serve: Any) -> None:
    collector = a_collector(node)
    collector.collect()
    server = serve(collector)
    assert get(server.port, "/nowhere")[0] == 404
    assert get(server.port, "/metrics", "POST")[0] == 405
    status, headers, body = get(server.port, "/metrics", "HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["content-length"]) > 1000


def test_basic_auth_guards_the_metrics_and_not_the_probes(node: FakeNode, serve: Any, tmp_path: Path) -> None:
    (tmp_path / "users").write_text(f"# scrapers\n{line('prometheus', 'a:b c', rounds=10)}\n")
    collector = a_collector(node)
    collector.collect()
    server = serve(collector, users=Users.load(tmp_path / "users"))

    def asked(user: str, password: str) -> int:
        encoded = base64.b64encode(f"{user}:{password}".encode()).decode()
        return get(server.port, Authorization=f"Basic {encoded}")[0]

    assert get(server.port)[0] == 401
    assert (asked("prometheus", "a:b c"), asked("prometheus", "a:b c")) == (200, 200)
    assert (asked("prometheus", "wrong"), asked("nobody", "a:b c"), asked("", "")) == (401, 401, 401)
    assert get(server.port, Authorization="Basic %%%")[0] == 401
    assert get(server.port, Authorization="Bearer x")[0] == 401
    assert get(server.port, "/readyz")[0] == 200


@pytest.mark.parametrize("text", ["", "user:plain\n", "user:pbkdf2-sha256$0$aa$bb\n", "user:pbkdf2-sha256$9$zz$bb\n"])
def test_a_users_file_that_lets_nobody_in_or_holds_a_plain_password_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "users").write_text(text)
    with pytest.raises(PolicyError, match=r"users file .*(names nobody|no user with a hash)"):
        Users.load(tmp_path / "users")


@pytest.mark.parametrize(("user", "password"), [("a:b", "x"), ("", "x"), ("a", ""), ("a\n", "x")])
def test_a_user_who_could_never_sign_in_is_refused(user: str, password: str) -> None:
    with pytest.raises(PolicyError, match="user"):
        line(user, password)


def test_tls_asks_scrapers_for_a_certificate_where_it_is_told_to_and_probes_never(
    node: FakeNode, serve: Any, tmp_path: Path
) -> None:
    certificates = Certificates(tmp_path)
    ours, theirs = certificates.issue("localhost"), certificates.issue("prometheus")
    (tmp_path / "other").mkdir()
    strange = Certificates(tmp_path / "other").issue("prometheus")
    collector = a_collector(node)
    collector.collect()
    server = serve(collector, tls=Tls(ours.certificate, ours.key, ours.authorities))

    def ask(path: str, shown: TlsFiles | None = None) -> int:
        context = ssl.create_default_context(cafile=str(ours.authorities))
        if shown is not None:
            context.load_cert_chain(shown.certificate, shown.key)
        connection = http.client.HTTPSConnection("localhost", server.port, context=context, timeout=10)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        finally:
            connection.close()

    assert [ask("/metrics"), ask("/metrics", theirs)] == [403, 200]
    assert [ask("/healthz"), ask("/readyz")] == [503, 200], "the collector's thread does not run in this test"
    with pytest.raises((ssl.SSLError, ConnectionError)):
        ask("/healthz", strange)


def test_clients_that_say_nothing_keep_nobody_out(node: FakeNode, serve: Any, tmp_path: Path) -> None:
    ours = Certificates(tmp_path).issue("localhost")
    collector = a_collector(node)
    collector.collect()
    server = serve(collector, tls=Tls(ours.certificate, ours.key))
    silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(3)]
    context = ssl.create_default_context(cafile=str(ours.authorities))
    connection = http.client.HTTPSConnection("localhost", server.port, context=context, timeout=10)
    connection.request("GET", "/metrics")
    assert connection.getresponse().status == 200
    connection.close()
    for each in silent:
        each.close()


def test_certificates_that_were_renewed_are_used_and_broken_ones_are_not(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    ours = certificates.issue("localhost")
    tls = Tls(ours.certificate, ours.key)
    first = tls.context()
    assert tls.context() is first
    ours.certificate.write_text("broken")
    assert tls.context() is first
    certificates.issue("localhost")
    assert tls.context() is not first


def test_a_server_whose_address_is_taken_says_so(node: FakeNode, serve: Any) -> None:
    server = serve(a_collector(node))
    with pytest.raises(BackendError, match=rf"127.0.0.1:{server.port} cannot be served"):
        Server("127.0.0.1", server.port, Application(a_collector(node)))


def test_two_thousand_scrapes_and_as_many_pods_leave_nothing_behind(node: FakeNode) -> None:
    kubelet = Kubelet()
    collector = a_collector(node, kubelet)

    def scrape_and_collect(rounds: int) -> weakref.ref[Any]:
        page = weakref.ref(collector.page)
        for number in range(rounds):
            if number % 10 == 0:
                collector.collect()  # the pod's UID is another one every time
            collector.scraped().answer(Form(openmetrics=True, compressed=number % 2 == 0))
        return page

    scrape_and_collect(100)
    first = scrape_and_collect(ROUNDS)
    before = _objects()
    scrape_and_collect(ROUNDS)
    assert _objects() - before < 50
    assert first() is None, "an old page is not kept"


def _objects() -> int:
    gc.collect()
    return len(gc.get_objects())
