"""Where admission cycles are read, and what is said where they cannot be."""

import asyncio
import json
import re
import ssl
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from math import inf
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gpubank.adapters.kubernetes.kueue.cycles import CYCLE, KueueEndpoint, PrometheusServer, counted
from gpubank.cycles import CycleWatch, source_of, watching_cycles
from gpubank.decide.cycles import CycleCounts, longest
from gpubank.decide.fence import MINIMUM_WAIT, Fence
from gpubank.domain.errors import BackendError, PolicyError
from gpubank.settings import KueueSettings, Settings
from tests.fakes.certificates import Certificates
from tests.support.prometheus import RUNBOOK

PAGE = """\
# HELP kueue_admission_attempt_duration_seconds The latency of an admission attempt.
# TYPE kueue_admission_attempt_duration_seconds histogram
kueue_admission_attempt_duration_seconds_bucket{replica_role="standalone",result="inadmissible",le="0.1"} 2
kueue_admission_attempt_duration_seconds_bucket{replica_role="standalone",result="inadmissible",le="0.5"} 2
kueue_admission_attempt_duration_seconds_bucket{replica_role="standalone",result="inadmissible",le="+Inf"} 2
kueue_admission_attempt_duration_seconds_sum{replica_role="standalone",result="inadmissible"} 0.02
kueue_admission_attempt_duration_seconds_count{replica_role="standalone",result="inadmissible"} 2
kueue_admission_attempt_duration_seconds_bucket{replica_role="standalone",result="success",le="0.1"} 1
kueue_admission_attempt_duration_seconds_bucket{replica_role="standalone",result="success",le="0.5"} 3
kueue_admission_attempt_duration_seconds_bucket{replica_role="standalone",result="success",le="+Inf"} 3
kueue_admission_attempt_duration_seconds_sum{replica_role="standalone",result="success"} 0.7
kueue_admission_attempt_duration_seconds_count{replica_role="standalone",result="success"} 3
# HELP kueue_build_info Kueue build information.
# TYPE kueue_build_info gauge
kueue_build_info{git_version="v0.19.2"} 1
# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.79e+09
"""
BOTH = CycleCounts(((0.1, 3.0), (0.5, 5.0), (inf, 5.0)), 0.02 + 0.7)
"""Of both outcomes of a cycle together."""

Answer = Callable[[web.Request], Awaitable[web.Response]]


class Door:
    """What a server answers; it may be changed while it runs."""

    def __init__(self, text: str = PAGE, status: int = 200) -> None:
        self.text, self.status = text, status
        self.asked: list[web.Request] = []

    async def answer(self, request: web.Request) -> web.Response:
        """Answer."""
        self.asked.append(request)
        return web.Response(text=self.text, status=self.status)


