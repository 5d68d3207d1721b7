"""The bank end to end, on whatever cluster: what must hold in every scenario, judged by the books, queues and jobs.

A module makes a class of `BankSuite` and gives it the fixture `bank`: one pool, empty, of a bank that runs.
"""

import asyncio
from collections.abc import Callable

from gpubank.domain.conditions import LOANS_OPEN
from gpubank.domain.contract import Side
from gpubank.domain.facts import PoolFacts, WorkloadFacts
from gpubank.domain.loan import SURPLUS, LineState
from gpubank.domain.recall import LoanOutcome, LoanPhase, ReclaimPhase
from tests.contract.world import job_of
from tests.support.bank import Bank


class BankSuite:
    """Scenarios; every one ends with `bank.settled()`."""

    async def test_the_borrower_comes_back_by_itself_and_its_loan_shows_every_term(self, bank: Bank) -> None:
        await bank.agree((8,), vision=8, search=0)
        train = await bank.borrow("search", "train", trains=bank.gate(opened=True))
        await bank.own("vision", "serve")
        await bank.placed("serve")
        parked = await bank.loan_in("train", LoanPhase.PARKED)
        assert parked.checkpoint is not None
        await bank.demand_met("vision")
        await bank.finish("vision", "serve")
        back = await bank.placed("train")
        assert {pod.uid for pod in back.pod_facts}.isdisjoint(pod.uid for pod in train.pod_facts)
        loan = await bank.loan_in("train", LoanPhase.ACTIVE)
        await bank.settled()
        await bank.finish("search", "train")
        loan = await bank.loan_in("train", LoanPhase.CLOSED)
        assert [(term.term, term.gpus, term.lenders) for term in loan.history] == [
            (1, 8, (bank.name("vision"),)),
            (2, 8, (bank.name("vision"),)),
        ]
        assert loan.history[0].checkpoint == parked.checkpoint
        assert [term.ended_at is None for term in loan.history] == [False, False]
        await bank.until(lambda: _none_open(bank), "no line is open")
        assert [(line.term, line.state) for line in await bank.lines()] == [
            (1, LineState.RETURNED),
            (2, LineState.RETURNED),
        ]
        await bank.settled()

    async def test_a_bystander_is_admitted_at_every_step_of_a_recall(self, bank: Bank) -> None:
        quiet = {"guaranteed": 5, "lendingLimit": 0, "borrowLimit": 0}
        await bank.agree((8, 5), vision=8, search=0, quiet=quiet)
        gate = bank.gate()
        await bank.borrow("search", "train", trains=gate)
        await self._bystander(bank, "at-the-loan")
        await bank.own("vision", "gang", pods=8)
        await self._bystander(bank, "at-the-demand")
        await bank.loan_in("train", LoanPhase.CHECKPOINTING)
        await self._bystander(bank, "at-the-checkpoint")
        gate.touch()
        await bank.loan_in("train", LoanPhase.STOPPING, LoanPhase.PARKED)
        await self._bystander(bank, "at-the-stop")
        await bank.placed("gang")
        await self._bystander(bank, "at-the-end")
        assert not await bank.demand_open("quiet")
        await bank.settled()

    async def test_nobody_takes_part_of_what_a_gang_waits_for(self, bank: Bank) -> None:
        await bank.agree((8,), vision=8, search=0, audio=0)
        gate = bank.gate()
        await bank.borrow("search", "train", 4, trains=gate)
        await bank.own("vision", "gang", pods=2)
        await bank.loan_in("train", LoanPhase.CHECKPOINTING)
        others = ["greedy", "third"]
        async with bank.forbidden(lambda facts: any(_reserved(facts, name) for name in others), f"one of {others} ran"):
            await bank.ask("vision", "greedy", 4)
            await bank.ask("audio", "third", 4)
            await asyncio.sleep(1.0)  # long enough for the scheduler's next batch, and for a lender that is too quick
            gate.touch()
            for _ in range(100):  # whenever one comes, before the raise, in it or after, the gang goes first
                others.append(f"later-{len(others)}")
                await bank.own("vision", others[-1], 4)
                await asyncio.sleep(0.25)
                if _placed(await bank.facts(), "gang"):
                    break
            await bank.placed("gang")
            await bank.demand_met("vision")
        await bank.settled()

    async def test_an_own_job_that_comes_first_withdraws_an_offer(self, bank: Bank) -> None:
        await bank.agree((8,), vision=8, search=0)
        for attempt in range(12):  # the race can be lost: then the own job is served by a recall, which is right too
            wish, mine = f"wish-{attempt}", f"mine-{attempt}"
            await bank.ask("search", wish)
            await asyncio.sleep(0.03 * attempt)
            await bank.own("vision", mine)
            await bank.placed(mine)
            lines = await bank.lines(job=wish)
            if [line.state for line in lines] == [LineState.WITHDRAWN]:
                assert not (await bank.workload(wish)).reserved
                assert lines[0].granted_at is None
                break
            await bank.drop("search", wish)
            await bank.drop("vision", mine)
            await bank.until(lambda: _none_open(bank), "no line is open")
            await bank.until_facts(lambda facts: not any(node.used for node in facts.nodes), "the node is free")
        else:
            raise AssertionError(f"no offer was withdrawn\n{await bank.story()}")
        await bank.settled()

    async def test_two_lenders_get_their_own_back_from_one_victim(self, bank: Bank) -> None:
        await bank.agree((8, 8), vision=8, audio=8, search=0)
        big = await bank.borrow("search", "big", 16, pods=2)
        await bank.own("vision", "serve")
        await bank.placed("serve")
        await bank.loan_in("big", LoanPhase.PARKED)
        await bank.demand_met("vision")
        lines = await bank.lines(job="big")
        assert {(line.lender, line.gpus, line.state) for line in lines} == {
            (bank.name("vision"), 8, LineState.RETURNED),
            (bank.name("audio"), 8, LineState.RETURNED),
        }
        (demand,) = (await bank.reclaim("vision")).demands
        assert [(v.workload.uid, v.answer) for v in demand.victims] == [(big.key.uid, LoanOutcome.RETURNED)]
        await bank.settled()
        assert (await bank.facts()).queue(bank.name("audio"), Side.OWN).nominal == 8  # type: ignore[union-attr]

    async def test_a_victim_that_owes_another_lender_repays_through_a_swap(self, bank: Bank) -> None:
        await bank.agree((8, 8), vision=8, audio=8, search=0)
        await bank.borrow("search", "precious", priority=100)
        await bank.borrow("search", "cheap")
        creditor = (await bank.lines(job="precious"))[0].lender
        owner, other = ("vision", "audio") if creditor == bank.name("vision") else ("audio", "vision")
        before = await bank.workload("precious")
        async with bank.forbidden(touches(before), "the precious job was touched"):
            await bank.own(owner, "serve")
            await bank.placed("serve")
            await bank.demand_met(owner)
        await bank.loan_in("cheap", LoanPhase.PARKED)
        (kept,) = await bank.lines(job="precious")
        (returned,) = await bank.lines(job="cheap")
        assert (kept.lender, kept.state) == (bank.name(other), LineState.GRANTED)
        assert (returned.lender, returned.state) == (bank.name(owner), LineState.RETURNED)
        await bank.settled()

    async def test_a_novation_touches_no_job(self, bank: Bank) -> None:
        await bank.agree((8, 8), vision=8, audio=8, search=0)
        await bank.own("audio", "busy")
        await bank.placed("busy")
        before = await bank.borrow("search", "train", trains=bank.gate(opened=True))
        assert [line.lender for line in await bank.lines(job="train")] == [bank.name("vision")]
        await bank.finish("audio", "busy")
        await bank.until_facts(lambda facts: not _own(facts, bank.name("audio")), "the GPUs of audio are idle")
        async with bank.forbidden(touches(before), "the borrower was touched"):
            await bank.own("vision", "serve")
            await bank.placed("serve")
            await bank.demand_met("vision")
        old, new = await bank.lines(job="train")
        assert (old.lender, old.state) == (bank.name("vision"), LineState.RETURNED)
        assert (new.lender, new.state) == (bank.name("audio"), LineState.GRANTED)
        assert new.granted_at == old.ended_at
        assert (await bank.loan("train")).recalls == 0
        await bank.settled()

    async def test_a_policy_edited_during_a_recall_ends_with_the_right_quotas(self, bank: Bank) -> None:
        await bank.agree((8,), vision=8, search=0)
        gate = bank.gate()
        await bank.borrow("search", "train", trains=gate)
        await bank.own("vision", "serve", 4)
        await bank.loan_in("train", LoanPhase.CHECKPOINTING)
        await bank.edit("vision", guaranteed=6)
        await asyncio.sleep(0.5)
        gate.touch()
        await bank.placed("serve")

        async def fallen() -> bool:
            books = await bank.books()
            return (books.guarantee(bank.name("vision")).in_force, books.surplus) == (6, 2)

        await bank.until(fallen, "the guarantee is what the policy asks for now")
        await bank.settled()
        assert _quota(await bank.facts(), bank.name("vision")) == 6

    async def test_a_victim_is_chosen_whose_nodes_the_owner_can_use(self, bank: Bank) -> None:
        await bank.agree((8, 4, 4), vision=8, audio=8, search=0)
        await bank.borrow("search", "whole")
        split = await bank.borrow("search", "split", pods=2)  # newer, so the first choice if nodes did not matter
        async with bank.forbidden(touches(split), "a job was stopped whose nodes are too small"):
            await bank.own("vision", "serve")
            await bank.placed("serve")
            await bank.demand_met("vision")
        await bank.loan_in("whole", LoanPhase.PARKED)
        await bank.settled()

    async def test_the_pods_of_a_deployment_raise_a_demand(self, bank: Bank) -> None:
        await bank.agree((8,), vision=8, search=0)
        await bank.borrow("search", "train")
        await bank.deploy("vision", "web", replicas=2, gpus=4)
        await bank.pods_placed("web", 2)
        await bank.loan_in("train", LoanPhase.PARKED)
        await bank.demand_met("vision")
        await bank.settled()

    async def test_a_freeze_stops_a_recall_before_its_next_irreversible_step(self, bank: Bank) -> None:
        await bank.agree((8,), vision=8, search=0)
        gate = bank.gate()
        before = await bank.borrow("search", "train", trains=gate)
        await bank.own("vision", "serve")
        await bank.loan_in("train", LoanPhase.CHECKPOINTING)
        await bank.freeze(True)
        async with bank.forbidden(touches(before), "a job was stopped in a frozen pool"):
            await asyncio.sleep(1.0)
            gate.touch()
            await bank.loan_in("train", LoanPhase.DURABLE, LoanPhase.STOPPING)
            await asyncio.sleep(2.0)
        await bank.freeze(False)
        await bank.placed("serve")
        await bank.loan_in("train", LoanPhase.PARKED)
        await bank.demand_met("vision")
        await bank.settled()

    async def test_a_borrower_that_cannot_save_is_protected_and_the_next_is_recalled(self, bank: Bank) -> None:
        search = {"guaranteed": 0, "reclaimPolicy": {"gracePeriod": "3s"}}
        await bank.agree((8, 8), vision=16, search=search)
        await bank.borrow("search", "older", trains=bank.gate(opened=True))
        mute = await bank.borrow("search", "mute", trains=bank.gate())
        async with bank.forbidden(touches(mute), "a protected job was stopped"):
            await bank.own("vision", "serve")
            await bank.placed("serve")
            await bank.demand_met("vision")
        await bank.loan_in("older", LoanPhase.PARKED)
        kept = await bank.loan_in("mute", LoanPhase.ACTIVE)
        assert kept.checkpoint is None
        reclaim = await bank.reclaim("vision")
        assert reclaim.phase is ReclaimPhase.MET
        assert mute.key.uid in reclaim.demands[0].spared
        await bank.settled()

    async def test_a_policy_is_gone_only_when_its_loans_are_back(self, bank: Bank) -> None:
        await bank.agree((8,), vision=8, search=0)
        gate = bank.gate()
        await bank.borrow("search", "train", trains=gate)
        await bank.delete_policy("vision")
        await bank.loan_in("train", LoanPhase.CHECKPOINTING)

        async def waits() -> bool:
            policy = await bank.policy("vision")
            assert policy is not None
            conditions = policy.get("status", {}).get("conditions", ())
            return any((each["type"], each["reason"]) == ("Ready", LOANS_OPEN) for each in conditions)

        await bank.until(waits, "the policy says what its deletion waits for")
        gate.touch()

        async def gone() -> bool:
            return await bank.policy("vision") is None

        await bank.until(gone, "the policy is gone")
        del bank.policies["vision"]
        # What nobody is guaranteed any more is lent by the pool.
        await bank.placed("train")
        await bank.loan_in("train", LoanPhase.ACTIVE)
        assert [line.lender for line in await bank.lines(job="train")] == [bank.name("vision"), SURPLUS]
        await bank.settled()

    async def _bystander(self, bank: Bank, name: str) -> None:
        await bank.own("quiet", name, 1)
        await bank.placed(name)


async def _none_open(bank: Bank) -> bool:
    return not (await bank.books()).lines


def _reserved(facts: PoolFacts, name: str) -> bool:
    found = job_of(facts, name)
    return found is not None and found.reserved


def _placed(facts: PoolFacts, name: str) -> bool:
    found = job_of(facts, name)
    return found is not None and found.placed


def _own(facts: PoolFacts, group: str) -> int:
    queue = facts.queue(group, Side.OWN)
    return queue.reserved if queue is not None else 0


def _quota(facts: PoolFacts, group: str) -> int | None:
    queue = facts.queue(group, Side.OWN)
    return queue.nominal if queue is not None else None


def touches(before: WorkloadFacts) -> Callable[[PoolFacts], bool]:
    """Return whether a job is not as it was: stopped, evicted, or on other pods."""
    job, pods = before.key.job.removeprefix("Job/"), {pod.uid for pod in before.pod_facts}

    def touched(facts: PoolFacts) -> bool:
        now = job_of(facts, job)
        if now is None or not (now.active and now.reserved):
            return True
        return {pod.uid for pod in now.pod_facts if not pod.terminating} != pods

    return touched


__all__ = ["BankSuite", "touches"]
