"""Gates: they hold whoever comes by until they are opened, and nobody has any unless a crash test asks."""

import asyncio
import os
from dataclasses import MISSING, fields
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.activity import _Definition

from activities.failures import FailureInterceptor
from activities.pools import Pools
from gpubank.controller.main import _processes
from gpubank.domain.faults import SPOTS, FaultPoint, Position, Spot
from gpubank.domain.loan import WorkloadKey
from gpubank.domain.recall import LoanInput, ReleaseOrder, StopOrder
from gpubank.domain.steps import CheckpointStep, DemandStep, LoanOrder, LoanOrders, LoanStep
from gpubank.faultgate import FaultGate
from gpubank.settings import Settings
from tests.support.waiting import seen
from workers.faults import POINTS, FaultInterceptor, GatedPools, place_of
from workers.wiring import Ports, cluster_activities

STOP = Spot(FaultPoint.STOP, Position.BEFORE)


async def test_a_shut_gate_holds_until_it_is_opened_and_says_who_waits(tmp_path: Path) -> None:
    gate = FaultGate(tmp_path)
    gate.shut("h100", STOP)
    waits = asyncio.create_task(gate.at("h100", STOP))
    await seen(lambda: gate.waited("h100", STOP), "somebody at the gate")
    assert gate.waited("h100", STOP) == [os.getpid()]
    assert not waits.done()
    gate.open("h100", STOP)
    await waits


@pytest.mark.parametrize("spot", SPOTS, ids=str)
async def test_a_gate_that_nobody_has_shut_holds_nobody(tmp_path: Path, spot: Spot) -> None:
    gate = FaultGate(tmp_path)
    gate.shut("another", spot)
    await gate.at("h100", spot)
    assert gate.waited("h100", spot) == []


def test_without_the_setting_nothing_of_it_is_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert Settings.load().faults.folder is None
    client: Any = SimpleNamespace()
    assert _processes(client, None) is client
    ports = _ports(None)
    assert type(ports.pools("local")) is Pools
    assert [type(each) for each in ports.interceptors()] == [FailureInterceptor]


def test_with_the_setting_every_activity_and_every_transaction_comes_by(tmp_path: Path) -> None:
    ports = _ports(FaultGate(tmp_path))
    assert type(ports.pools("local")) is GatedPools
    assert [type(each) for each in ports.interceptors()] == [FailureInterceptor, FaultInterceptor]


def test_steps_are_told_from_one_another_by_what_they_are_about() -> None:
    workload = WorkloadKey(uid="u-1", namespace="team-a", name="job-1")
    loan = LoanStep(loan="loan/local/u-1", cluster="local", pool="h100", borrower="a", workload=workload, term=1)
    start = LoanInput(cluster="local", pool="h100", borrower="a", workload=workload, gpus=8)
    demand = DemandStep(reclaim="r", cluster="local", pool="h100", lender="b", demand="d")
    asked = CheckpointStep(step=loan, request_id="c-1", epoch=1, deadline=datetime(2026, 3, 1, tzinfo=UTC))
    stop, release = StopOrder(reclaim="r", demand="d"), ReleaseOrder(reclaim="r", demand="d", reason="")
    assert place_of("loan.stop", loan) == ("h100", FaultPoint.STOP)
    assert place_of("checkpoint.request", asked) == ("h100", FaultPoint.ASK)
    assert place_of("reclaim.raise_queue", demand) == ("h100", FaultPoint.RAISE)
    assert place_of("loan.look", loan) is None
    assert place_of("orders.send", LoanOrders(orders=(LoanOrder(start=start, stop=stop),))) == (
        "h100",
        FaultPoint.STOP_ORDER,
    )
    assert place_of("orders.send", LoanOrders(orders=(LoanOrder(start=start, release=release),))) is None


def test_every_step_is_an_activity_that_there_is() -> None:
    dispatch: Any = SimpleNamespace()
    activities = cluster_activities("local", _ports(None), dispatch)
    names = {definition.name for each in activities if (definition := _Definition.from_callable(each)) is not None}
    assert set(POINTS) <= names


def _ports(gate: FaultGate | None) -> Ports:
    nothing: Any = SimpleNamespace()
    needed = [each.name for each in fields(Ports) if each.default is MISSING and each.default_factory is MISSING]
    return Ports(**dict.fromkeys(needed, nothing), faults=gate)
