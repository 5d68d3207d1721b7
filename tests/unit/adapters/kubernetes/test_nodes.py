"""What the API server's objects say about a node and its pods, where no test cluster can be made to say it."""

from typing import Any

import pytest

from gpubank.adapters.kubernetes.nodes import MIRROR_ANNOTATION, _pod, _view


def pod(**metadata: Any) -> dict[str, Any]:
    container = {"resources": {"limits": {"accelerator.aik8s.run/h100": "2", "cpu": "1"}}}
    return {"metadata": {"namespace": "t", "name": "p", "uid": "u", **metadata}, "spec": {"containers": [container]}}


@pytest.mark.parametrize(
    ("metadata", "stays"),
    [
        ({}, False),
        ({"annotations": {MIRROR_ANNOTATION: "hash"}}, True),
        ({"ownerReferences": [{"kind": "DaemonSet", "controller": True}]}, True),
        ({"ownerReferences": [{"kind": "DaemonSet"}]}, False),
        ({"ownerReferences": [{"kind": "Job", "controller": True}]}, False),
    ],
)
def test_a_static_pods_mirror_and_a_daemon_sets_pod_are_the_nodes_own(metadata: dict[str, Any], stays: bool) -> None:
    found = _pod(pod(**metadata), "n1")
    assert (found.stays, found.gpus) == (stays, 2)


def owned(manager: str, *, closed: bool = True) -> dict[str, Any]:
    field = {"manager": manager, "operation": "Update", "fieldsV1": {"f:spec": {"f:unschedulable": {}}}}
    return {
        "metadata": {"name": "n1", "managedFields": [{"manager": "kwok", "fieldsV1": {"f:status": {}}}, field]},
        "spec": {"unschedulable": True} if closed else {},
    }


@pytest.mark.parametrize(("manager", "ours"), [("gpubank", True), ("kubectl-cordon", False), ("gpubank-other", False)])
def test_whose_a_cordon_is_the_managed_fields_say(manager: str, ours: bool) -> None:
    assert _view(owned(manager)).ours is ours
    assert not _view(owned(manager, closed=False)).ours


def test_a_cordon_that_somebody_has_applied_beside_the_bank_is_not_the_banks_alone() -> None:
    body = owned("gpubank")
    body["metadata"]["managedFields"].append(
        {"manager": "gitops", "operation": "Apply", "fieldsV1": {"f:spec": {"f:unschedulable": {}}}}
    )
    assert not _view(body).ours


def test_a_gpu_that_is_unfit_is_still_one_that_the_node_has() -> None:
    amounts = {"accelerator.aik8s.run/h100": "6", "nvidia.com/mig-1g.10gb": "7", "memory": "1Ti", "cpu": "64"}
    body = {"metadata": {"name": "n1"}, "status": {"capacity": amounts, "allocatable": {}}}
    found = _view(body)
    assert (found.gpus, found.ready) == (13, False)
