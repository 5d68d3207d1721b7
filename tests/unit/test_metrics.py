"""What is scraped and probed: names as documented, values from books and facts, and probes that say why they fail."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx2
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gpubank import metrics
from gpubank.controller.metrics import SILENT_AFTER, ControllerMetrics
from gpubank.controller.pool_loop import PoolLoop
from gpubank.domain.books import Books
from gpubank.domain.demand import Demand, DemandKind, DemandState
from gpubank.domain.errors import BackendError
from gpubank.domain.failsafe import heartbeat_lease
from gpubank.exposition import RecallMetrics, registry_of
from gpubank.metrics import METRICS, MetricType, Process
from gpubank.probes import Check, Probes, Signs, serving
from gpubank.settings import ObservabilitySettings
from gpubank.simulation.processes import free_port
from gpubank.watchdog.metrics import WatchdogMetrics
from gpubank.watchdog.watchdog import Watchdog
from tests.unit.controller.harness import POOL, Bank, a_bank

EIGHT = {"guaranteed": 8, "borrowLimit": 8}
AT = datetime(2026, 1, 1, tzinfo=UTC)


class Seconds:
    """A monotonic clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def samples(registry: CollectorRegistry) -> dict[str, float]:
    """Return what a scrape gets, as `name{label="value"}` → value."""
    found = {}
    for line in generate_latest(registry).decode().splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            found[name] = float(value)
    return found


def demand(**fields: object) -> Demand:
    row = {
        "demand_id": f"{POOL}/b/Workload/u",
        "cluster": "local",
        "pool": POOL,
        "lender": "b",
        "kind": DemandKind.WORKLOAD,
        "gpus": 8,
        "opened_at": AT,
        "due_at": AT + timedelta(minutes=30),
    }
    return Demand.model_validate(row | fields)


# ---- names


def test_every_name_is_prefixed_unique_and_says_its_unit() -> None:
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names)) > 20
    for metric in METRICS:
        assert re.fullmatch(r"gpubank(_[a-z0-9]+)+", metric.name)
        assert (metric.type is MetricType.COUNTER) == metric.name.endswith("_total")
        assert (metric.type is MetricType.HISTOGRAM) == bool(metric.buckets)
        assert metric.meaning.endswith(".")


def test_every_metric_has_its_row_in_the_reference() -> None:
    page = metrics.page()
    assert all(f"| `{metric.name}` | {metric.type} |" in page for metric in METRICS)


# ---- the controller


@pytest.fixture
async def bank(tmp_path: Path) -> AsyncIterator[Bank]:
    async with a_bank(tmp_path) as bank:
        yield bank


def seen(bank: Bank, found: ControllerMetrics) -> None:
    """Have the metrics hear of the loop's last turn."""
    found.turned(POOL, 0.02, bank.loop.facts, bank.loop.books, bank.controller.terms(POOL))


async def test_a_loan_a_waiting_owner_and_quotas_are_scraped_as_the_books_have_them(bank: Bank) -> None:
    found = ControllerMetrics(bank.cluster.clock.now)
    await bank.agree(a=EIGHT, b=EIGHT)
    bank.submit("a", "own", 8)
    await bank.let(3)
    bank.submit("a", "loan", 8, borrow=True)
    await bank.let(3)
    bank.submit("b", "own-b", 8)
    await bank.let(2)
    seen(bank, found)
    scraped = samples(found.registry)
    pool = f'pool="{POOL}"'
    assert scraped[f'gpubank_lent_gpus{{borrower="a",lender="b",{pool}}}'] == 8
    assert scraped[f'gpubank_guaranteed_gpus{{group="a",{pool}}}'] == 8
    assert scraped[f'gpubank_reserved_gpus{{group="a",{pool},queue="borrow"}}'] == 8
    assert scraped[f'gpubank_pending_gpus{{group="b",{pool},queue="own"}}'] == 8
    assert scraped[f'gpubank_open_demands{{lender="b",{pool}}}'] == 1
    assert scraped[f"gpubank_overdue_demands{{{pool}}}"] == 0
    assert scraped[f"gpubank_capacity_gpus{{{pool}}}"] == scraped[f"gpubank_allocatable_gpus{{{pool}}}"] == 16
    assert scraped[f"gpubank_frozen{{{pool}}}"] == scraped[f"gpubank_fail_safe{{{pool}}}"] == 0
    assert scraped["gpubank_leading"] == 1
    assert "gpubank_ledger_imbalance_gpu_ms" not in scraped


