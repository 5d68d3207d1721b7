"""Where the exporter's parts meet."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpubank.domain.attribution import is_object_name
from gpubank.domain.errors import PolicyError
from gpubank.metadata.channel import TlsFiles
from gpubank.metadata.seal import Opener
from nodeagent.attribution.attributor import Attributor
from nodeagent.attribution.checkpoint import read_checkpoint
from nodeagent.attribution.holders import HoldersFile
from nodeagent.attribution.kubelet import PodResources, PodsApi
from nodeagent.attribution.memory import Memory
from nodeagent.attribution.store import SnapshotStore
from nodeagent.attribution.sync import MetadataClient
from nodeagent.classes.classify import classify
from nodeagent.classes.labels import exporter_labels
from nodeagent.classes.observed import facts_of_node
from nodeagent.classes.rulebook import Rulebook
from nodeagent.exporter.auth import Users
from nodeagent.exporter.collector import Collector
from nodeagent.exporter.hardware import Hardware
from nodeagent.exporter.naming import Naming
from nodeagent.exporter.quantities import Level, shown
from nodeagent.exporter.server import Application, Server, Tls
from nodeagent.exporter.sheet import Options
from nodeagent.exporter.telemetry import GuardedTelemetry, PynvmlTelemetry
from nodeagent.exporter.xids import XidBook, XidListener
from nodeagent.nvml.guard import Guarded
from nodeagent.nvml.library import PynvmlSession
from nodeagent.nvml.reading import read_node
from nodeagent.nvml.snapshot import NodeSnapshot

if TYPE_CHECKING:
    from nodeagent.exporter.settings import ExporterSettings  # pydantic, which the process does without


class NvmlNode:
    """The node through a guarded session."""

    def __init__(self, nvml: Guarded) -> None:
        self._nvml = nvml

    def open(self) -> str:
        """Start the session and return the driver's version. Raises NvmlError."""
        return self._nvml.open()

    def look(self, driver: str) -> NodeSnapshot:
        """Read every GPU. Raises NvmlError."""
        return read_node(self._nvml, driver)

    def close(self) -> None:
        """End; never raises."""
        self._nvml.close()


@dataclass
class Exporter:
    """The whole process, ready to be started."""

    collector: Collector
    server: Server
    hardware: Hardware
    listener: XidListener | None = None
    client: MetadataClient | None = None
    sockets: list[PodResources | PodsApi] = field(default_factory=list)

    def start(self) -> None:
        """Begin to listen, collect and serve."""
        for part in (self.client, self.listener, self.collector, self.server):
            if part is not None:
                part.start()

    def stop(self) -> None:
        """End in the opposite order."""
        for part in (self.server, self.collector, self.listener, self.client):
            if part is not None:
                part.stop()
        for each in self.sockets:
            each.close()
        self.hardware.close()


def exporter(settings: "ExporterSettings", rulebook: Rulebook) -> Exporter:
    """Put it together. Raises PolicyError, BackendError."""
    node, show = node_name(settings), settings.show
    measures = show.measure == "all"
    nvml = Guarded(PynvmlSession(), timeout=settings.timing.nvml)
    telemetry = PynvmlTelemetry(extended=show.extended, traffic=show.gpm_traffic) if measures else None
    hardware = Hardware(
        NvmlNode(nvml),
        GuardedTelemetry(telemetry, timeout=settings.timing.nvml) if telemetry is not None else None,
        look_seconds=settings.timing.inventory,
    )
    book = XidBook() if measures else None
    listener = XidListener(nvml, book, on_change=hardware.stale) if book is not None else None
    store = _store(settings, node)
    client = _client(settings, node, store) if store is not None and settings.metadata.address else None
    allocations = PodResources(settings.kubelet.pod_resources_socket, timeout=settings.kubelet.timeout)
    pods = PodsApi(settings.kubelet.pods_socket, timeout=settings.kubelet.timeout)
    checkpoint = settings.kubelet.checkpoint if settings.kubelet.use_checkpoint else None
    attributor = Attributor(
        allocations,
        pods=pods,
        checkpoint=partial(read_checkpoint, checkpoint) if checkpoint is not None else None,
        store=store,
        memory=Memory(settings.timing.tombstone, HoldersFile(settings.holders) if settings.holders else None),
        keep_seconds=settings.timing.keep,
        fresh_seconds=settings.metadata.fresh,
    )
    levels = {Level.DEFAULT} | ({Level.EXTENDED} if show.extended else set())
    levels |= {Level.TRAFFIC} if show.gpm_traffic else set()
    collector = Collector(
        Naming(host=node, dialect=show.dialect, budget=show.label_budget, fields=show.fields),
        Options(shown(frozenset(levels)) if measures else (), show.dialect, show.pod_info, show.pod_labels),
        hardware=hardware,
        attributor=attributor,
        classes=partial(class_labels, rulebook=rulebook),
        xids=book,
        listener=listener,
        store=store,
        stream=client,
        interval=settings.timing.collect,
    )
    listen = settings.listen
    tls = Tls(listen.certificate, listen.key, listen.client_authorities) if listen.certificate and listen.key else None
    users = Users.load(listen.users) if listen.users is not None else None
    server = Server(listen.address, listen.port, Application(collector, users), tls)
    return Exporter(collector, server, hardware, listener, client, [allocations, pods])


def class_labels(snapshot: NodeSnapshot, rulebook: Rulebook) -> Mapping[str, Mapping[str, str]]:
    """Labels of every device's class, by UUID; of a GPU in MIG mode those of its MIG devices."""
    return {uuid: exporter_labels(classify(facts, rulebook), rulebook) for uuid, facts in facts_of_node(snapshot)}


def node_name(settings: "ExporterSettings") -> str:
    """What this node is called in the cluster. Raises PolicyError."""
    name = settings.node or os.environ.get("NODE_NAME") or socket.gethostname().lower()
    if not is_object_name(name):
        raise PolicyError(f"node name {name!r} cannot be one; set `node`, or NODE_NAME, to the node's name")
    return name


def _store(settings: "ExporterSettings", node: str) -> SnapshotStore | None:
    if not settings.metadata.public_keys:
        return None
    store = SnapshotStore(settings.metadata.file, Opener.load(node, settings.metadata.public_keys))
    store.load()
    return store


def _client(settings: "ExporterSettings", node: str, store: SnapshotStore) -> MetadataClient:
    metadata = settings.metadata
    files: list[Any] = [metadata.certificate, metadata.key, metadata.authorities]
    certificate, key, authorities = (Path(file) for file in files)  # the settings see to it that there are all three
    tls = TlsFiles(certificate, key, authorities)
    tls.read()
    return MetadataClient(metadata.address, node, tls, store, server_name=metadata.server_name)
