"""A kubelet's device manager, with the behaviour that a plugin has to live with, and that a real one rarely shows.

- Register checks version and name, and calls GetDevicePluginOptions back before it returns.
- A second registration of a resource on another socket takes the first one's place; the first one's end hurts nobody.
- A second one on the same socket is refused while the first connection stands, and the kubelet then misses its end:
  that path is refused until the kubelet restarts.
- A start removes every socket of the folder, keeps the checkpoint, and makes kubelet.sock anew.
- Every ListAndWatch message is the whole truth; an empty one leaves the resource with capacity 0.
- When a stream ends, all its devices are unhealthy at once; the resource is forgotten after five minutes.
- Admission asks GetPreferredAllocation, then Allocate, one container per call, and reads the first answer only; an
  error of either fails the pod for good.
- A pod whose devices have become unhealthy is not admitted again; a running one is never touched.
"""

import asyncio
import json
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc

from nodeagent.pb.deviceplugin import api_pb2, api_pb2_grpc

AUTHORITY: Final = (("grpc.default_authority", "localhost"),)
CHECKPOINT: Final = "kubelet_internal_checkpoint"
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


class AdmissionError(Exception):
    """The pod is failed with UnexpectedAdmissionError and never tried again."""


@dataclass
class Container:
    """One container that was given devices."""

    name: str
    devices: dict[str, list[str]] = field(default_factory=dict)
    responses: list[api_pb2.ContainerAllocateResponse] = field(default_factory=list)

    @property
    def envs(self) -> dict[str, str]:
        """Environment of the container."""
        return {key: value for response in self.responses for key, value in response.envs.items()}


@dataclass
class Pod:
    """One pod on the node."""

    namespace: str
    name: str
    uid: str
    containers: list[Container] = field(default_factory=list)


@dataclass
class Endpoint:
    """One registered plugin."""

    resource: str
    path: Path
    options: api_pb2.DevicePluginOptions
    channel: grpc.aio.Channel
    stub: "api_pb2_grpc.DevicePluginAsyncStub"
    task: asyncio.Task[None] | None = None
    stopped: bool = False
    forgotten: bool = False
    """Whether its end will be missed."""


