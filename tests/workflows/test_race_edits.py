"""Edits and deletions in the middle of a recall for a WORKLOAD demand, on terms that the real agreement compiles.

Whoever loses its terms has its loans brought back by demands of their own (`decide.limits`, `decide.lapsed`); a
trainer that has been asked for its checkpoint is stopped once and with it, or not at all.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from temporalio.client import WorkflowExecutionStatus

from gpubank.domain import conditions
from gpubank.domain.contract import Side
from gpubank.domain.demand import DemandKind, DemandState
from gpubank.domain.facts import WorkloadFacts
from gpubank.domain.loan import SURPLUS, LineState
from gpubank.domain.recall import LoanPhase, ReclaimPhase
from tests.contract.world import JobRequest
from tests.fakes.agreed import Agreed
from tests.fakes.bank import HOOK
from tests.fakes.branches import ManyBanks
from tests.fakes.trainer import Mood
from tests.fakes.witness import Witness
from tests.workflows.races import SOON, Race

pytestmark = [pytest.mark.temporal, pytest.mark.asyncio(loop_scope="module")]

NO_ROOM = (DemandState.CANCELLED, "the guarantee has no room for it any more")
"""How the demand of an owner ends whose guarantee is gone."""

Edit = Callable[[Agreed, str], str]


def delete_policy(agreed: Agreed, group: str) -> str:
    """Ask for the deletion of a group's policy; return the verdict on it."""
    agreed.deleted.add(group)
    return agreed.verdict(group)


def lower_share(agreed: Agreed, group: str) -> str:
    """Lower a group's share below what its policy asks."""
    agreed.shares[group] = 4
    return agreed.verdict(group)


def remove_share(agreed: Agreed, group: str) -> str:
    """Give a group no share any more."""
    del agreed.shares[group]
    return agreed.verdict(group)


EDITS = pytest.mark.parametrize(
    ("edit", "verdict"),
    [
        (delete_policy, conditions.DELETING),
        (lower_share, conditions.BEYOND_SHARE),
        (remove_share, conditions.NO_SHARE),
    ],
    ids=["policy-deleted", "share-lowered", "share-removed"],
)
"""What takes the whole of a group's terms away."""


class Scene:
    """A race on agreed terms, and a witness of it."""

    def __init__(self, race: Race, agreed: Agreed, witness: Witness) -> None:
        self.race, self.bank = race, race.bank
        self.agreed, self.witness = agreed, witness

    @classmethod
    async def open(
        cls, banks: ManyBanks, patch: pytest.MonkeyPatch, *, grace: str = "30s", serving: int = 16
    ) -> "Scene":
        """Open a pool of two nodes in which research borrows; its notice is of `grace`, by policy and by pool."""
        banks.trainers.moods.clear()  # of earlier scenes, whose jobs' names may be the beginning of these
        race = await Race.open(banks)
        agreed = Agreed(race.bank, {"serving": serving, "research": 0}, grace=grace, maxGracePeriod=grace)
        return cls(race, agreed, Witness(race.bank, patch))

    async def lends_everything(self) -> dict[str, WorkloadFacts]:
        """Have all of the pool lent to two trainers, and the newer one asked for its checkpoint: it takes its time."""
        trains = {name: await self.race.trains(name, mood=Mood.SILENT) for name in ("one", "two")}
        await self.race.wants()
        await self.race.asked(trains["two"])
        return trains

    async def has_no_room(self) -> None:
        """See the owner's demand cancelled because its guarantee is gone; the owner takes its job away.

        Left there, it might be admitted while the guarantee falls: what comes back is its queue's for a moment.
        """

        async def cancelled() -> bool:
            return NO_ROOM in self.witness.ends("serving", DemandKind.WORKLOAD)

        await self.bank.until(cancelled, "the owner's demand is cancelled")
        await self.bank.world.delete_job("serving", self.race.job("serve"))

    async def given_up(self, lender: str, kind: DemandKind) -> str:
        """See a demand end PARTIAL, and return why."""

        async def partial() -> bool:
            return [state for state, _ in self.witness.ends(lender, kind)] == [DemandState.PARTIAL]

        await self.bank.until(partial, f"the {kind} demand of {lender} is given up for now")
        return self.witness.ends(lender, kind)[0][1]

    async def lent_by_the_pool(self, loans: int) -> None:
        """See so many loans, and all of them of what nobody is guaranteed any more."""

        async def on_surplus() -> bool:
            lines = await self.bank.lines()
            return [(x.lender, x.state) for x in lines] == [(SURPLUS, LineState.GRANTED)] * loans

        await self.bank.until(on_surplus, f"the pool lends {loans} times")

    async def parked(self, *trains: WorkloadFacts) -> None:
        """See them parked with a verified checkpoint, and somebody there to bring them back."""
        for train in trains:
            state = await self.bank.loan_in(train, LoanPhase.PARKED)
            assert state.history[-1].checkpoint is not None
            handle = self.bank.client.temporal.get_workflow_handle(self.bank.loan(train))
            assert (await handle.describe()).status is WorkflowExecutionStatus.RUNNING

    async def in_force(self, group: str) -> int:
        """GPUs of a group's guarantee that are in force."""
        return (await self.bank.ledger.books(self.bank.cluster, self.bank.pool)).guarantee(group).in_force


