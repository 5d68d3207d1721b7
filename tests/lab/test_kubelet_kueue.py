"""Kueue admits by a class's resource, the scheduler places, the kubelet runs: one Job from queue to GPU."""

import uuid
from collections.abc import Iterator

import pytest

from gpubank.lab import podspec
from gpubank.lab.access import Manifest, namespace
from gpubank.lab.names import POOL_LABEL, REAL_NODE, REAL_POOL
from tests.lab.objects import KUEUE
from tests.support.realnode import PREFIX, SHOW, RealNode, visible
from tests.support.waiting import AFTER_AN_OUTAGE, until

H100 = "h100-80gb"


@pytest.fixture
def team(node: RealNode) -> Iterator[str]:
    """A namespace whose LocalQueue `gpus` leads to a ClusterQueue of two GPUs of the class."""
    name = f"team-{uuid.uuid4().hex[:8]}"
    flavor = {"nodeLabels": {POOL_LABEL: REAL_POOL}}
    quota = {"name": REAL_POOL, "resources": [{"name": PREFIX + H100, "nominalQuota": "2"}]}
    groups = [{"coveredResources": [PREFIX + H100], "flavors": [quota]}]
    for kind, where, spec in (
        ("ResourceFlavor", {"name": REAL_POOL}, flavor),
        ("ClusterQueue", {"name": name}, {"namespaceSelector": {}, "resourceGroups": groups}),
    ):
        node.api.apply({"apiVersion": KUEUE, "kind": kind, "metadata": where, "spec": spec})
    node.api.apply(namespace(name))
    queue = {"name": "gpus", "namespace": name}
    node.api.apply({"apiVersion": KUEUE, "kind": "LocalQueue", "metadata": queue, "spec": {"clusterQueue": name}})
    yield name
    node.api.request("DELETE", f"/api/v1/namespaces/{name}")


def submit(node: RealNode, team: str, name: str, template: Manifest) -> None:
    body = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {"kueue.x-k8s.io/queue-name": "gpus"}},
        "spec": {"backoffLimit": 0, "template": {"spec": template}},
    }
    node.api.request("POST", f"/apis/batch/v1/namespaces/{team}/jobs", json=body)


def listed(node: RealNode, path: str, **selectors: str) -> list[Manifest]:
    found: list[Manifest] = node.api.request("GET", path, params=selectors)["items"]
    return found


def pods(node: RealNode, team: str, job: str) -> list[Manifest]:
    return listed(node, f"/api/v1/namespaces/{team}/pods", labelSelector=f"job-name={job}")


def jobs(node: RealNode, team: str) -> list[Manifest]:
    return listed(node, f"/apis/batch/v1/namespaces/{team}/jobs")


def workloads(node: RealNode, team: str) -> list[Manifest]:
    return listed(node, f"/apis/{KUEUE}/namespaces/{team}/workloads")


def phases(node: RealNode, team: str, job: str) -> list[str]:
    return [each["status"].get("phase", "") for each in pods(node, team, job)]


@pytest.mark.timeout(240)
def test_a_job_comes_through_its_queue_onto_exactly_the_gpus_that_it_asked_for(node: RealNode, team: str) -> None:
    gpus = [node.facts.gpu(f"GPU-{index:08d}-0000-4000-8000-000000000000") for index in range(4)]
    node.facts.gpu("GPU-other-class", "NVIDIA L40S")
    node.start_plugin()
    node.sees({H100: 4, "l40s-48gb": 1})
    submit(node, team, "holds", podspec.idle_pod(resources={PREFIX + H100: 1}))
    until(
        lambda: phases(node, team, "holds") == ["Running"],
        "the first job",
        AFTER_AN_OUTAGE,  # the kubelet's, if the test before took the API server away
        say=lambda: str((jobs(node, team), workloads(node, team), pods(node, team, "holds"))),
    )
    # Three GPUs are free on the node, one in the quota: it waits for the quota, not for the node.
    submit(node, team, "shows", podspec.python_pod(["-c", SHOW], resources={PREFIX + H100: 2}))
    until(lambda: pending(node, team, "shows"), "the second job's wait in the queue")
    assert pods(node, team, "shows") == []
    node.api.request("DELETE", f"/apis/batch/v1/namespaces/{team}/jobs/holds?propagationPolicy=Foreground")
    until(lambda: phases(node, team, "shows") == ["Succeeded"], "the job", say=lambda: str(pods(node, team, "shows")))
    (pod,) = pods(node, team, "shows")
    assert pod["spec"]["nodeName"] == REAL_NODE
    given = visible(node.output(pod["metadata"]["name"], team))
    assert (len(given), set(given) <= set(gpus)) == (2, True)


def pending(node: RealNode, team: str, job: str) -> bool:
    owners = ((each, each["metadata"].get("ownerReferences", ())) for each in workloads(node, team))
    mine = [each for each, owned in owners if any(owner["name"] == job for owner in owned)]
    conditions = mine[0].get("status", {}).get("conditions", ()) if mine else ()
    return any(each["type"] == "QuotaReserved" and each["status"] == "False" for each in conditions)
