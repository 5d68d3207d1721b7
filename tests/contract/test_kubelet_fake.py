"""The contract of a kubelet on the fake one, which the node agent's own tests run on."""

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.contract.kubelet_suite import KubeletSuite
from tests.contract.kubelet_world import AdmissionError, Admitted, short_folder
from tests.fakes import kubelet as fakes
from tests.fakes.kubelet import FakeKubelet
from tests.fakes.podsockets import FakePod, PodSockets


class FakeWorld:
    """A device manager and the two pod APIs, told the same."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "device-plugins"
        self.folder.mkdir()
        self.kubelet = FakeKubelet(self.folder)
        self._sockets = PodSockets(folder)
        self._sockets.healthy_devices = self._healthy_devices
        self.pod_resources, self.pods_api = self._sockets.pod_resources, self._sockets.pods_api
        self._made = 0

    async def counts(self, resource: str) -> tuple[int, int] | None:
        if resource not in self.kubelet.devices:
            return None
        return self.kubelet.capacity()[resource], self.kubelet.allocatable()[resource]

    async def admit(self, name: str, *containers: Mapping[str, int]) -> Admitted:
        self._made += 1
        uid = f"00000000-0000-4000-8000-{self._made:012d}"
        try:
            pod = await self.kubelet.admit(uid, *containers, namespace="default", name=f"contract-{name}")
        except fakes.AdmissionError as error:
            raise AdmissionError(str(error)) from error
        held = {
            container.name: [
                (resource, each, self._numa(resource, each))
                for resource, ids in container.devices.items()
                for each in ids
            ]
            for container in pod.containers
        }
        self._sockets.pods = [*self._sockets.pods, FakePod(pod.namespace, pod.name, uid, containers=held)]
        return Admitted(pod.namespace, pod.name, uid)

    async def environment(self, pod: Admitted, container: str) -> Mapping[str, str]:
        return next(each.envs for each in self.kubelet.pods[pod.uid].containers if each.name == container)

    async def phase(self, pod: Admitted) -> str | None:
        return "Running" if pod.uid in self.kubelet.pods else None

    async def remove(self, pod: Admitted) -> None:
        self.kubelet.remove(pod.uid)
        self._sockets.pods = [each for each in self._sockets.pods if each.uid != pod.uid]

    async def stop(self) -> None:
        await self.kubelet.stop()

    async def start(self) -> None:
        await self.kubelet.start()

    async def close(self) -> None:
        """End it."""
        self._sockets.close()
        await self.kubelet.stop()

    def _numa(self, resource: str, name: str) -> int | None:
        nodes = self.kubelet.devices[resource][name].topology.nodes
        return nodes[0].ID if nodes else None

    def _healthy_devices(self) -> Mapping[str, Sequence[tuple[str, int | None]]]:
        return {
            resource: [(name, self._numa(resource, name)) for name in sorted(self.kubelet.healthy(resource))]
            for resource in self.kubelet.devices
        }


class TestFakeKubelet(KubeletSuite):
    @pytest.fixture
    async def world(self) -> AsyncIterator[FakeWorld]:
        async with short_folder() as folder:
            world = FakeWorld(folder)
            await world.kubelet.start()
            try:
                yield world
            finally:
                await world.close()
