"""A kubelet's PodResources and Pods API on real sockets: it says what it is told to say, late or never if need be."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc

from nodeagent.pb.podresources import api_pb2 as resources
from nodeagent.pb.podresources import api_pb2_grpc as resources_grpc
from nodeagent.pb.pods import api_pb2 as pods
from nodeagent.pb.pods import api_pb2_grpc as pods_grpc

_WATCH_SECONDS: Final = 0.05
"""Between two looks for changes that a watch is told."""


@dataclass
class FakePod:
    """One pod and the devices of its containers."""

    namespace: str
    name: str
    uid: str
    devices: dict[str, list[str]] = field(default_factory=dict)
    """Device ids by resource, all in the container `main`."""

    claims: list[tuple[str, str, str]] = field(default_factory=list)
    """Driver, pool, device."""

    containers: dict[str, list[tuple[str, str, int | None]]] | None = None
    """Resource, device and NUMA node by container, where there are more than `main`."""


class PodSockets:
    """Serves both APIs until closed."""

    def __init__(self, folder: Path) -> None:
        self.pod_resources, self.pods_api = folder / "pod-resources.sock", folder / "pods-api.sock"
        self.pods: list[FakePod] = []
        self.running: list[FakePod] | None = None
        """What the Pods API says; None says the same as PodResources."""
        self.healthy_devices: Callable[[], Mapping[str, Sequence[tuple[str, int | None]]]] = dict
        """Every healthy device of the node and its NUMA node, by resource: a kubelet names no others as allocatable."""
        self.refuse: grpc.StatusCode | None = None
        self.hang = threading.Event()
        self.released = threading.Event()
        self.lists = 0
        self._server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
        resources_grpc.add_PodResourcesListerServicer_to_server(_Resources(self), self._server)
        pods_grpc.add_PodsServicer_to_server(_Pods(self), self._server)
        for path in (self.pod_resources, self.pods_api):
            self._server.add_insecure_port(f"unix:{path}")
        self._server.start()

    def close(self) -> None:
        """Stop serving."""
        self.released.set()
        self._server.stop(grace=None).wait()

    def known(self) -> Sequence[FakePod]:
        """Return what the Pods API knows."""
        return self.pods if self.running is None else self.running

    def before_answer(self, context: Any) -> None:
        """Hang or refuse, if told to."""
        if self.hang.is_set():
            self.released.wait(30)
        if self.refuse is not None:
            context.abort(self.refuse, "told to refuse")


class _Resources(resources_grpc.PodResourcesListerServicer):
    def __init__(self, sockets: PodSockets) -> None:
        self._sockets = sockets

    def List(self, request: Any, context: Any) -> resources.ListPodResourcesResponse:
        self._sockets.lists += 1
        self._sockets.before_answer(context)
        return resources.ListPodResourcesResponse(pod_resources=[_resources(pod) for pod in self._sockets.pods])

    def Get(self, request: Any, context: Any) -> resources.GetPodResourcesResponse:
        self._sockets.before_answer(context)
        for pod in self._sockets.pods:
            if (pod.namespace, pod.name) == (request.pod_namespace, request.pod_name):
                return resources.GetPodResourcesResponse(pod_resources=_resources(pod))
        what = f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
        context.abort(grpc.StatusCode.UNKNOWN, what)
        raise AssertionError("abort raises")

    def GetAllocatableResources(self, request: Any, context: Any) -> resources.AllocatableResourcesResponse:
        self._sockets.before_answer(context)
        healthy = self._sockets.healthy_devices()
        devices = [_device(name, each, numa) for name, ids in healthy.items() for each, numa in ids]
        return resources.AllocatableResourcesResponse(devices=devices)


class _Pods(pods_grpc.PodsServicer):
    def __init__(self, sockets: PodSockets) -> None:
        self._sockets = sockets

    def ListPods(self, request: Any, context: Any) -> pods.ListPodsResponse:
        self._sockets.before_answer(context)
        return pods.ListPodsResponse(pods=[_marshalled(pod) for pod in self._sockets.known()])

    def GetPod(self, request: Any, context: Any) -> pods.GetPodResponse:
        self._sockets.before_answer(context)
        for pod in self._sockets.known():
            if pod.uid == request.podUID:
                return pods.GetPodResponse(pod=_marshalled(pod))
        context.abort(grpc.StatusCode.NOT_FOUND, f"pod with UID {request.podUID} not found")
        raise AssertionError("abort raises")

    def WatchPods(self, request: Any, context: Any) -> Iterator[pods.WatchPodsEvent]:
        self._sockets.before_answer(context)
        known = {pod.uid: pod for pod in self._sockets.known()}
        for pod in known.values():
            yield pods.WatchPodsEvent(type=pods.ADDED, pod=_marshalled(pod))
        yield pods.WatchPodsEvent(type=pods.INITIAL_SYNC_COMPLETE)
        while context.is_active() and not self._sockets.released.wait(_WATCH_SECONDS):
            now = {pod.uid: pod for pod in self._sockets.known()}
            for uid in now.keys() - known.keys():
                yield pods.WatchPodsEvent(type=pods.ADDED, pod=_marshalled(now[uid]))
            for uid in known.keys() - now.keys():
                yield pods.WatchPodsEvent(type=pods.DELETED, pod=_marshalled(known[uid]))
            known = now


def _device(resource: str, device: str, numa: int | None) -> resources.ContainerDevices:
    topology = resources.TopologyInfo(nodes=[resources.NUMANode(ID=numa)]) if numa is not None else None
    return resources.ContainerDevices(resource_name=resource, device_ids=[device], topology=topology)


def _marshalled(pod: FakePod) -> bytes:
    return pod_bytes(pod.namespace, pod.name, pod.uid)


def _resources(pod: FakePod) -> resources.PodResources:
    if pod.containers is not None:
        return resources.PodResources(
            name=pod.name,
            namespace=pod.namespace,
            containers=[
                resources.ContainerResources(
                    name=name, devices=[_device(resource, each, numa) for resource, each, numa in held]
                )
                for name, held in pod.containers.items()
            ],
        )
    devices = [resources.ContainerDevices(resource_name=name, device_ids=ids) for name, ids in pod.devices.items()]
    claims = [
        resources.ClaimResource(driver_name=driver, pool_name=pool, device_name=device)
        for driver, pool, device in pod.claims
    ]
    dynamic = [resources.DynamicResource(claim_name="gpu", claim_resources=claims)] if claims else []
    container = resources.ContainerResources(name="main", devices=devices, dynamic_resources=dynamic)
    return resources.PodResources(name=pod.name, namespace=pod.namespace, containers=[container])


def pod_bytes(namespace: str, name: str, uid: str, *, padding: int = 0) -> bytes:
    """Marshal a v1.Pod: metadata with name, namespace and uid, and `padding` bytes of what else a pod has."""
    metadata = _text(1, name) + _text(2, "") + _text(3, namespace) + _text(5, uid) + b"\x30\x07"
    return _bytes(1, metadata) + _bytes(2, b"\0" * padding)


def _text(number: int, value: str) -> bytes:
    return _bytes(number, value.encode())


def _bytes(number: int, value: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(value)) + value


def _varint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])