@asynccontextmanager
async def serving(door: Door, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Serve at a port of loopback and yield the address."""
    app = web.Application()
    app.router.add_get("/{path:.*}", door.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        port = runner.addresses[0][1]
        yield f"https://localhost:{port}" if tls is not None else f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


def vector(*rows: tuple[str, Mapping[str, str], float]) -> str:
    """Return what Prometheus answers to a query."""
    result = [{"metric": {"__name__": name} | dict(labels), "value": [1.0, str(value)]} for name, labels, value in rows]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}})


def bucket(instance: str, bound: str, value: float, result: str = "success") -> tuple[str, dict[str, str], float]:
    return f"{CYCLE}_bucket", {"instance": instance, "le": bound, "result": result, "replica_role": "leader"}, value


# ---- Kueue's own endpoint


async def test_the_endpoint_tells_cycles_of_every_outcome_by_process() -> None:
    async with serving(Door()) as url, KueueEndpoint(f"{url}/metrics") as source:
        assert await source.read() == {"1790000000.0": BOTH}


async def test_a_kueue_that_has_admitted_nothing_yet_has_no_cycles_and_is_no_failure() -> None:
    door = Door("\n".join(line for line in PAGE.splitlines() if CYCLE not in line) + "\n")
    async with serving(door) as url, KueueEndpoint(url) as source:
        assert await source.read() == {}


@pytest.mark.parametrize(
    ("door", "says"),
    [
        (Door("process_start_time_seconds 1\n"), "none of them is Kueue's"),
        (Door("<html>\n"), "answers no metrics"),
        (Door("no", 403), "answers 403: no"),
    ],
)
async def test_an_address_that_is_not_kueues_is_named_with_what_it_said(door: Door, says: str) -> None:
    async with serving(door) as url, KueueEndpoint(url) as source:
        with pytest.raises(BackendError, match=says):
            await source.read()


async def test_only_the_lines_that_matter_of_a_long_page_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []

    def parse(text: str) -> Iterable[Metric]:
        parsed.append(text)
        return text_string_to_metric_families(text)

    monkeypatch.setattr("gpubank.adapters.kubernetes.kueue.cycles.text_string_to_metric_families", parse)
    others = [f'kueue_cluster_queue_status{{cluster_queue="q{number}"}} 1\n' for number in range(500)]
    async with serving(Door("".join([*others, PAGE, *others]))) as url, KueueEndpoint(url) as source:
        assert await source.read() == {"1790000000.0": BOTH}
    (text,) = parsed
    assert text.count("\n") < PAGE.count("\n")


async def test_an_address_where_nobody_listens_is_named() -> None:
    async with KueueEndpoint("http://127.0.0.1:9/metrics") as source:
        with pytest.raises(BackendError, match=r"'http://127\.0\.0\.1:9/metrics' does not answer"):
            await source.read()


async def test_the_token_is_read_anew_and_sent_over_verified_tls_alone(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    issued = certificates.issue("localhost")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(issued.certificate, issued.key)
    token, door = tmp_path / "token", Door()
    token.write_text("first\n")
    async with serving(door, tls) as url:
        async with KueueEndpoint(url, authorities=issued.authorities, token=token) as source:
            await source.read()
            token.write_text("second\n")
            await source.read()
            token.unlink()
            with pytest.raises(BackendError, match=r"kueue\.token .* cannot be read"):
                await source.read()
        assert [request.headers["Authorization"] for request in door.asked] == ["Bearer first", "Bearer second"]
        async with KueueEndpoint(url) as stranger:
            with pytest.raises(BackendError, match="CERTIFICATE_VERIFY_FAILED"):
                await stranger.read()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"where": "http://kueue:8443", "token": Path("t")}, "in the clear"),
        ({"where": "kueue:8443"}, "is no URL"),
        ({"where": "https://kueue:port"}, r"'https://kueue:port' is no URL .*[Pp]ort"),
        ({"where": "https://kueue", "authorities": Path("/no/ca.crt")}, r"kueue\.authorities '/no/ca\.crt'"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_at_the_start(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(PolicyError, match=says):
        KueueEndpoint(**arguments)


# ---- Prometheus


async def test_prometheus_tells_every_process_that_it_scrapes() -> None:
    rows = [
        *(bucket("a", bound, value) for bound, value in (("0.1", 1), ("0.5", 2), ("+Inf", 2))),
        *(bucket("a", bound, value, "inadmissible") for bound, value in (("0.1", 4), ("0.5", 4), ("+Inf", 4))),
        *(bucket("b", bound, 0) for bound in ("0.1", "0.5", "+Inf")),
        (f"{CYCLE}_sum", {"instance": "a", "result": "success", "replica_role": "leader"}, 0.25),
    ]
    door = Door(vector(*rows))
    async with serving(door) as url, PrometheusServer(f"{url}/") as source:
        found = await source.read()
    assert door.asked[0].path == "/api/v1/query"
    assert CYCLE in door.asked[0].query["query"]
    assert found == {
        "instance=a": CycleCounts(((0.1, 5.0), (0.5, 6.0), (inf, 6.0)), 0.25),
        "instance=b": CycleCounts(((0.1, 0.0), (0.5, 0.0), (inf, 0.0)), 0.0),
    }
    assert longest(found["instance=a"]) == 0.5


@pytest.mark.parametrize(
    ("door", "says"),
    [
        (Door(vector()), "has no metrics of Kueue"),
        (Door("{}"), "nothing that Prometheus would"),
        (Door("<html>"), "nothing that Prometheus would"),
        (Door('{"status":"error"}', 422), "answers 422"),
    ],
)
async def test_a_prometheus_without_kueue_is_named_with_what_it_said(door: Door, says: str) -> None:
    async with serving(door) as url, PrometheusServer(url) as source:
        with pytest.raises(BackendError, match=says):
            await source.read()


def test_samples_that_are_no_numbers_are_left_out() -> None:
    labels = {"instance": "a", "le": "+Inf"}
    assert counted([(f"{CYCLE}_bucket", labels, float("nan"))]) == {}


# ---- the watch


class Source:
    """Says what it is told to say."""

    where = "somewhere"

    def __init__(self) -> None:
        self.says: Mapping[str, CycleCounts] | str = "nobody listens"

    async def read(self) -> Mapping[str, CycleCounts]:
        """Say it, or raise."""
        if isinstance(self.says, str):
            raise BackendError(self.says)
        return self.says


class Seconds:
    """A monotonic clock that is moved by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


async def test_the_fence_waits_for_what_was_read_and_goes_on_with_it(caplog: pytest.LogCaptureFixture) -> None:
    clock, source, fence = Seconds(), Source(), Fence(0.125)
    watch = CycleWatch(source, fence.measured, every=30, assumed=0.125, monotonic=clock)
    assert await watch.look() == "nobody listens"
    assert (watch.p99, fence.wait) == (0.125, MINIMUM_WAIT)
    assert "nobody listens; the fence goes on with a p99 of 0.125 s" in caplog.text
    source.says = {"1": CycleCounts(((0.5, 1.0), (inf, 1.0)), 0.3)}
    clock.now += 30
    assert await watch.look() == ""
    assert (watch.p99, watch.age, fence.wait) == (0.5, 0, 1.0)
    source.says = "it has moved"
    clock.now += 700
    await watch.look()
    assert (watch.p99, watch.age, fence.wait) == (0.5, 700, 1.0), "the last value holds on, with its age"


async def test_a_failure_is_said_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    source = Source()
    watch = CycleWatch(source, lambda p99: None, every=30)
    for _ in range(3):
        await watch.look()
    source.says = {}
    for _ in range(3):
        await watch.look()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


@pytest.mark.parametrize(("took", "rests"), [(0.2, 30), (3.0, 60)])
async def test_a_source_that_takes_long_is_asked_less_often(
    monkeypatch: pytest.MonkeyPatch, took: float, rests: float
) -> None:
    clock, slept = Seconds(), list[float]()

    class Slow(Source):
        async def read(self) -> Mapping[str, CycleCounts]:
            clock.now += took
            return {}

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        raise asyncio.CancelledError

    monkeypatch.setattr("gpubank.cycles.asyncio.sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await CycleWatch(Slow(), lambda p99: None, every=30, monotonic=clock).run()
    assert slept == [pytest.approx(rests)]


def scraped(registry: CollectorRegistry) -> dict[str, float]:
    lines = (line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in (line.partition(" ") for line in lines)}


async def test_what_the_settings_name_is_read_and_shown() -> None:
    registry, told = CollectorRegistry(), asyncio.Queue[float]()
    async with serving(Door()) as url:
        settings = KueueSettings(metrics_url=f"{url}/metrics", read_seconds=0.01)
        async with watching_cycles(settings, told.put_nowait, registry):
            assert await told.get() == 0.125
            assert await asyncio.wait_for(told.get(), 10) == 0.5
            assert scraped(registry)["gpubank_admission_cycle_p99_seconds"] == 0.5
            assert 0 <= scraped(registry)["gpubank_admission_cycle_age_seconds"] < 10


async def test_without_an_address_the_assumed_length_holds_and_a_warning_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry, told = CollectorRegistry(), list[float]()
    async with watching_cycles(KueueSettings(assumed_cycle_seconds=0.4), told.append, registry):
        assert told == [0.4]
    assert scraped(registry) == {"gpubank_admission_cycle_p99_seconds": 0.4}
    assert "set kueue.metrics_url or kueue.prometheus_url" in caplog.text


def test_two_addresses_are_one_too_many() -> None:
    with pytest.raises(PolicyError, match="unset one"):
        Settings.load({"kueue.metrics_url": "http://a", "kueue.prometheus_url": "http://b"})


@pytest.mark.parametrize(
    ("setting", "kind"), [("metrics_url", KueueEndpoint), ("prometheus_url", PrometheusServer), ("", None)]
)
async def test_each_setting_has_its_source(setting: str, kind: type | None) -> None:
    source = source_of(KueueSettings.model_validate({setting: "https://kueue"} if setting else {}))
    assert (type(source) if source is not None else None) is kind
    if source is not None:
        await source.close()


def test_the_runbooks_settings_are_settings() -> None:
    (block,) = re.findall(r"```yaml\n(\s+kueue:.*?)```", RUNBOOK.read_text(), re.DOTALL)
    assert source_of_page(block).prometheus_url
    # And with the other source in the place of the first.
    assert source_of_page(re.sub(r"(?m)^\s*prometheus_url.*$", "", block).replace("# ", "")).token


def source_of_page(block: str) -> KueueSettings:
    bare = re.sub(r"(?m)^(\s*)or Kueue's own.*$", "", block)
    return KueueSettings.model_validate(yaml.safe_load(textwrap.dedent(bare))["kueue"])
