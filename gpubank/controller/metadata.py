"""Node metadata in the controller: one watch of pods, groups and ResourceSlices for the whole cluster.

    pods ──────────┐
    BusinessGroups ┼─▶ watched caches ─▶ index by node ─▶ decide.attribution ─▶ MetadataService ─▶ nodes
    ResourceSlices ┘                       ▲
    organisation of the ledger, read anew every few minutes

The API server is asked nothing per node and nothing per scrape, however many nodes there are. Pods and groups come from
the watches that the controller has anyway; what is added is the one of ResourceSlices. Only pods that ask for devices
are kept, and of them only what may be told.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from gpubank.adapters.kubernetes.cache import Beside, Cache, Caches, Source, Watched
from gpubank.adapters.kubernetes.kinds import BANK_KINDS, POD, Kind, Object
from gpubank.decide.attribution import Limits, PodSeen, bookings, claims_of, node_metadata
from gpubank.domain.attribution import NodeMetadata, OrgSpan
from gpubank.domain.errors import BackendError, PolicyError
from gpubank.domain.group import BusinessGroup
from gpubank.domain.ledger import OrgUnit
from gpubank.metadata.channel import TlsFiles
from gpubank.metadata.seal import Sealer
from gpubank.metadata.service import MetadataService, serving
from gpubank.settings import MetadataSettings

log = logging.getLogger(__name__)

RESOURCE_SLICE: Final = Kind("resource.k8s.io", "v1", "ResourceSlice", "resourceslices", namespaced=False)

MIRROR_ANNOTATION: Final = "kubernetes.io/config.mirror"
"""On the mirror of a static pod: the UID by which the kubelet knows the pod."""

VERIFIED_ANNOTATION: Final = "bank.platform.aik8s.run/verified-fields"
"""Written by admission alone: the claims it checked, separated by commas."""

ORG_EVERY: Final = timedelta(minutes=5)
"""How old the organisation of the ledger may be here."""

_AGAIN: Final = 5.0
_UNFINISHED: Final = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
_UUID_ATTRIBUTES: Final = ("uuid", "gpu.nvidia.com/uuid")

OrgReader = Callable[[], Awaitable[Sequence[OrgUnit]]]


@dataclass(frozen=True, slots=True)
class SliceSeen:
    """The devices of one ResourceSlice whose UUID is said."""

    name: str
    node: str
    devices: Mapping[str, str]
    """`driver/pool/device` to UUID."""


class MetadataSync:
    """Keeps what every node is told; use `run` while it is needed."""

    def __init__(
        self,
        source: Source,
        *,
        pods: Cache[Any] | None = None,
        groups: Cache[Any] | None = None,
        org: OrgReader | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        limits: Limits | None = None,
        trust_verified: bool = False,
    ) -> None:
        """Read off `pods` and `groups`, which somebody else runs and has not begun to, or watch for itself.

        `trust_verified` says that admission owns VERIFIED_ANNOTATION; else nobody's word for it counts.
        """
        self._org_reader, self._now, self._limits = org, now, limits or Limits()
        self._trust_verified = trust_verified
        own: list[Watched] = []
        self.pods: Cache[PodSeen] | Beside[PodSeen]
        self.groups: Cache[BusinessGroup] | Beside[BusinessGroup]
        if pods is not None:
            self.pods = pods.beside(self._read_pod)
        else:
            own.append(found := Cache(source, POD, self._read_pod, selectors=_UNFINISHED))
            self.pods = found
        if groups is not None:
            self.groups = groups.beside(read_group)
        else:
            own.append(own_groups := Cache(source, BANK_KINDS["BusinessGroup"], read_group))
            self.groups = own_groups
        self.slices: Cache[SliceSeen] = Cache(source, RESOURCE_SLICE, read_slice)
        self._caches = Caches(*own, self.slices)
        self._by_node: defaultdict[str, dict[str, PodSeen]] = defaultdict(dict)
        self._slices_by_node: defaultdict[str, dict[str, SliceSeen]] = defaultdict(dict)
        self._org: Sequence[OrgUnit] = ()
        self._booked: dict[str, tuple[OrgSpan, ...]] | None = None
        self._booked_until = datetime.min.replace(tzinfo=UTC)
        self._listeners: list[Callable[[set[str] | None], None]] = []

    def on_change(self, listener: Callable[[set[str] | None], None]) -> None:
        """Call `listener(nodes)` when what these nodes are told may have changed; None means every node."""
        self._listeners.append(listener)

    async def run(self, ready: asyncio.Event | None = None) -> None:
        """Watch until cancelled. A cluster without DRA has no ResourceSlices, which is no error."""
        with ExitStack() as stack:
            stack.enter_context(self.pods.heard_by(self._pod_changed))
            stack.enter_context(self.groups.heard_by(self._group_changed))
            stack.enter_context(self.slices.heard_by(self._slice_changed))
            self._index()
            self._caches.start()
            try:
                await self._seen()
                if ready is not None:
                    ready.set()
                self._tell(None)
                await self._follow_org()
            finally:
                await self._caches.stop()

    async def _seen(self) -> None:
        """Wait for the first list of pods and groups, however long it takes; nodes live on their last snapshot."""
        while True:
            try:
                await self.pods.ready()
                await self.groups.ready()
            except BackendError as error:
                # What has been listed so far is kept: a large cluster's first list may take longer than one wait.
                log.warning("node metadata: the cluster cannot be seen yet: %s", error)
                await asyncio.sleep(_AGAIN)
            else:
                return

    def _index(self) -> None:
        """Take in what is known before anybody listened."""
        self._by_node.clear()
        self._slices_by_node.clear()
        self._booked = None
        for pod in self.pods:
            self._by_node[pod.node][pod.uid] = pod
        for piece in self.slices:
            self._slices_by_node[piece.node][piece.name] = piece

    def snapshot(self, node: str) -> NodeMetadata:
        """Say what a node is told now. Raises BackendError while pods or groups cannot be seen."""
        self.pods.check()
        self.groups.check()
        now = self._now()
        pods = self._by_node.get(node, {})
        return node_metadata(
            node, pods.values(), self._bookings(now), self._devices(node), issued_at=now, limits=self._limits
        )

    @property
    def nodes(self) -> Sequence[str]:
        """Nodes that have pods with devices."""
        return sorted(self._by_node)

    def _bookings(self, now: datetime) -> Mapping[str, tuple[OrgSpan, ...]]:
        if self._booked is None or now >= self._booked_until:
            self._booked = bookings(list(self.groups), self._org, now=now, limits=self._limits)
            self._booked_until = now + timedelta(hours=1)  # what is an hour ahead is among the spans to come
        return self._booked

    def _devices(self, node: str) -> Mapping[str, str]:
        found: dict[str, str] = {}
        for piece in self._slices_by_node.get(node, {}).values():
            found.update(piece.devices)
        return found

    async def _follow_org(self) -> None:
        while True:
            if self._org_reader is not None:
                try:
                    org = await self._org_reader()
                except BackendError as error:
                    log.warning("the ledger's organisation cannot be read, the known one goes on: %s", error)
                else:
                    if org != self._org:
                        self._org, self._booked = org, None
                        self._tell(None)
            await asyncio.sleep(ORG_EVERY.total_seconds())

    def _pod_changed(self, before: PodSeen | None, after: PodSeen | None) -> None:
        if before == after:
            return
        nodes = set()
        if before is not None and before.node:
            nodes.add(before.node)
            held = self._by_node[before.node]
            held.pop(before.uid, None)
            if not held:
                del self._by_node[before.node]
        if after is not None and after.node:
            nodes.add(after.node)
            self._by_node[after.node][after.uid] = after
        if nodes:
            self._tell(nodes)

    def _group_changed(self, before: BusinessGroup | None, after: BusinessGroup | None) -> None:
        if before is not None and after is not None and before.spec == after.spec:
            return  # its status is written every minute
        self._booked = None
        self._tell(None)

    def _slice_changed(self, before: SliceSeen | None, after: SliceSeen | None) -> None:
        if before == after:
            return
        if before is not None:
            held = self._slices_by_node[before.node]
            held.pop(before.name, None)
            if not held:
                del self._slices_by_node[before.node]
        if after is not None:
            self._slices_by_node[after.node][after.name] = after
        self._tell({piece.node for piece in (before, after) if piece is not None})

    def _tell(self, nodes: set[str] | None) -> None:
        for listener in self._listeners:
            listener(nodes)

    def _read_pod(self, body: Object, before: PodSeen | None) -> PodSeen | None:
        return read_pod(body, trust_verified=self._trust_verified)


def read_pod(body: Object, *, trust_verified: bool = False) -> PodSeen | None:
    """Read a pod; None for one that asks for no device, has no node yet, or has finished."""
    metadata, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    if not spec.get("nodeName") or status.get("phase") in ("Succeeded", "Failed") or not _asks_for_devices(spec):
        return None
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    controller = next((ref.get("uid") for ref in metadata.get("ownerReferences") or () if ref.get("controller")), "")
    checked = annotations.get(VERIFIED_ANNOTATION, "") if trust_verified else ""
    return PodSeen(
        uid=metadata["uid"],
        namespace=metadata["namespace"],
        name=metadata["name"],
        node=spec["nodeName"],
        claims=claims_of(labels, annotations, controller or ""),
        verified=frozenset(part.strip() for part in checked.split(",") if part.strip()),
        static_uid=annotations.get(MIRROR_ANNOTATION, ""),
    )


def read_group(body: Object, before: BusinessGroup | None) -> BusinessGroup | None:
    """Read a group; one that the models refuse is booked to nobody."""
    try:
        return BusinessGroup.from_wire({name: value for name, value in body.items() if name != "status"})
    except ValidationError as error:
        log.warning("BusinessGroup %r cannot be read: %s", body["metadata"].get("name"), error.errors()[0]["msg"])
        return None


def read_slice(body: Object, before: SliceSeen | None) -> SliceSeen | None:
    """Read a ResourceSlice; None where it is no node's, or says no UUIDs."""
    spec = body.get("spec") or {}
    node, driver, pool = spec.get("nodeName"), spec.get("driver"), (spec.get("pool") or {}).get("name")
    if not (node and driver and pool):
        return None
    devices = {f"{driver}/{pool}/{name}": uuid for name, uuid in _uuids(spec.get("devices") or ())}
    return SliceSeen(body["metadata"]["name"], node, devices) if devices else None


