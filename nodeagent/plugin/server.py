"""One resource at the kubelet: a gRPC server on a socket of its own, and its registration.

    serve ─▶ register ─▶ the kubelet calls back, lists and watches, prefers, allocates

The kubelet calls back before Register returns, so the server is up first. Every list is the whole truth. A stream that
ends makes all devices of the resource unhealthy at once, hence a server is only replaced when its socket is gone.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import grpc

from gpubank.domain.device import Offer
from gpubank.domain.errors import BankError
from nodeagent.pb.deviceplugin import api_pb2, api_pb2_grpc
from nodeagent.plugin.response import Response
from nodeagent.plugin.watch import Identity, identity

if TYPE_CHECKING:
    _Context = grpc.aio.ServicerContext[Any, Any]

VERSION: Final = "v1beta1"
KUBELET_SOCKET: Final = "kubelet.sock"
HEALTHY: Final = "Healthy"
UNHEALTHY: Final = "Unhealthy"

# Go's gRPC server refuses a unix socket's path as the name of a host.
_AUTHORITY: Final = (("grpc.default_authority", "localhost"),)
_REGISTER_SECONDS: Final = 10.0
_LONGEST_NAME: Final = 44
"""Characters of a resource that its socket's name keeps: a socket's whole path may have 107 bytes."""
_TURN_BYTES: Final = 3

_log = logging.getLogger(__name__)


class Listed(Protocol):
    """One device as the kubelet is told it."""

    @property
    def id(self) -> str:
        """What the kubelet calls it."""
        ...

    @property
    def healthy(self) -> bool:
        """Whether new pods may get it."""
        ...

    @property
    def numa_node(self) -> int | None:
        """NUMA node; None leaves topology out."""
        ...


class Source(Protocol):
    """What a resource's server asks; the agent answers."""

    def listed(self, offer: Offer) -> Sequence[Listed]:
        """Every device of the resource right now."""
        ...

    def preferred(self, offer: Offer, available: Sequence[str], must: Sequence[str], size: int) -> Sequence[str]:
        """Choose devices that go together; never raises."""
        ...

    async def allocate(self, offer: Offer, containers: Sequence[Sequence[str]]) -> Sequence[Response]:
        """Hand out devices to the containers of a pod. Raises BankError with the reason why not."""
        ...


def socket_stem(offer: Offer) -> str:
    """What the names of a resource's sockets in the kubelet's folder begin with."""
    name = offer.name
    if len(name) > _LONGEST_NAME:
        name = f"{name[: _LONGEST_NAME - 9]}-{sha256(name.encode()).hexdigest()[:8]}"
    return f"gpubank-{name}"


def sockets(folder: Path, offer: Offer) -> list[Path]:
    """Return every socket of a resource in the kubelet's folder, whichever agent left it."""
    stem = socket_stem(offer)
    return sorted((*folder.glob(f"{stem}.sock"), *folder.glob(f"{stem}_{'[0-9a-f]' * 2 * _TURN_BYTES}.sock")))


