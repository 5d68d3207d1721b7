"""The exporter as a process, as on a node: the real binding of NVML, the kubelet's sockets, a signed snapshot."""

import gzip
import http.client
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from benchmarks import exporter as bench
from tests.fakes.podsockets import FakePod, PodSockets

Rows = dict[str, list[tuple[dict[str, str], float]]]
RESOURCE = "accelerator.aik8s.run/h100-80gb.mig-1g.10gb"


class Running:
    """An exporter that runs."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, sockets: PodSockets, folder: Path) -> None:
        self.process, self.port, self.sockets, self.folder = process, port, sockets, folder

    def rows(self) -> Rows:
        text = gzip.decompress(bench.scrape(self.port)[1]).decode()
        found: Rows = {}
        for metric in text_string_to_metric_families(text):  # type: ignore[no-untyped-call]
            for sample in metric.samples:
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
        return found

    def value(self, name: str) -> float:
        return self.rows()[name][0][1]

    def holders(self) -> dict[tuple[str, str], str]:
        """Pod UID by GPU and GPU instance, as a join finds it."""
        rows = self.rows()["gpubank_gpu_pod_info"]
        mapped = [labels for labels, _ in rows if labels["mapping_status"] == "mapped"]
        keys = [(labels["UUID"], labels["GPU_I_ID"]) for labels in mapped]
        assert len(keys) == len(set(keys))
        return dict(zip(keys, (labels["pod_uid"] for labels in mapped), strict=True))

    def until(self, holds: Callable[[], bool], seconds: float = 20) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, (self.folder / "exporter.log").read_text()[-2000:]
            time.sleep(0.1)


@pytest.fixture
def running(nvml_library: Path) -> Iterator[Running]:
    folder = Path(tempfile.mkdtemp(prefix="gpb-"))
    try:
        with bench.running(folder, 0.3) as (process, port, sockets):
            yield Running(process, port, sockets, folder)
    finally:
        shutil.rmtree(folder)


FIRST = ("GPU-00000000-0000-4000-8000-000000000000", "7")


def test_every_mig_device_is_its_pods_with_what_the_control_plane_told(running: Running) -> None:
    rows = running.rows()
    assert len(running.holders()) == bench.GPUS * bench.MIGS
    assert running.holders()[FIRST] == bench.pod_uid(0)
    used = [labels for labels, _ in rows["DCGM_FI_DEV_FB_USED"]]
    assert len(used) == bench.GPUS * bench.MIGS
    assert {(labels["cost_center"], labels["model"]) for labels in used} == {("CC-4711", "llama-3-70b")}
    assert {labels["accelerator_class"] for labels in used} == {"h100-80gb"}
    power = rows["DCGM_FI_DEV_POWER_USAGE"]
    assert [value for _, value in power] == [412.0] * bench.GPUS, "once per GPU, whoever holds its instances"
    assert not any("pod" in labels for labels, _ in power)


def test_a_pod_of_the_same_name_with_another_uid_never_gets_its_predecessors_devices(running: Running) -> None:
    pods = running.sockets.pods
    old = pods[0]
    successor = FakePod(old.namespace, old.name, "00000000-0000-4000-8000-00000000beef", old.devices)
    # The kubelet knows both for a while: nobody can say whose the device is.
    running.sockets.running = [*pods, successor]
    running.until(lambda: FIRST not in running.holders())
    running.sockets.running = None
    running.sockets.pods = [successor, *pods[1:]]
    running.until(lambda: running.holders().get(FIRST) == successor.uid)
    row = next(labels for labels, _ in running.rows()["gpubank_gpu_pod_info"] if labels["pod_uid"] == successor.uid)
    assert "cost_center" not in row, "what was told about the old pod is not the new one's"


def test_a_pods_devices_stay_its_own_after_its_death_as_a_tombstone(running: Running) -> None:
    before = running.holders()
    running.sockets.pods = running.sockets.pods[1:]
    running.until(lambda: running.value("gpubank_attribution_tombstones") == 1)
    assert running.holders() == before


def test_a_pod_that_ends_while_the_exporter_restarts_keeps_its_last_samples(running: Running) -> None:
    before = running.holders()
    bench.end(running.process)
    running.sockets.pods = running.sockets.pods[1:]
    again = bench.start(running.folder, running.port)
    try:
        running.until(lambda: running.value("gpubank_attribution_tombstones") == 1)
        assert running.holders() == before
    finally:
        bench.end(again)


def test_while_the_kubelet_refuses_the_last_holders_are_shown_with_their_age(running: Running) -> None:
    before = running.holders()
    running.sockets.refuse = grpc.StatusCode.UNAVAILABLE
    running.until(lambda: running.value("gpubank_attribution_age_seconds") > 1.5)
    assert running.holders() == before
    up = {labels["source"]: value for labels, value in running.rows()["gpubank_attribution_source_up"]}
    assert up["pod_resources"] == 0
    running.sockets.refuse = None
    running.until(lambda: running.value("gpubank_attribution_age_seconds") < 1)


def test_a_gpu_that_hangs_or_is_lost_takes_no_other_with_it_and_no_scrape_waits(running: Running) -> None:
    facts = running.folder / "nvml.facts"
    text = facts.read_text()
    line = next(line for line in text.splitlines() if line.startswith("gpu ") and FIRST[0] in line)
    new = facts.with_suffix(".new")
    new.write_text(text.replace(line, f'{line} lost="1"'))
    os.replace(new, facts)

    def readable() -> dict[str, float]:
        return {labels["UUID"]: value for labels, value in running.rows()["gpubank_gpu_readable"]}

    running.until(lambda: readable()[FIRST[0]] == 0)
    assert sum(readable().values()) == bench.GPUS - 1
    assert len(running.rows()["DCGM_FI_DEV_POWER_USAGE"]) == bench.GPUS - 1
    assert running.holders()[FIRST] == bench.pod_uid(0), "its pod still holds it"


def test_it_ends_soon_and_cleanly_when_asked_to(running: Running) -> None:
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(timeout=20) == 0
    with pytest.raises(OSError, match="refused"):
        http.client.HTTPConnection("127.0.0.1", running.port, timeout=5).request("GET", "/healthz")


def test_impossible_settings_end_it_with_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "exporter.yaml").write_text("show: {dialect: klingon}\n")
    command = [sys.executable, "-m", "nodeagent.exporter", "--config", str(tmp_path)]
    done: Any = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("gpubank-exporter: ")
    assert "klingon" in done.stderr
    assert "Traceback" not in done.stderr
