"""Races of a recall: what somebody else does while it runs. Real Temporal and workflows, a cluster in memory.

Some of them stand elsewhere: a borrower that ends in its notice, an owner's job that is deleted, two lenders of one
borrower (`test_recall`); policies and shares that change (`tests.contract.bank_suite`); Kueue's own part (`tests.lab`).
"""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpubank.domain.errors import PolicyError
from gpubank.domain.loan import LineState
from gpubank.domain.policy import Approval, OnCheckpointFailure
from gpubank.domain.pool import OnOverdue
from gpubank.domain.recall import Decision, LoanPhase, ReclaimPhase
from tests.contract.world import DeploymentRequest
from tests.fakes.branches import ManyBanks
from tests.fakes.trainer import Mood
from tests.workflows.races import SOON, Race

pytestmark = [pytest.mark.temporal, pytest.mark.asyncio(loop_scope="module")]


async def test_an_owner_that_scales_down_in_a_recall_takes_no_more_than_it_still_wants(banks: ManyBanks) -> None:
    race = await Race.open(banks)
    bank = race.bank
    trains = {name: await race.trains(name, mood=Mood.SILENT) for name in ("one", "two")}
    web = DeploymentRequest("serving", race.job("web"), 2, gpus_per_pod=8)
    await bank.world.submit_deployment(web)
    for train in trains.values():
        await race.asked(train)
    await bank.world.scale_deployment("serving", web.name, 1)

    async def one_goes_on() -> bool:
        states = {name: (await bank.client.loan_state(bank.loan(train))).phase for name, train in trains.items()}
        return sorted(states.values()) == [LoanPhase.ACTIVE, LoanPhase.CHECKPOINTING]

    await bank.until(one_goes_on, "one is let go")
    for name in trains:
        race.mood(name, Mood.SAVES)

    async def one_is_parked() -> bool:
        lines = await bank.lines()
        return len(lines) == 1 and lines[0].state is LineState.GRANTED and not await bank.demands()

    await bank.until(one_is_parked, "one has left, the other runs on")
    (line,) = await bank.lines()
    (kept,) = [name for name, train in trains.items() if train.key.uid == line.workload.uid]
    await race.runs_on(kept, trains[kept])


async def test_a_policy_that_forbids_it_in_its_notice_lets_it_go_on(banks: ManyBanks) -> None:
    race = await Race.open(banks)
    train = await race.trains("train", mood=Mood.SILENT)
    await race.wants(gpus=16)
    await race.asked(train)
    race.bank.terms.set_group("research", only_preempt=frozenset())
    race.mood("train", Mood.SAVES)
    await race.ended(ReclaimPhase.PARTIAL)
    await race.bank.loan_in(train, LoanPhase.ACTIVE)
    await race.runs_on("train", train)


async def test_a_share_that_falls_in_a_recall_ends_a_demand_that_nobody_is_owed(banks: ManyBanks) -> None:
    race = await Race.open(banks)
    bank = race.bank
    train = await race.trains("train", mood=Mood.SILENT)
    await race.wants(gpus=16)
    await race.asked(train)
    bank.terms.set_group("serving", guaranteed=8, lending_limit=8)
    bank.loop.poke()

    async def fallen() -> bool:
        books = await bank.ledger.books(bank.cluster, bank.pool)
        guarantee = books.guarantee("serving")
        return (guarantee.in_force, guarantee.releasing) == (8, 0) and not books.demands

    await bank.until(fallen, "the guarantee has fallen and nobody waits")
    await bank.loan_in(train, LoanPhase.ACTIVE)
    await race.runs_on("train", train)


async def test_a_borrowers_policy_that_is_deleted_brings_its_loans_back_and_says_why(banks: ManyBanks) -> None:
    race = await Race.open(banks)
    bank = race.bank
    train = await race.trains("train")
    groups = bank.terms.now.groups
    bank.terms.set(groups=tuple(group for group in groups if group.group != "research"))
    bank.loop.poke()
    parked = await bank.loan_in(train, LoanPhase.PARKED)
    assert parked.checkpoint is not None
    assert parked.history[0].ended_because == "research has no policy in force any more"
    await bank.until(bank.nothing_open, "its line is returned")
    bank.terms.set(groups=groups)
    bank.loop.poke()
    await bank.placed(race.job("train"))  # with a policy again it comes back by itself


