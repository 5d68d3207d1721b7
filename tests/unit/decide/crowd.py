"""A group whose own work holds its guarantee while more important own work waits, for tests of who makes room."""

from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any

from gpubank.decide.desk import Desk
from gpubank.decide.recall import RecallPlan
from gpubank.domain.contract import Side, WorkloadContract
from gpubank.domain.policy import WithinGroup
from tests.unit.decide.model import Model
from tests.unit.decide.parts import HOOKED, Job, group_terms, pool_terms

OWN = Side.OWN
LOWER = WithinGroup.LOWER_PRIORITY
DEMAND = "h100/a/Workload/high"


def crowded(
    *,
    guaranteed: int = 8,
    less: int = 8,
    more: int = 8,
    priority: int = 1,
    contract: WorkloadContract = HOOKED,
    within: WithinGroup = LOWER,
    nodes: int = 2,
    others: Mapping[str, int] = MappingProxyType({}),
    **terms: object,
) -> Model:
    """A pool in which `low` of group a holds its guarantee, with `others` of a priority each, and `high` waits."""
    groups = group_terms("a", guaranteed, within_group=within), group_terms("b", 8 * nodes - guaranteed)
    model = Model(pool_terms(*groups, capacity=8 * nodes, **terms), {f"n{i}": 8 for i in range(nodes)})
    model.settle()
    model.submit("low", "a", OWN, less, contract=contract)
    for uid, rank in others.items():
        model.submit(uid, "a", OWN, 8, priority=rank, contract=contract)
    model.settle()
    assert model.jobs["low"].reserved
    model.notice = True
    model.submit("high", "a", OWN, more, priority=priority)
    return model


def runs(model: Model, seconds: float = 2) -> None:
    """Let everybody act for a while."""
    for _ in range(int(seconds / 0.3)):
        model.round()
        model.now += timedelta(milliseconds=300)


def desk(model: Model) -> Desk:
    return Desk(model.facts(), model.books, model.terms, model.now)


def plan_of(model: Model) -> RecallPlan:
    return model.plan(DEMAND)


def victims(model: Model) -> list[str]:
    return [victim.workload.uid for victim in plan_of(model).victims]


def ended(job: Job) -> Job:
    job.finished, job.reserved, job.nodes = True, False, []
    return job


def taken(**how: Any) -> Model:
    """A pool in which `low` has just been taken and switched off, and still holds quota and pods."""
    model = crowded(**how)
    runs(model)
    model.notice = False
    while model.jobs["low"].active:
        assert model.work() or model.write() or model.fence()
    return model