@EDITS
async def test_a_lender_that_loses_its_terms_in_its_recall_has_its_demand_cancelled_and_its_loans_back(
    edit: Edit, verdict: str, banks: ManyBanks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scene = await Scene.open(banks, monkeypatch)
    trains = await scene.lends_everything()
    assert edit(scene.agreed, "serving") == verdict
    assert [group.group for group in scene.bank.terms.now.groups] == ["research"]
    await scene.has_no_room()
    for name in trains:
        scene.race.mood(name, Mood.SAVES)
    await scene.lent_by_the_pool(2)
    for train in trains.values():
        state = await scene.bank.loan_in(train, LoanPhase.ACTIVE)
        assert [term.lenders for term in state.history] == [("serving",), (SURPLUS,)]
        assert state.history[0].checkpoint is not None
    await scene.witness.at_rest(tmp_path)
    scene.witness.stopped(*trains.values())
    assert await scene.in_force("serving") == 0


@EDITS
async def test_a_trainer_that_cannot_save_outlives_the_terms_of_its_lender(
    edit: Edit, verdict: str, banks: ManyBanks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scene = await Scene.open(banks, monkeypatch, grace="2s")
    trains = await scene.lends_everything()
    assert edit(scene.agreed, "serving") == verdict
    await scene.has_no_room()
    await scene.given_up("serving", DemandKind.LIMIT)
    await scene.witness.at_rest(tmp_path)
    scene.witness.stopped()
    for name, train in trains.items():
        await scene.race.runs_on(name, train)
    assert await scene.in_force("serving") == 16, "it falls no further than what is lent"


async def test_a_loan_that_the_pool_can_take_over_is_let_go_when_its_lender_loses_its_terms(
    banks: ManyBanks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scene = await Scene.open(banks, monkeypatch)
    train = await scene.race.trains("train", mood=Mood.SILENT)
    await scene.race.wants(gpus=16)
    await scene.race.asked(train)
    delete_policy(scene.agreed, "serving")
    await scene.has_no_room()
    await scene.lent_by_the_pool(1)
    await scene.bank.loan_in(train, LoanPhase.ACTIVE)
    await scene.witness.at_rest(tmp_path)
    scene.witness.stopped()
    await scene.race.runs_on("train", train)


@EDITS
async def test_a_recall_goes_on_for_its_lender_when_another_lender_of_the_victim_loses_its_terms(
    edit: Edit, verdict: str, banks: ManyBanks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    race = await Race.open(banks)
    bank = await banks.open(f"three{race.bank.pool}", {"serving": 8, "audio": 8, "research": 0})
    bank.look, race.bank = 0.1, bank
    agreed = Agreed(bank, {"serving": 8, "audio": 8, "research": 0})
    scene = Scene(race, agreed, Witness(bank, monkeypatch))
    race.mood("big", Mood.SILENT)
    await bank.world.submit_job(_training(race.job("big"), pods=2))
    big = await bank.placed(race.job("big"))
    assert {line.lender for line in await bank.lines()} == {"serving", "audio"}
    await race.wants()
    await race.asked(big)
    assert edit(agreed, "audio") == verdict
    race.mood("big", Mood.SAVES)
    await race.served()
    await scene.parked(big)
    await scene.witness.at_rest(tmp_path)
    scene.witness.stopped(big)
    assert [state for state, _ in scene.witness.ends("serving", DemandKind.WORKLOAD)] == [DemandState.MET]
    assert (await scene.in_force("serving"), await scene.in_force("audio")) == (8, 0)
    assert not await bank.lines()
    await bank.world.finish_job("serving", race.job("serve"))
    await bank.placed(race.job("big"))  # on serving's and on surplus
    assert {line.lender for line in await bank.lines()} == {"serving", SURPLUS}


async def test_a_borrower_without_a_policy_is_stopped_with_its_checkpoint_and_comes_back_with_a_policy(
    banks: ManyBanks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scene = await Scene.open(banks, monkeypatch)
    race, bank = scene.race, scene.bank
    train = await race.trains("train", mood=Mood.SILENT)
    await race.wants(gpus=16)
    await race.asked(train)
    assert delete_policy(scene.agreed, "research") == conditions.DELETING
    race.mood("train", Mood.SAVES)
    await race.served()
    await race.ended(ReclaimPhase.MET)
    await scene.parked(train)
    await scene.witness.at_rest(tmp_path)
    scene.witness.stopped(train)
    await bank.world.finish_job("serving", race.job("serve"))
    await bank.until(lambda: _idle(scene), "the GPUs are idle")
    await bank.loan_in(train, LoanPhase.PARKED)  # nobody lends to a group without terms
    scene.agreed.deleted.clear()
    scene.agreed.judge()
    assert (await bank.placed(race.job("train"))).key == train.key


async def test_a_borrower_without_a_policy_that_cannot_save_is_protected(
    banks: ManyBanks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scene = await Scene.open(banks, monkeypatch, grace="2s")
    race = scene.race
    train = await race.trains("train", mood=Mood.SILENT)
    await race.wants(gpus=16)
    await race.asked(train)
    assert delete_policy(scene.agreed, "research") == conditions.DELETING
    assert "nobody else may be stopped" in await scene.given_up("serving", DemandKind.WORKLOAD)
    await scene.witness.at_rest(tmp_path)
    scene.witness.stopped()
    await race.runs_on("train", train)


async def test_a_pool_that_is_being_deleted_in_a_recall_gets_all_of_it_back_and_forgets_nobody(
    banks: ManyBanks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("activities.loans.END_POLL", SOON)
    scene = await Scene.open(banks, monkeypatch)
    race, bank = scene.race, scene.bank
    train = await race.trains("train", mood=Mood.SILENT)
    await race.wants(gpus=16)
    await race.asked(train)
    scene.agreed.leaving = True
    assert {scene.agreed.verdict(group) for group in ("serving", "research")} == {conditions.DELETING}
    assert bank.terms.now.groups == ()
    await scene.has_no_room()
    race.mood("train", Mood.SAVES)
    await scene.parked(train)
    await scene.witness.at_rest(tmp_path)
    scene.witness.stopped(train)
    books = await bank.ledger.books(bank.cluster, bank.pool)
    assert (books.lines, books.demands, books.promised) == ((), (), 0), "the pool's finalizer waits for nothing"
    bank.terms.gone = True  # nobody tells the Loan any more: it looks by itself
    await bank.world.delete_job("research", race.job("train"))
    await bank.loan_in(train, LoanPhase.CLOSED)


async def test_a_pool_that_is_being_deleted_in_a_recall_stops_nobody_who_cannot_save(
    banks: ManyBanks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scene = await Scene.open(banks, monkeypatch, grace="2s")
    trains = await scene.lends_everything()
    scene.agreed.leaving = True
    scene.agreed.judge()
    await scene.has_no_room()
    await scene.given_up("serving", DemandKind.LIMIT)
    await scene.witness.at_rest(tmp_path)
    scene.witness.stopped()
    for name, train in trains.items():
        await scene.race.runs_on(name, train)


async def test_a_capacity_below_what_is_lent_takes_the_lenders_terms_and_brings_both_loans_back(
    banks: ManyBanks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scene = await Scene.open(banks, monkeypatch)
    race, bank = scene.race, scene.bank
    trains = await scene.lends_everything()
    scene.agreed.capacity = 8
    assert scene.agreed.verdict("serving") == conditions.BEYOND_CAPACITY
    await scene.has_no_room()
    for name in trains:
        race.mood(name, Mood.SAVES)
    await scene.lent_by_the_pool(1)
    await scene.witness.at_rest(tmp_path)
    scene.witness.stopped(*trains.values())
    (back,) = await bank.lines()
    (other,) = [train for train in trains.values() if train.key.uid != back.workload.uid]
    await scene.parked(other)
    assert await scene.in_force("serving") == 0


async def test_a_capacity_that_leaves_the_guarantee_only_meets_the_demand_and_takes_the_surplus_back(
    banks: ManyBanks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scene = await Scene.open(banks, monkeypatch, serving=8)
    race, bank = scene.race, scene.bank
    trains = await scene.lends_everything()
    assert {line.lender for line in await bank.lines()} == {"serving", SURPLUS}
    scene.agreed.capacity = 8
    assert scene.agreed.verdict("serving") == conditions.APPLIED
    for name in trains:
        race.mood(name, Mood.SAVES)
    await race.served()
    await scene.parked(*trains.values())
    await scene.witness.at_rest(tmp_path)
    scene.witness.stopped(*trains.values())
    assert [state for state, _ in scene.witness.ends("serving", DemandKind.WORKLOAD)] == [DemandState.MET]
    assert [state for state, _ in scene.witness.ends(SURPLUS, DemandKind.LIMIT)] == [DemandState.MET]
    assert await scene.in_force("serving") == 8


def _training(name: str, *, pods: int) -> JobRequest:
    labels = {"platform.aik8s.run/retryable": "false"}
    return JobRequest("research", name, side=Side.BORROW, pods=pods, gpus_per_pod=8, labels=labels, annotations=HOOK)


async def _idle(scene: Scene) -> bool:
    facts = await scene.bank.world.backend.observe(scene.bank.pool)
    return not any(queue.reserved for queue in facts.queues)
