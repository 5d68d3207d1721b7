"""The node agent's real processes between a real kubelet and pretended GPUs."""

import gzip
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import grpc
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from benchmarks.exporter import scrape
from gpubank.lab import Lab, podspec
from gpubank.lab.access import Api, Manifest
from gpubank.lab.errors import LabError
from gpubank.lab.names import REAL_NODE
from gpubank.simulation.processes import free_port
from nodeagent.attribution.places import POD_RESOURCES_SOCKET
from nodeagent.pb.podresources import api_pb2, api_pb2_grpc
from nodeagent.plugin.client import ask
from nodeagent.plugin.control import CONTROL_SOCKET
from tests.native.facts import ENVIRONMENT, NvmlFacts
from tests.support.waiting import until

PREFIX: Final = "accelerator.aik8s.run/"
ROOT: Final = Path(__file__).parents[2]
SHOW: Final = "import os; print('visible', os.environ.get('NVIDIA_VISIBLE_DEVICES', 'none'))"
"""What a container prints to say which GPUs it was given."""

Rows = dict[str, list[tuple[dict[str, str], float]]]


class RealNode:
    """The lab's real node with GPUs that a test decides on, and the agent's processes on it."""

    def __init__(self, lab: Lab, api: Api, folder: Path, library: Path) -> None:
        self.lab, self.api, self.folder = lab, api, folder
        self.facts = NvmlFacts(folder / "nvml.facts")
        self.facts.write()
        self.driver = folder / "driver"
        self.driver.mkdir()
        self.port = free_port()
        self._library = library
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._pods: list[tuple[str, str]] = []

    # ------------------------------------------------------------------------------------------------ processes

    def start_plugin(self, **settings: Any) -> None:
        """Start the device plugin and wait until it can be asked."""
        given = {
            "stateDirectory": str(self.folder / "state"),
            "driverDirectory": str(self.driver),
            # Looked at often, so that no test waits for what a node may take its time with.
            "intervals": {"health": 0.2, "inventory": 0.2, "events": 0.2, "sockets": 0.2},
            **settings,
        }
        self._start("plugin", "nodeagent.plugin", "nodeagent.yaml", given)
        until((self.folder / "state" / CONTROL_SOCKET).exists, "the plugin's control socket")

    def start_exporter(self, **settings: Any) -> None:
        """Start the exporter and wait until it has collected."""
        given = {
            "node": REAL_NODE,
            "listen": {"address": "127.0.0.1", "port": self.port},
            "timing": {"collect": 0.2, "inventory": 0.5, "tombstone": 3},
            **settings,
        }
        self._start("exporter", "nodeagent.exporter", "exporter.yaml", given)
        until(self._collected, "the exporter's first page")

    def stop(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        """End a process of the agent."""
        process = self._running.pop(name)
        process.send_signal(number)
        process.wait(20)

    def log(self, name: str) -> str:
        """What a process of the agent said."""
        return (self.folder / f"{name}.log").read_text()

    def inspect(self) -> dict[str, Any]:
        """What the plugin knows."""
        found: dict[str, Any] = ask(self.folder / "state", order="inspect")["node"]
        return found

    def release(self, uuid: str) -> None:
        """Tell the plugin that a GPU is sound again."""
        ask(self.folder / "state", order="release", uuid=uuid)

    def _start(self, name: str, module: str, file: str, settings: Mapping[str, Any]) -> None:
        config = self.folder / file
        config.write_text(json.dumps(settings))
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(self._library.parent),
            ENVIRONMENT: str(self.facts.path),
            "PYTHONPATH": str(ROOT),
        }
        command = [sys.executable, "-m", module, "--config", str(config)]
        with (self.folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(command, env=environment, stderr=log, stdout=log, cwd=ROOT)

    def _collected(self) -> bool:
        assert self._running["exporter"].poll() is None, self.log("exporter")
        try:
            return bool(self.rows().get("gpubank_exporter_collection_age_seconds"))
        except OSError:
            return False

    # ------------------------------------------------------------------------------------------------- the node

    @contextmanager
    def without_api_server(self) -> Iterator[None]:
        """Take the API server away while the context lasts; afterwards whoever works for the cluster watches it again.

        Left alone they would look for it after up to a minute, find that their version is too old for it, and wait as
        long once more: Kueue took more than 90 s to see a new Job.
        """
        self.lab.kill("kube-apiserver")
        try:
            yield
        finally:
            self.lab.start("kube-apiserver")
            for component in ("kube-controller-manager", "kube-scheduler", "kueue"):
                self.lab.kill(component)
                self.lab.start(component)

    def node(self) -> Manifest:
        """Return the node as the API server has it."""
        return self.api.request("GET", f"/api/v1/nodes/{REAL_NODE}")

    def allocatable(self, which: str = "allocatable") -> dict[str, int]:
        """Return what the node has of every device class; what it has none of is left out."""
        found = self.node()["status"].get(which, {})
        counts = {name.removeprefix(PREFIX): int(text) for name, text in found.items() if name.startswith(PREFIX)}
        return {name: count for name, count in counts.items() if count}

    def sees(self, wanted: Mapping[str, int], *, capacity: Mapping[str, int] | None = None) -> None:
        """Wait until exactly this is allocatable, and this the capacity.

        A kubelet counts the capacity of what it has lost for five minutes, so classes that are not named do not matter.
        What the API server has of the node is seconds old, so the kubelet is asked as well: a pod that comes while it
        still says what an earlier plugin had would be refused for good.
        """
        until(lambda: self.allocatable() == wanted == self.sound(), f"{wanted} to be allocatable", say=self._state)
        if capacity:
            until(lambda: self._has(capacity), f"a capacity of {dict(capacity)}", say=self._state)

    def sound(self) -> dict[str, int]:
        """Return what the kubelet itself would hand out or has handed out, of every device class."""
        counts: Counter[str] = Counter()
        options = [("grpc.default_authority", "localhost")]
        try:
            with grpc.insecure_channel(f"unix:{POD_RESOURCES_SOCKET}", options=options) as channel:
                stub = api_pb2_grpc.PodResourcesListerStub(channel)
                answer = stub.GetAllocatableResources(api_pb2.AllocatableResourcesRequest(), timeout=5)
        except grpc.RpcError:
            return {}  # it is on its way up
        for each in answer.devices:
            if each.resource_name.startswith(PREFIX):
                counts[each.resource_name.removeprefix(PREFIX)] += len(each.device_ids)
        return dict(counts)

    def _has(self, capacity: Mapping[str, int]) -> bool:
        there = self.allocatable("capacity")
        return all(there.get(name, 0) == count for name, count in capacity.items())

    def _state(self) -> str:
        logs = "\n".join(self.log(name)[-1500:] for name in self._running)
        counts = f"allocatable {self.allocatable()}, capacity {self.allocatable('capacity')}, sound {self.sound()}"
        return f"{counts}\n{logs}"

    # --------------------------------------------------------------------------------------------------- pods

    def run(self, name: str, spec: Manifest, *, namespace: str = "default", **labels: str) -> str:
        """Create a pod on the node and return its UID."""
        made = podspec.pod(name, spec, namespace=namespace, labels=labels)
        stored = self.api.request("POST", f"/api/v1/namespaces/{namespace}/pods", json=made)
        self._pods.append((namespace, name))
        uid: str = stored["metadata"]["uid"]
        return uid

    def pod(self, name: str, namespace: str = "default") -> Manifest:
        """Return a pod, or nothing."""
        try:
            return self.api.request("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")
        except LabError:
            return {}

    def phase(self, name: str, namespace: str = "default") -> str:
        """Return a pod's phase; empty if there is none."""
        phase: str = self.pod(name, namespace).get("status", {}).get("phase", "")
        return phase

    def await_phase(self, name: str, phase: str, namespace: str = "default") -> Manifest:
        """Wait until a pod is in a phase, and return it."""
        until(lambda: self.phase(name, namespace) == phase, f"pod {name} to be {phase}", say=lambda: self._say(name))
        return self.pod(name, namespace)

    def _say(self, name: str) -> str:
        return json.dumps(self.pod(name).get("status", {}))

    def output(self, name: str, namespace: str = "default") -> str:
        """Return what a pod's container has printed."""
        return self.api.text(f"/api/v1/namespaces/{namespace}/pods/{name}/log")

    def delete(self, name: str, namespace: str = "default") -> None:
        """Delete a pod and wait until it is gone."""
        self.api.request("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}")
        until(lambda: not self.pod(name, namespace), f"the end of pod {name}")
        self._pods.remove((namespace, name))

    # ------------------------------------------------------------------------------------------------ metrics

    def rows(self) -> Rows:
        """Scrape, and return labels and value of every sample by name."""
        found: Rows = {}
        text = gzip.decompress(scrape(self.port)[1]).decode()
        for metric in text_string_to_metric_families(text):  # type: ignore[no-untyped-call]
            for sample in metric.samples:
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
        return found

    def holders(self) -> dict[str, str]:
        """Pod UID of every device that is mapped, by UUID."""
        rows = self.rows().get("gpubank_gpu_pod_info", [])
        return {labels["UUID"]: labels["pod_uid"] for labels, _ in rows if labels["mapping_status"] == "mapped"}

    # ---------------------------------------------------------------------------------------------------- end

    def close(self) -> None:
        """Remove pods and end processes; the node is left without GPUs."""
        for namespace, name in list(self._pods):
            if self.pod(name, namespace):
                self.api.request("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}?gracePeriodSeconds=0")
        until(lambda: not any(self.pod(name, space) for space, name in self._pods), "the end of the test's pods")
        for name in list(self._running):
            self.stop(name, signal.SIGKILL)


def visible(output: str) -> Sequence[str]:
    """Read the UUIDs out of what `SHOW` printed."""
    line = next(line for line in output.splitlines() if line.startswith("visible "))
    return sorted(line.removeprefix("visible ").split(","))
