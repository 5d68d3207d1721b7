"""Whatever is done to it in whatever order, the simulated cluster stays one that could exist, and comes to rest."""

import asyncio
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpubank.domain.contract import Side
from gpubank.domain.errors import ConflictError
from gpubank.domain.facts import Mark, PoolFacts, Wait
from tests.contract.simulated_world import SimulatedWorld, simulated_world
from tests.contract.world import DeploymentRequest, JobRequest, layout

GROUPS = ("ads", "maps")
NAMES = tuple(f"job-{number}" for number in range(5))
FENCE = 0.35
"""Seconds after an edit in which a cycle may still use the older quota."""

group = st.sampled_from(GROUPS)
name = st.sampled_from(NAMES)
side = st.sampled_from(tuple(Side))
STEPS = st.one_of(
    st.tuples(st.just("submit"), group, name, side, st.integers(1, 3), st.sampled_from([1, 4, 8]), st.integers(0, 1)),
    st.tuples(st.just("deploy"), group, st.just("serve"), st.integers(0, 4)),
    st.tuples(st.just("scale"), group, st.just("serve"), st.integers(0, 4)),
    st.tuples(st.just("finish"), group, name),
    st.tuples(st.just("delete"), group, name),
    st.tuples(st.just("stop"), st.integers(0, 9)),
    st.tuples(st.just("resume"), st.integers(0, 9)),
    st.tuples(st.just("quota"), group, side, st.sampled_from([0, 4, 8, 16, 24])),
    st.tuples(st.just("lose"), st.integers(1, 3)),
    st.tuples(st.just("gain"), st.integers(1, 3)),
    st.tuples(st.just("stall"), st.sampled_from([0.05, 0.2])),
    st.tuples(st.just("pause"), st.sampled_from([0.0, 0.01, 0.04, 0.3, 1.1])),
)


class Watched:
    """A world, and the quotas that a cycle may still be using."""

    def __init__(self, world: SimulatedWorld) -> None:
        self.world = world
        self.revision = 0
        self.written: list[tuple[float, str, int]] = [(0.0, f"{g}.{world.pool}.{s}", 0) for g in GROUPS for s in Side]
        self.reserved: dict[str, int] = {}

    async def do(self, step: tuple[Any, ...]) -> None:
        world, simulated = self.world, self.world.simulated
        namespace = world.namespace(step[1]) if step[1] in GROUPS else ""
        match step:
            case ("submit", owner, job, kind, pods, gpus, priority):
                if not any(each.name == job for each in simulated.list_jobs(namespace)):
                    request = JobRequest(owner, job, side=kind, pods=pods, gpus_per_pod=gpus, priority=priority)
                    await world.submit_job(request)
            case ("deploy", owner, deployment, replicas):
                if not any(each.name == deployment for each in simulated.list_jobs(namespace)):
                    await world.submit_deployment(DeploymentRequest(owner, deployment, replicas, gpus_per_pod=2))
            case ("scale", _, deployment, replicas):
                simulated.scale_deployment(deployment, replicas, namespace)
            case ("finish", _, job):
                simulated.finish_job(job, namespace)
            case ("delete", _, job):
                simulated.delete_job(job, namespace)
            case ("stop" | "resume" as act, number):
                await self.mark(act, number)
            case ("quota", owner, kind, nominal):
                self.revision += 1
                await simulated.write_quota(world.pool, owner, kind, nominal=nominal, revision=self.revision)
                self.written.append((simulated.clock.monotonic(), f"{owner}.{world.pool}.{kind}", nominal))
            case ("lose", number):
                if any(node.name == f"node-{number}" for node in (await self.facts()).nodes):
                    simulated.remove_node(f"node-{number}")
            case ("gain", number):
                simulated.add_node(f"node-{number}", 8, pool=world.pool)
            case ("stall", seconds):
                simulated.stall_cycle(seconds)
            case ("pause", seconds):
                await self.pass_time(seconds)

    async def mark(self, act: str, number: int) -> None:
        suspendable = [each for each in (await self.facts()).workloads if each.suspendable]
        if not suspendable:
            return
        seen = suspendable[number % len(suspendable)]
        call = self.world.backend.stop if act == "stop" else self.world.backend.resume
        mark = Mark(loan=f"loan/local/{seen.key.uid}", term=seen.next_term, step=act)
        try:
            await call(self.world.pool, seen.key, mark, seen=seen.version)
        except ConflictError:
            assert act == "resume"
            assert not seen.parked

    async def facts(self) -> PoolFacts:
        return await self.world.backend.observe(self.world.pool)

    async def pass_time(self, seconds: float) -> None:
        """Let time pass in pieces so short that no moment is missed."""
        for _ in range(round(seconds / 0.01)):
            await self.world.pause(0.01)
            self.check(await self.facts())

    def check(self, facts: PoolFacts) -> None:
        now = self.world.simulated.clock.monotonic()
        for node in facts.nodes:
            assert node.used <= node.gpus
        for queue in facts.queues:
            history = [(at, nominal) for at, name, nominal in self.written if name == queue.name]
            current = [nominal for at, nominal in history if at >= now - FENCE]
            usable = max([*current, [nominal for at, nominal in history if at < now - FENCE or at == 0.0][-1]])
            if queue.reserved > self.reserved.get(queue.name, 0):
                assert queue.reserved <= usable, f"{queue.name} took more than any quota that it could have used"
            self.reserved[queue.name] = queue.reserved
            members = [each for each in facts.workloads if (each.group, each.kind) == (queue.group, queue.kind)]
            assert queue.reserved == sum(each.gpus for each in members if each.reserved)
        for each in facts.workloads:
            assert not (each.finished and each.reserved)
            assert each.reserved or each.finished or each.wait is Wait.QUOTA or not each.active
            live = [pod for pod in each.pod_facts if not pod.terminating]
            assert len(live) <= each.pods
            assert all(not pod.node or each.reserved for pod in live)

    def check_at_rest(self, facts: PoolFacts) -> None:
        """Nobody waits for what is there: no event was lost on the way."""
        for queue in facts.queues:
            for each in facts.workloads:
                if (each.group, each.kind) == (queue.group, queue.kind) and not each.reserved and not each.finished:
                    assert not each.active or each.gpus > queue.nominal - queue.reserved
                    assert each.gone or not each.suspendable
        free = max((node.gpus - node.used for node in facts.nodes), default=0)
        for each in facts.workloads:
            if each.reserved:
                assert each.active
                assert len(each.pod_facts) == each.pods
                assert all(pod.node or pod.gpus > free for pod in each.pod_facts)


async def play(steps: Sequence[tuple[Any, ...]]) -> None:
    async with simulated_world() as world:
        await world.backend.lay_out(layout(world, *GROUPS))
        for number in (1, 2):
            world.simulated.add_node(f"node-{number}", 8, pool=world.pool)
        watched = Watched(world)
        for step in steps:
            await watched.do(step)
            watched.check(await watched.facts())
        await watched.pass_time(3.0)
        watched.check_at_rest(await watched.facts())
        for view in world.simulated.list_jobs():
            world.simulated.delete_job(view.name, view.namespace, kind=view.kind)
        await watched.pass_time(1.0)
        facts = await watched.facts()
        assert facts.workloads == ()
        assert not any(queue.reserved for queue in facts.queues)
        assert not any(node.used for node in facts.nodes)


@settings(max_examples=60, deadline=None)
@given(st.lists(STEPS, max_size=25))
def test_the_cluster_stays_possible_and_comes_to_rest(steps: list[tuple[Any, ...]]) -> None:
    asyncio.run(play(steps))