async def test_ages_grow_between_turns_and_a_demand_becomes_overdue(bank: Bank) -> None:
    found = ControllerMetrics(bank.cluster.clock.now)
    await bank.agree(a=EIGHT, b=EIGHT)
    bank.submit("a", "own", 8)
    await bank.let(3)
    bank.submit("a", "loan", 8, borrow=True)
    await bank.let(3)
    bank.submit("b", "own-b", 8)
    await bank.let(2)
    seen(bank, found)
    name = f'gpubank_demand_seconds{{lender="b",pool="{POOL}"}}'
    before = samples(found.registry)[name]
    await bank.cluster.advance(3600)
    after = samples(found.registry)
    assert after[name] == pytest.approx(before + 3600)
    assert after[f'gpubank_overdue_demands{{pool="{POOL}"}}'] == 1


async def test_a_pool_that_is_gone_leaves_nothing_behind(bank: Bank) -> None:
    found = ControllerMetrics(bank.cluster.clock.now)
    await bank.agree(a=EIGHT)
    await bank.let(1)
    seen(bank, found)
    mine = f'pool="{POOL}"'
    assert sum(mine in name for name in samples(found.registry)) > 10
    found.gone(POOL)
    found.gone("never-there")
    assert not any(mine in name for name in samples(found.registry))


async def unreachable(cluster: str, pool: str) -> Books:
    raise BackendError("the database does not answer")


async def test_the_loop_tells_of_turns_that_end_and_turns_that_fail(bank: Bank) -> None:
    found = ControllerMetrics(bank.cluster.clock.now)
    await bank.agree(a=EIGHT)
    await bank.controller.reconcile()
    loop = PoolLoop(
        "local",
        POOL,
        backend=bank.cluster,
        ledger=bank.ledger,
        processes=bank.processes,
        notifier=bank.cluster.notices,
        terms=lambda: bank.controller.terms(POOL),
        now=bank.cluster.clock.now,
        observer=found,
    )
    pool = f'{{pool="{POOL}"}}'
    turned, failed = f"gpubank_turn_seconds_count{pool}", f"gpubank_pool_turn_failures_total{pool}"

    async def until(holds: Callable[[dict[str, float]], bool]) -> None:
        async with asyncio.timeout(10):
            while not holds(samples(found.registry)):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    running = asyncio.create_task(loop.run())
    try:
        await until(lambda scraped: scraped.get(turned, 0) >= 1)
        assert samples(found.registry)[failed] == 0
        bank.ledger.books = unreachable  # type: ignore[method-assign]
        loop.poke()
        await until(lambda scraped: scraped[failed] >= 1)
        assert await found.ready() == f"turns fail: {POOL}"
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize(
    ("state", "outcome"),
    [(DemandState.MET, "met"), (DemandState.PARTIAL, "partial"), (DemandState.CANCELLED, "cancelled")],
)
def test_a_demand_that_ends_is_counted_with_its_age(state: DemandState, outcome: str) -> None:
    registry = CollectorRegistry()
    RecallMetrics(registry).ended(demand(), state, AT + timedelta(seconds=42))
    scraped = samples(registry)
    assert scraped[f'gpubank_recalls_total{{outcome="{outcome}",pool="{POOL}"}}'] == 1
    assert scraped[f'gpubank_recall_seconds_sum{{outcome="{outcome}",pool="{POOL}"}}'] == 42


def test_a_demand_that_goes_on_is_not_counted() -> None:
    registry = CollectorRegistry()
    counted = RecallMetrics(registry)
    counted.ended(demand(), DemandState.RAISED, AT)
    counted.ended(demand(state=DemandState.PARTIAL), DemandState.PARTIAL, AT)
    assert samples(registry) == {}


async def test_a_stuck_loop_is_dead_and_a_replica_that_stands_by_is_not() -> None:
    clock = Seconds()
    found = ControllerMetrics(lambda: AT, monotonic=clock)
    assert await found.signs.check() == ""
    found.reconciled("")
    found.failed(POOL, 0.1)
    clock.now += SILENT_AFTER + 1
    assert f"the loop of pool '{POOL}' gave no sign of life for 121 s" in await found.signs.check()
    found.deposed()
    found.gone(POOL)
    assert await found.signs.check() == ""
    found.reconciled("no API server")
    assert await found.ready() == "the agreements cannot be read: no API server"


