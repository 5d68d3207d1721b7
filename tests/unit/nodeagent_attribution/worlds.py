"""Small nodes, pods and snapshots for tests of attribution."""

from datetime import UTC, datetime
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gpubank.domain.attribution import NodeMetadata, OrgSpan, PodMetadata
from gpubank.metadata.seal import Opener, Sealer
from nodeagent.attribution.allocations import Allocation
from nodeagent.attribution.inventory import Inventory
from nodeagent.attribution.store import SnapshotStore
from nodeagent.nvml.snapshot import Gpu, MigDevice

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
GPU = "GPU-11111111-2222-3333-4444-555555555555"
GPU2 = "GPU-99999999-2222-3333-4444-555555555555"
MIG = "MIG-aaaaaaaa-2222-3333-4444-555555555555"
MIG2 = "MIG-bbbbbbbb-2222-3333-4444-555555555555"
RESOURCE = "accelerator.aik8s.run/h100-80gb"
KEY = Ed25519PrivateKey.generate()


def a_gpu(uuid: str = GPU, index: int = 0, **facts: object) -> Gpu:
    known = {"name": "NVIDIA H100 80GB HBM3", "memory_mib": 81559, "minor": index, "pci_bus_id": "0000:18:00.0"}
    return Gpu(uuid=uuid, index=index, **{**known, **facts})  # type: ignore[arg-type]


def a_mig_gpu(uuid: str = GPU, index: int = 0, *migs: MigDevice) -> Gpu:
    return a_gpu(uuid, index, mig_enabled=True, migs=migs or (MigDevice(MIG, "1g.10gb", 7, 0),))


def an_inventory(*gpus: Gpu) -> Inventory:
    return Inventory(gpus or (a_gpu(),))


def held(pod: str = "train-0", device: str = GPU, *, container: str = "main", resource: str = RESOURCE) -> Allocation:
    return Allocation("team-a", pod, container, resource, device)


def told(uid: str, name: str = "train-0", namespace: str = "team-a", **claims: str) -> PodMetadata:
    span = OrgSpan(datetime(2000, 1, 1, tzinfo=UTC), "search", "CC-1")
    return PodMetadata(uid, namespace, name, (span,), claims)


def a_snapshot(
    *pods: PodMetadata, node: str = "gpu-0", issued_at: datetime = NOW, devices: dict[str, str] | None = None
) -> NodeMetadata:
    return NodeMetadata(node, issued_at, {pod.uid: pod for pod in pods}, devices or {})


def an_opener(node: str = "gpu-0") -> Opener:
    return Opener(node, [KEY.public_key()])


def sealed(metadata: NodeMetadata) -> bytes:
    return Sealer(KEY).seal(metadata)


def a_store(path: Path, node: str = "gpu-0") -> SnapshotStore:
    return SnapshotStore(path, an_opener(node), now=lambda: NOW)