class ResourceServer:
    """One resource, from its socket to its registration."""

    def __init__(self, offer: Offer, folder: Path, source: Source) -> None:
        self.offer = offer
        self.path = folder / f"{socket_stem(offer)}.sock"
        """Where it listens; another path each time that it serves anew."""
        self._folder = folder
        self._kubelet = folder / KUBELET_SOCKET
        self._source = source
        self._server: grpc.aio.Server | None = None
        self._bound: Identity | None = None
        self._registered_with: Identity | None = None
        self._revision = 0
        self._changed = asyncio.Condition()

    async def settle(self) -> bool:
        """Make it so that the kubelet that is there now knows this resource; True if it does.

        To be called again and again: it serves anew if the socket is gone, registers anew if the kubelet is another
        one, and otherwise does nothing. Raises OSError and grpc.aio.AioRpcError.
        """
        if self._server is None or self._bound is None or identity(self.path) != self._bound:
            await self._serve()
        kubelet = identity(self._kubelet)
        if kubelet is None:
            self._registered_with = None
            return False
        if kubelet != self._registered_with:
            try:
                await self._register()
            except grpc.aio.AioRpcError:
                # It may have connected all the same, and would refuse this path from now on.
                self._bound = None
                raise
            # Looked at before the call: if it was replaced meanwhile, the next look differs and registers again.
            self._registered_with = kubelet
        return True

    async def changed(self) -> None:
        """Tell the kubelet the devices anew."""
        async with self._changed:
            self._revision += 1
            self._changed.notify_all()

    async def stop(self) -> None:
        """Take the resource away; the kubelet sees its stream end."""
        if self._server is not None:
            server, self._server = self._server, None
            await self.changed()
            await server.stop(0.2)
        self._registered_with = self._bound = None

    async def _serve(self) -> None:
        if self._server is not None and self._bound is not None:
            _log.warning("the socket of %s is gone; serving anew", self.offer.resource)
        await self.stop()
        for left in sockets(self._folder, self.offer):
            left.unlink(missing_ok=True)  # of an agent that was killed
        # A kubelet since 1.37 refuses a path that it believes to be connected, and if it missed the end of that
        # connection it does so until it restarts. A path that it never saw it cannot refuse.
        self.path = self._folder / f"{socket_stem(self.offer)}_{secrets.token_hex(_TURN_BYTES)}.sock"
        server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        api_pb2_grpc.add_DevicePluginServicer_to_server(_Servicer(self, self._source), server)
        server.add_insecure_port(f"unix://{self.path}")
        await server.start()
        self._server, self._bound = server, identity(self.path)

    async def _register(self) -> None:
        request = api_pb2.RegisterRequest(
            version=VERSION,
            endpoint=self.path.name,
            resource_name=self.offer.resource,
            options=api_pb2.DevicePluginOptions(get_preferred_allocation_available=True),
        )
        async with grpc.aio.insecure_channel(f"unix://{self._kubelet}", options=_AUTHORITY) as channel:
            await api_pb2_grpc.RegistrationStub(channel).Register(request, timeout=_REGISTER_SECONDS)
        _log.info("registered %s with the kubelet", self.offer.resource)

    async def lists(self) -> AsyncIterator[api_pb2.ListAndWatchResponse]:
        """Yield the devices now and after every change, for as long as this server lives."""
        server = self._server
        while self._server is server and server is not None:
            revision = self._revision
            yield api_pb2.ListAndWatchResponse(devices=map(_device, self._source.listed(self.offer)))
            async with self._changed:
                while self._revision == revision:
                    await self._changed.wait()


class _Servicer(api_pb2_grpc.DevicePluginServicer):
    """Translates between the kubelet's messages and the agent's answers."""

    def __init__(self, server: ResourceServer, source: Source) -> None:
        self._server = server
        self._source = source

    async def GetDevicePluginOptions(self, request: api_pb2.Empty, context: "_Context") -> api_pb2.DevicePluginOptions:
        return api_pb2.DevicePluginOptions(get_preferred_allocation_available=True)

    async def ListAndWatch(
        self, request: api_pb2.Empty, context: "_Context"
    ) -> AsyncIterator[api_pb2.ListAndWatchResponse]:
        async for devices in self._server.lists():
            yield devices

    async def GetPreferredAllocation(
        self, request: api_pb2.PreferredAllocationRequest, context: "_Context"
    ) -> api_pb2.PreferredAllocationResponse:
        chosen = (
            self._source.preferred(
                self._server.offer,
                list(each.available_deviceIDs),
                list(each.must_include_deviceIDs),
                each.allocation_size,
            )
            for each in request.container_requests
        )
        return api_pb2.PreferredAllocationResponse(
            container_responses=[api_pb2.ContainerPreferredAllocationResponse(deviceIDs=names) for names in chosen]
        )

    async def Allocate(self, request: api_pb2.AllocateRequest, context: "_Context") -> api_pb2.AllocateResponse:
        wanted = [list(each.devices_ids) for each in request.container_requests]
        try:
            answers = await self._source.allocate(self._server.offer, wanted)
        except BankError as error:
            _log.warning("not handed out: %s", error)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
            raise
        return api_pb2.AllocateResponse(container_responses=list(map(_container, answers)))

    async def PreStartContainer(
        self, request: api_pb2.PreStartContainerRequest, context: "_Context"
    ) -> api_pb2.PreStartContainerResponse:
        return api_pb2.PreStartContainerResponse()


def _device(device: Listed) -> api_pb2.Device:
    numa = device.numa_node
    topology = None if numa is None else api_pb2.TopologyInfo(nodes=[api_pb2.NUMANode(ID=numa)])
    return api_pb2.Device(ID=device.id, health=HEALTHY if device.healthy else UNHEALTHY, topology=topology)


def _container(answer: Response) -> api_pb2.ContainerAllocateResponse:
    return api_pb2.ContainerAllocateResponse(
        envs=answer.envs,
        mounts=[api_pb2.Mount(host_path=host, container_path=inside, read_only=True) for host, inside in answer.mounts],
        devices=[
            api_pb2.DeviceSpec(host_path=path, container_path=path, permissions="rw") for path in answer.device_files
        ],
        annotations=answer.annotations,
        cdi_devices=[api_pb2.CDIDevice(name=name) for name in answer.cdi_devices],
    )
