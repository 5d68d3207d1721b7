"""What users, clusters and databases do must not end a controller: one bad object concerns nobody else."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpubank.domain.base import MAX_GPUS
from gpubank.domain.errors import InvalidObjectError, LedgerError
from tests.unit.controller.harness import Bank, a_bank

EIGHT = {"guaranteed": 8, "borrowLimit": 8}


@pytest.fixture
async def bank(tmp_path: Path) -> AsyncIterator[Bank]:
    async with a_bank(tmp_path) as bank:
        await bank.agree(a=EIGHT, b=EIGHT)
        await bank.let(1)
        yield bank


async def test_jobs_that_ask_for_absurdly_many_gpus_wait_and_everybody_else_is_served(bank: Bank) -> None:
    bank.submit("a", "absurd", 2 * MAX_GPUS, pods=200)
    bank.submit("a", "as-absurd", 3 * MAX_GPUS, pods=300)
    bank.submit("b", "own", 8)
    await bank.let(3)
    assert bank.running() == {"own"}
    body = await bank.cluster.objects.get("GPUQuotaPolicy", "a", "team-a")
    assert body is not None
    assert body["status"]["pending"] == MAX_GPUS
    assert (await bank.books()).demands == ()


async def test_a_status_that_the_api_server_refuses_keeps_no_other_from_being_written(
    bank: Bank, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    objects = bank.cluster.objects
    patch_status = objects.patch_status

    async def refused(kind: str, name: str, namespace: str | None, status: dict[str, Any], **seen: Any) -> None:
        if name == "a":
            raise InvalidObjectError(f"status of {kind} {name!r}", [])
        await patch_status(kind, name, namespace, status, **seen)

    monkeypatch.setattr(objects, "patch_status", refused)
    bank.submit("a", "own-a", 4)
    bank.submit("b", "own-b", 8)
    await bank.let(3)
    body = await objects.get("GPUQuotaPolicy", "b", "team-b")
    assert body is not None
    assert body["status"]["used"] == 8
    assert "status of GPUQuotaPolicy 'a'" in caplog.text


async def test_a_ledger_that_refuses_ends_no_reconciling(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    failed, reconcile = asyncio.Event(), bank.controller.reconcile

    async def once() -> None:
        monkeypatch.setattr(bank.controller, "reconcile", reconcile)
        failed.set()
        raise LedgerError("ledger refuses a row")

    monkeypatch.setattr(bank.controller, "reconcile", once)
    running = asyncio.create_task(bank.controller.run())
    await failed.wait()
    await asyncio.sleep(0.1)
    assert not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("part", ["_post", "_watch", "_keep_beating"])
async def test_a_controller_whose_posting_watch_or_pulse_has_died_ends_and_says_why(
    bank: Bank, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    async def dies(*_: Any) -> None:
        raise ZeroDivisionError(part)

    monkeypatch.setattr(bank.controller, part, dies)
    with pytest.raises(ZeroDivisionError, match=part):
        await asyncio.wait_for(bank.controller.run(), 10)
