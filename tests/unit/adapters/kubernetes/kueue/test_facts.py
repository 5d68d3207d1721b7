from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpubank.adapters.kubernetes.kinds import Object
from gpubank.adapters.kubernetes.kueue import queues
from gpubank.adapters.kubernetes.kueue.entries import (
    Condition,
    JobEntry,
    NodeEntry,
    Owner,
    PodEntry,
    PodSet,
    WorkloadEntry,
)
from gpubank.adapters.kubernetes.kueue.facts import FINISHED_FOR, PoolReader, Seen
from gpubank.domain.base import MAX_GPUS
from gpubank.domain.contract import CAPACITY_ROLE_LABEL, RETRYABLE_LABEL, Side
from gpubank.domain.facts import PoolFacts, Wait
from gpubank.domain.layout import GroupLayout, PoolLayout

GPU = "nvidia.com/gpu"
NOW = datetime(2026, 11, 2, 9, 0, tzinfo=UTC)
LAYOUT = PoolLayout(
    cluster="c",
    pool="h100",
    resource_name=GPU,
    node_labels={"pool": "h100"},
    groups=(GroupLayout(group="ads", namespaces=("team",)),),
)


def queue(side: Side, nominal: int, reserved: int = 0) -> Object:
    body = queues.cluster_queue(LAYOUT, LAYOUT.groups[0], side)
    body["spec"]["resourceGroups"] = queues.resource_groups("h100", GPU, nominal)
    amount = {"name": GPU, "total": str(reserved)}
    body["status"] = {"flavorsReservation": [{"name": "h100", "resources": [amount]}]}
    return body


def workload(name: str, **changed: Any) -> WorkloadEntry:
    given: dict[str, Any] = {
        "uid": name,
        "namespace": "team",
        "name": name,
        "version": "1",
        "queue": "h100",
        "cluster_queue": "",
        "owners": (Owner("Job", name, f"job-{name}"),),
        "priority": 0,
        "created_at": NOW,
        "active": True,
        "pod_sets": (PodSet(2, 2, {GPU: 8}, {}, {}),),
        "conditions": {},
        "requeue_at": None,
        "wait": Wait.QUOTA,
        "mark": None,
        "state_since": NOW,
    }
    return WorkloadEntry(**(given | changed))


def holds(*names: str, since: datetime = NOW) -> dict[str, Condition]:
    return {name: Condition(True, name, "", since) for name in names}


def pod(name: str, **changed: Any) -> PodEntry:
    given: dict[str, Any] = {
        "uid": name,
        "namespace": "team",
        "name": name,
        "owner": "",
        "workload": "",
        "requests": {GPU: 8},
        "node": "n1",
        "ip": "",
        "running": True,
        "terminating": False,
        "index": 0,
        "labels": {},
        "annotations": {},
    }
    return PodEntry(**(given | changed))


def facts(
    *workloads: WorkloadEntry,
    pods: Iterable[PodEntry] = (),
    nodes: Iterable[NodeEntry] = (),
    jobs: Mapping[str, JobEntry] | None = None,
    own: Object | None = None,
    borrow: Object | None = None,
    flavor: Object | None = None,
    reader: PoolReader | None = None,
    at: datetime = NOW,
) -> PoolFacts:
    both = {body["metadata"]["name"]: body for body in (own or queue(Side.OWN, 16), borrow or queue(Side.BORROW, 0))}
    seen = Seen(
        queues=both,
        cohort=None,
        flavor=flavor or queues.flavor(LAYOUT),
        local_queues={("team", "h100"): "ads.h100.own", ("team", "h100-borrow"): "ads.h100.borrow"},
        workloads=workloads,
        pods=tuple(pods),
        nodes=tuple(nodes),
        jobs=jobs or {},
        fenced={},
    )
    return (reader or PoolReader("c", "h100")).read(seen, at=at)


def suspended(name: str) -> JobEntry:
    return JobEntry(f"job-{name}", {}, {}, suspended=True)


@pytest.mark.parametrize(("told", "want"), [(0, 16), (24, 24)])
def test_gpus_are_free_only_when_both_the_queue_and_the_workloads_say_so(told: int, want: int) -> None:
    running = workload("w", cluster_queue="ads.h100.own", conditions=holds("QuotaReserved"))
    found = facts(running, own=queue(Side.OWN, 16, told)).queue("ads", Side.OWN)
    assert found is not None
    assert (found.nominal, found.reserved) == (16, want)


STOPPED = {"cluster_queue": "ads.h100.borrow", "active": False, "conditions": holds("QuotaReserved", "Evicted")}


