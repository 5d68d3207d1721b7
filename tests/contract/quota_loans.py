"""The contract of `QuotaBackend`, second half: lending by hand, stop and resume, and how work ends."""

import pytest

from gpubank.domain.contract import Side
from gpubank.domain.errors import ConflictError
from gpubank.domain.facts import Wait
from tests.contract.quota_bench import GROUPS, Bench, gone, mark, placed, queue, reserved, waits
from tests.contract.world import JobRequest, World, job_of, layout, the


class LoanMechanics:
    """Part of `QuotaBackendSuite`."""

    @pytest.fixture
    async def bench(self, world: World) -> Bench:
        report = await world.backend.lay_out(layout(world, *GROUPS))
        assert report.problems == ()
        await world.add_nodes(8, 8, 8, 8, 8, 8)
        return Bench(world)

    # -- lending and taking back, by hand

    async def test_a_loan_moves_quota_and_the_borrower_comes_in(self, bench: Bench) -> None:
        await bench.quotas(ads=16, maps=16)
        await bench.job("ads", "loan", side=Side.BORROW)
        await bench.never(reserved("loan"), seconds=1.5)
        await bench.quotas(maps=8)
        facts = await bench.fenced("maps")
        assert queue(facts, "maps").reserved <= 8
        await bench.quotas(ads_borrow=8)
        facts = await bench.until(placed("loan"))
        assert queue(facts, "ads", Side.BORROW).reserved == 8

    async def test_lowering_below_use_evicts_nobody_and_bystanders_come_in(self, bench: Bench) -> None:
        await bench.quotas(ads_borrow=16, maps=16, search=16)
        await bench.job("ads", "loan", side=Side.BORROW, pods=2)
        await bench.until(placed("loan"))
        await bench.quotas(ads_borrow=0)
        await bench.fenced("ads", Side.BORROW)
        await bench.job("search", "bystander", pods=2)
        await bench.until(placed("bystander"))
        await bench.job("ads", "newcomer", side=Side.BORROW)
        facts = await bench.never(lambda facts: not the(facts, "loan").reserved or reserved("newcomer")(facts))
        assert the(facts, "loan").placed
        assert the(facts, "loan").evicted == ""
        assert (queue(facts, "ads", Side.BORROW).nominal, queue(facts, "ads", Side.BORROW).reserved) == (0, 16)

    async def test_a_recall_by_hand_gives_the_owner_its_gpus_and_holds_up_no_bystander(self, bench: Bench) -> None:
        await bench.quotas(ads=16, maps=8, search=16, ads_borrow=8)
        await bench.job("ads", "loan", side=Side.BORROW)
        await bench.until(placed("loan"))
        await bench.job("maps", "gang", pods=2)
        await bench.job("maps", "greedy", side=Side.BORROW)
        await bench.job("ads", "more", side=Side.BORROW)
        await bench.until(lambda facts: all(waits(name)(facts) for name in ("gang", "greedy", "more")))
        await self._bystander(bench, "at-the-demand")
        await bench.quotas(ads_borrow=0)
        await self._bystander(bench, "at-the-lowering")
        await bench.fenced("ads", Side.BORROW)
        await self._bystander(bench, "at-the-fence")
        await bench.stop("loan")
        await self._bystander(bench, "at-the-stop")
        await bench.until(lambda facts: the(facts, "loan").gone and not queue(facts, "ads", Side.BORROW).reserved)
        await self._bystander(bench, "before-the-raise")
        await bench.quotas(maps=16)
        facts = await bench.until(placed("gang"))
        assert not the(facts, "greedy").reserved
        assert not the(facts, "more").reserved
        assert the(facts, "loan").parked
        assert {each.key.job for each in facts.workloads if each.group == "search" and not each.placed} == set()

    async def _bystander(self, bench: Bench, name: str) -> None:
        await bench.world.submit_job(JobRequest("search", name, gpus_per_pod=2))
        await bench.until(placed(name))

    async def test_a_loan_that_changes_its_lender_touches_no_job(self, bench: Bench) -> None:
        await bench.quotas(maps=8, search=16, ads_borrow=8)
        await bench.job("ads", "loan", side=Side.BORROW)
        before = the(await bench.until(placed("loan")), "loan")
        await bench.job("maps", "gang", pods=2)
        await bench.until(waits("gang"))
        await bench.quotas(search=8)
        facts = await bench.fenced("search")
        assert queue(facts, "search").reserved <= 8
        await bench.quotas(maps=16)
        facts = await bench.until(placed("gang"))
        after = the(facts, "loan")
        assert {pod.uid for pod in after.pod_facts} == {pod.uid for pod in before.pod_facts}
        assert (after.reserved, after.admitted_at, after.evicted) == (True, before.admitted_at, "")

    async def test_an_own_job_that_came_first_shows_once_the_fence_has_passed(self, bench: Bench) -> None:
        await bench.quotas(maps=16)
        await bench.job("maps", "gang", pods=2)
        await bench.until(reserved("gang"))
        await bench.quotas(maps=8)
        facts = await bench.fenced("maps")
        assert (queue(facts, "maps").nominal, queue(facts, "maps").reserved) == (8, 16)
        await bench.quotas(maps=16)
        await bench.until(placed("gang"))

    # -- stop and resume

    async def test_a_stop_marks_evicts_frees_quota_and_then_the_pods_go(self, bench: Bench) -> None:
        await bench.quotas(ads_borrow=8)
        await bench.job("ads", "loan", side=Side.BORROW)
        await bench.until(placed("loan"))
        await bench.stop("loan")
        facts = await bench.until(lambda facts: not the(facts, "loan").reserved)
        seen = the(facts, "loan")
        assert (seen.active, seen.wait, seen.mark, seen.next_term) == (False, Wait.INACTIVE, mark("stop"), 2)
        assert seen.evicted == "Deactivated"
        assert all(pod.terminating for pod in seen.pod_facts)
        facts = await bench.until(gone("loan"))
        assert the(facts, "loan").parked
        assert queue(facts, "ads", Side.BORROW).reserved == 0
        await bench.until(lambda facts: not any(node.used for node in facts.nodes))
        await bench.never(reserved("loan"), seconds=1.5)

    async def test_a_stop_against_an_old_version_stops_nobody(self, bench: Bench) -> None:
        await bench.job("ads", "loan", side=Side.BORROW)
        facts = await bench.until(lambda facts: job_of(facts, "loan"))
        early = the(facts, "loan")  # it waits: nobody has lent it anything yet
        await bench.quotas(ads_borrow=8)
        await bench.until(placed("loan"))
        current = the(await bench.backend.observe(bench.world.pool), "loan")
        assert early.version != current.version
        with pytest.raises(ConflictError):
            await bench.backend.stop(bench.world.pool, early.key, mark("stop"), seen=early.version)
        facts = await bench.never(lambda facts: not the(facts, "loan").placed, seconds=0.5)
        assert the(facts, "loan").mark is None

    async def test_the_same_stop_twice_is_success_whatever_version_it_saw(self, bench: Bench) -> None:
        await bench.quotas(ads_borrow=8)
        await bench.job("ads", "loan", side=Side.BORROW)
        seen = the(await bench.until(placed("loan")), "loan")
        await bench.stop("loan")
        await bench.backend.stop(bench.world.pool, seen.key, mark("stop"), seen=seen.version)
        await bench.until(gone("loan"))
        await bench.backend.stop(bench.world.pool, seen.key, mark("stop"), seen=seen.version)

    async def test_stopping_or_resuming_what_is_gone_is_success(self, bench: Bench) -> None:
        await bench.quotas(ads_borrow=8)
        await bench.job("ads", "loan", side=Side.BORROW)
        seen = the(await bench.until(placed("loan")), "loan")
        await bench.world.delete_job("ads", "loan")
        await bench.until(lambda facts: job_of(facts, "loan") is None)
        await bench.backend.stop(bench.world.pool, seen.key, mark("stop"), seen=seen.version)
        await bench.backend.resume(bench.world.pool, seen.key, mark("resume"), seen=seen.version)

    async def test_a_resumed_workload_comes_back_in_its_old_place(self, bench: Bench) -> None:
        await bench.quotas(ads_borrow=8)
        await bench.job("ads", "loan", side=Side.BORROW)
        await bench.until(placed("loan"))
        await bench.world.pause(1.1)  # creation times are whole seconds on a cluster
        await bench.job("ads", "later", side=Side.BORROW)
        await bench.quotas(ads_borrow=0)
        await bench.fenced("ads", Side.BORROW)
        await bench.stop("loan")
        await bench.until(gone("loan"))
        await bench.resume("loan")
        facts = await bench.until(lambda facts: the(facts, "loan").active)
        seen = the(facts, "loan")
        assert (seen.parked, seen.mark, seen.next_term, seen.wait) == (False, mark("resume", 2), 2, Wait.QUOTA)
        await bench.quotas(ads_borrow=8)
        facts = await bench.until(placed("loan"))
        assert not the(facts, "later").reserved
        assert the(facts, "loan").evicted == ""
        await bench.resume("loan")

    async def test_only_who_stopped_a_workload_resumes_it(self, bench: Bench) -> None:
        await bench.job("ads", "loan", side=Side.BORROW)
        seen = the(await bench.until(waits("loan")), "loan")
        with pytest.raises(ConflictError):
            await bench.backend.resume(bench.world.pool, seen.key, mark("resume"), seen=seen.version)
        await bench.stop("loan")
        stopped = the(await bench.until(lambda facts: not the(facts, "loan").active), "loan")
        other = mark("resume", 2, loan="loan/local/other")
        with pytest.raises(ConflictError):
            await bench.backend.resume(bench.world.pool, stopped.key, other, seen=stopped.version)
        facts = await bench.never(lambda facts: the(facts, "loan").active, seconds=0.5)
        assert the(facts, "loan").parked

    async def test_a_waiting_workload_can_be_parked_too(self, bench: Bench) -> None:
        await bench.job("ads", "loan", side=Side.BORROW)
        await bench.until(waits("loan"))
        await bench.stop("loan")
        await bench.quotas(ads_borrow=8)
        facts = await bench.never(reserved("loan"))
        assert (the(facts, "loan").wait, the(facts, "loan").parked) == (Wait.INACTIVE, True)
        await bench.resume("loan")
        await bench.until(placed("loan"))

    # -- ends

    async def test_a_finished_job_holds_nothing(self, bench: Bench) -> None:
        await bench.quotas(ads=8)
        await bench.job("ads", "done")
        await bench.until(placed("done"))
        await bench.job("ads", "next")
        await bench.until(waits("next"))
        await bench.world.finish_job("ads", "done")
        facts = await bench.until(lambda facts: the(facts, "done").finished and reserved("next")(facts))
        seen = the(facts, "done")
        assert (seen.reserved, seen.gone) == (False, True)
        await bench.backend.stop(bench.world.pool, seen.key, mark("stop"), seen="0")

    async def test_a_deleted_job_is_gone_and_its_quota_free(self, bench: Bench) -> None:
        await bench.quotas(ads=8)
        await bench.job("ads", "short")
        await bench.until(placed("short"))
        await bench.job("ads", "next")
        await bench.world.delete_job("ads", "short")
        facts = await bench.until(placed("next"))
        assert job_of(facts, "short") is None