async def test_a_pool_that_is_gone_in_a_recall_ends_the_demand_and_stops_nobody(
    banks: ManyBanks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activities.reclaims.GONE_AFTER", timedelta(seconds=0.5))
    race = await Race.open(banks)
    train = await race.trains("train", mood=Mood.SILENT)
    await race.wants(gpus=16)
    await race.asked(train)
    race.bank.terms.gone = True
    race.mood("train", Mood.SAVES)
    await race.ended(ReclaimPhase.CANCELLED)
    await race.bank.loan_in(train, LoanPhase.ACTIVE)
    await race.runs_on("train", train)
    notes = [tx.note for tx in race.bank.ledger.history if tx.pool == race.bank.pool]
    assert any(f"pool {race.bank.pool!r} is gone" in note for note in notes)


async def test_a_workload_of_the_same_name_is_another_one(banks: ManyBanks) -> None:
    race = await Race.open(banks)
    bank = race.bank
    train = await race.trains("train", mood=Mood.SILENT)
    await race.wants(gpus=16)
    await race.asked(train)
    await bank.world.delete_job("research", race.job("train"))

    async def gone() -> bool:
        return await bank.workload(race.job("train")) is None

    await bank.until(gone, "the old one is gone")
    again = asyncio.create_task(race.trains("train", mood=Mood.SAVES))
    await race.served()
    reclaim = await race.ended(ReclaimPhase.MET)
    assert [victim.workload.uid for victim in reclaim.demands[0].victims] == [train.key.uid]
    await bank.loan_in(train, LoanPhase.CLOSED)
    await bank.world.finish_job("serving", race.job("serve"))
    new = await again  # it waited its turn, and runs as any other
    assert new.key.uid != train.key.uid
    assert new.mark is None
    asked = [request.id for request in bank.trainers.asked]
    assert [request for request in asked if train.key.uid in request], "the old one was asked"
    assert not [request for request in asked if new.key.uid in request], "nobody asked the new one"


async def test_pods_that_do_not_go_are_passed_over_and_come_back_when_they_do(
    banks: ManyBanks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workflows.reclaim_demand.SEND_AGAIN", SOON)
    monkeypatch.setattr("gpubank.decide.victims.LATE", timedelta(0))
    race = await Race.open(banks)
    bank = race.bank
    other = await race.batch("other", grace=1)
    stuck = await race.batch("stuck", grace=1)
    race.hold(stuck)
    await race.wants()
    await race.served()
    await bank.loan_in(other, LoanPhase.PARKED)
    assert (await bank.client.loan_state(bank.loan(stuck))).phase is LoanPhase.STOPPING
    (line,) = await race.lines(stuck)
    assert (line.state, line.demand) == (LineState.RECALLED, None)
    race.hold(stuck, False)
    await bank.loan_in(stuck, LoanPhase.PARKED, LoanPhase.ACTIVE)
    assert line.line_id not in {each.line_id for each in await race.lines(stuck)}


async def test_a_node_that_is_lost_with_its_victim_has_another_one_stopped(banks: ManyBanks) -> None:
    race = await Race.open(banks)
    bank = race.bank
    other = await race.trains("other")
    lost = await race.trains("lost", mood=Mood.SILENT)
    await race.wants()
    await race.asked(lost)
    bank.world.simulated.remove_node(lost.pod_facts[0].node)
    await race.served()
    await bank.loan_in(other, LoanPhase.PARKED)
    # It waits for a node, and would take the one that the owner gets: it is stopped, and loses nothing by that.
    await bank.loan_in(lost, LoanPhase.PARKED)
    assert not [n for n in bank.ledger.notes.values() if n.action == "work lost" and n.subject == bank.loan(lost)]


async def test_a_victim_that_the_scheduler_evicts_at_the_same_moment_loses_nothing_more(banks: ManyBanks) -> None:
    race = await Race.open(banks)
    bank = race.bank
    train = await race.trains("train", mood=Mood.SILENT)
    await race.wants(gpus=16)
    await race.asked(train)
    bank.world.simulated._jobs.preempt(race.record(train))
    await race.served()
    parked = await bank.loan_in(train, LoanPhase.PARKED)
    assert parked.recalls == 1
    assert not [n for n in bank.ledger.notes.values() if n.action == "work lost" and n.subject == bank.loan(train)]
    await bank.world.finish_job("serving", race.job("serve"))
    assert (await bank.placed(race.job("train"))).key == train.key


async def test_a_job_that_its_owner_switches_on_while_it_is_being_stopped_is_stopped_all_the_same(
    banks: ManyBanks, monkeypatch: pytest.MonkeyPatch
) -> None:
    race = await Race.open(banks)
    bank = race.bank
    train = await race.trains("train")
    simulated = bank.world.simulated
    stop = simulated.stop

    async def stop_and_switch_on(*args: Any, **kwargs: Any) -> None:
        await stop(*args, **kwargs)
        monkeypatch.undo()
        simulated._jobs.activate(race.record(train))

    monkeypatch.setattr(simulated, "stop", stop_and_switch_on)
    await race.wants(gpus=16)
    await race.served()
    await bank.loan_in(train, LoanPhase.PARKED)
    again = [note for note in bank.ledger.notes.values() if note.action == "stop again"]
    assert [note.subject for note in again] == [bank.loan(train)]


async def test_a_word_that_comes_in_the_second_of_the_deadline_holds_or_is_refused(banks: ManyBanks) -> None:
    """Never "approved" to whoever said so, and PARTIAL to the owner."""
    race = await Race.open(banks, max_time_to_return=timedelta(seconds=2), on_overdue=OnOverdue.EVICT)
    bank = race.bank
    bank.terms.set_group("serving", approval=Approval.REQUIRED)
    train = await race.trains("train")
    await race.wants(gpus=16)
    asked = await race.ended(ReclaimPhase.AWAITING_APPROVAL)
    due = asked.demands[0].due_at
    assert due is not None
    await banks.stop_workers()  # so that both have happened when the workflow next looks
    word = asyncio.create_task(bank.client.approve(bank.reclaim("serving"), Decision(identity="ann")))
    await asyncio.sleep((due - datetime.now(UTC)).total_seconds() + 0.2)
    await banks.start_workers()
    try:
        await word
    except PolicyError:
        await race.ended(ReclaimPhase.PARTIAL)
        assert (await bank.client.loan_state(bank.loan(train))).phase is LoanPhase.ACTIVE
        approved = False
    else:
        await race.served()
        approved = True
    notes = [note for note in bank.ledger.notes.values() if note.action == "approve" and bank.pool in note.subject]
    assert bool(notes) is approved


async def test_what_is_overdue_already_can_be_approved_but_is_not_waited_for_without_end(
    banks: ManyBanks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpubank.decide.demand.TRY_AGAIN", timedelta(seconds=0.5))
    race = await Race.open(banks, max_time_to_return=timedelta(seconds=1.5), on_overdue=OnOverdue.EVICT)
    bank = race.bank
    bank.terms.set_group("serving", approval=Approval.REQUIRED)
    train = await race.trains("train")
    await race.wants(gpus=16)
    for _ in range(2):  # the second time it is overdue from the start
        partial = await race.ended(ReclaimPhase.PARTIAL)
        assert partial.demands[-1].reason == "nobody approved or denied it within maxTimeToReturn"
        await race.ended(ReclaimPhase.AWAITING_APPROVAL)
        bank.terms.set(max_time_to_return=timedelta(minutes=1))  # the last time there is time to answer
    await bank.client.approve(bank.reclaim("serving"), Decision(identity="ann"))
    await race.served()
    await bank.loan_in(train, LoanPhase.PARKED)


async def test_what_is_lost_is_counted_from_the_last_checkpoint_of_the_same_stay(banks: ManyBanks) -> None:
    race = await Race.open(banks)
    bank = race.bank
    train = await race.trains("train")
    await bank.client.return_now(bank.loan(train), Decision(identity="cho"))
    first = await bank.loan_in(train, LoanPhase.PARKED)
    assert first.checkpoint is not None
    back = await bank.placed(race.job("train"))
    bank.terms.set_group(
        "research", grace_period=timedelta(seconds=1.5), on_checkpoint_failure=OnCheckpointFailure.EVICT
    )
    race.mood("train", Mood.SILENT)
    await race.wants(gpus=16)
    await race.served()
    (loss,) = [
        note for note in bank.ledger.notes.values() if note.action == "work lost" and note.subject == bank.loan(train)
    ]
    assert back.admitted_at is not None
    assert loss.detail["since"] == back.admitted_at.isoformat(), "an older stay's checkpoint says nothing of this one"
