"""What a cluster takes, and what a borrow queue refuses."""

from typing import Any

import pytest

from gpubank.domain.contract import (
    CAPACITY_ROLE_LABEL,
    CHECKPOINT_STORAGE_ANNOTATION,
    CHECKPOINT_TRANSPORT_ANNOTATION,
    ELASTIC_JOB_ANNOTATION,
    MIN_PARALLELISM_ANNOTATION,
    QUEUE_LABEL,
    RETRYABLE_LABEL,
    WORKLOAD_TYPE_LABEL,
)
from gpubank.domain.errors import InvalidObjectError
from gpubank.domain.layout import GroupLayout, PoolLayout
from gpubank.simulation.clock import ManualClock
from gpubank.simulation.cluster import SimulatedCluster
from gpubank.simulation.manifests import JobManifest

Body = dict[str, Any]

HOOK = {CHECKPOINT_TRANSPORT_ANNOTATION: "http", CHECKPOINT_STORAGE_ANNOTATION: "file:///data/run"}


def a_job(queue: str = "h100-borrow", **changes: Any) -> Body:
    """A retryable Job of four pods of 8 GPUs; `changes` by path, `/` as `__`."""
    body: Body = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train", "namespace": "team", "labels": {QUEUE_LABEL: queue}, "annotations": {}},
        "spec": {
            "parallelism": 4,
            "completions": 4,
            "template": {
                "metadata": {"labels": {RETRYABLE_LABEL: "true"}, "annotations": {}},
                "spec": {
                    "terminationGracePeriodSeconds": 20,
                    "containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "8", "cpu": "500m"}}}],
                },
            },
        },
    }
    for path, value in changes.items():
        *parents, last = path.split("__")
        at = body
        for name in parents:
            at = at[name]
        at[last] = value
    return body


def template(**changes: Any) -> Body:
    return {f"spec__template__{path}": value for path, value in changes.items()}


def test_a_job_is_read_as_a_cluster_reads_it() -> None:
    job = JobManifest.read(a_job(spec__parallelism=8))
    assert (job.kind, job.namespace, job.name, job.queue, job.borrows) == ("Job", "team", "train", "h100-borrow", True)
    assert (job.pods, job.completions, job.grace, job.requests) == (4, 4, 20, {"nvidia.com/gpu": 8})
    assert job.contract.retryable


def test_the_jobs_own_labels_win_over_its_templates() -> None:
    body = a_job(metadata__labels={QUEUE_LABEL: "h100", RETRYABLE_LABEL: "false"})
    assert not JobManifest.read(body).contract.retryable


def test_containers_add_up_and_what_runs_before_them_counts_only_where_it_asks_for_more() -> None:
    def asks(gpus: int) -> Body:
        return {"name": "c", "resources": {"requests": {"nvidia.com/gpu": str(gpus)}}}

    pod = {"containers": [asks(2), asks(3)], "initContainers": [asks(4)]}
    assert JobManifest.read(a_job(**template(spec=pod))).requests == {"nvidia.com/gpu": 5}
    pod["initContainers"] = [asks(7)]
    assert JobManifest.read(a_job(**template(spec=pod))).requests == {"nvidia.com/gpu": 7}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        pytest.param({"kind": "Pod", "apiVersion": "v1"}, "kind", id="another kind"),
        pytest.param({"apiVersion": "batch/v1beta1"}, "kind", id="another version"),
        pytest.param({"metadata__name": "Not A Name"}, "metadata.name", id="no name"),
        pytest.param({"metadata__labels": {}}, QUEUE_LABEL, id="no queue"),
        pytest.param({"spec__parallelism": "4"}, "spec.parallelism", id="number in quotes"),
        pytest.param({"spec__completions": True}, "spec.completions", id="true for one"),
        pytest.param(template(spec={"containers": []}), "containers", id="no container"),
        pytest.param(
            template(spec={"containers": [{"resources": {"limits": {"nvidia.com/gpu": "0.5"}}}]}),
            "nvidia.com/gpu",
            id="half a device",
        ),
        pytest.param(
            template(metadata__annotations={"lab.gpubank.dev/command": "python train.py"}),
            "lab.gpubank.dev/command is not JSON",
            id="command that is no list",
        ),
    ],
)
def test_what_is_malformed_is_refused_naming_the_field(changes: Body, told: str) -> None:
    with pytest.raises(InvalidObjectError) as refusal:
        JobManifest.read(a_job(**changes))
    assert told in str(refusal.value)