def _uuids(devices: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for device in devices:
        # Of version v1 the attributes stand in the device; older versions wrap them in `basic`.
        attributes = device.get("attributes") or (device.get("basic") or {}).get("attributes") or {}
        uuid = next((attributes[key].get("string") for key in _UUID_ATTRIBUTES if key in attributes), None)
        if uuid and device.get("name"):
            yield device["name"], uuid


def _asks_for_devices(spec: Mapping[str, Any]) -> bool:
    if spec.get("resourceClaims"):
        return True
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    # An extended resource always has a domain; what else has one is kept by Kubernetes for itself.
    return any(
        "/" in name and not name.startswith("hugepages-") and not name.startswith("kubernetes.io/")
        for container in containers
        for name in ((container.get("resources") or {}).get("limits") or {})
    )


@asynccontextmanager
async def serving_metadata(
    sync: MetadataSync, address: str, tls: TlsFiles, sealer: Sealer, *, shared_name: str = ""
) -> AsyncIterator[int]:
    """Watch and serve while the context lasts; yields the port. Raises PolicyError, BackendError."""
    service = MetadataService(sync.snapshot, sealer, shared_name=shared_name)
    sync.on_change(service.changed)
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(serving(service, address, tls))
        watching = asyncio.create_task(sync.run(), name="node metadata")
        try:
            yield port
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching


class NodeMetadataServer:
    """Metadata for nodes as the settings say; to be made before the watches it shares begin."""

    def __init__(
        self,
        settings: MetadataSettings,
        source: Source,
        *,
        pods: Cache[Any] | None = None,
        groups: Cache[Any] | None = None,
        org: OrgReader | None = None,
    ) -> None:
        """Read what the settings name. Raises PolicyError."""
        certificate, key, authorities, signing_key = (
            _required(name, path)
            for name, path in (
                ("certificate", settings.certificate),
                ("key", settings.key),
                ("client_authorities", settings.client_authorities),
                ("signing_key", settings.signing_key),
            )
        )
        self._settings = settings
        self._tls, self._sealer = TlsFiles(certificate, key, authorities), Sealer.load(signing_key)
        self._sync = MetadataSync(
            source, pods=pods, groups=groups, org=org, trust_verified=settings.trust_verified_fields
        )

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[int]:
        """Watch and serve while the context lasts; yields the port. Raises PolicyError, BackendError."""
        settings = self._settings
        async with serving_metadata(
            self._sync, settings.address, self._tls, self._sealer, shared_name=settings.shared_client_name
        ) as port:
            yield port


def _required(name: str, path: Path | None) -> Path:
    if path is None:
        raise PolicyError(f"metadata.{name} is not set: nodes are served over mutual TLS only; name a PEM file")
    return path