@pytest.mark.parametrize(
    ("entry", "pods", "jobs", "holds_gpus"),
    [
        pytest.param(workload("w", **STOPPED), [], [suspended("w")], False, id="stopped, suspended and without pods"),
        pytest.param(
            workload("w", **STOPPED), [pod("p", owner="job-w")], [suspended("w")], True, id="a pod still ends"
        ),
        pytest.param(workload("w", **STOPPED), [], [], True, id="its job may still make pods"),
        pytest.param(
            workload("w", **{**STOPPED, "active": True}), [], [suspended("w")], True, id="somebody has resumed it"
        ),
        pytest.param(
            workload("w", **{**STOPPED, "conditions": holds("QuotaReserved")}),
            [],
            [suspended("w")],
            True,
            id="Kueue has not evicted it",
        ),
        pytest.param(
            workload("w", **STOPPED, owners=(Owner("RayCluster", "r", "r-uid"),)),
            [],
            [],
            True,
            id="a kind of which only Kueue knows when it is over",
        ),
    ],
)
def test_gpus_are_free_as_soon_as_nothing_can_use_them_although_kueue_still_books_them(
    entry: WorkloadEntry, pods: list[PodEntry], jobs: list[JobEntry], holds_gpus: bool
) -> None:
    told = queue(Side.BORROW, 16, 16 + 8)
    found = facts(entry, pods=pods, jobs={job.uid: job for job in jobs}, borrow=told)
    (seen,) = found.workloads
    borrow = found.queue("ads", Side.BORROW)
    assert borrow is not None
    assert (seen.reserved, seen.gone, borrow.reserved) == (
        holds_gpus,
        not (holds_gpus or pods),
        24 if holds_gpus else 8,
    )


def test_a_finished_workload_is_told_for_a_while_and_reserves_nothing() -> None:
    old = NOW - FINISHED_FOR - timedelta(seconds=1)
    done = workload("done", cluster_queue="ads.h100.own", conditions=holds("QuotaReserved", "Finished"))
    long_done = workload("long-done", conditions=holds("Finished", since=old))
    found = facts(done, long_done)
    assert [(each.key.name, each.finished, each.reserved) for each in found.workloads] == [("done", True, False)]
    own = found.queue("ads", Side.OWN)
    assert own is not None
    assert own.reserved == 0


def test_workloads_of_other_queues_and_without_gpus_are_none_of_the_pools() -> None:
    elsewhere = workload("elsewhere", queue="somebody-elses")
    cpu_only = workload("cpu", pod_sets=(PodSet(2, 2, {}, {}, {}),))
    assert facts(elsewhere, cpu_only).workloads == ()


def test_pods_are_found_by_their_controller_by_kueues_word_and_by_being_the_owner() -> None:
    of_a_job = pod("a", owner="job-w", index=1)
    of_a_jobset = pod("b", owner="child-of-jobset", workload="w")
    stranger = pod("c", owner="job-other", workload="other")
    (found,) = facts(workload("w"), pods=[of_a_job, of_a_jobset, stranger]).workloads
    assert [each.name for each in found.pod_facts] == ["b", "a"]
    bare = workload("bare", owners=(Owner("Pod", "p", "p-uid"),), pod_sets=(PodSet(1, 1, {GPU: 8}, {}, {}),))
    (found,) = facts(bare, pods=[pod("p", uid="p-uid")]).workloads
    assert (found.suspendable, found.placed, found.key.job) == (False, True, "Pod/p")


def test_a_launcher_without_gpus_is_not_counted_among_the_pods_that_share_them() -> None:
    sets = (PodSet(1, 1, {}, {}, {}), PodSet(4, 4, {GPU: 8}, {}, {}))
    (found,) = facts(workload("mpi", pod_sets=sets)).workloads
    assert (found.gpus, found.pods, found.gpus_per_pod) == (32, 4, 8)


def test_a_job_speaks_over_its_pod_template_and_any_template_makes_it_a_floor() -> None:
    sets = (
        PodSet(1, 1, {GPU: 8}, {RETRYABLE_LABEL: "false"}, {}),
        PodSet(1, 1, {GPU: 8}, {CAPACITY_ROLE_LABEL: "x"}, {}),
    )
    jobs = {"job-w": JobEntry("job-w", {RETRYABLE_LABEL: "true"}, {})}
    (found,) = facts(workload("w", pod_sets=sets), jobs=jobs).workloads
    assert (found.contract.retryable, found.contract.capacity_role) == (True, "x")


@pytest.mark.parametrize(
    ("requeue_in", "wait", "since"), [(60, Wait.BACKOFF, 0), (-5, Wait.QUOTA, -5), (-900, Wait.QUOTA, -600)]
)
def test_a_requeue_time_ahead_is_a_backoff_and_one_behind_begins_the_wait(
    requeue_in: int, wait: Wait, since: int
) -> None:
    began = NOW - timedelta(seconds=600)
    entry = workload("w", requeue_at=NOW + timedelta(seconds=requeue_in), state_since=began)
    (found,) = facts(entry).workloads
    assert found.wait is wait
    if wait is Wait.QUOTA:
        assert found.waiting_since == NOW + timedelta(seconds=since)


def test_only_nodes_of_the_flavor_are_the_pools_and_everybodys_pods_use_them() -> None:
    ours = NodeEntry("n1", {"pool": "h100", "zone": "a"}, {GPU: 8}, True)
    theirs = NodeEntry("n2", {"pool": "a100"}, {GPU: 8}, True)
    stranger = pod("x", namespace="elsewhere", terminating=True, requests={GPU: 3})
    found = facts(nodes=[ours, theirs], pods=[stranger, pod("waits", node="")]).nodes
    assert [(node.name, node.gpus, node.used) for node in found] == [("n1", 8, 3)]


