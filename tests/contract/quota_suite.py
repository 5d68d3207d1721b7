"""The contract of `QuotaBackend`: what every scheduler that the bank uses must do, in the bank's own words.

A module that tests one backend derives a class from `QuotaBackendSuite` and gives it a fixture `world`:

    class TestKueue(QuotaBackendSuite):
        @pytest.fixture
        async def world(self) -> AsyncIterator[World]: ...

Times are generous upper bounds on what is waited for; nothing here measures speed.
"""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import pytest

from gpubank.domain.contract import CAPACITY_ROLE_LABEL, WORKLOAD_TYPE_LABEL, ReclaimClass, Side
from gpubank.domain.errors import BackendError, ConflictError
from gpubank.domain.facts import PoolFacts, Wait
from tests.contract.quota_bench import GROUPS, Bench, gone, mark, placed, queue, reserved, waits
from tests.contract.quota_loans import LoanMechanics
from tests.contract.world import DeploymentRequest, JobRequest, World, job_of, layout, pods_of, the

__all__ = ("GROUPS", "QuotaBackendSuite")


class QuotaBackendSuite(LoanMechanics):
    """Derive from it and provide the fixture `world`."""

    # -- layout

    async def test_a_layout_is_made_once_and_then_changes_nothing(self, world: World) -> None:
        first = await world.backend.lay_out(layout(world, *GROUPS))
        assert any(each.startswith("ClusterQueue/") for each in first.changed)
        assert first.problems == ()
        await world.wait_until(lambda facts: len(facts.queues) == 2 * len(GROUPS))
        again = await world.backend.lay_out(layout(world, *GROUPS))
        assert (again.changed, again.problems) == ((), ())

    async def test_new_queues_are_empty_and_bear_no_stamp(self, bench: Bench) -> None:
        facts = await bench.backend.observe(bench.world.pool)
        assert {(each.group, each.kind) for each in facts.queues} == {(g, s) for g in GROUPS for s in Side}
        assert all((each.nominal, each.reserved, each.stamp, each.fenced) == (0, 0, -1, -1) for each in facts.queues)
        assert (facts.pool, facts.cluster, facts.fail_safe_epoch) == (bench.world.pool, bench.world.cluster, 0)

    async def test_a_layout_leaves_standing_quotas_alone(self, bench: Bench) -> None:
        await bench.quotas(ads=16)
        await bench.backend.lay_out(layout(bench.world, *GROUPS, "video"))
        facts = await bench.until(lambda facts: facts.queue("video", Side.OWN))
        assert (queue(facts, "ads").nominal, queue(facts, "ads").stamp) == (16, 1)

    async def test_an_object_of_somebody_else_is_left_alone_and_reported(self, world: World) -> None:
        await world.add_foreign_queue("ads", Side.OWN)
        report = await world.backend.lay_out(layout(world, *GROUPS))
        assert len(report.problems) == 1
        assert f"ads.{world.pool}.own" in report.problems[0].message
        assert report.problems[0].reason
        assert await world.quota("ads", Side.OWN) == 3
        with pytest.raises(BackendError, match=f"ads.{world.pool}.own"):
            await world.backend.write_quota(world.pool, "ads", Side.OWN, nominal=8, revision=1)
        assert await world.quota("ads", Side.OWN) == 3
        facts = await world.wait_until(lambda facts: facts.queue("maps", Side.OWN))
        assert facts.queue("ads", Side.OWN) is None

    async def test_removing_a_pool_takes_the_banks_queues_and_nobody_elses(self, world: World) -> None:
        await world.add_foreign_queue("ads", Side.OWN)
        await world.backend.lay_out(layout(world, *GROUPS))
        await world.backend.remove(world.pool)
        await world.wait_until(lambda facts: not facts.queues)
        assert await world.quota("maps", Side.OWN) is None
        assert await world.quota("ads", Side.OWN) == 3

    # -- quotas

    async def test_a_quota_bears_the_revision_it_was_written_for(self, bench: Bench) -> None:
        revision = await bench.quotas(ads=16)
        facts = await bench.until(lambda facts: queue(facts, "ads").stamp == revision)
        assert queue(facts, "ads").nominal == 16
        assert queue(facts, "maps").stamp == -1

    async def test_writing_what_stands_is_success(self, bench: Bench) -> None:
        await bench.quotas(ads=16)
        await bench.backend.write_quota(bench.world.pool, "ads", Side.OWN, nominal=16, revision=1)
        await bench.until(lambda facts: (queue(facts, "ads").nominal, queue(facts, "ads").stamp) == (16, 1))

    @pytest.mark.parametrize("nominal", [8, 16])
    async def test_an_older_revision_never_overwrites_a_newer_one(self, bench: Bench, nominal: int) -> None:
        for _ in range(3):
            await bench.quotas(ads=16)
        with pytest.raises(ConflictError, match=f"ads.{bench.world.pool}.own"):
            await bench.backend.write_quota(bench.world.pool, "ads", Side.OWN, nominal=nominal, revision=2)
        assert await bench.world.quota("ads", Side.OWN) == 16
        await bench.until(lambda facts: queue(facts, "ads").stamp == 3)

    async def test_a_newer_revision_with_the_same_quota_moves_the_stamp_alone(self, bench: Bench) -> None:
        await bench.quotas(ads=16)
        await bench.quotas(ads=16)
        facts = await bench.fenced("ads")
        assert (queue(facts, "ads").nominal, queue(facts, "ads").stamp) == (16, 2)

    async def test_a_quota_of_an_unknown_queue_is_refused(self, bench: Bench) -> None:
        with pytest.raises(BackendError, match="nobody"):
            await bench.backend.write_quota(bench.world.pool, "nobody", Side.OWN, nominal=1, revision=1)

    async def test_the_fence_follows_the_stamp_a_moment_later(self, bench: Bench) -> None:
        await bench.quotas(ads=16)
        facts = await bench.backend.observe(bench.world.pool)
        assert queue(facts, "ads").fenced == -1
        facts = await bench.fenced("ads")
        assert queue(facts, "ads").fenced == queue(facts, "ads").stamp == 1
        await bench.quotas(ads=8)
        facts = await bench.until(lambda facts: queue(facts, "ads").stamp == 2)
        assert queue(facts, "ads").fenced == 1
        await bench.fenced("ads")

    # -- what is seen

    async def test_a_job_within_the_quota_is_admitted_and_placed(self, bench: Bench) -> None:
        await bench.quotas(ads=16)
        await bench.job("ads", "train", pods=2, priority=10)
        facts = await bench.until(placed("train"))
        seen = the(facts, "train")
        assert (seen.group, seen.kind, seen.gpus, seen.pods, seen.gpus_per_pod) == ("ads", Side.OWN, 16, 2, 8)
        assert (seen.active, seen.finished, seen.suspendable, seen.priority) == (True, False, True, 10)
        assert (seen.mark, seen.evicted, seen.parked, seen.gone, seen.next_term) == (None, "", False, False, 1)
        assert seen.admitted_at is not None
        assert abs(seen.admitted_at - seen.created_at) < timedelta(seconds=10)
        assert seen.key.namespace == bench.world.namespace("ads")
        facts = await bench.until(lambda facts: all(pod.running for pod in the(facts, "train").pod_facts))
        pods = the(facts, "train").pod_facts
        assert sorted(pod.index for pod in pods) == [0, 1]
        assert all((pod.gpus, pod.terminating) == (8, False) and pod.uid and pod.name for pod in pods)
        assert {pod.node for pod in pods} == {node.name for node in facts.nodes if node.used == 8}
        assert queue(facts, "ads").reserved == 16

    async def test_nodes_are_seen_with_what_stands_on_them(self, bench: Bench) -> None:
        await bench.quotas(ads=16)
        await bench.job("ads", "train")
        facts = await bench.until(lambda facts: sum(node.used for node in facts.nodes) == 8)
        assert [(node.gpus, node.ready) for node in facts.nodes] == [(8, True)] * 6

    async def test_a_job_beyond_the_quota_waits_for_nothing_but_quota(self, bench: Bench) -> None:
        await bench.quotas(ads=16)
        await bench.job("ads", "first", pods=2)
        await bench.until(reserved("first"))
        await bench.job("ads", "second")
        await bench.job("ads", "third")
        await bench.job("ads", "too-big", pods=4)
        facts = await bench.never(
            lambda facts: any(each.reserved for each in facts.workloads if each.key.job != "Job/first")
        )
        for name in ("second", "third", "too-big"):
            seen = the(facts, name)
            assert (seen.wait, seen.active, seen.reserved, seen.pod_facts) == (Wait.QUOTA, True, False, ())
            assert seen.created_at <= seen.waiting_since <= facts.at

    async def test_what_a_workload_says_about_itself_is_seen(self, bench: Bench) -> None:
        await bench.world.submit_job(
            JobRequest("ads", "plain", labels={WORKLOAD_TYPE_LABEL: "batch", CAPACITY_ROLE_LABEL: "serving-floor"})
        )
        await bench.job("ads", "borrower", side=Side.BORROW)
        facts = await bench.until(lambda facts: job_of(facts, "plain") and job_of(facts, "borrower"))
        assert the(facts, "plain").contract.capacity_role == "serving-floor"
        assert the(facts, "borrower").contract.reclaim_class is ReclaimClass.RETRYABLE
        assert the(facts, "borrower").kind is Side.BORROW

    async def test_waiting_jobs_come_in_by_priority_then_creation(self, bench: Bench) -> None:
        for name, priority in (("old", 0), ("young", 0), ("urgent", 100)):
            await bench.job("ads", name, priority=priority)
            await bench.until(waits(name))
            await bench.world.pause(1.1)  # creation times are whole seconds on a cluster
        order = []
        for jobs in (1, 2, 3):
            await bench.quotas(ads=8 * jobs)
            # By the Workloads: the queue's own count may be seen before them.
            order.append(all_reserved(await bench.until(partial(has_reserved, jobs))))
        assert order[0] == {"Job/urgent"}
        assert order[1] == {"Job/urgent", "Job/old"}

    async def test_the_pods_of_a_deployment_count_one_by_one(self, bench: Bench) -> None:
        await bench.quotas(ads=4)
        await bench.world.submit_deployment(DeploymentRequest("ads", "serve", replicas=2, gpus_per_pod=2))
        facts = await bench.until(lambda facts: [each.placed for each in pods_of(facts, "serve")] == [True, True])
        assert {(each.gpus, each.pods, each.suspendable) for each in pods_of(facts, "serve")} == {(2, 1, False)}
        await bench.world.scale_deployment("ads", "serve", 3)
        facts = await bench.until(lambda facts: len(pods_of(facts, "serve")) == 3)
        await bench.never(lambda facts: all(each.reserved for each in pods_of(facts, "serve")), seconds=1.5)
        (waiting,) = [each for each in pods_of(facts, "serve") if not each.reserved]
        assert (waiting.wait, waiting.group, waiting.kind) == (Wait.QUOTA, "ads", Side.OWN)
        await bench.quotas(ads=6)
        await bench.until(lambda facts: all(each.placed for each in pods_of(facts, "serve")))

    async def test_a_job_that_fits_no_node_is_admitted_but_not_placed(self, bench: Bench) -> None:
        """Enough GPUs in sum, none where the job fits."""
        await bench.quotas(ads=48, maps=48)
        for number in range(6):
            await bench.world.submit_job(JobRequest("ads", f"small-{number}", gpus_per_pod=5))
        await bench.until(lambda facts: all(node.used == 5 for node in facts.nodes))
        await bench.world.submit_job(JobRequest("maps", "whole", gpus_per_pod=8))
        await bench.until(reserved("whole"))
        facts = await bench.never(placed("whole"), seconds=1.0)
        assert not the(facts, "whole").gone
        assert sum(node.gpus - node.used for node in facts.nodes) == 18
        await bench.world.delete_job("ads", "small-3")
        await bench.until(placed("whole"))

    # -- waking

    async def test_changes_yields_at_the_start_and_after_every_change(self, bench: Bench) -> None:
        changes = bench.backend.changes(bench.world.pool)
        await asyncio.wait_for(anext(changes), 5)
        revision = await bench.quotas(ads=8)
        await self._follow(bench, changes, lambda facts: queue(facts, "ads").fenced >= revision)
        await bench.job("ads", "train")
        await self._follow(bench, changes, placed("train"))
        await changes.aclose()

    async def _follow(self, bench: Bench, changes: object, holds: Callable[[PoolFacts], object]) -> None:
        """Look only when woken; time goes on meanwhile."""
        facts = await bench.backend.observe(bench.world.pool)
        while not holds(facts):
            woken = asyncio.ensure_future(anext(changes))  # type: ignore[call-overload]
            for _ in range(500):
                if woken.done():
                    break
                await bench.world.pause(0.02)
            assert woken.done(), "nobody was woken for 10 s"
            facts = await bench.backend.observe(bench.world.pool)

    async def test_a_nudge_harms_nobody(self, bench: Bench) -> None:
        await bench.job("ads", "waiting")
        seen = the(await bench.until(waits("waiting")), "waiting")
        await bench.backend.nudge(bench.world.pool, seen.key)
        await bench.never(reserved("waiting"), seconds=0.5)
        await bench.quotas(ads=8)
        await bench.fenced("ads")
        await bench.backend.nudge(bench.world.pool, seen.key)
        facts = await bench.until(placed("waiting"))
        await bench.backend.nudge(bench.world.pool, seen.key)
        assert the(facts, "waiting").mark is None
        await bench.never(lambda facts: not the(facts, "waiting").placed, seconds=0.5)
        await bench.world.delete_job("ads", "waiting")
        await bench.until(lambda facts: job_of(facts, "waiting") is None)
        await bench.backend.nudge(bench.world.pool, seen.key)

    async def test_a_count_that_is_asked_for_is_right_and_changes_nothing_else(self, bench: Bench) -> None:
        await bench.quotas(ads_borrow=8)
        await bench.job("ads", "loan", side=Side.BORROW)
        await bench.until(placed("loan"))
        await bench.until(lambda facts: queue(facts, "ads", Side.BORROW).reserved == 8)
        await bench.stop("loan")
        await bench.until(gone("loan"))
        for kind in Side:
            await bench.backend.recount(bench.world.pool, "ads", kind)
        facts = await bench.until(lambda facts: queue(facts, "ads", Side.BORROW).reserved == 0)
        assert (queue(facts, "ads", Side.BORROW).nominal, queue(facts, "ads").nominal) == (8, 0)
        await bench.backend.recount(bench.world.pool, "nobody", Side.BORROW)

    # -- the fail-safe

    async def test_in_the_fail_safe_the_bank_writes_nothing(self, bench: Bench) -> None:
        await bench.quotas(ads_borrow=8)
        await bench.job("ads", "loan", side=Side.BORROW)
        await bench.until(placed("loan"))
        await bench.job("ads", "parked", side=Side.BORROW)
        await bench.until(waits("parked"))
        await bench.stop("parked")
        await bench.world.set_fail_safe(3)
        facts = await bench.until(lambda facts: facts.fail_safe_epoch == 3)
        pool = bench.world.pool
        with pytest.raises(ConflictError, match="3"):
            await bench.quotas(ads_borrow=0)
        loan, parked = the(facts, "loan"), the(facts, "parked")
        with pytest.raises(ConflictError, match="3"):
            await bench.backend.stop(pool, loan.key, mark("stop"), seen=loan.version)
        with pytest.raises(ConflictError, match="3"):
            await bench.backend.resume(pool, parked.key, mark("resume", 2), seen=parked.version)
        facts = await bench.never(lambda facts: not the(facts, "loan").placed, seconds=0.5)
        assert queue(facts, "ads", Side.BORROW).nominal == 8
        assert not the(facts, "parked").active
        await bench.world.set_fail_safe(0)
        await bench.until(lambda facts: facts.fail_safe_epoch == 0)
        await bench.quotas(ads_borrow=0)
        await bench.stop("loan")
        await bench.until(gone("loan"))


def all_reserved(facts: PoolFacts) -> set[str]:
    """Name the jobs that have their quota."""
    return {each.key.job for each in facts.workloads if each.reserved}


def has_reserved(jobs: int, facts: PoolFacts) -> bool:
    """Whether so many jobs have their quota."""
    return len(all_reserved(facts)) >= jobs
