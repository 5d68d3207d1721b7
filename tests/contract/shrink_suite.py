"""A pool that has less room than is reserved, on whatever cluster: nodes that are lost, and nodes that are too full."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from gpubank.decide import placement
from gpubank.domain.conditions import SHRUNK
from gpubank.domain.demand import Demand, DemandKind
from gpubank.domain.facts import PoolFacts
from gpubank.domain.recall import LoanPhase
from tests.contract.bank_suite import touches
from tests.contract.world import job_of
from tests.support.bank import Bank


class ShrinkSuite:
    """Scenarios; every one ends with `bank.settled()`."""

    async def test_what_is_lent_comes_back_when_a_node_is_lost_and_own_work_stays(self, bank: Bank) -> None:
        await a_node_is_lost_and_comes_back(bank)

    async def test_own_work_that_finds_no_node_has_one_borrower_stopped(
        self, bank: Bank, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(placement, "PATIENCE", timedelta(seconds=2))
        await no_node_has_room(bank)


async def a_node_is_lost_and_comes_back(bank: Bank) -> None:
    """Three nodes, all of it reserved; the node of vision's job goes, and what audio has lent comes back for it."""
    await bank.agree((8, 8, 8), vision=8, audio=8, search=8)
    await bank.own("search", "mine")
    await bank.own("vision", "serve")
    await bank.placed("mine")
    serve = await bank.placed("serve")
    train = await bank.borrow("search", "train", trains=bank.gate(opened=True))
    assert [line.lender for line in await bank.lines(job="train")] == [bank.name("audio")]
    mine = await bank.workload("mine")
    async with (
        bank.forbidden(touches(mine), "own work on another node was touched"),
        bank.forbidden(_without_quota("serve"), "own work that lost its node lost its quota"),
        bank.forbidden(_with_quota("more"), "something was lent although nodes were missing"),
    ):
        await bank.world.lose_node(serve.pod_facts[0].node)
        demand = await _demand(bank, "audio", DemandKind.SHRUNK)
        assert (demand.gpus, demand.reason) == (8, "the pool's nodes have 16 GPUs only")
        await bank.ask("search", "more")
        back = await bank.placed("serve")
        assert back.pod_facts[0].node == train.pod_facts[0].node
        assert (await bank.loan_in("train", LoanPhase.PARKED)).checkpoint is not None
        await bank.demand_met("audio")
        await bank.until(lambda: _shrunk(bank, "True"), "the pool says that it has shrunk")
    async with bank.forbidden(touches(mine), "own work was touched"):
        await bank.world.add_nodes(8)
        await bank.placed("train")
        await bank.loan_in("train", LoanPhase.ACTIVE)
        await bank.until(lambda: _shrunk(bank, "False"), "the pool says that it is whole")
    assert not (await bank.workload("more")).reserved  # whoever was stopped comes first
    await bank.settled()


async def no_node_has_room(bank: Bank) -> None:
    """Vision's pod of 8 is admitted, and on each of two nodes stands a borrowed pod of 3."""
    await bank.agree((8, 8), vision=16, search=0)
    await bank.own("vision", "wall", 10, pods=2)  # one of 5 on each node, so that one of 3 fits beside each
    await bank.placed("wall")
    trains = {name: await bank.borrow("search", name, 3, trains=bank.gate(opened=True)) for name in ("one", "two")}
    assert len({workload.pod_facts[0].node for workload in trains.values()}) == 2
    await bank.finish("vision", "wall")
    await bank.until_facts(lambda facts: sum(node.used for node in facts.nodes) == 6, "the wall is gone")
    await bank.own("vision", "serve")
    await bank.until_facts(_with_quota("serve"), "it is admitted")
    assert not (await bank.workload("serve")).placed
    demand = await _demand(bank, "vision", DemandKind.PLACEMENT)
    assert (demand.gpus, demand.pods) == (8, 1)
    serve = await bank.placed("serve")
    await bank.demand_met("vision")
    (moved,) = [name for name in trains if len(await bank.lines(job=name)) > 1 or (await bank.loan(name)).recalls]
    (kept,) = trains.keys() - {moved}
    assert not touches(trains[kept])(await bank.facts())

    async def came_back() -> bool:
        return len((await bank.loan(moved)).history) == 2

    await bank.until(came_back, f"{moved} comes back beside {kept}")
    nodes = {(await bank.placed(name)).pod_facts[0].node for name in trains}
    assert nodes == {trains[kept].pod_facts[0].node} != {serve.pod_facts[0].node}
    await bank.settled()


async def _demand(bank: Bank, group: str, kind: DemandKind) -> Demand:
    """See a demand of the group, and return it."""

    async def look() -> Demand | None:
        found = [d for d in (await bank.books()).demands if (d.lender, d.kind) == (bank.name(group), kind)]
        return found[0] if found else None

    return await bank.until(look, f"a demand of {group} ({kind})")


async def _shrunk(bank: Bank, status: str) -> bool:
    pool = await bank.world.objects.get("GPUPool", bank.world.pool)
    assert pool is not None
    conditions = {each["type"]: each["status"] for each in pool.get("status", {}).get("conditions", ())}
    return conditions.get(SHRUNK) == status


def _with_quota(name: str) -> Callable[[PoolFacts], bool]:
    def holds(facts: PoolFacts) -> bool:
        found = job_of(facts, name)
        return found is not None and found.reserved

    return holds


def _without_quota(name: str) -> Callable[[PoolFacts], bool]:
    def holds(facts: PoolFacts) -> bool:
        found = job_of(facts, name)
        return found is None or not (found.active and found.reserved)

    return holds
