"""The controller on the simulation: agreements, loans, status, deletion."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gpubank.controller.together import AT_ONCE
from gpubank.domain.errors import BackendError
from tests.unit.controller.harness import POOL, Bank, a_bank

EIGHT = {"guaranteed": 8, "borrowLimit": 8}


@pytest.fixture
async def bank(tmp_path: Path) -> AsyncIterator[Bank]:
    async with a_bank(tmp_path) as bank:
        yield bank


async def test_a_policy_becomes_quota(bank: Bank) -> None:
    await bank.agree(a=EIGHT, b=EIGHT)
    await bank.let(1)
    assert bank.quotas() == {"a.own": 8, "a.borrow": 0, "b.own": 8, "b.borrow": 0}
    assert (await bank.conditions("GPUPool", POOL))["Ready"] == ("True", "Applied")
    assert (await bank.conditions("GPUQuotaPolicy", "a", "team-a"))["Ready"] == ("True", "Applied")


async def test_an_idle_guarantee_is_lent_and_the_borrow_job_runs(bank: Bank) -> None:
    await bank.agree(a=EIGHT, b=EIGHT)
    bank.submit("a", "own", 8)
    await bank.let(3)
    bank.submit("a", "loan", 8, borrow=True)
    await bank.let(3)
    assert bank.running() == {"own", "loan"}
    assert await bank.lines() == [("b", "a", 8, "Granted")]
    assert bank.quotas() == {"a.own": 8, "a.borrow": 8, "b.own": 0, "b.borrow": 0}
    assert [(signal.kind, signal.workload.job) for signal in bank.processes.signals][-1] == ("granted", "Job/loan")


async def test_a_group_serves_its_own_borrow_queue_first(bank: Bank) -> None:
    await bank.agree(a=EIGHT, b=EIGHT)
    await bank.let(1)
    bank.submit("a", "loan", 8, borrow=True)
    await bank.let(3)
    assert await bank.lines() == [("a", "a", 8, "Granted")]


async def test_an_own_job_that_comes_first_withdraws_the_offer(bank: Bank) -> None:
    await bank.agree(a=EIGHT, b=EIGHT)
    bank.submit("a", "own", 8)
    await bank.let(3)
    bank.submit("a", "loan", 8, borrow=True)
    await bank.cluster.advance(0.05)
    bank.submit("b", "own-b", 8)
    await bank.let(4)
    assert bank.running() == {"own", "own-b"}
    assert await bank.lines() == []


async def test_demand_of_an_owner_is_opened_and_said_to_its_reclaim(bank: Bank) -> None:
    await bank.agree(a=EIGHT, b=EIGHT)
    bank.submit("a", "own", 8)
    await bank.let(3)
    bank.submit("a", "loan", 8, borrow=True)
    await bank.let(3)
    bank.submit("b", "own-b", 8)
    await bank.let(2)
    lender, demands = bank.processes.needs[-1]
    assert lender == "b"
    assert [demand.demand_id for demand in (await bank.books()).demands] == list(demands)
    assert bank.running() == {"own", "loan"}


async def test_an_unused_loan_comes_back_by_itself(bank: Bank) -> None:
    await bank.agree(a=EIGHT, b=EIGHT)
    bank.submit("a", "own", 8)
    await bank.let(3)
    bank.submit("a", "loan", 8, borrow=True)
    await bank.let(3)
    bank.cluster.finish_job("loan", "team-a")
    await bank.let(4)
    assert await bank.lines() == []
    assert bank.quotas()["b.own"] == 8


async def test_drift_of_a_quota_is_repaired(bank: Bank) -> None:
    await bank.agree(a=EIGHT, b=EIGHT)
    await bank.let(1)
    bank.cluster.edit_quota(f"a.{POOL}.own", 3)
    await bank.let(1)
    assert bank.quotas()["a.own"] == 8


async def test_a_frozen_pool_lends_nothing_and_says_so(bank: Bank) -> None:
    await bank.agree(a=EIGHT, b=EIGHT)
    await bank.let(1)
    pool = await bank.cluster.objects.get("GPUPool", POOL)
    assert pool is not None
    await bank.apply("GPUPool", POOL, {**pool["spec"], "freeze": {"by": "lin", "reason": "upgrade"}})
    bank.submit("a", "loan", 8, borrow=True)
    await bank.let(3)
    assert await bank.lines() == []
    assert (await bank.conditions("GPUPool", POOL))["Frozen"] == ("True", "FreezeOrdered")


async def test_a_policy_beyond_its_share_is_not_applied(bank: Bank) -> None:
    await bank.agree(a=EIGHT, b={"guaranteed": 9})
    await bank.let(1)
    assert bank.quotas()["a.own"] == 8
    assert (await bank.conditions("GPUQuotaPolicy", "b", "team-b"))["Ready"] == ("False", "BeyondCapacity")
    assert bank.quotas()["b.own"] is None


async def test_a_lowered_guarantee_falls_only_as_use_allows(bank: Bank) -> None:
    await bank.agree(a=EIGHT, b=EIGHT)
    bank.submit("a", "own", 8)
    await bank.let(3)
    await bank.agree(a={"guaranteed": 4}, b=EIGHT)
    await bank.let(3)
    assert bank.quotas()["a.own"] == 8
    bank.cluster.finish_job("own", "team-a")
    await bank.let(3)
    assert bank.quotas()["a.own"] == 4


async def test_deletion_waits_for_open_loans_and_says_why(bank: Bank) -> None:
    await bank.agree(a=EIGHT, b=EIGHT)
    bank.submit("a", "own", 8)
    await bank.let(3)
    bank.submit("a", "loan", 8, borrow=True)
    await bank.let(3)
    await bank.cluster.objects.delete("GPUPool", POOL)
    await bank.let(1)
    assert (await bank.conditions("GPUPool", POOL))["Ready"] == ("False", "LoansOpen")
    bank.cluster.finish_job("loan", "team-a")
    await bank.let(4)
    assert await bank.cluster.objects.get("GPUPool", POOL) is not None  # an own job still runs on its queue
    bank.cluster.finish_job("own", "team-a")
    await bank.let(4)
    assert await bank.cluster.objects.get("GPUPool", POOL) is None
    assert bank.quotas() == dict.fromkeys(("a.own", "a.borrow", "b.own", "b.borrow"))


async def test_a_write_that_fails_ends_the_look_and_the_next_one_writes_what_is_left(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = {f"g{number:02d}": {"guaranteed": 0} for number in range(3 * AT_ONCE)}
    await bank.agree(16, **groups)
    objects, written = bank.cluster.objects, list[str]()
    patch_status = objects.patch_status

    async def fails(kind: str, name: str, *more: Any, **options: Any) -> None:
        written.append(name)
        raise BackendError("the API server is away")

    monkeypatch.setattr(objects, "patch_status", fails)
    with pytest.raises(BackendError, match="away"):
        await bank.controller.reconcile()
    assert 1 <= len(written) <= AT_ONCE
    monkeypatch.setattr(objects, "patch_status", patch_status)
    await bank.controller.reconcile()
    for group in groups:
        assert (await bank.conditions("GPUQuotaPolicy", group, f"team-{group}"))["Ready"] == ("True", "Applied")


@pytest.mark.parametrize(("pause", "most"), [(0, 100), (1, 7), (60, 4)])
async def test_counts_of_a_policy_are_written_less_often_the_more_shares_its_pool_has_but_soon(
    bank: Bank, monkeypatch: pytest.MonkeyPatch, pause: int, most: int
) -> None:
    monkeypatch.setattr("gpubank.controller.status.COUNTS_PAUSE", timedelta(seconds=pause))
    await bank.agree(a=EIGHT, b=EIGHT)
    await bank.let(15)
    objects, written = bank.cluster.objects, list[dict[str, Any]]()
    patch_status = objects.patch_status

    async def counted(kind: str, name: str, namespace: str | None, status: dict[str, Any], **seen: Any) -> None:
        if (kind, name) == ("GPUQuotaPolicy", "a"):
            written.append(status)
        await patch_status(kind, name, namespace, status, **seen)

    monkeypatch.setattr(objects, "patch_status", counted)
    for number in range(8):
        bank.submit("a", f"job-{number}", 1)
        await bank.let(1)
    assert 1 < len(written) <= most
    assert (len(written) >= 8) == (pause == 0)
    await bank.let(6)
    assert (written[-1]["used"], written[-1].get("pending", 0)) == (8, 0), "counts are five seconds old at most"
    body = await objects.get("GPUQuotaPolicy", "a", "team-a")
    assert body is not None
    await bank.apply("GPUQuotaPolicy", "a", body["spec"] | {"borrowLimit": 4, "guaranteed": 7}, namespace="team-a")
    before = len(written)
    await bank.let(1)
    assert len(written) > before, "what is not only counts is written at once"


async def test_counts_of_a_pool_are_written_less_often_the_more_shares_it_has(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpubank.controller.status.COUNTS_PAUSE", timedelta(seconds=5))
    await bank.agree(a=EIGHT, b=EIGHT)
    await bank.let(3)

    async def reserved_after(seconds: float) -> int:
        await bank.let(seconds)
        return int((await bank.pool())["status"]["reserved"])

    bank.submit("a", "one", 2)
    assert await reserved_after(2) == 2
    bank.submit("a", "two", 2)
    assert await reserved_after(3) == 2, "two shares: ten seconds"
    assert await reserved_after(12) == 4
    bank.submit("a", "three", 2)
    assert await reserved_after(2) == 4
    await bank.apply("GPUPool", POOL, (await bank.pool())["spec"] | {"freeze": {"by": "ops", "reason": "an incident"}})
    assert await reserved_after(2) == 6, "what is not only counts is written at once"
    assert (await bank.conditions("GPUPool", POOL))["Frozen"][0] == "True"
