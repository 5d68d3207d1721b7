"""The lab's Prometheus: the lab's own servers, the bank's processes, and Kueue's admission cycles for the fence."""

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
import pytest_asyncio
import yaml
from typer.testing import CliRunner

from gpubank.adapters.kubernetes.kueue.cycles import CYCLE, KueueEndpoint, PrometheusServer
from gpubank.cli.lab import app
from gpubank.decide.cycles import longest
from gpubank.domain.errors import BackendError
from gpubank.lab import Lab
from gpubank.lab.components import prometheus as component
from gpubank.lab.components.prometheus import INTERVAL, NAME
from gpubank.lab.state import write_whole
from gpubank.settings import CONFIG_VARIABLE
from gpubank.simulation.processes import free_port, launch, stop
from tests.fakes import dcgm
from tests.support import restricted
from tests.support.prometheus import Prometheus, Promtool, alerts, metric_names, rule_files
from tests.support.running import RunningBank

SERVERS: Final = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kueue", "etcd", "kwok", NAME)

pytestmark = pytest.mark.timeout(300)
in_the_banks_loop = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture(scope="module")
def lab_with(lab: Lab, prometheus_binary: Path, promtool: Promtool) -> Lab:
    """The session's lab, which Prometheus has joined."""
    joined = Lab(lab.name, extra=[NAME])
    joined.up()
    return joined


@pytest.fixture(scope="module")
def server(lab_with: Lab) -> Iterator[Prometheus]:
    server = Prometheus(lab_with.prometheus_url, lab_with.log(NAME))
    yield server
    server.close()


def target(lab: Lab, name: str, *ports: int, **labels: str) -> Path:
    """Drop a file of targets; return it."""
    path = lab.targets / f"{name}.yaml"
    write_whole(path, yaml.safe_dump([{"targets": [f"127.0.0.1:{port}" for port in ports], "labels": labels}]))
    return path


# ---- the component


def test_every_server_of_the_lab_is_scraped_over_tls_that_is_verified(lab_with: Lab, server: Prometheus) -> None:
    server.until_up(*SERVERS)
    assert server.query("kueue_build_info")
    assert server.query("scheduler_pending_pods")
    config = yaml.safe_load((lab_with.folder / "config" / "prometheus.yaml").read_text())
    assert "insecure" not in str(config)
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    assert all(jobs[name]["tls_config"]["ca_file"] for name in SERVERS if name not in ("kwok", NAME))


def test_who_shows_no_token_is_not_served(lab_with: Lab) -> None:
    url = f"https://{lab_with.url('kueue-metrics')}/metrics"
    assert httpx2.get(url, verify=lab_with.tls("nobody"), trust_env=False).status_code == httpx2.codes.UNAUTHORIZED


def test_promtool_takes_the_configuration_of_the_lab(lab_with: Lab, promtool: Promtool) -> None:
    assert "SUCCESS" in promtool("check", "config", lab_with.folder / "config" / "prometheus.yaml")


def test_a_file_adds_a_target_and_its_end_removes_it(lab_with: Lab, server: Prometheus) -> None:
    with dcgm.serving(dcgm.page([dcgm.entity(0, "GPU-lab")])) as port:
        file = target(lab_with, "node", port, node="gpu-lab")
        server.until(lambda: bool(server.query('DCGM_FI_DEV_POWER_USAGE{node="gpu-lab"}')), "the new target scraped")
        file.unlink()
        server.until(lambda: not server.query('up{node="gpu-lab"}'), "the target forgotten")


def test_status_says_where_it_is(lab_with: Lab) -> None:
    said = json.loads(CliRunner().invoke(app, ["status", "--name", lab_with.name, "--json"]).stdout)
    assert said["prometheus"] == lab_with.prometheus_url
    assert said["targets"] == str(lab_with.targets)
    people = CliRunner().invoke(app, ["status", "--name", lab_with.name]).stdout
    assert f"Prometheus: {lab_with.prometheus_url}" in people


# ---- the bank's processes


