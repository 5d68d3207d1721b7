"""The kubelet's sockets: PodResources says what was handed to whom, the Pods API which pods those are.

Both need a socket file and no credentials. Both are asked once per collection at most; the kubelet limits how often it
answers, and a refusal is waited for until the next collection.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

import grpc

from gpubank.domain.attribution import is_object_name, is_uid
from gpubank.domain.errors import BackendError
from nodeagent.attribution.allocations import Allocation, read_allocations
from nodeagent.attribution.places import POD_RESOURCES_SOCKET, PODS_SOCKET
from nodeagent.attribution.podbytes import read_pod
from nodeagent.pb.podresources import api_pb2 as resources
from nodeagent.pb.podresources import api_pb2_grpc as resources_grpc
from nodeagent.pb.pods import api_pb2 as pods
from nodeagent.pb.pods import api_pb2_grpc as pods_grpc

T = TypeVar("T")

_OPTIONS: Final = (
    ("grpc.default_authority", "localhost"),
    ("grpc.max_receive_message_length", 32 * 1024 * 1024),
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.enable_http_proxy", 0),
)


class KubeletError(BackendError):
    """The kubelet did not answer, or refused; the next collection asks again."""


class KubeletAbsentError(KubeletError):
    """The kubelet has no such socket, or the API behind it is off."""


class Socket:
    """One of the kubelet's sockets, connected when it is first needed and again after every failure."""

    def __init__(self, path: Path, what: str, *, timeout: float) -> None:
        self._path, self._what, self._timeout = path, what, timeout
        self._channel: grpc.Channel | None = None
        self._lock = threading.Lock()
        self.calls = 0
        """Calls made so far."""

    def call(self, ask: Callable[[grpc.Channel, float], T]) -> T:
        """Call `ask(channel, timeout)`. Raises KubeletError."""
        if not self._path.exists():
            raise KubeletAbsentError(f"{self._what}: there is no socket {str(self._path)!r}; is the kubelet up?")
        with self._lock:
            if self._channel is None:
                self._channel = grpc.insecure_channel(f"unix:{self._path}", options=_OPTIONS)
            channel = self._channel
        self.calls += 1
        try:
            return ask(channel, self._timeout)
        except grpc.RpcError as error:
            code, details = error.code(), (error.details() or "")[:200]
            if code is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                self.close()
            kind = KubeletAbsentError if code is grpc.StatusCode.UNIMPLEMENTED else KubeletError
            raise kind(f"{self._what}: the kubelet says {code.name.lower()} ({details}); asked again soon") from error

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()


class PodResources:
    """What was handed to whom."""

    def __init__(self, path: Path = POD_RESOURCES_SOCKET, *, timeout: float = 5.0) -> None:
        self.socket = Socket(path, "allocations", timeout=timeout)

    def list(self) -> Sequence[Allocation]:
        """Return every allocation. Raises KubeletError."""
        answer = self.socket.call(
            lambda channel, timeout: resources_grpc.PodResourcesListerStub(channel).List(
                resources.ListPodResourcesRequest(), timeout=timeout
            )
        )
        return tuple(read_allocations(answer))

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()


class PodsApi:
    """Which pods the kubelet runs; on by default since Kubernetes 1.37."""

    def __init__(self, path: Path = PODS_SOCKET, *, timeout: float = 5.0) -> None:
        self.socket = Socket(path, "pods", timeout=timeout)

    def uids(self) -> Mapping[tuple[str, str], frozenset[str]]:
        """Return the UIDs of every pod by namespace and name. Raises KubeletError."""
        answer = self.socket.call(
            lambda channel, timeout: pods_grpc.PodsStub(channel).ListPods(pods.ListPodsRequest(), timeout=timeout)
        )
        found: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        for raw in answer.pods:
            pod = read_pod(raw)
            if pod is not None and is_object_name(pod.namespace) and is_object_name(pod.name) and is_uid(pod.uid):
                found[pod.namespace, pod.name].add(pod.uid)
        return {name: frozenset(uids) for name, uids in found.items()}

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()
