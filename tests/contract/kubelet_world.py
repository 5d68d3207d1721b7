"""What the kubelet's contract is tested with: the world around one kubelet, and a device plugin that obeys a test."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import grpc

from nodeagent.pb.deviceplugin import api_pb2, api_pb2_grpc

AUTHORITY: Final = (("grpc.default_authority", "localhost"),)


class AdmissionError(Exception):
    """The kubelet failed the pod; the message is what it says about it."""


@dataclass
class Admitted:
    """A pod that runs."""

    namespace: str
    name: str
    uid: str


class KubeletWorld(Protocol):
    """One kubelet with its node, real or played."""

    folder: Path
    """Its folder of device plugins."""
    pod_resources: Path
    """Socket of its PodResources API."""
    pods_api: Path
    """Socket of its Pods API."""

    async def counts(self, resource: str) -> tuple[int, int] | None:
        """Return capacity and allocatable of a resource; None if the node does not know it."""
        ...

    async def admit(self, name: str, *containers: Mapping[str, int]) -> Admitted:
        """Run a pod whose containers `c0`, `c1`, … ask for these resources. Raises AdmissionError."""
        ...

    async def environment(self, pod: Admitted, container: str) -> Mapping[str, str]:
        """Return the environment of a container's process."""
        ...

    async def phase(self, pod: Admitted) -> str | None:
        """Return a pod's phase, None when it is gone."""
        ...

    async def remove(self, pod: Admitted) -> None:
        """Let a pod end, and wait until it is gone."""
        ...

    async def stop(self) -> None:
        """End the kubelet as a crash would."""
        ...

    async def start(self) -> None:
        """Start it again."""
        ...


@dataclass
class Told:
    """One call of the kubelet's."""

    method: str
    ids: tuple[str, ...] = ()
    """Devices that it names: available ones, or those to hand out."""
    size: int = 0


@dataclass
class ScriptedPlugin(api_pb2_grpc.DevicePluginServicer):
    """A device plugin whose answers a test decides on, and which notes what it is asked."""

    path: Path
    resource: str
    devices: dict[str, str] = field(default_factory=dict)
    """Health by id."""
    numa: dict[str, int] = field(default_factory=dict)
    prefers: Callable[[Sequence[str], int], Sequence[str]] = field(default=lambda available, size: available[:size])
    refuse_preference: str = ""
    refuse_allocation: str = ""
    told: list[Told] = field(default_factory=list)
    streams: int = 0
    _server: grpc.aio.Server | None = None
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _revision: int = 0

    async def serve(self) -> None:
        """Listen."""
        self.path.unlink(missing_ok=True)
        self._server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        api_pb2_grpc.add_DevicePluginServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix://{self.path}")
        await self._server.start()

    async def close(self) -> None:
        """End as a process does: the socket file stays."""
        if self._server is not None:
            server, self._server = self._server, None
            await self.tell()
            await server.stop(0)

    async def register(self, *, version: str = "v1beta1", resource: str | None = None) -> None:
        """Register at the kubelet of this folder. Raises AioRpcError."""
        request = api_pb2.RegisterRequest(
            version=version, endpoint=self.path.name, resource_name=self.resource if resource is None else resource
        )
        kubelet = self.path.with_name("kubelet.sock")
        async with grpc.aio.insecure_channel(f"unix://{kubelet}", options=AUTHORITY) as channel:
            await api_pb2_grpc.RegistrationStub(channel).Register(request, timeout=20)

    async def tell(self, **devices: str) -> None:
        """Say the devices anew; without any, what there is is said again."""
        if devices:
            self.devices = dict(devices)
        async with self._changed:
            self._revision += 1
            self._changed.notify_all()

    def calls(self, method: str) -> list[Told]:
        """Return what was asked by one method."""
        return [each for each in self.told if each.method == method]

    # ---- what the kubelet calls

    async def GetDevicePluginOptions(self, request: Any, context: Any) -> api_pb2.DevicePluginOptions:
        self.told.append(Told("options"))
        return api_pb2.DevicePluginOptions(get_preferred_allocation_available=True)

    async def ListAndWatch(self, request: Any, context: Any) -> AsyncIterator[api_pb2.ListAndWatchResponse]:
        self.streams += 1
        server = self._server
        while self._server is server:
            revision = self._revision
            yield api_pb2.ListAndWatchResponse(devices=[self._device(name) for name in self.devices])
            async with self._changed:
                while self._revision == revision:
                    await self._changed.wait()

    async def GetPreferredAllocation(self, request: Any, context: Any) -> api_pb2.PreferredAllocationResponse:
        asked = request.container_requests[0]
        self.told.append(Told("preferred", tuple(sorted(asked.available_deviceIDs)), asked.allocation_size))
        if self.refuse_preference:
            await context.abort(grpc.StatusCode.INTERNAL, self.refuse_preference)
        chosen = self.prefers(sorted(asked.available_deviceIDs), asked.allocation_size)
        answer = api_pb2.ContainerPreferredAllocationResponse(deviceIDs=chosen)
        return api_pb2.PreferredAllocationResponse(container_responses=[answer])

    async def Allocate(self, request: Any, context: Any) -> api_pb2.AllocateResponse:
        ids = tuple(sorted(request.container_requests[0].devices_ids))
        self.told.append(Told("allocate", ids, len(request.container_requests)))
        if self.refuse_allocation:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, self.refuse_allocation)
        # A kubelet reads the first answer only.
        answers = [{"CONTRACT_DEVICES": ",".join(ids)}, {"CONTRACT_SECOND": "never seen"}]
        return api_pb2.AllocateResponse(
            container_responses=[api_pb2.ContainerAllocateResponse(envs=each) for each in answers]
        )

    async def PreStartContainer(self, request: Any, context: Any) -> api_pb2.PreStartContainerResponse:
        raise AssertionError("nobody asked to be called before a container starts")

    def _device(self, name: str) -> api_pb2.Device:
        nodes = [api_pb2.NUMANode(ID=self.numa[name])] if name in self.numa else []
        return api_pb2.Device(
            ID=name, health=self.devices[name], topology=api_pb2.TopologyInfo(nodes=nodes) if nodes else None
        )


@asynccontextmanager
async def short_folder() -> AsyncIterator[Path]:
    """Make a folder whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="gpb-") as name:
        yield Path(name)
