"""Races in which Kueue, Kubernetes and a dead node have a part of their own; see also `tests.workflows.test_races`."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from gpubank.adapters.kubernetes.kinds import JOB, NODE, POD, WORKLOAD
from gpubank.domain.loan import LineState
from gpubank.domain.recall import LoanPhase
from tests.contract.kueue_world import KueueWorld
from tests.contract.world import job_of
from tests.support.bank import Bank
from tests.support.running import RunningBank

pytestmark = [pytest.mark.temporal, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="session")]

FINALIZER = "test.aik8s.run/holds"


@pytest_asyncio.fixture(loop_scope="session")
async def bank(lab_bank: RunningBank, tmp_path: Path) -> AsyncIterator[Bank]:
    async with lab_bank.pool(tmp_path) as bank:
        yield bank


def kueue(bank: Bank) -> KueueWorld:
    """Return the bank's cluster as what it is."""
    assert isinstance(bank.world, KueueWorld)
    return bank.world


async def test_a_victim_that_kueue_evicts_at_the_same_moment_is_stopped_once_and_comes_back(bank: Bank) -> None:
    """Kueue keeps its own reason for the eviction then; the bank resumes the job all the same."""
    await bank.agree((8,), vision=8, search=0)
    gate = bank.gate()
    train = await bank.borrow("search", "train", trains=gate)
    await bank.own("vision", "serve")
    await bank.loan_in("train", LoanPhase.CHECKPOINTING)
    evicted = {
        "type": "Evicted",
        "status": "True",
        "reason": "Preempted",
        "message": "Preempted by somebody else",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    connection, key = kueue(bank).connection, train.key
    body = await connection.get(WORKLOAD, key.name, key.namespace)
    assert body is not None
    others = [each for each in body["status"]["conditions"] if each["type"] != "Evicted"]
    await connection.call(
        "PATCH",
        WORKLOAD.path(key.name, key.namespace, subresource="status"),
        body={"status": {"conditions": [*others, evicted]}},
        content_type="application/merge-patch+json",
    )
    await bank.placed("serve")
    parked = await bank.loan_in("train", LoanPhase.PARKED)
    assert parked.recalls == 1
    await bank.demand_met("vision")
    await bank.finish("vision", "serve")
    assert (await bank.placed("train")).key == train.key
    await bank.settled()


async def test_a_workload_of_the_same_name_is_another_one(bank: Bank) -> None:
    await bank.agree((8,), vision=8, search=0)
    first = await bank.borrow("search", "train", trains=bank.gate())
    await bank.own("vision", "serve")
    await bank.loan_in("train", LoanPhase.CHECKPOINTING)
    await bank.drop("search", "train")
    await bank.until_facts(lambda facts: job_of(facts, "train") is None, "the old one is gone")
    await bank.ask("search", "train")
    await bank.placed("serve")
    await bank.demand_met("vision")
    second = await bank.workload("train")
    assert second.key.uid != first.key.uid
    assert (second.active, second.mark) == (True, None)
    await bank.finish("vision", "serve")
    await bank.placed("train")
    await bank.settled()


async def test_an_owners_job_that_shrinks_and_one_that_is_deleted_in_a_recall_free_their_victims(bank: Bank) -> None:
    await bank.agree((8, 8), vision=16, search=0)
    gate = bank.gate()
    trains = {name: await bank.borrow("search", name, trains=gate) for name in ("one", "two")}
    await bank.own("vision", "wide", 16, pods=2)
    for name in trains:
        await bank.loan_in(name, LoanPhase.CHECKPOINTING)
    spec = {"spec": {"parallelism": 1}}
    await kueue(bank).connection.patch(JOB, "wide", bank.world.namespace(bank.name("vision")), spec)

    async def one_runs_on() -> bool:
        phases = sorted([(await bank.loan(name)).phase for name in trains])
        return phases == [LoanPhase.ACTIVE, LoanPhase.CHECKPOINTING]

    await bank.until(one_runs_on, "one of the two is let go")
    await bank.drop("vision", "wide")
    for name, before in trains.items():
        await bank.loan_in(name, LoanPhase.ACTIVE)
        now = await bank.workload(name)
        assert (now.key, now.active, now.mark) == (before.key, True, None)
    gate.touch()
    await bank.settled()


async def test_a_pod_that_a_finalizer_holds_does_not_hold_the_owner_up(bank: Bank) -> None:
    """Its GPUs are not free for anybody, and the next victim is taken; the loan ends when the pod goes."""
    await bank.agree((8, 8), {"maxTimeToReturn": "30m"}, vision=16, search=0)
    await bank.borrow("search", "other")
    stuck = await bank.borrow("search", "stuck")
    connection, namespace = kueue(bank).connection, stuck.key.namespace
    pod = stuck.pod_facts[0].name
    await connection.patch(POD, pod, namespace, {"metadata": {"finalizers": [FINALIZER]}})
    await bank.own("vision", "serve")
    await bank.loan_in("stuck", LoanPhase.STOPPING)
    try:
        await bank.until(lambda: _placed(bank, "serve"), "the owner is served by another victim", 150)
        await bank.demand_met("vision")
        (line,) = await bank.lines(job="stuck")
        assert (line.state, line.demand) == (LineState.RECALLED, None)
        assert (await bank.loan("stuck")).phase is LoanPhase.STOPPING
    finally:
        await connection.patch(POD, pod, namespace, {"metadata": {"finalizers": []}})
    await bank.loan_in("stuck", LoanPhase.PARKED, LoanPhase.ACTIVE)
    await bank.settled()


async def test_a_node_that_is_deleted_with_its_victim_has_another_one_stopped(bank: Bank) -> None:
    await bank.agree((8, 8), vision=16, search=0)
    gate = bank.gate()
    await bank.borrow("search", "other", trains=gate)
    lost = await bank.borrow("search", "lost", trains=bank.gate())
    await bank.own("vision", "serve")
    await bank.loan_in("lost", LoanPhase.CHECKPOINTING)
    connection, node = kueue(bank).connection, lost.pod_facts[0].node
    assert await connection.delete(NODE, node)
    for each in lost.pod_facts:  # as the garbage collector of pods does, which looks every 20 s
        path = POD.path(each.name, lost.key.namespace)
        await connection.call("DELETE", path, params={"gracePeriodSeconds": "0"})
    gate.touch()
    await bank.until(lambda: _placed(bank, "serve"), "the owner is served on the other node", 90)
    await bank.loan_in("other", LoanPhase.PARKED)
    await bank.demand_met("vision")


async def _placed(bank: Bank, name: str) -> bool:
    found = job_of(await bank.facts(), name)
    return found is not None and found.reserved and found.placed
