"""How the bank lays a pool out at real Kueue, and what it leaves to others."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpubank.adapters.kubernetes.kinds import (
    CLUSTER_QUEUE,
    CONFIG_MAP,
    LOCAL_QUEUE,
    NAMESPACE,
    RESOURCE_FLAVOR,
    Kind,
    Object,
)
from gpubank.adapters.kubernetes.kueue.layout import REPAIRS
from gpubank.adapters.kubernetes.kueue.order import IN_ORDER_ANNOTATION
from gpubank.adapters.kubernetes.kueue.settings import CONFIG_KEY, CONFIG_NAME
from gpubank.adapters.kubernetes.kueue.settings import NAMESPACE as KUEUE_NAMESPACE
from gpubank.domain.contract import (
    MANAGED_BY_LABEL,
    Side,
    local_borrow_queue,
    local_own_queue,
    own_queue,
)
from gpubank.domain.layout import LayoutReport, PoolLayout
from gpubank.lab import Lab
from tests.contract.kueue_world import KueueWorld, kueue_world
from tests.contract.world import JobRequest, job_of, layout, the


@pytest.fixture
async def world(lab: Lab) -> AsyncIterator[KueueWorld]:
    async with kueue_world(lab, "ads", "maps") as world:
        yield world


def own(world: KueueWorld, group: str = "ads") -> str:
    return own_queue(group, world.pool)


async def queue(world: KueueWorld, group: str = "ads") -> Object:
    body = await world.connection.get(CLUSTER_QUEUE, own(world, group))
    assert body is not None
    return body


async def upset(world: KueueWorld, kind: Kind, name: str, change: Object, namespace: str | None = None) -> None:
    """Change an object as somebody else would, and wait until the bank can know it."""
    written = await world.connection.patch(kind, name, namespace, change)
    version = int(written["metadata"]["resourceVersion"])

    def seen() -> bool:
        found = world.kueue._view.objects(kind).get(name, namespace or "")
        return found is not None and int(found["metadata"]["resourceVersion"]) >= version

    assert await world.kueue._view.objects(kind).until(seen, 5)


async def laid_out(world: KueueWorld, *groups: str, **changed: Any) -> LayoutReport:
    wanted: PoolLayout = layout(world, *groups)
    return await world.backend.lay_out(wanted.model_copy(update=changed))


async def settled(world: KueueWorld, *groups: str, within: int = 100) -> LayoutReport:
    """Lay out again and again until nothing changes any more."""
    for _ in range(within):
        report = await laid_out(world, *groups)
        if not report.changed:
            return report
        await world.pause(0.05)
    raise AssertionError("the layout never came to rest")


@pytest.mark.parametrize(
    ("change", "path", "want"),
    [
        ({"preemption": {"withinClusterQueue": "LowerPriority"}}, ("preemption", "withinClusterQueue"), "Never"),
        ({"queueingStrategy": "StrictFIFO"}, ("queueingStrategy",), "BestEffortFIFO"),
        ({"namespaceSelector": {"matchLabels": {"x": "y"}}}, ("namespaceSelector", "matchLabels"), None),
        ({"cohortName": "theirs"}, ("cohortName",), None),
    ],
    ids=["preemption", "strategy", "namespaces", "cohort"],
)
async def test_what_somebody_changed_is_repaired_around_the_standing_quota(
    world: KueueWorld, change: Object, path: tuple[str, ...], want: str | None
) -> None:
    await laid_out(world, "ads")
    await world.backend.write_quota(world.pool, "ads", Side.OWN, nominal=16, revision=4)
    await upset(world, CLUSTER_QUEUE, own(world), {"spec": change})
    report = await laid_out(world, "ads")
    assert report.changed == (f"ClusterQueue/{own(world)}",)
    spec = (await queue(world))["spec"]
    found: Any = spec
    for part in path:
        found = found.get(part) if found else None
    assert found == want
    assert spec["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] == "16"
    assert (await settled(world, "ads")).problems == ()


async def test_a_frame_of_the_quota_that_somebody_changed_is_repaired_with_the_quota_in_it(world: KueueWorld) -> None:
    await laid_out(world, "ads")
    await world.backend.write_quota(world.pool, "ads", Side.OWN, nominal=16, revision=4)
    groups = (await queue(world))["spec"]["resourceGroups"]
    cpu = {"coveredResources": ["cpu"], "flavors": [{"name": world.pool, "resources": [{"name": "cpu"}]}]}
    cpu["flavors"][0]["resources"][0]["nominalQuota"] = "4"  # type: ignore[index]
    flavor = {"apiVersion": RESOURCE_FLAVOR.api_version, "kind": "ResourceFlavor", "metadata": {}, "spec": {}}
    flavor["metadata"] = {"name": f"{world.pool}-cpu"}
    await world.connection.create(RESOURCE_FLAVOR, flavor)
    cpu["flavors"][0]["name"] = f"{world.pool}-cpu"  # type: ignore[index]
    await upset(world, CLUSTER_QUEUE, own(world), {"spec": {"resourceGroups": [*groups, cpu]}})
    await laid_out(world, "ads")
    assert (await queue(world))["spec"]["resourceGroups"] == groups
    await world.connection.delete(RESOURCE_FLAVOR, f"{world.pool}-cpu")


async def test_who_keeps_setting_a_field_is_reported_and_not_fought(world: KueueWorld) -> None:
    await laid_out(world, "ads")
    for _ in range(REPAIRS):
        await upset(world, CLUSTER_QUEUE, own(world), {"spec": {"queueingStrategy": "StrictFIFO"}})
        assert (await laid_out(world, "ads")).changed
    await upset(world, CLUSTER_QUEUE, own(world), {"spec": {"queueingStrategy": "StrictFIFO"}})
    report = await laid_out(world, "ads")
    assert report.changed == ()
    (problem,) = report.problems
    assert problem.reason == "RepeatedDrift"
    assert own(world) in problem.message
    assert "spec.queueingStrategy" in problem.message
    assert (await queue(world))["spec"]["queueingStrategy"] == "StrictFIFO"


async def test_a_queue_that_somebody_stopped_stays_stopped_and_is_reported(world: KueueWorld) -> None:
    await laid_out(world, "ads")
    await upset(world, CLUSTER_QUEUE, own(world), {"spec": {"stopPolicy": "Hold"}})
    report = await laid_out(world, "ads")
    assert (report.changed, [problem.reason for problem in report.problems]) == ((), ["Stopped"])
    assert (await queue(world))["spec"]["stopPolicy"] == "Hold"


@pytest.mark.parametrize(("age", "strategy"), [(0, "StrictFIFO"), (60, "BestEffortFIFO")])
async def test_a_queue_is_left_strict_while_it_is_raised_and_no_longer(
    world: KueueWorld, age: int, strategy: str
) -> None:
    await laid_out(world, "ads")
    since = (datetime.now(UTC) - timedelta(seconds=age)).isoformat()
    change = {
        "metadata": {"annotations": {IN_ORDER_ANNOTATION: since}},
        "spec": {"queueingStrategy": "StrictFIFO"},
    }
    await upset(world, CLUSTER_QUEUE, own(world), change)
    assert (await laid_out(world, "ads")).problems == ()
    body = await queue(world)
    assert body["spec"]["queueingStrategy"] == strategy
    assert (IN_ORDER_ANNOTATION in body["metadata"].get("annotations", {})) == (strategy == "StrictFIFO")


async def test_a_local_queue_of_somebody_else_is_left_alone_and_reported(world: KueueWorld) -> None:
    name, namespace = local_own_queue(world.pool), world.namespace("ads")
    body: Object = {
        "apiVersion": LOCAL_QUEUE.api_version,
        "kind": "LocalQueue",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"clusterQueue": "theirs"},
    }
    await world.connection.create(LOCAL_QUEUE, body)
    report = await laid_out(world, "ads")
    (problem,) = report.problems
    assert (problem.reason, f"{namespace}/{name}" in problem.message) == ("ForeignObject", True)
    found = await world.connection.get(LOCAL_QUEUE, name, namespace)
    assert found is not None
    assert found["spec"]["clusterQueue"] == "theirs"


async def test_a_namespace_that_does_not_exist_is_reported_and_the_rest_is_laid_out(world: KueueWorld) -> None:
    groups = tuple(
        group.model_copy(update={"namespaces": (*group.namespaces, f"{world.pool}-nowhere")})
        for group in layout(world, "ads").groups
    )
    report = await laid_out(world, groups=groups)
    assert {problem.reason for problem in report.problems} == {"NotFound"}
    assert all(f"{world.pool}-nowhere" in problem.message for problem in report.problems)
    assert await world.connection.get(LOCAL_QUEUE, local_borrow_queue(world.pool), world.namespace("ads"))


async def test_a_group_that_left_keeps_its_queues_until_they_are_unused(world: KueueWorld) -> None:
    await laid_out(world, "ads", "maps")
    await world.add_nodes(8)
    await world.backend.write_quota(world.pool, "maps", Side.OWN, nominal=8, revision=1)
    await world.submit_job(JobRequest("maps", "train"))
    await world.wait_until(lambda facts: (job := job_of(facts, "train")) and job.reserved)
    await world.backend.write_quota(world.pool, "maps", Side.OWN, nominal=0, revision=2)
    report = await laid_out(world, "ads")
    assert {problem.reason for problem in report.problems} == {"QueueInUse"}
    assert await world.connection.get(CLUSTER_QUEUE, own(world, "maps")) is not None
    facts = await world.backend.observe(world.pool)
    assert the(facts, "train").reserved
    await world.delete_job("maps", "train")
    await world.wait_until(lambda facts: (job := job_of(facts, "train")) is None or job.finished)
    assert (await settled(world, "ads")).problems == ()
    await world.wait_until(lambda facts: {queue.group for queue in facts.queues} == {"ads"})


async def test_a_namespace_that_changed_hands_leads_to_its_new_groups_queue(world: KueueWorld) -> None:
    await laid_out(world, "ads", "maps")
    ads, maps = layout(world, "ads", "maps").groups
    moved = maps.model_copy(update={"namespaces": (*maps.namespaces, *ads.namespaces)})
    left = ads.model_copy(update={"namespaces": ()})
    for _ in range(20):
        report = await laid_out(world, groups=(left, moved))
        if not report.changed:
            break
        await world.pause(0.1)
    assert report.problems == ()
    found = await world.connection.get(LOCAL_QUEUE, local_own_queue(world.pool), world.namespace("ads"))
    assert found is not None
    assert found["spec"]["clusterQueue"] == own(world, "maps")
    assert "namespaceSelector" not in (await queue(world))["spec"]


async def test_in_the_fail_safe_the_layout_is_the_watchdogs(world: KueueWorld) -> None:
    await laid_out(world, "ads")
    await world.set_fail_safe(2)
    await world.wait_until(lambda facts: facts.fail_safe_epoch == 2)
    await upset(world, CLUSTER_QUEUE, own(world), {"spec": {"cohortName": f"gpubank-{world.pool}"}})
    report = await laid_out(world, "ads", "maps")
    assert (report.changed, [problem.reason for problem in report.problems]) == ((), ["FailSafe"])
    facts = await world.backend.observe(world.pool)
    assert [queue.fail_safe for queue in facts.queues] == [False, True]


async def test_a_queue_whose_label_was_taken_away_is_somebody_elses(world: KueueWorld) -> None:
    await laid_out(world, "ads")
    await upset(world, CLUSTER_QUEUE, own(world), {"metadata": {"labels": {MANAGED_BY_LABEL: None}}})
    report = await laid_out(world, "ads")
    assert [problem.reason for problem in report.problems] == ["ForeignObject"]
    facts = await world.backend.observe(world.pool)
    assert [queue.kind for queue in facts.queues] == [Side.BORROW]


async def test_the_labs_kueue_is_as_the_bank_needs_it(world: KueueWorld) -> None:
    assert await world.kueue.check_settings(world.namespace("ads")) == ()


async def test_what_kueues_configuration_lacks_is_named(world: KueueWorld) -> None:
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": CONFIG_NAME, "namespace": KUEUE_NAMESPACE},
        "data": {
            CONFIG_KEY: "waitForPodsReady: {timeout: 5m, blockAdmission: true}\nintegrations: {frameworks: [pod]}"
        },
    }
    await world.connection.create(CONFIG_MAP, config)
    try:
        problems = await world.kueue.check_settings()
    finally:
        await world.connection.delete(CONFIG_MAP, CONFIG_NAME, KUEUE_NAMESPACE)
    words = " ".join(problem.message for problem in problems)
    assert {problem.reason for problem in problems} == {"KueueMisconfigured"}
    assert all(each in words for each in ("quotaCheckStrategy", "blockAdmission", "batch/job, deployment"))


async def test_a_namespace_that_kueue_does_not_manage_is_noticed(world: KueueWorld) -> None:
    assert await world.connection.get(NAMESPACE, "kube-system") is not None
    problems = await world.kueue.check_settings("kube-system")
    assert any("'kube-system'" in problem.message for problem in problems)