@pytest.fixture(scope="module")
def watchdog(lab_bank: RunningBank) -> Iterator[int]:
    """Port of a watchdog process under its own rights."""
    bank, port = lab_bank.processes, free_port()
    folder = bank.folder / "watchdog"
    settings = yaml.safe_load(bank.settings.read_text())
    settings["cluster"]["kubeconfig"] = str(restricted.kubeconfig(lab_bank.lab, "watchdog", folder))
    settings["observability"] = {"port": port}
    (folder / "gpubank.yaml").write_text(yaml.safe_dump(settings))
    env = {**os.environ, CONFIG_VARIABLE: str(folder / "gpubank.yaml")}
    process = launch([sys.executable, "-m", "gpubank.watchdog.main"], env=env, log=folder / "watchdog.log")
    yield port
    stop(process, 10)


@pytest.fixture(scope="module")
def ports(lab_bank: RunningBank, watchdog: int) -> dict[str, int]:
    """Port of every process of the bank."""
    served = {name: restricted.port(lab_bank.processes, name) for name in ("controller", "worker")}
    return {**served, "watchdog": watchdog}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def bank_scraped(
    lab_bank: RunningBank, lab_with: Lab, server: Prometheus, ports: dict[str, int], tmp_path_factory: Any
) -> AsyncIterator[str]:
    """A pool with a job of its owner, its bank scraped; yields the pool."""
    files = [target(lab_with, name, port, process_name=name) for name, port in ports.items()]
    for name, text in rule_files().items():
        write_whole(component.rules(lab_with.folder) / f"{name}.yaml", text)
    httpx2.post(f"{server.url}/-/reload", trust_env=False).raise_for_status()
    async with lab_bank.pool(tmp_path_factory.mktemp("pool")) as bank:
        await bank.agree((8,), vision=8, search=0)
        await bank.own("vision", "train")
        await bank.placed("train")
        yield bank.world.pool
    for file in files:
        file.unlink()


@in_the_banks_loop
async def test_every_process_of_the_bank_is_scraped(server: Prometheus, bank_scraped: str) -> None:
    def built() -> bool:
        found = server.query("gpubank_build_info")
        return sorted(labels["process"] for labels, _ in found) == ["controller", "watchdog", "worker"]

    await asyncio.to_thread(server.until, built, "all three scraped")
    assert server.number("sum(gpubank_leading)") == 1
    assert server.number('max(temporal_num_pollers{task_queue="bank"})') > 0
    capacity = f'gpubank_capacity_gpus{{pool="{bank_scraped}"}}'
    await asyncio.to_thread(server.until, lambda: server.query(capacity) != [], "the pool scraped")
    assert server.number(capacity) == 8
    reserved = f'gpubank_reserved_gpus{{pool="{bank_scraped}", queue="own"}} > 0'
    await asyncio.to_thread(server.until, lambda: server.query(reserved) != [], "the owner's job scraped")
    assert server.number(reserved) == 8


@in_the_banks_loop
async def test_every_metric_of_the_banks_alerts_is_really_served(server: Prometheus, bank_scraped: str) -> None:
    of_nodes = yaml.safe_load(rule_files()["gpubank-nodes.rules.yaml"])["groups"]
    elsewhere = {rule["alert"] for group in of_nodes for rule in group["rules"]}
    wanted = {name for rule in alerts() if rule["alert"] not in elsewhere for name in metric_names(rule["expr"])}
    assert len(wanted) >= 15

    def missing() -> list[str]:
        return [name for name in sorted(wanted) if not server.query(f"count({name})")]

    await asyncio.to_thread(server.until, lambda: not missing(), "every metric served")
    # A ledger that is looked at now and then, workflows that are counted now and then: numbers, and no NaN.
    assert server.number("max(abs(gpubank_ledger_imbalance_gpu_ms))") == 0
    counted = "max(gpubank_stuck_workflows) >= 0"
    await asyncio.to_thread(server.until, lambda: server.query(counted) != [], "stuck workflows counted")


