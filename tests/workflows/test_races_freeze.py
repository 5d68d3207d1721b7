"""A freeze at every phase of a recall: nothing that cannot be taken back happens until the thaw, and then all of it."""

from collections.abc import Awaitable, Callable

import pytest

from gpubank.domain.facts import WorkloadFacts
from gpubank.domain.loan import LineState
from gpubank.domain.policy import Approval
from gpubank.domain.recall import Decision, LoanPhase, ReclaimPhase
from tests.fakes.branches import ManyBanks
from tests.fakes.trainer import Mood
from tests.workflows.races import Race

pytestmark = [pytest.mark.temporal, pytest.mark.asyncio(loop_scope="module")]

FROZEN_FOR = 1.2
"""Seconds for which nothing may happen; a poll looks every second."""

Freeze = Callable[[Race, WorkloadFacts, ManyBanks], Awaitable[None]]
"""Brings the recall to a phase, freezes the pool there, and lets happen whatever would lead on."""


async def before_it_begins(race: Race, train: WorkloadFacts, banks: ManyBanks) -> None:
    race.bank.terms.freeze()
    await race.wants(gpus=16)


async def while_it_is_planned(race: Race, train: WorkloadFacts, banks: ManyBanks) -> None:
    await banks.stop_workers()
    await race.wants(gpus=16)
    await race.bank.until(race.bank.demands, "the demand is open")
    race.bank.terms.freeze()
    await banks.start_workers()


async def while_it_waits_for_approval(race: Race, train: WorkloadFacts, banks: ManyBanks) -> None:
    race.bank.terms.set_group("serving", approval=Approval.REQUIRED)
    await race.wants(gpus=16)
    await race.ended(ReclaimPhase.AWAITING_APPROVAL)
    race.bank.terms.freeze()
    await race.bank.client.approve(race.bank.reclaim("serving"), Decision(identity="ann"))


async def while_it_is_saved(race: Race, train: WorkloadFacts, banks: ManyBanks) -> None:
    race.mood("train", Mood.SILENT)
    await race.wants(gpus=16)
    await race.asked(train)
    race.bank.terms.freeze()
    race.mood("train", Mood.SAVES)
    await race.bank.loan_in(train, LoanPhase.DURABLE)


@pytest.mark.parametrize(
    "freeze", [before_it_begins, while_it_is_planned, while_it_waits_for_approval, while_it_is_saved]
)
async def test_a_freeze_before_the_stop_stops_nobody(banks: ManyBanks, freeze: Freeze) -> None:
    race = await Race.open(banks)
    bank = race.bank
    train = await race.trains("train")
    await freeze(race, train, banks)

    async def untouched() -> bool:
        now = await bank.workload(race.job("train"))
        same = now is not None and [pod.uid for pod in now.pod_facts] == [pod.uid for pod in train.pod_facts]
        return same and now is not None and now.active and now.placed

    await bank.holds(untouched, FROZEN_FOR)
    bank.terms.thaw()
    bank.loop.poke()
    await race.served()
    assert (await bank.loan_in(train, LoanPhase.PARKED)).recalls == 1


async def test_a_freeze_while_it_leaves_keeps_what_came_back_from_everybody(banks: ManyBanks) -> None:
    race = await Race.open(banks)
    bank = race.bank
    train = await race.trains("train")
    race.hold(train)
    await race.wants(gpus=16)
    await bank.loan_in(train, LoanPhase.STOPPING)
    bank.terms.freeze()
    race.hold(train, False)
    await bank.loan_in(train, LoanPhase.PARKED)

    async def nobody_has_it() -> bool:
        serve, lines = await bank.workload(race.job("serve")), await bank.lines()
        return serve is not None and not serve.reserved and not lines

    await bank.holds(nobody_has_it, FROZEN_FOR)
    assert {line.state for line in bank.ledger.rows.values() if line.pool == bank.pool} == {LineState.RETURNED}
    bank.terms.thaw()
    bank.loop.poke()
    await race.served()


async def test_a_freeze_while_it_could_come_back_leaves_it_parked(banks: ManyBanks) -> None:
    race = await Race.open(banks)
    bank = race.bank
    train = await race.trains("train")
    await race.wants(gpus=16)
    await race.served()
    await bank.loan_in(train, LoanPhase.PARKED)
    bank.terms.freeze()
    await bank.world.finish_job("serving", race.job("serve"))

    async def parked() -> bool:
        now = await bank.workload(race.job("train"))
        return now is not None and not now.active

    await bank.holds(parked, FROZEN_FOR)
    bank.terms.thaw()
    bank.loop.poke()
    await bank.placed(race.job("train"))
    assert (await bank.loan_in(train, LoanPhase.ACTIVE)).term == 2
