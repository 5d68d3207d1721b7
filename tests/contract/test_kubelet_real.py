"""The contract of a kubelet on the real one."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from gpubank.lab import Lab, podspec
from gpubank.lab.access import Api
from gpubank.lab.errors import LabError
from gpubank.lab.machine import KUBELET, TASKS
from gpubank.lab.names import REAL_NODE
from gpubank.lab.runtime import PAUSE_IMAGE
from tests.contract.kubelet_suite import KubeletSuite
from tests.contract.kubelet_world import AdmissionError, Admitted
from tests.support.waiting import seen

_PODS: Final = "/api/v1/namespaces/default/pods"


class RealKubelet:
    """The lab's kubelet."""

    def __init__(self, lab: Lab, api: Api) -> None:
        self._lab, self._api = lab, api
        self._made: dict[str, Admitted] = {}
        self.folder = KUBELET / "device-plugins"
        self.pod_resources = KUBELET / "pod-resources" / "kubelet.sock"
        self.pods_api = KUBELET / "pods-api" / "pods-api.sock"

    async def counts(self, resource: str) -> tuple[int, int] | None:
        status = (await self._get(f"/api/v1/nodes/{REAL_NODE}"))["status"]
        if resource not in status.get("capacity", {}):
            return None
        return int(status["capacity"][resource]), int(status["allocatable"][resource])

    async def admit(self, name: str, *containers: Mapping[str, int]) -> Admitted:
        spec = podspec.idle_pod(grace=1)
        spec["containers"] = [
            {
                "name": f"c{place}",
                "image": PAUSE_IMAGE,
                "imagePullPolicy": "Never",
                "resources": {"limits": {key: str(count) for key, count in wanted.items()}},
            }
            for place, wanted in enumerate(containers)
        ]
        made = await asyncio.to_thread(self._api.request, "POST", _PODS, json=podspec.pod(f"contract-{name}", spec))
        pod = Admitted("default", made["metadata"]["name"], made["metadata"]["uid"])
        self._made[pod.uid] = pod
        await seen(lambda: self._decided(pod), f"pod {name}")
        status = (await self._pod(pod))["status"]
        if status["phase"] == "Failed":
            await self.remove(pod)
            assert status["reason"] == "UnexpectedAdmissionError" or status["reason"].startswith("OutOf")
            raise AdmissionError(status["message"])
        return pod

    async def environment(self, pod: Admitted, container: str) -> Mapping[str, str]:
        statuses = (await self._pod(pod))["status"]["containerStatuses"]
        name = next(each["containerID"] for each in statuses if each["name"] == container).removeprefix("containerd://")
        text = await asyncio.to_thread(_environment_of, TASKS / name)
        return dict(each.split("=", 1) for each in text.split("\0") if each)

    async def phase(self, pod: Admitted) -> str | None:
        found = await self._pod(pod)
        return str(found["status"].get("phase")) if found else None

    async def remove(self, pod: Admitted) -> None:
        await asyncio.to_thread(self._api.request, "DELETE", f"{_PODS}/{pod.name}")
        await seen(lambda: self._gone(pod), f"the end of {pod.name}")
        del self._made[pod.uid]

    async def stop(self) -> None:
        await asyncio.to_thread(self._lab.kill, "kubelet")

    async def start(self) -> None:
        await asyncio.to_thread(self._lab.start, "kubelet")

    async def close(self) -> None:
        """Remove what a test left."""
        if not self._alive():
            await self.start()
        for pod in list(self._made.values()):
            await self.remove(pod)

    def _alive(self) -> bool:
        state = self._lab.state
        return state is not None and state.alive()["kubelet"]

    async def _decided(self, pod: Admitted) -> bool:
        status = (await self._pod(pod))["status"]
        return status.get("phase") in {"Running", "Failed"}

    async def _gone(self, pod: Admitted) -> bool:
        return not await self._pod(pod)

    async def _pod(self, pod: Admitted) -> dict[str, Any]:
        try:
            return await self._get(f"{_PODS}/{pod.name}")
        except LabError:
            return {}

    async def _get(self, path: str) -> dict[str, Any]:
        return await asyncio.to_thread(self._api.request, "GET", path)


class TestRealKubelet(KubeletSuite):
    @pytest.fixture
    async def world(self, kubelet_lab: Lab) -> AsyncIterator[RealKubelet]:
        with kubelet_lab.api() as api:
            world = RealKubelet(kubelet_lab, api)
            try:
                yield world
            finally:
                await world.close()


def _environment_of(task: Path) -> str:
    return Path("/proc", (task / "init.pid").read_text(), "environ").read_text()