@pytest.fixture
def cluster() -> SimulatedCluster:
    return SimulatedCluster(ManualClock())


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="retryable"),
        pytest.param(template(metadata={"labels": {}, "annotations": HOOK}), id="with a checkpoint hook"),
        pytest.param(template(metadata={"labels": {WORKLOAD_TYPE_LABEL: "notebook"}}), id="a notebook"),
    ],
)
def test_work_that_may_be_stopped_borrows(cluster: SimulatedCluster, changes: Body) -> None:
    cluster.submit(a_job(**changes))
    assert [each.name for each in cluster.list_jobs()] == ["train"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        pytest.param(template(metadata={}), "retryable", id="unsaveable"),
        pytest.param(
            template(metadata={"annotations": {CHECKPOINT_TRANSPORT_ANNOTATION: "http"}}),
            "URI prefix",
            id="a hook without storage",
        ),
        pytest.param({"metadata__labels__" + WORKLOAD_TYPE_LABEL: "inference"}, "never inference", id="inference"),
        pytest.param({"metadata__labels__" + CAPACITY_ROLE_LABEL: "serving-floor"}, "never inference", id="a floor"),
        pytest.param(template(spec__terminationGracePeriodSeconds=61), "write at most 60", id="ends too late"),
        pytest.param({"metadata__annotations": {MIN_PARALLELISM_ANNOTATION: "1"}}, "partial", id="partial"),
        pytest.param({"metadata__annotations": {ELASTIC_JOB_ANNOTATION: "true"}}, "elastic", id="elastic"),
    ],
)
def test_a_borrow_queue_refuses_what_a_loan_cannot_be_made_to(
    cluster: SimulatedCluster, changes: Body, told: str
) -> None:
    with pytest.raises(InvalidObjectError) as refusal:
        cluster.submit(a_job(**changes))
    assert told in str(refusal.value)
    assert cluster.list_jobs() == ()
    changes = {**changes, "metadata__labels__" + QUEUE_LABEL: "h100"}
    cluster.submit(a_job(**changes))


def test_a_deployment_never_borrows(cluster: SimulatedCluster) -> None:
    body = a_job(kind="Deployment", apiVersion="apps/v1")
    with pytest.raises(InvalidObjectError, match="can be suspended"):
        cluster.submit(body)


async def test_the_pools_own_limit_of_termination_holds(cluster: SimulatedCluster) -> None:
    spec = {"capacity": 8, "limits": {"maxTermination": "10s"}}
    await cluster.objects.apply(
        {"apiVersion": "platform.aik8s.run/v1alpha1", "kind": "GPUPool", "metadata": {"name": "h100"}, "spec": spec}
    )
    with pytest.raises(InvalidObjectError, match="write at most 10"):
        cluster.submit(a_job())


@pytest.mark.parametrize("queue", ["h100", "h100-borrow"])
async def test_a_pool_takes_only_the_priority_classes_that_it_lists(cluster: SimulatedCluster, queue: str) -> None:
    cluster.priority_classes |= {"high": 100, "urgent": 1000}
    spec = {"capacity": 8, "limits": {"allowedPriorityClasses": ["high"]}}
    await cluster.objects.apply(
        {"apiVersion": "platform.aik8s.run/v1alpha1", "kind": "GPUPool", "metadata": {"name": "h100"}, "spec": spec}
    )
    place = {"metadata__labels__" + QUEUE_LABEL: queue}
    with pytest.raises(InvalidObjectError, match="the pool allows the priority classes high; name one"):
        cluster.submit(a_job(**place, **template(spec__priorityClassName="urgent")))
    cluster.submit(a_job(**place, **template(spec__priorityClassName="high")))


def test_a_priority_class_that_does_not_exist_and_a_name_that_is_taken_are_refused(cluster: SimulatedCluster) -> None:
    cluster.priority_classes["high"] = 100
    with pytest.raises(InvalidObjectError, match="does not exist; name one that does; there are high"):
        cluster.submit(a_job(**template(spec__priorityClassName="low")))
    cluster.submit(a_job(**template(spec__priorityClassName="high")))
    with pytest.raises(InvalidObjectError, match="is taken"):
        cluster.submit(a_job())


async def test_work_for_a_queue_that_does_not_exist_yet_waits_for_it(cluster: SimulatedCluster) -> None:
    cluster.submit(a_job("h100"))
    await cluster.advance(1)
    assert (await cluster.observe("h100")).workloads == ()
    groups = (GroupLayout(group="ads", namespaces=("team",)),)
    await cluster.lay_out(
        PoolLayout(cluster="local", pool="h100", resource_name="nvidia.com/gpu", node_labels={}, groups=groups)
    )
    (seen,) = (await cluster.observe("h100")).workloads
    assert (seen.key.job, seen.gpus) == ("Job/train", 32)
    assert cluster.delete_job("train", "team")
    assert not cluster.delete_job("train", "team")
