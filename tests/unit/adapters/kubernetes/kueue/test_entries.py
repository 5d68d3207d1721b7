from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpubank.adapters.kubernetes.kinds import Object
from gpubank.adapters.kubernetes.kueue.entries import (
    WorkloadEntry,
    WorkloadReader,
    read_job,
    read_mark,
    read_node,
    read_pod,
    write_mark,
)
from gpubank.domain.contract import MARK_ANNOTATION, RETRYABLE_LABEL
from gpubank.domain.facts import Mark, Wait

GPU = "nvidia.com/gpu"
CREATED = datetime(2026, 11, 2, 9, 0, 0, tzinfo=UTC)


def condition(kind: str, status: bool, reason: str = "x", message: str = "", at: datetime = CREATED) -> Object:
    return {
        "type": kind,
        "status": "True" if status else "False",
        "reason": reason,
        "message": message,
        "lastTransitionTime": at.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def workload(
    *conditions: Object, pods: int = 2, spec: Object | None = None, status: Object | None = None, uid: str = "u"
) -> Object:
    template = {"spec": {"containers": [{"resources": {"requests": {GPU: "8"}}}]}}
    return {
        "metadata": {
            "name": "w",
            "namespace": "team",
            "uid": uid,
            "resourceVersion": "7",
            "creationTimestamp": CREATED.strftime("%Y-%m-%dT%H:%M:%SZ"),
        },
        "spec": {"queueName": "q", "podSets": [{"name": "main", "count": pods, "template": template}], **(spec or {})},
        "status": {"conditions": list(conditions), **(status or {})},
    }


def read(
    body: Object, at: datetime = CREATED + timedelta(hours=1), before: WorkloadEntry | None = None
) -> WorkloadEntry:
    return WorkloadReader(lambda: at)(body, before)


NO_QUOTA = (
    "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu in flavor h100,"
    " 8 more needed"
)
BEYOND = (
    "couldn't assign flavors to pod set main: insufficient quota for nvidia.com/gpu in flavor h100, previously"
    " considered podsets requests (0) + current podset request (16) > maximum capacity (8)"
)


@pytest.mark.parametrize(
    ("conditions", "spec", "status", "wait"),
    [
        pytest.param((), {}, {}, Wait.QUOTA, id="nothing-said-yet"),
        pytest.param((condition("QuotaReserved", False, "Pending", NO_QUOTA),), {}, {}, Wait.QUOTA, id="no-quota"),
        pytest.param((condition("QuotaReserved", False, "Pending", BEYOND),), {}, {}, Wait.QUOTA, id="beyond"),
        pytest.param((condition("QuotaReserved", False, "WaitingForQuota"),), {}, {}, Wait.QUOTA, id="said-no-quota"),
        pytest.param((condition("QuotaReserved", False, "ExceedsMaxQuota"),), {}, {}, Wait.QUOTA, id="said-beyond"),
        pytest.param(
            (condition("QuotaReserved", False, "Pending", "flavor h100 doesn't match node affinity"),),
            {},
            {},
            Wait.OTHER,
            id="affinity",
        ),
        pytest.param(
            (condition("QuotaReserved", False, "Pending", "resource cpu unavailable in ClusterQueue"),),
            {},
            {},
            Wait.OTHER,
            id="undeclared-resource",
        ),
        pytest.param((condition("QuotaReserved", False, "NoMatchingFlavor"),), {}, {}, Wait.OTHER, id="said-flavor"),
        pytest.param((condition("QuotaReserved", False, "Inadmissible", "x"),), {}, {}, Wait.OTHER, id="inadmissible"),
        pytest.param((), {"active": False}, {}, Wait.INACTIVE, id="inactive"),
        pytest.param(
            (condition("Requeued", False, "PodsReadyTimeout"),), {}, {}, Wait.BACKOFF, id="held-back-by-a-timeout"
        ),
        pytest.param((condition("Requeued", False, "Deactivated"),), {}, {}, Wait.QUOTA, id="just-reactivated"),
        pytest.param((condition("Requeued", True, "Reactivated"),), {}, {}, Wait.QUOTA, id="reactivated"),
        pytest.param((), {}, {"admissionChecks": [{"state": "Pending"}]}, Wait.QUOTA, id="check-not-begun"),
        pytest.param((), {}, {"admissionChecks": [{"state": "Retry"}]}, Wait.CHECK, id="check-failed"),
    ],
)
def test_what_a_workload_waits_for(conditions: Iterable[Object], spec: Object, status: Object, wait: Wait) -> None:
    assert read(workload(*conditions, spec=spec, status=status)).wait is wait


def test_a_partly_admitted_workload_counts_what_it_was_admitted_with() -> None:
    admission = {"clusterQueue": "a.p.own", "podSetAssignments": [{"name": "main", "count": 1}]}
    entry = read(workload(condition("QuotaReserved", True), pods=4, status={"admission": admission}))
    assert (entry.gpus(GPU), entry.reserved, entry.cluster_queue) == (8, True, "a.p.own")


def test_reclaimable_pods_count_no_more_but_leave_it_a_workload_with_gpus() -> None:
    entry = read(workload(pods=2, status={"reclaimablePods": [{"name": "main", "count": 2}]}))
    assert entry.gpus(GPU) == 0
    assert entry.declares(GPU)
    assert not entry.declares("amd.com/gpu")


def test_a_finished_workload_reserves_nothing_whatever_its_conditions_say() -> None:
    entry = read(workload(condition("QuotaReserved", True), condition("Finished", True, "Succeeded")))
    assert (entry.finished, entry.reserved) == (True, False)


class TestSinceWhen:
    def test_a_newcomer_has_waited_since_it_was_first_seen(self) -> None:
        seen = CREATED + timedelta(milliseconds=950)
        assert read(workload(), seen).state_since == seen

    def test_after_a_restart_it_is_the_latest_moment_that_fits_its_creation(self) -> None:
        assert read(workload()).state_since == CREATED + timedelta(seconds=1)

    def test_being_told_that_there_is_no_quota_does_not_begin_the_wait_anew(self) -> None:
        before = read(workload(), CREATED + timedelta(seconds=0.3))
        told = condition("QuotaReserved", False, "Pending", NO_QUOTA, CREATED + timedelta(seconds=5))
        assert read(workload(told), before=before).state_since == before.state_since
        assert read(workload(told)).state_since == CREATED + timedelta(seconds=1)

    def test_a_reactivated_workload_waits_since_then(self) -> None:
        later = CREATED + timedelta(minutes=30)
        evicted = condition("Evicted", True, "Deactivated", at=CREATED + timedelta(minutes=10))
        again = condition("Requeued", True, "Reactivated", at=later)
        assert read(workload(evicted, again)).state_since == later + timedelta(seconds=1)
        before = read(workload(evicted, spec={"active": False}))
        assert read(workload(evicted, again), later, before).state_since == later

    def test_what_is_refused_for_another_reason_is_so_since_it_was_seen(self) -> None:
        seen, inactive = CREATED + timedelta(hours=1), "ClusterQueue b is inactive"
        refused = condition("QuotaReserved", False, "Inadmissible", inactive, CREATED + timedelta(seconds=5))
        before = read(workload(), CREATED)
        assert read(workload(refused), seen, before).state_since == seen
        assert read(workload(refused), seen).state_since == seen, "no condition says when the words changed"
        lost = CREATED + timedelta(minutes=10)
        evicted = condition("Evicted", True, "PodsReadyTimeout", at=lost)
        after_a_restart = read(workload(refused, evicted), seen).state_since
        assert after_a_restart == lost + timedelta(seconds=1), "until then it is billed"

    def test_another_workload_of_the_same_name_has_its_own_time(self) -> None:
        before = read(workload(uid="old"), CREATED)
        assert read(workload(uid="new"), before=before).state_since == CREATED + timedelta(seconds=1)


def test_a_finished_workload_holds_no_quota_since_it_finished_also_after_a_restart() -> None:
    finished = CREATED + timedelta(minutes=10)
    entry = read(workload(condition("QuotaReserved", True), condition("Finished", True, at=finished)))
    assert timedelta(0) <= entry.state_since - finished <= timedelta(seconds=1)


def test_a_mark_survives_writing_and_reading() -> None:
    mark = Mark(loan="loan/local/7", term=3, step="stop")
    assert read_mark({MARK_ANNOTATION: write_mark(mark)}) == mark


@pytest.mark.parametrize("text", ["", "{}", "stop", '{"loan": "x", "term": "one", "step": "stop"}'])
def test_a_mark_that_nobody_of_the_bank_wrote_is_none(text: str) -> None:
    assert read_mark({MARK_ANNOTATION: text}) is None


def pod(phase: str = "Running", **metadata: Any) -> Object:
    return {
        "metadata": {"name": "p", "namespace": "team", "uid": "p1", **metadata},
        "spec": {"nodeName": "n1", "containers": [{"resources": {"requests": {GPU: "8"}}}]},
        "status": {"phase": phase, "podIP": "10.0.0.7"},
    }


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_is_no_entry(phase: str) -> None:
    assert read_pod(pod(phase)) is None


def test_a_pod_without_devices_is_no_entry() -> None:
    assert read_pod(pod() | {"spec": {"containers": [{"resources": {"requests": {"cpu": "8"}}}]}}) is None


def test_a_terminating_pod_still_holds_its_devices() -> None:
    entry = read_pod(
        pod(
            deletionTimestamp="2026-11-02T09:00:00Z",
            labels={"batch.kubernetes.io/job-completion-index": "3", "app": "x", RETRYABLE_LABEL: "true"},
            ownerReferences=[{"uid": "other"}, {"uid": "job", "controller": True}],
        )
    )
    assert entry is not None
    assert (entry.terminating, entry.running, entry.index, entry.owner, entry.ip) == (True, True, 3, "job", "10.0.0.7")
    assert (entry.requests, entry.labels) == ({GPU: 8}, {RETRYABLE_LABEL: "true"})


def node(*, ready: str = "True", unschedulable: bool = False, gpus: str = "8") -> Object:
    return {
        "metadata": {"name": "n1", "labels": {"a": "b"}},
        "spec": {"unschedulable": unschedulable},
        "status": {"allocatable": {GPU: gpus, "cpu": "64"}, "conditions": [{"type": "Ready", "status": ready}]},
    }


@pytest.mark.parametrize(
    ("body", "ready"), [(node(), True), (node(ready="Unknown"), False), (node(unschedulable=True), False)]
)
def test_a_node_is_ready_when_it_says_so_and_is_not_cordoned(body: Object, ready: bool) -> None:
    entry = read_node(body)
    assert entry is not None
    assert (entry.ready, entry.allocatable) == (ready, {GPU: 8})


def test_a_node_without_devices_is_no_entry() -> None:
    assert read_node(node(gpus="0")) is None


def test_only_jobs_that_say_something_to_the_bank_are_kept() -> None:
    assert read_job({"metadata": {"uid": "j", "labels": {"app": "x"}}}) is None
    off = read_job({"metadata": {"uid": "j"}, "spec": {"suspend": True}})
    assert off is not None
    assert off.suspended
    entry = read_job({"metadata": {"uid": "j", "labels": {"app": "x", RETRYABLE_LABEL: "true"}}})
    assert entry is not None
    assert entry.labels == {RETRYABLE_LABEL: "true"}


@pytest.mark.parametrize(
    ("told", "refused"),
    [
        pytest.param((), False, id="nothing-said-yet"),
        pytest.param((condition("QuotaReserved", False, "Pending", NO_QUOTA),), True, id="no-quota"),
        pytest.param((condition("QuotaReserved", False, "Pending", BEYOND),), True, id="beyond"),
        pytest.param((condition("QuotaReserved", False, "WaitingForQuota"),), True, id="said-no-quota"),
        pytest.param(
            (condition("QuotaReserved", False, "Pending", "The workload is deactivated"),), False, id="evicted"
        ),
        pytest.param((condition("QuotaReserved", True, "QuotaReserved", NO_QUOTA),), False, id="admitted"),
    ],
)
def test_work_is_refused_only_where_a_cycle_found_too_little_quota(told: tuple[Object, ...], refused: bool) -> None:
    assert read(workload(*told)).refused is refused