@in_the_banks_loop
async def test_prometheus_evaluates_every_rule_and_a_sound_bank_raises_no_alert(
    server: Prometheus, bank_scraped: str
) -> None:
    def evaluated() -> bool:
        groups = server.get("rules")["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        return len(rules) == len(alerts()) and all(rule["health"] == "ok" for rule in rules)

    await asyncio.to_thread(server.until, evaluated, "every rule evaluated")
    assert server.query(f'ALERTS{{alertstate="firing", pool="{bank_scraped}"}}') == []


@in_the_banks_loop
async def test_promtool_finds_no_fault_in_what_the_bank_serves(
    promtool: Promtool, ports: dict[str, int], bank_scraped: str
) -> None:
    for process, port in ports.items():
        text = httpx2.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text
        # Names of Temporal's client library are not ours to choose; a GPU-millisecond is what the ledger counts in.
        ours = re.sub(r"^(# \w+ )?(temporal_|gpubank_ledger_imbalance_gpu_ms).*\n", "", text, flags=re.MULTILINE)
        assert promtool("check", "metrics", given=ours) == "", process
        said = await asyncio.to_thread(promtool, "check", "metrics", "--extended", "--lint=none", given=text)
        assert ("temporal_" in said) == (process == "worker")


# ---- Kueue's admission cycles


def endpoint(lab_bank: RunningBank, process: str = "controller") -> KueueEndpoint:
    """Return Kueue's own endpoint, as the settings of a process name it."""
    folder = lab_bank.processes.folder / process
    url = f"https://{lab_bank.lab.url('kueue-metrics')}/metrics"
    return KueueEndpoint(url, authorities=lab_bank.lab.authorities, token=folder / restricted.TOKEN)


@in_the_banks_loop
async def test_real_kueue_tells_how_long_its_cycles_last(lab_bank: RunningBank, bank_scraped: str) -> None:
    async with endpoint(lab_bank) as source:
        ((_, counts),) = (await source.read()).items()
    p99 = longest(counts)
    assert counts.total >= 1, "the owner's job was admitted in a cycle"
    assert p99 is not None
    assert counts.seconds / counts.total <= p99 <= 10


@in_the_banks_loop
async def test_prometheus_tells_the_same(
    lab_bank: RunningBank, lab_with: Lab, server: Prometheus, bank_scraped: str
) -> None:
    async with endpoint(lab_bank) as direct, PrometheusServer(lab_with.prometheus_url) as beside:
        ((_, before),) = (await direct.read()).items()
        known = f"sum({CYCLE}_count) >= {before.total}"
        await asyncio.to_thread(server.until, lambda: server.query(known) != [], f"a scrape of Kueue ({INTERVAL})")
        ((process, counts),) = (await beside.read()).items()
        ((_, after),) = (await direct.read()).items()
    assert "job=kueue" in process
    assert before.total <= counts.total <= after.total
    assert [bound for bound, _ in counts.buckets] == [bound for bound, _ in after.buckets]


@in_the_banks_loop
async def test_who_has_no_right_to_read_them_is_told(lab_bank: RunningBank) -> None:
    restricted.kubeconfig(lab_bank.lab, "watchdog", lab_bank.processes.folder / "watchdog")
    async with endpoint(lab_bank, "watchdog") as source:
        with pytest.raises(BackendError, match="answers 403"):
            await source.read()


@in_the_banks_loop
@pytest.mark.parametrize("process", ["controller", "worker"])
async def test_the_fence_of_every_process_is_fed_with_the_rights_of_the_manifests(
    server: Prometheus, bank_scraped: str, process: str
) -> None:
    age = f'gpubank_admission_cycle_age_seconds{{process_name="{process}"}} < 30'
    await asyncio.to_thread(server.until, lambda: server.query(age) != [], "cycles read")

    def is_measured() -> bool:
        p99 = server.number(f'gpubank_admission_cycle_p99_seconds{{process_name="{process}"}}')
        bounds = {float(labels["le"]) for labels, _ in server.query(f"{CYCLE}_bucket") if labels["le"] != "+Inf"}
        return p99 in bounds

    # A process that has just begun has read nothing yet, and Prometheus shows what it was some seconds ago.
    await asyncio.to_thread(server.until, is_measured, "the bound of a bucket of Kueue's instead of what is assumed")