def test_the_balance_of_the_ledger_is_scraped_once_it_is_known() -> None:
    found = ControllerMetrics(lambda: AT)
    found.balanced(-7)
    found.posting_failed()
    scraped = samples(found.registry)
    assert scraped["gpubank_ledger_imbalance_gpu_ms"] == -7
    assert scraped["gpubank_posting_failures_total"] == 1


# ---- the watchdog


async def test_the_watchdog_shows_silence_and_its_limit(bank: Bank) -> None:
    await bank.agree(a=EIGHT)
    await bank.let(1)
    found = WatchdogMetrics()
    ready = found.probes().ready[0]
    assert await ready() == "the pools' agreements were not read yet"

    async def terms() -> dict[str, object]:
        agreed = bank.controller.terms(POOL)
        assert agreed is not None
        return {POOL: agreed}

    clock = Seconds()
    watchdog = Watchdog(
        "local",
        terms=found.terms(terms),  # type: ignore[arg-type]
        leases=bank.cluster.leases,
        backend=bank.cluster.fail_safe,
        monotonic=clock,
    )
    found.watch(watchdog)
    await bank.cluster.leases.renew(heartbeat_lease("local", POOL), holder="gpubank", duration=timedelta(seconds=30))
    await watchdog.turn()
    clock.now += 20
    await watchdog.turn()
    scraped = samples(found.registry)
    assert scraped[f'gpubank_heartbeat_silence_seconds{{pool="{POOL}"}}'] == 20
    assert scraped[f'gpubank_heartbeat_limit_seconds{{pool="{POOL}"}}'] == 300
    assert scraped[f'gpubank_fail_safe{{pool="{POOL}"}}'] == 0
    assert await ready() == ""


# ---- what answers


async def ask(port: int, path: str) -> tuple[int, str]:
    async with httpx2.AsyncClient(trust_env=False) as http:
        answer = await http.get(f"http://127.0.0.1:{port}{path}")
        return answer.status_code, answer.text


def saying(*words: str) -> Sequence[Check]:
    def check(word: str) -> Check:
        async def say() -> str:
            return word

        return say

    return [check(word) for word in words]


async def test_probes_answer_200_or_503_with_every_reason() -> None:
    port = free_port()
    probes = Probes(registry_of(Process.WORKER), live=saying("", ""), ready=saying("no polls", "", "no ledger"))
    async with serving(ObservabilitySettings(port=port), probes) as served:
        assert served == port
        assert await ask(port, "/healthz") == (200, "ok\n")
        assert await ask(port, "/readyz") == (503, "no polls; no ledger\n")
        assert (await ask(port, "/else"))[0] == 404


async def test_a_scrape_is_valid_and_holds_what_is_served_elsewhere_too() -> None:
    async def further() -> str:
        return "# TYPE temporal_num_pollers gauge\ntemporal_num_pollers 2\n"

    port = free_port()
    async with serving(ObservabilitySettings(port=port), Probes(registry_of(Process.WORKER), further=further)):
        status, text = await ask(port, "/metrics")
    families = {family.name for family in text_string_to_metric_families(text)}
    assert status == 200
    assert {"gpubank_build_info", "temporal_num_pollers", "process_resident_memory_bytes"} <= families


async def test_port_0_serves_nothing() -> None:
    async with serving(ObservabilitySettings(), Probes(CollectorRegistry())) as served:
        assert served == 0


async def test_a_port_that_is_taken_is_told_with_the_setting_to_change() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(BackendError, match=r"observability\.port .* cannot be had: .*; set another one"):
            async with serving(ObservabilitySettings(port=port), Probes(CollectorRegistry())):
                pass


async def test_a_sign_of_life_counts_for_as_long_as_it_said() -> None:
    clock = Seconds()
    signs = Signs(clock)
    signs.give("the loop", within=10)
    clock.now += 10
    assert await signs.check() == ""
    clock.now += 1
    assert await signs.check() == "the loop gave no sign of life for 11 s"
    signs.forget("the loop")
    assert await signs.check() == ""
