"""A real Prometheus scrapes the exporter process: whose GPUs are, beside dcgm-exporter and without it.

GPU-0  one pod's              mapped       GPU-3  nobody's             unallocated
GPU-1  two pods'              shared       GPU-4  two MIG devices      partitioned, each of a pod
GPU-2  a pod's of two UIDs    unknown
"""

import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from benchmarks import exporter as bench
from gpubank.metadata.seal import Sealer
from gpubank.simulation.processes import free_port
from tests.fakes import dcgm
from tests.fakes.podsockets import FakePod, PodSockets
from tests.native.facts import NvmlFacts
from tests.support.prometheus import (
    ATTRIBUTION_PAGE,
    Prometheus,
    Promtool,
    Vector,
    query_with,
    running,
    scrape_job,
    series_of,
)

GPU: Final = "nvidia.com/gpu"
MIG: Final = "nvidia.com/mig-1g.10gb"
UUIDS: Final = [f"GPU-{number:08d}-0000-4000-8000-000000000000" for number in range(5)]
MIGS: Final = {7: "MIG-00000007-0000-4000-8000-000000000000", 8: "MIG-00000008-0000-4000-8000-000000000000"}
TARGET: Final = {"pod": "gpubank-exporter-x7zqk", "namespace": "gpubank-nodes", "container": "exporter"}
"""Labels that scrape configurations like to put on a target."""

META: Final = {
    "pod_name": TARGET["pod"],
    "pod_node_name": "gpu-0",
    "pod_label_app_kubernetes_io_name": "gpubank-exporter",
    "pod_container_port_name": "metrics",
}


def a_node(path: Path) -> list[FakePod]:
    """Write the facts of the node and return its pods."""
    facts = NvmlFacts(path)
    with facts.at_once():
        for uuid in UUIDS:
            facts.gpu(uuid, power=int(dcgm.WATTS * 1000), energy=dcgm.MILLIJOULES, clock=1980, used=40_000)
        for gi, mig in MIGS.items():
            facts.mig(UUIDS[4], mig, "1g.10gb", gi)
    held = [
        {GPU: [UUIDS[0]]},
        {GPU: [UUIDS[1]]},
        {GPU: [UUIDS[1]]},
        {GPU: [UUIDS[2]]},
        *({MIG: [mig]} for mig in MIGS.values()),
    ]
    return [FakePod(f"team-{n}", f"trainer-{n}", bench.pod_uid(n), devices) for n, devices in enumerate(held)]


@contextmanager
def an_exporter(**show: object) -> Iterator[int]:
    """Run an exporter on the node above and yield its port; `show` is its setting of that name."""
    # Not below pytest's folder: the path of a Unix socket is short.
    folder, key, port = Path(tempfile.mkdtemp(prefix="gpb-")), Ed25519PrivateKey.generate(), free_port()
    sockets = PodSockets(folder)
    sockets.pods = a_node(folder / "nvml.facts")
    doubtful = sockets.pods[3]
    namesake = FakePod(doubtful.namespace, doubtful.name, bench.pod_uid(99), doubtful.devices)
    sockets.running = [*sockets.pods, namesake]
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (folder / "public.pem").write_bytes(public)
    (folder / "metadata.snapshot").write_bytes(Sealer(key).seal(bench.snapshot(sockets.pods)))
    settings = {
        "node": bench.NODE,
        "holders": str(folder / "holders.json"),
        "listen": {"address": "127.0.0.1", "port": port},
        "kubelet": {
            "podResourcesSocket": str(sockets.pod_resources),
            "podsSocket": str(sockets.pods_api),
            "checkpoint": str(folder / "no-checkpoint"),
        },
        "metadata": {"publicKeys": [str(folder / "public.pem")], "file": str(folder / "metadata.snapshot")},
        "timing": {"collect": 0.2},
        "show": show,
    }
    (folder / "exporter.yaml").write_text(json.dumps(settings))
    try:
        process = bench.start(folder, port)
        try:
            yield port
        finally:
            bench.end(process)
    finally:
        sockets.close()
        shutil.rmtree(folder)


def exporter_job(port: int) -> dict[str, Any]:
    """Return the shipped job, on a target with the labels of its pod."""
    job = scrape_job("gpubank-exporter", port, **META)
    job["static_configs"][0]["labels"] |= TARGET
    return job


@pytest.fixture(scope="module")
def measuring(nvml_library: Path) -> Iterator[int]:
    """Port of an exporter that measures."""
    with an_exporter() as port:
        yield port