class FakeKubelet:
    """The device manager of one node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.devices: dict[str, dict[str, api_pb2.Device]] = {}
        """Devices of each resource as last told."""

        self.registrations: list[str] = []
        """Every registration, in order."""

        self.messages: dict[str, int] = {}
        """ListAndWatch messages per resource."""

        self.pods: dict[str, Pod] = {}
        self.refuse_registration = False
        self.lost_answers = 0
        """How many of the next registrations are carried out and answered with an error all the same."""

        self._endpoints: dict[str, Endpoint] = {}
        """The one that is asked, by resource."""
        self._connected: dict[str, dict[Path, Endpoint]] = {}
        """Every one that is believed to be connected."""
        self._server: grpc.aio.Server | None = None
        self._changed = asyncio.Condition()

    # ------------------------------------------------------------------------------------------------ life

    async def start(self) -> None:
        """Start: clean the folder, then listen."""
        for entry in self.folder.iterdir():
            if stat.S_ISSOCK(entry.lstat().st_mode):
                entry.unlink(missing_ok=True)
        self._server = grpc.aio.server()
        api_pb2_grpc.add_RegistrationServicer_to_server(_Registration(self), self._server)
        self._server.add_insecure_port(f"unix://{self.folder / 'kubelet.sock'}")
        await self._server.start()

    async def stop(self) -> None:
        """Stop as a process does: streams and socket end, what pods hold stays in the checkpoint."""
        everyone = [*self._endpoints.values(), *(each for store in self._connected.values() for each in store.values())]
        for endpoint in {id(each): each for each in everyone}.values():
            await self._drop(endpoint)
        self._endpoints.clear()
        self._connected.clear()
        if self._server is not None:
            await self._server.stop(0)
            self._server = None
        (self.folder / "kubelet.sock").unlink(missing_ok=True)
        self.devices.clear()

    async def restart(self) -> None:
        """Stop and start again."""
        await self.stop()
        await self.start()

    def forget_stopped(self) -> None:
        """Let the five minutes pass after which a plugin that is gone is forgotten."""
        for resource, endpoint in list(self._endpoints.items()):
            if endpoint.stopped:
                del self._endpoints[resource]
                self.devices.pop(resource, None)

    # ------------------------------------------------------------------------------------------- what it sees

    def capacity(self) -> dict[str, int]:
        """Devices of each resource."""
        return {resource: len(devices) for resource, devices in self.devices.items()}

    def allocatable(self) -> dict[str, int]:
        """Healthy devices of each resource."""
        return {resource: len(self.healthy(resource)) for resource in self.devices}

    def healthy(self, resource: str) -> set[str]:
        """Ids of the devices that new pods may get."""
        return {name for name, device in self.devices.get(resource, {}).items() if device.health == "Healthy"}

    async def until(self, allocatable: Mapping[str, int], timeout: float = 10) -> None:
        """Wait until exactly these resources are allocatable; fails with what there is."""
        try:
            async with asyncio.timeout(timeout), self._changed:
                await self._changed.wait_for(lambda: self.allocatable() == dict(allocatable))
        except TimeoutError:
            raise AssertionError(f"allocatable is {self.allocatable()}, not {dict(allocatable)}") from None

    async def until_registered(self, count: int, timeout: float = 10) -> None:
        """Wait for that many registrations in all."""
        try:
            async with asyncio.timeout(timeout), self._changed:
                await self._changed.wait_for(lambda: len(self.registrations) >= count)
        except TimeoutError:
            raise AssertionError(f"registered were {self.registrations}, fewer than {count}") from None

    # --------------------------------------------------------------------------------------------- admission

    async def admit(self, uid: str, *containers: Mapping[str, int], namespace: str = "team", name: str = "") -> Pod:
        """Admit a pod that asks for these resources; raises AdmissionError, after which nothing of it is held."""
        pod = Pod(namespace, name or f"pod-{uid}", uid)
        self.pods[uid] = pod
        try:
            for place, wanted in enumerate(containers):
                container = Container(f"c{place}")
                pod.containers.append(container)
                for resource, count in wanted.items():
                    await self._give(container, resource, count)
        except AdmissionError:
            del self.pods[uid]
            raise
        self._write_checkpoint()
        return pod

    def readmit(self, uid: str) -> None:
        """Judge a pod anew, as after a restart of the kubelet or the node; raises AdmissionError."""
        for container in self.pods[uid].containers:
            for resource, names in container.devices.items():
                if resource not in self._endpoints or self._endpoints[resource].stopped:
                    raise AdmissionError(f"no plugin is registered for {resource}")
                if lost := set(names) - self.healthy(resource):
                    raise AdmissionError(f"previously allocated devices are no longer healthy: {sorted(lost)}")

    def remove(self, uid: str) -> None:
        """Let a pod end: its devices are free."""
        del self.pods[uid]
        self._write_checkpoint()

    def in_use(self, resource: str) -> set[str]:
        """Devices that pods hold."""
        return {
            name
            for pod in self.pods.values()
            for container in pod.containers
            for name in container.devices.get(resource, ())
        }

    async def _give(self, container: Container, resource: str, count: int) -> None:
        endpoint = self._endpoints.get(resource)
        free = sorted(self.healthy(resource) - self.in_use(resource))
        if endpoint is None or endpoint.stopped or len(free) < count:
            raise AdmissionError(
                f"requested number of devices unavailable for {resource}. Requested: {count}, Available: {len(free)}"
            )
        try:
            chosen = sorted(await self._preferred(endpoint, free, count))
            request = api_pb2.AllocateRequest(container_requests=[api_pb2.ContainerAllocateRequest(devices_ids=chosen)])
            answer = await endpoint.stub.Allocate(request)
        except grpc.aio.AioRpcError as error:
            raise AdmissionError(f"allocate failed due to {error.details()}, which is unexpected") from error
        container.devices[resource] = chosen
        container.responses.append(answer.container_responses[0])

    async def _preferred(self, endpoint: Endpoint, free: list[str], count: int) -> list[str]:
        if not endpoint.options.get_preferred_allocation_available:
            return free[:count]
        wanted = api_pb2.ContainerPreferredAllocationRequest(available_deviceIDs=free, allocation_size=count)
        answer = await endpoint.stub.GetPreferredAllocation(
            api_pb2.PreferredAllocationRequest(container_requests=[wanted])
        )
        preferred = list(answer.container_responses[0].deviceIDs)
        # What it does not say, or says wrongly, is filled up from what is free.
        good = [name for name in dict.fromkeys(preferred) if name in free]
        return (good + [name for name in free if name not in good])[:count]

    def _write_checkpoint(self) -> None:
        entries: list[dict[str, Any]] = [
            {
                "PodUID": pod.uid,
                "ContainerName": container.name,
                "ResourceName": resource,
                "DeviceIDs": {"-1": names},
                "AllocResp": "",
            }
            for pod in self.pods.values()
            for container in pod.containers
            for resource, names in container.devices.items()
        ]
        registered = {resource: sorted(devices) for resource, devices in self.devices.items()}
        body = {"Data": {"PodDeviceEntries": entries, "RegisteredDevices": registered}, "Checksum": 0}
        (self.folder / CHECKPOINT).write_text(json.dumps(body))

    # ------------------------------------------------------------------------------------------- registration

    async def register(self, request: api_pb2.RegisterRequest) -> str:
        """Take a plugin in; returns why not, or nothing."""
        if self.refuse_registration:
            return "the kubelet is not ready"
        if request.version != "v1beta1":
            return f"requested API version {request.version!r} is not supported by kubelet"
        if not _NAME.fullmatch(request.resource_name) or request.resource_name.startswith("kubernetes.io/"):
            return f"the ResourceName {request.resource_name!r} is invalid"
        path = self.folder / request.endpoint
        store = self._connected.setdefault(request.resource_name, {})
        channel = grpc.aio.insecure_channel(f"unix://{path}", options=AUTHORITY)
        stub: Any = api_pb2_grpc.DevicePluginStub(channel)
        try:
            options = await stub.GetDevicePluginOptions(api_pb2.Empty(), timeout=3)
        except grpc.aio.AioRpcError as error:
            await channel.close()
            return f"failed to dial device plugin: {error.details()}"
        if (old := store.get(path)) is not None:
            old.forgotten = True
            await channel.close()
            return f"device plugin already connected: {path}"
        endpoint = Endpoint(request.resource_name, path, options, channel, stub)
        self._endpoints[request.resource_name] = store[path] = endpoint
        endpoint.task = asyncio.create_task(self._watch(endpoint))
        async with self._changed:
            self.registrations.append(request.resource_name)
            self._changed.notify_all()
        if self.lost_answers:
            self.lost_answers -= 1
            return "the answer is lost"
        return ""

    async def _watch(self, endpoint: Endpoint) -> None:
        resource = endpoint.resource
        try:
            async for message in endpoint.stub.ListAndWatch(api_pb2.Empty()):
                async with self._changed:
                    self.devices[resource] = {device.ID: device for device in message.devices}
                    self.messages[resource] = self.messages.get(resource, 0) + 1
                    self._changed.notify_all()
        except grpc.aio.AioRpcError:
            pass
        if endpoint.forgotten:
            return
        endpoint.stopped = True
        store = self._connected.get(resource, {})
        store.pop(endpoint.path, None)
        if store:
            self._endpoints[resource] = next(iter(store.values()))
            return
        async with self._changed:
            for device in self.devices.get(resource, {}).values():
                device.health = "Unhealthy"
            self._changed.notify_all()

    async def _drop(self, endpoint: Endpoint) -> None:
        if endpoint.task is not None:
            endpoint.task.cancel()
            with suppress(asyncio.CancelledError):
                await endpoint.task
        await endpoint.channel.close()


class _Registration(api_pb2_grpc.RegistrationServicer):
    def __init__(self, kubelet: FakeKubelet) -> None:
        self._kubelet = kubelet

    async def Register(self, request: api_pb2.RegisterRequest, context: Any) -> api_pb2.Empty:
        if reason := await self._kubelet.register(request):
            await context.abort(grpc.StatusCode.UNKNOWN, reason)
        return api_pb2.Empty()
