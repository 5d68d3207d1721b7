"""The whole bank and a watchdog: a worker dies in the middle of a recall, and comes back after its owner was served."""

import contextlib

from gpubank.domain.recall import LoanPhase, ReclaimPhase
from tests.fakes.bank import POOL, FakeBank, in_charge
from tests.fakes.trainer import Mood


async def test_a_recall_that_a_dead_worker_left_is_settled_and_the_job_comes_back(watched: FakeBank) -> None:
    bank = watched
    bank.trainers.mood = Mood.SILENT
    train = await bank.borrow("research", "train", 16, hook=True, pods=2)
    await bank.own("serving", "serve")
    await bank.loan_in(train, LoanPhase.CHECKPOINTING)
    await bank.stop_workers()
    await in_charge(bank, scheduler=True)
    await bank.placed("serve")  # by the scheduler, whose only means is to kill
    preempted = await bank.workload("train")
    assert preempted is not None
    assert (preempted.evicted, preempted.mark) == ("Preempted", None)

    await bank.start_workers()
    await in_charge(bank, scheduler=False)
    assert await bank.nothing_open()
    await bank.reclaim_where("serving", lambda state: state.phase in (ReclaimPhase.CANCELLED, ReclaimPhase.MET))
    still = await bank.workload("serve")
    assert still is not None
    assert still.placed
    bank.trainers.mood = Mood.SAVES
    await bank.world.finish_job("serving", "serve")
    back = await bank.placed("train")
    assert sum(line.gpus for line in await bank.lines()) == 16
    await bank.loan_in(back, LoanPhase.ACTIVE)
    quotas = {f"{queue.group}.{queue.kind}": queue.nominal for queue in (await bank.world.backend.observe(POOL)).queues}
    assert quotas == {"research.own": 0, "research.borrow": 16, "serving.own": 0, "serving.borrow": 0}


async def test_a_job_that_ran_through_it_is_not_stopped_and_its_loan_goes_on(watched: FakeBank) -> None:
    bank = watched
    train = await bank.borrow("research", "train", 16, pods=2)
    before = await bank.lines()
    await bank.stop_workers()
    await in_charge(bank, scheduler=True)
    await bank.start_workers()
    await in_charge(bank, scheduler=False)
    assert [(x.line_id, x.state, x.granted_at) for x in await bank.lines()] == [
        (x.line_id, x.state, x.granted_at) for x in before
    ]
    with contextlib.suppress(AssertionError):
        await bank.loan_in(train, LoanPhase.RECALLED, timeout=1)
        raise RuntimeError("it was recalled for nothing")
    running = await bank.workload("train")
    assert running is not None
    assert running.placed
    assert running.admitted_at == train.admitted_at