@pytest.fixture(scope="module")
def scraped(prometheus_binary: Path, measuring: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus with the exporter alone."""
    with running(prometheus_binary, tmp_path_factory.mktemp("alone"), [exporter_job(measuring)]) as server:
        until_judged(server)
        yield server


@pytest.fixture(scope="module")
def joined(
    prometheus_binary: Path, nvml_library: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    """A Prometheus with dcgm-exporter, and an exporter that attributes alone."""
    entities = [dcgm.entity(n, uuid, pod="trainer-0" if n == 0 else "") for n, uuid in enumerate(UUIDS[:4])]
    entities += [dcgm.entity(4, UUIDS[4], gi=gi) for gi in MIGS]
    with an_exporter(measure="attribution") as port, dcgm.serving(dcgm.page(entities)) as beside:
        labels = {"pod": "dcgm-exporter-2k9fd", "namespace": "gpu-operator", "container": "dcgm-exporter"}
        other = {
            "job_name": "dcgm-exporter",
            "static_configs": [{"targets": [f"127.0.0.1:{beside}"], "labels": labels}],
        }
        folder = tmp_path_factory.mktemp("joined")
        with running(prometheus_binary, folder, [exporter_job(port), other]) as server:
            until_judged(server)
            server.until_up("dcgm-exporter")
            yield server


def until_judged(server: Prometheus) -> None:
    server.until(lambda: bool(server.query('gpubank_gpu_pod_info{mapping_status="unknown"}')), "a verdict on every GPU")


def keys(vector: Vector) -> list[tuple[str, str]]:
    """Return GPU and GPU instance of every row."""
    return sorted((labels["UUID"], labels.get("GPU_I_ID", "")) for labels, _ in vector)


OWNED: Final = sorted([(UUIDS[0], ""), *((UUIDS[4], str(gi)) for gi in MIGS)])


# ---- what is scraped


def test_every_gpu_is_scraped_with_what_is_known_of_its_holder(scraped: Prometheus) -> None:
    counts = {labels["mapping_status"]: value for labels, value in scraped.query("gpubank_gpu_devices")}
    assert counts == {"mapped": 3, "shared": 1, "unknown": 1, "partitioned": 1, "unallocated": 1}
    assert {labels["node"] for labels, _ in scraped.query("gpubank_gpu_devices")} == {"gpu-0"}


def test_a_holder_is_the_pod_that_holds_and_never_the_exporter(scraped: Prometheus) -> None:
    """Neither may its labels be renamed, nor may a GPU without a holder get the target's."""
    power = scraped.query("DCGM_FI_DEV_POWER_USAGE")
    pods = {labels["UUID"]: labels.get("pod") for labels, _ in power}
    assert pods == {UUIDS[0]: "trainer-0", **dict.fromkeys(UUIDS[1:])}
    everything = scraped.query('{job="gpubank-exporter"}')
    assert not [labels for labels, _ in everything if labels.get("pod") == TARGET["pod"]]
    assert not [name for labels, _ in everything for name in labels if name.startswith("exported_")]


def test_without_the_shipped_configuration_holders_are_lost(
    prometheus_binary: Path, measuring: int, tmp_path: Path
) -> None:
    naive = {"job_name": "naive", "static_configs": [{"targets": [f"127.0.0.1:{measuring}"], "labels": TARGET}]}
    half = {**naive, "job_name": "half", "honor_labels": True}
    with running(prometheus_binary, tmp_path, [naive, half]) as server:
        server.until_up("naive", "half")
        (held,) = server.query(f'DCGM_FI_DEV_POWER_USAGE{{job="naive", UUID="{UUIDS[0]}"}}')
        assert series_of(held[0], ["pod", "exported_pod"]) == {"pod": TARGET["pod"], "exported_pod": "trainer-0"}
        (idle,) = server.query(f'DCGM_FI_DEV_POWER_USAGE{{job="half", UUID="{UUIDS[3]}"}}')
        assert idle[0]["pod"] == TARGET["pod"], "a GPU that nobody holds, booked to the exporter"
        # Two jobs that scrape one exporter are what the other query of the page is there to find.
        doubled = server.query(query_with(ATTRIBUTION_PAGE, ") > 1"))
        assert keys(doubled) == OWNED
        assert {value for _, value in doubled} == {2}


def test_power_is_scraped_once_for_every_gpu_whoever_holds_its_parts(scraped: Prometheus) -> None:
    assert scraped.number("sum(DCGM_FI_DEV_POWER_USAGE)") == len(UUIDS) * dcgm.WATTS
    booked = scraped.query(query_with(ATTRIBUTION_PAGE, 'DCGM_FI_DEV_POWER_USAGE{mapping_status="mapped"}'))
    assert booked == [({"business_group": "team-0"}, dcgm.WATTS)]


def test_the_two_queries_that_should_return_nothing_find_the_unknown_one_and_no_double(scraped: Prometheus) -> None:
    (unknown,) = scraped.query(query_with(ATTRIBUTION_PAGE, '_info{mapping_status="unknown"}'))
    assert unknown[0]["UUID"] == UUIDS[2]
    assert not {"pod", "pod_uid", "namespace"} & set(unknown[0])
    assert scraped.query(query_with(ATTRIBUTION_PAGE, ") > 1")) == []


# ---- beside dcgm-exporter


def test_a_join_gives_every_entity_of_dcgm_exporter_one_owner_or_none(joined: Prometheus) -> None:
    query = query_with(ATTRIBUTION_PAGE, "DCGM_FI_PROF_GR_ENGINE_ACTIVE")
    inner = re.fullmatch(r"sum by \(business_group\) \((.*)\)", query, re.DOTALL)
    assert inner is not None
    rows = joined.query(inner[1])
    assert keys(rows) == OWNED
    assert {labels["UUID"]: labels["pod"] for labels, _ in rows if "GPU_I_ID" not in labels} == {UUIDS[0]: "trainer-0"}
    assert {labels["GPU_I_ID"]: labels["pod"] for labels, _ in rows if "GPU_I_ID" in labels} == {
        "7": "trainer-4",
        "8": "trainer-5",
    }
    shares = sorted((labels["business_group"], value) for labels, value in joined.query(query))
    assert shares == [("team-0", 0.5), ("team-4", 0.5), ("team-5", 0.5)]


def test_joined_energy_is_of_whole_gpus_and_no_gpu_counts_twice(joined: Prometheus) -> None:
    assert joined.number("sum(DCGM_FI_DEV_POWER_USAGE)") == (4 + len(MIGS)) * dcgm.WATTS, "as dcgm-exporter has it"
    energy = query_with(ATTRIBUTION_PAGE, "[1d:1m]").replace("[1d:1m]", "[1s:1s]")
    # One sample of one GPU: the shared, the unknown and the partitioned one are nobody's.
    joined.until(lambda: joined.query(energy) != [], "a whole second scraped")
    ((booked, kilowatt_hours),) = joined.query(energy)
    assert booked == {"cost_center": "CC-4711"}
    assert kilowatt_hours == pytest.approx(dcgm.WATTS / 60 / 1000)


def test_beside_another_exporter_ours_measures_nothing(joined: Prometheus) -> None:
    assert joined.query('{job="gpubank-exporter", __name__=~"DCGM_.*"}') == []
    assert {labels["job"] for labels, _ in joined.query("DCGM_FI_DEV_POWER_USAGE")} == {"dcgm-exporter"}


# ---- the exposition


def page(port: int, accept: str) -> httpx2.Response:
    # Not gzip: a page is several members of it one after the other, of which this client reads the first alone.
    headers = {"Accept": accept, "Accept-Encoding": "identity"}
    return httpx2.get(f"http://127.0.0.1:{port}/metrics", headers=headers, trust_env=False)


@pytest.mark.parametrize("version", ["text/plain;version=0.0.4", "application/openmetrics-text;version=1.0.0"])
def test_prometheus_takes_every_sample_of_either_format(
    prometheus_binary: Path, measuring: int, tmp_path: Path, version: str
) -> None:
    protocol = {"text/plain;version=0.0.4": "PrometheusText0.0.4"}.get(version, "OpenMetricsText1.0.0")
    job = exporter_job(measuring) | {"scrape_protocols": [protocol]}

    def offered() -> int:
        answer = page(measuring, version)
        assert answer.headers["content-type"].startswith(version.split(";")[0])
        return sum(not line.startswith("#") for line in answer.text.splitlines())

    with running(prometheus_binary, tmp_path, [job]) as server:
        server.until_up("gpubank-exporter")
        # Right after the start the page still grows: rates need two collections.
        server.until(lambda: server.number("scrape_samples_scraped") == offered(), "as many samples as are offered")
        assert server.number("scrape_samples_scraped - scrape_samples_post_metric_relabeling") == 0
        kinds = {name: each[0]["type"] for name, each in server.get("metadata").items()}
    assert kinds["gpubank_exporter_collections_total" if "plain" in version else "gpubank_exporter_collections"]
    assert kinds["DCGM_FI_DEV_POWER_USAGE"] == "gauge"


def test_promtool_finds_no_fault_in_our_names_and_nothing_malformed_in_nvidias(
    promtool: Promtool, measuring: int
) -> None:
    text = page(measuring, "text/plain").text
    ours = re.sub(r"^(# \w+ )?DCGM_.*\n", "", text, flags=re.MULTILINE)
    assert "DCGM_" not in ours
    assert promtool("check", "metrics", given=ours) == ""
    said = promtool("check", "metrics", "--extended", "--lint=none", given=text)
    assert "DCGM_FI_DEV_POWER_USAGE" in said
