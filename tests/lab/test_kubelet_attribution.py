"""Plugin and exporter as processes on a real kubelet: whose a GPU is, told by the kubelet and nobody else."""

from datetime import UTC, datetime

import grpc
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from gpubank.domain.attribution import NodeMetadata, OrgSpan, PodMetadata
from gpubank.lab import podspec
from gpubank.lab.names import REAL_NODE
from gpubank.metadata.seal import Sealer
from nodeagent.attribution.kubelet import PodResources, PodsApi
from nodeagent.attribution.places import POD_RESOURCES_SOCKET, PODS_SOCKET
from nodeagent.pb.pods import api_pb2, api_pb2_grpc
from tests.support.realnode import PREFIX, RealNode
from tests.support.waiting import until

H100 = "h100-80gb"
GPU = "GPU-00000000-0000-4000-8000-000000000000"
BUSY = {PREFIX + H100: 1}


def told(node: RealNode, uid: str, name: str) -> dict[str, object]:
    """Leave a signed snapshot on the node that says whose pod this is; returns what the exporter needs to read it."""
    key = Ed25519PrivateKey.generate()
    public, file = node.folder / "public.pem", node.folder / "metadata.snapshot"
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    now = datetime.now(UTC)
    pod = PodMetadata(uid, "default", name, (OrgSpan(now, "search", "CC-4711"),))
    metadata = NodeMetadata(node=REAL_NODE, issued_at=now, pods={uid: pod})
    file.write_bytes(Sealer(key).seal(metadata))
    return {"publicKeys": [str(public)], "file": str(file)}


def owner(node: RealNode) -> tuple[str, str]:
    """Pod UID and cost center of the GPU, as a scrape shows them."""
    rows = [labels for labels, _ in node.rows().get("gpubank_gpu_pod_info", []) if labels["UUID"] == GPU]
    return (rows[0].get("pod_uid", ""), rows[0].get("cost_center", "")) if rows else ("", "")


def owned(node: RealNode, name: str, *, tombstone: float = 3) -> str:
    """Run a pod on the one GPU of the node, and return its UID when scrapes show the GPU as its own."""
    node.facts.gpu(GPU)
    node.start_plugin()
    node.sees({H100: 1})
    uid = node.run(name, podspec.idle_pod(resources=BUSY))
    node.await_phase(name, "Running")
    timing = {"collect": 0.2, "inventory": 0.5, "tombstone": tombstone}
    node.start_exporter(metadata=told(node, uid, name), timing=timing)
    until(lambda: owner(node) == (uid, "CC-4711"), f"{name}'s attribution", say=lambda: owner(node))
    return uid


def test_the_kubelets_own_apis_name_the_pod_by_its_uid(node: RealNode) -> None:
    node.facts.gpu(GPU)
    node.start_plugin()
    node.sees({H100: 1})
    uid = node.run("held", podspec.idle_pod(resources=BUSY))
    node.await_phase("held", "Running")
    allocations, pods = PodResources(POD_RESOURCES_SOCKET), PodsApi(PODS_SOCKET)
    held = [each for each in allocations.list() if each.device_id == GPU]
    assert [(each.namespace, each.pod, each.container, each.resource) for each in held] == [
        ("default", "held", "main", PREFIX + H100)
    ]
    assert pods.uids()["default", "held"] == {uid}
    for each in (allocations, pods):
        each.close()
    options = [("grpc.default_authority", "localhost")]
    with grpc.insecure_channel(f"unix:{PODS_SOCKET}", options=options) as channel:
        answer = api_pb2_grpc.PodsStub(channel).GetPod(api_pb2.GetPodRequest(podUID=uid))
    assert uid.encode() in answer.pod


def test_a_pod_of_the_same_name_is_never_shown_as_its_predecessor(node: RealNode) -> None:
    first = owned(node, "same", tombstone=60)
    node.delete("same")
    assert owner(node) == (first, "CC-4711"), "a tombstone, for nobody else holds the GPU"
    second = node.run("same", podspec.idle_pod(resources=BUSY))
    seen: list[tuple[str, str]] = []

    def arrived() -> bool:
        seen.append(owner(node))
        return seen[-1][0] == second

    until(arrived, "the second pod's attribution", say=lambda: str(seen[-1]))
    # Before the kubelet is sure it may be nobody's; the second pod is never booked to the first one's group.
    assert set(seen) <= {(first, "CC-4711"), ("", ""), (second, "")}
    assert [uid for uid, _ in seen if uid] == sorted((uid for uid, _ in seen if uid), key=[first, second].index)


def test_a_dead_pods_gpu_stays_its_own_until_the_tombstone_ends(node: RealNode) -> None:
    uid = owned(node, "mortal")
    node.delete("mortal")
    until(lambda: node.rows()["gpubank_attribution_tombstones"][0][1] == 1, "a tombstone")
    assert owner(node) == (uid, "CC-4711")
    until(lambda: node.rows()["gpubank_attribution_tombstones"][0][1] == 0, "the tombstone's end")
    assert uid not in node.holders().values()


def test_without_the_api_server_scrapes_answer_with_the_same_owner_and_no_error(node: RealNode) -> None:
    uid = owned(node, "owned")
    before = failures(node)
    with node.without_api_server():
        collected = collections(node)
        until(lambda: collections(node) >= collected + 5, "five collections without the API server")
        assert owner(node) == (uid, "CC-4711")
        assert failures(node) == before
        up = {labels["source"]: value for labels, value in node.rows()["gpubank_attribution_source_up"]}
        assert (up["pod_resources"], up["pods_api"]) == (1, 1)
    assert node.await_phase("owned", "Running")["metadata"]["uid"] == uid


def failures(node: RealNode) -> dict[str, float]:
    return {str(sorted(labels.items())): value for labels, value in node.rows()["gpubank_exporter_errors_total"]}


def collections(node: RealNode) -> float:
    return node.rows()["gpubank_exporter_collections_total"][0][1]
