"""What the log says of a recall: every step of a Loan and of a demand, with the ids that Temporal's UI finds."""

import logging

import pytest

from gpubank.domain.recall import LoanPhase, ReclaimPhase, loan_id, reclaim_id
from gpubank.logs import fields
from tests.fakes.branches import ManyBanks
from tests.workflows.races import Race

pytestmark = [pytest.mark.temporal, pytest.mark.asyncio(loop_scope="module")]


async def test_each_step_of_a_recall_is_told_with_the_ids_of_loan_reclaim_and_demand(
    banks: ManyBanks, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    race = await Race.open(banks)
    bank = race.bank
    train = await race.trains("train")
    await race.wants(gpus=16)
    await race.ended(ReclaimPhase.MET)
    await bank.loan_in(train, LoanPhase.PARKED)
    told = [fields(record) | {"message": record.getMessage()} for record in caplog.records]
    loan, reclaim = loan_id(bank.cluster, train.key.uid), reclaim_id(bank.cluster, bank.pool, "serving")

    steps = [each for each in told if each.get("workflow_id") == loan and "phase" in each]
    assert [each["phase"] for each in steps][-3:] == [LoanPhase.DURABLE, LoanPhase.STOPPING, LoanPhase.PARKED]
    stopped = next(each for each in steps if each["phase"] is LoanPhase.STOPPING)
    assert stopped["reclaim"] == reclaim
    assert "{" not in stopped["message"], "ids stand in fields, not in the message"

    demands = [each for each in told if each.get("workflow_id") == reclaim and "demand" in each]
    assert demands[-1]["phase"] is ReclaimPhase.MET
    assert {each["demand"] for each in demands} == {stopped["demand"]}

    decided = [each for each in told if each.get("pool") == bank.pool]
    assert [each["message"].split()[6] for each in decided if loan in each.get("loans", ())] == ["offered", "granted"]
    assert any(reclaim in each.get("reclaims", ()) for each in decided)
