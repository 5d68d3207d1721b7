"""The fail-safe on real Kueue: the watchdog under its own rights, the owner served, and the bank's way back."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpubank.adapters.kubernetes.agreements import PolledAgreements
from gpubank.adapters.kubernetes.connection import Connection
from gpubank.adapters.kubernetes.errors import ApiError
from gpubank.adapters.kubernetes.kinds import COHORT, POD, WORKLOAD
from gpubank.adapters.kubernetes.kueue.failsafe import KueueFailSafe
from gpubank.adapters.kubernetes.leases import KubernetesLeases
from gpubank.adapters.ledger import SqlLedger
from gpubank.agreements import Agreements
from gpubank.controller.pool_loop import PoolLoop
from gpubank.domain.contract import Side, cohort_name
from gpubank.domain.errors import ConflictError
from gpubank.domain.facts import PoolFacts
from gpubank.domain.failsafe import heartbeat_lease
from gpubank.domain.pool import DEFAULT_RESOURCE
from gpubank.domain.terms import GroupTerms, PoolTerms
from gpubank.lab import Lab
from gpubank.lab.bank import SYSTEM_NAMESPACE, install
from gpubank.watchdog.watchdog import Watchdog
from tests.contract.kueue_world import KueueWorld, kueue_world
from tests.contract.world import JobRequest, job_of, layout, the
from tests.unit.controller.harness import Remembered

AFTER = timedelta(seconds=3)
RBAC = Path(__file__).parents[2] / "manifests/base/watchdog/rbac.yaml"


class Quiet:
    """A notifier that nobody listens to."""

    async def notify(self, **said: Any) -> None:
        """Say nothing."""


class Scene:
    """One pool: a bank that may be dead, and a watchdog with its own rights."""

    def __init__(self, world: KueueWorld, ledger: SqlLedger, limited: Connection) -> None:
        self.world, self.ledger, self.limited = world, ledger, limited
        self.terms = PoolTerms(
            cluster=world.cluster,
            pool=world.pool,
            resource_name=DEFAULT_RESOURCE,
            capacity=40,
            groups=tuple(
                GroupTerms(group=name, guaranteed=16, borrow_limit=24, lending_limit=16) for name in ("a", "b")
            ),
            max_grace_period=timedelta(minutes=10),
            max_termination=timedelta(seconds=60),
            max_time_to_return=timedelta(minutes=30),
            resume_after=timedelta(0),
            min_run_time=timedelta(0),
            fail_safe_after=AFTER,
        )
        self.processes = Remembered()
        self.loop = PoolLoop(
            world.cluster,
            world.pool,
            backend=world.backend,
            ledger=ledger,
            processes=self.processes,
            notifier=Quiet(),
            terms=lambda: self.terms,
            now=lambda: datetime.now(UTC),
            resync=timedelta(seconds=1),
        )
        self.watchdog = Watchdog(
            world.cluster,
            terms=self._terms,
            leases=KubernetesLeases(limited, SYSTEM_NAMESPACE),
            backend=KueueFailSafe(limited),
        )
        self._beats = KubernetesLeases(world.connection, SYSTEM_NAMESPACE)
        self._tasks: list[asyncio.Task[None]] = []
        self._bank: list[asyncio.Task[None]] = []

    async def _terms(self) -> Mapping[str, PoolTerms]:
        return {self.world.pool: self.terms}

    async def start(self) -> None:
        await self.world.add_nodes(8, 8, 8, 8, 8)
        await self.world.backend.lay_out(layout(self.world, "a", "b"))
        self.live()
        self._tasks.append(asyncio.create_task(self.watchdog.run(0.25)))

    def live(self) -> None:
        """Let the bank live."""
        self._bank = [asyncio.create_task(self.loop.run()), asyncio.create_task(self._beat())]

    async def _beat(self) -> None:
        while True:
            lease = heartbeat_lease(self.world.cluster, self.world.pool)
            await self._beats.renew(lease, holder="gpubank", duration=timedelta(seconds=2))
            await asyncio.sleep(0.5)

    async def die(self) -> None:
        """Let the bank be dead."""
        await _cancel(self._bank)

    async def end(self) -> None:
        await _cancel([*self._tasks, *self._bank])

    async def job(self, group: str, name: str, pods: int = 1, side: Side = Side.OWN) -> None:
        priority = 10 if side is Side.BORROW else 0  # to Kueue a borrower may be the more important one
        await self.world.submit_job(JobRequest(group, name, side=side, pods=pods, priority=priority))

    async def until(self, holds: Any, what: str, timeout: float = 20) -> PoolFacts:
        return await self.world.wait_until(holds, what=what, timeout=timeout)

    async def placed(self, *names: str) -> PoolFacts:
        def holds(facts: PoolFacts) -> bool:
            return all((found := job_of(facts, name)) is not None and found.placed for name in names)

        return await self.until(holds, f"{names} are placed")

    def quota(self, facts: PoolFacts) -> dict[str, int]:
        return {f"{queue.group}.{queue.kind}": queue.nominal for queue in facts.queues}


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
async def limited(lab: Lab) -> AsyncIterator[Connection]:
    """A connection with the watchdog's rights and no others, as a user of the lab's authority."""
    await asyncio.to_thread(install, lab)
    name = f"watchdog-{uuid.uuid4().hex[:6]}"
    manifests = [each for each in yaml.safe_load_all(RBAC.read_text()) if each["kind"] != "ServiceAccount"]
    for each in manifests:
        if "subjects" in each:
            each["metadata"]["name"] += f"-{name}"
            each["subjects"] = [{"kind": "User", "name": name, "apiGroup": "rbac.authorization.k8s.io"}]
    await asyncio.to_thread(lab.apply, manifests)
    async with Connection.open(await asyncio.to_thread(lab.user, name)) as connection:
        yield connection


@pytest.fixture
async def scene(lab: Lab, limited: Connection, tmp_path: Path) -> AsyncIterator[Scene]:
    async with (
        kueue_world(lab, "a", "b") as world,
        await SqlLedger.open(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger,
    ):
        scene = Scene(world, ledger, limited)
        try:
            await scene.start()
            yield scene
        finally:
            await scene.end()


async def test_a_dead_bank_costs_no_owner_its_guarantee_and_what_ran_is_in_the_books_afterwards(scene: Scene) -> None:
    world, pool = scene.world, scene.world.pool
    await scene.until(lambda facts: scene.quota(facts).get("b.own") == 16, "guarantees are in force")
    await scene.job("a", "own", 2)
    await scene.placed("own")
    await scene.job("a", "surplus", side=Side.BORROW)
    await scene.placed("surplus")
    await scene.job("a", "loan", side=Side.BORROW)
    facts = await scene.placed("loan")
    assert scene.quota(facts) == {"a.own": 16, "a.borrow": 16, "b.own": 8, "b.borrow": 0}

    # The bank dies, and an owner wants its guarantee.
    await scene.die()
    await scene.job("b", "gang", 2)
    facts = await scene.placed("gang")
    assert facts.fail_safe_epoch == 1
    assert the(facts, "own").placed
    assert the(facts, "own").evicted == ""
    paid = {name for name in ("own", "surplus", "loan") if not the(facts, name).reserved}
    assert len(paid) == 1, "one borrow job of 8 was enough"
    assert paid < {"surplus", "loan"}
    stopped_at = datetime.now(UTC)
    facts = await scene.until(lambda f: all(queue.fail_safe for queue in f.queues), "every queue is in the Cohort")
    assert scene.quota(facts) == {"a.own": 16, "a.borrow": 0, "b.own": 16, "b.borrow": 0}
    with pytest.raises(ConflictError):
        await world.backend.write_quota(pool, "a", Side.BORROW, nominal=0, revision=99)
    with pytest.raises(ConflictError):
        await world.backend.take_back(pool, "a", Side.BORROW, nominal=0, revision=99)

    # Its guarantee is free again: the scheduler lends by itself, and a new borrow job comes in too.
    await world.finish_job("b", "gang")
    await scene.placed("surplus", "loan")
    await scene.job("b", "stray", side=Side.BORROW)
    facts = await scene.placed("stray")
    strayed = the(facts, "stray").admitted_at
    assert strayed is not None

    # The bank comes back.
    scene.live()
    await scene.until(lambda f: not f.in_fail_safe, "the bank has its queues back", 30)

    async def told() -> bool:
        books = await scene.ledger.books(world.cluster, pool)
        facts = await world.backend.observe(pool)
        wanted = {f"{g}.own": books.own_nominal(g) for g in "ab"} | {f"{g}.borrow": books.granted(g) for g in "ab"}
        return scene.quota(facts) == wanted

    for _ in range(200):
        if await told():
            break
        await asyncio.sleep(0.05)
    facts, books = await world.backend.observe(pool), await scene.ledger.books(world.cluster, pool)
    for name in ("surplus", "loan", "stray"):
        workload = the(facts, name)
        assert workload.placed, f"{name} runs on"
        assert sum(line.gpus for line in books.lines_of(workload.key.uid)) == 8
    (adopted,) = books.lines_of(the(facts, "stray").key.uid)
    assert adopted.granted_at == strayed
    assert sum(queue.nominal for queue in facts.queues) <= 40
    ended = [
        line
        for line in await scene.ledger.lines(cluster=world.cluster, pool=pool)
        if not line.is_open and line.workload.job == f"Job/{next(iter(paid))}"
    ]
    for line in ended:  # where Kueue said so; a job that came back may have kept its line
        assert line.ended_at is not None
        assert abs(line.ended_at - stopped_at) < timedelta(seconds=5)
    report = await scene.ledger.verify()
    assert report.ok, report.findings
    cohort = await world.connection.get(COHORT, cohort_name(pool))
    assert cohort is not None


async def test_the_watchdog_may_not_look_at_workloads_or_pods_and_reads_what_it_needs(
    limited: Connection, lab: Lab
) -> None:
    for kind in (WORKLOAD, POD):
        with pytest.raises(ApiError, match="forbidden"):
            await limited.page(kind, selectors={})
    assert await Agreements("lab", PolledAgreements(limited)).all_terms() is not None