def test_a_flavor_without_labels_claims_no_node() -> None:
    flavor = queues.flavor(LAYOUT.model_copy(update={"node_labels": {}}))
    assert facts(nodes=[NodeEntry("n1", {}, {GPU: 8}, True)], flavor=flavor).nodes == ()


def test_what_has_not_changed_is_not_made_anew_and_what_has_is() -> None:
    reader = PoolReader("c", "h100")
    entry, node = workload("w"), NodeEntry("n1", {"pool": "h100"}, {GPU: 8}, True)
    first = facts(entry, nodes=[node], reader=reader)
    again = facts(entry, nodes=[node], reader=reader)
    assert again.workloads[0] is first.workloads[0]
    assert again.nodes[0] is first.nodes[0]
    changed = facts(entry, nodes=[node], pods=[pod("p", owner="job-w")], reader=reader)
    assert [each.name for each in changed.workloads[0].pod_facts] == ["p"]
    assert changed.nodes[0].used == 8
    assert facts(reader=reader).workloads == ()


class Cluster:
    """Entries that change one at a time, as the caches have them."""

    def __init__(self) -> None:
        self.workloads: dict[str, WorkloadEntry] = {}
        self.pods: dict[str, PodEntry] = {}
        self.jobs: dict[str, JobEntry] = {}

    def change(self, name: str, what: str) -> None:
        """Have something happen to a Workload."""
        queue = "h100" if len(name) % 2 else "h100-borrow"
        if what == "submit":
            self.workloads[name] = workload(name, queue=queue)
        elif what == "go":
            self.workloads.pop(name, None)
        elif what == "elsewhere":
            self.workloads[name] = workload(name, queue="somebody-elses")
        elif what == "admit":
            side = "own" if queue == "h100" else "borrow"
            held = holds("QuotaReserved", "Admitted")
            self.workloads[name] = workload(name, queue=queue, cluster_queue=f"ads.h100.{side}", conditions=held)
        elif what == "finish":
            self.workloads[name] = workload(name, queue=queue, conditions=holds("Finished"))
        elif what == "back off":
            ahead = NOW + timedelta(seconds=3)
            self.workloads[name] = workload(name, queue=queue, wait=Wait.BACKOFF, requeue_at=ahead)
        elif what == "pod":
            self.pods[name] = pod(f"{name}-0", owner=f"job-{name}")
        elif what == "pod of Kueue":
            self.pods[name] = pod(f"{name}-0", owner="child", workload=name)
        elif what == "end":
            self.pods.pop(name, None)
        else:
            self.jobs[f"job-{name}"] = JobEntry(f"job-{name}", {RETRYABLE_LABEL: what}, {})


CHANGES = ("submit", "go", "elsewhere", "admit", "finish", "back off", "pod", "pod of Kueue", "end", "true", "false")


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["a", "bb", "ccc"]), st.sampled_from(CHANGES)), max_size=25))
def test_a_reader_that_has_read_before_reads_what_a_new_one_does(changes: list[tuple[str, str]]) -> None:
    cluster, old = Cluster(), PoolReader("c", "h100")
    for seconds, (name, what) in enumerate(changes):
        cluster.change(name, what)
        at = NOW + timedelta(seconds=seconds)
        parts: dict[str, Any] = {"pods": cluster.pods.values(), "jobs": dict(cluster.jobs), "at": at}
        found = facts(*cluster.workloads.values(), reader=old, **parts)
        assert found == facts(*cluster.workloads.values(), **parts)
        again = facts(*cluster.workloads.values(), reader=old, **parts)
        assert all(one is other for one, other in zip(found.workloads, again.workloads, strict=True))


def test_absurd_amounts_are_read_as_the_most_that_is_reckoned_with() -> None:
    huge = workload("huge", pod_sets=(PodSet(200_000, 200_000, {GPU: 8}, {}, {}),))
    worse = workload("worse", pod_sets=(PodSet(2**31 - 1, 2**31 - 1, {GPU: 2**31}, {}, {}),))
    greedy = [pod(name, owner="job-huge", requests={GPU: 2**40}) for name in ("p", "q")]
    node = NodeEntry("n1", {"pool": "h100"}, {GPU: 8}, True)
    found = facts(huge, worse, pods=greedy, nodes=[node], own=queue(Side.OWN, 5_000_000, 2**40))
    assert [each.gpus for each in found.workloads] == [MAX_GPUS, MAX_GPUS]
    assert [each.gpus for each in found.workloads[0].pod_facts] == [MAX_GPUS, MAX_GPUS]
    assert [each.used for each in found.nodes] == [MAX_GPUS]
    own = found.queue("ads", Side.OWN)
    assert own is not None
    assert (own.nominal, own.reserved) == (MAX_GPUS, MAX_GPUS)
    assert found.pending("ads") == 2 * MAX_GPUS
