"""A pool's loop whose scheduler takes its time: what is decided meanwhile is said, and every quota comes in."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import timedelta
from math import inf
from pathlib import Path
from typing import Any

import pytest

from gpubank.controller.pool_loop import PoolLoop
from gpubank.controller.together import AT_ONCE, begun_until
from gpubank.domain.contract import Side
from gpubank.domain.errors import BackendError, ConflictError
from gpubank.domain.facts import PoolFacts
from gpubank.domain.failsafe import Beat
from tests.unit.controller.harness import POOL, Bank, a_bank

EIGHT = {"guaranteed": 8, "borrowLimit": 8}
MANY = tuple(f"g{number:02d}" for number in range(5 * AT_ONCE))
"""Groups of one GPU each."""

EACH: dict[str, dict[str, Any]] = {group: {"guaranteed": 1} for group in MANY}
RAISED = [(group, Side.OWN, 1) for group in MANY]


class Slow:
    """The simulation behind a door at which something may happen before a quota is written."""

    def __init__(self, bank: Bank) -> None:
        self._bank = bank
        self.rounds: list[list[tuple[str, Side, int]]] = []
        """What was written in each round."""

        self.before: Callable[[tuple[str, Side, int]], Awaitable[None]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bank.cluster, name)

    async def observe(self, pool: str) -> PoolFacts:
        self.rounds.append([])
        return await self._bank.cluster.observe(pool)

    async def write_quota(self, pool: str, group: str, kind: Side, *, nominal: int, revision: int) -> None:
        if self.before is not None:
            await self.before((group, kind, nominal))
        self.rounds[-1].append((group, kind, nominal))
        await self._bank.cluster.write_quota(pool, group, kind, nominal=nominal, revision=revision)

    def raises(self) -> list[int]:
        """How many of the many quotas were raised in each round that raised any."""
        counts = (sum(write in RAISED for write in each) for each in self.rounds)
        return [count for count in counts if count]

    @property
    def written(self) -> list[tuple[str, Side, int]]:
        return [write for each in self.rounds for write in each]


class Scene:
    """A bank whose loop raises for no longer than a moment."""

    def __init__(self, bank: Bank) -> None:
        self.bank, self.slow = bank, Slow(bank)
        backend: Any = self.slow
        self.loop = PoolLoop(
            "local", POOL, backend=backend, ledger=bank.ledger, processes=bank.processes, notifier=bank.cluster.notices,
            terms=lambda: bank.controller.terms(POOL), now=bank.cluster.clock.now,
        )  # fmt: skip

    async def agree(self, **policies: dict[str, Any]) -> None:
        """Have policies laid out, for all that they guarantee, and written by nobody yet."""
        await self.bank.agree(capacity=sum(each["guaranteed"] for each in policies.values()), **policies)
        await self.bank.controller.reconcile()
        await self.bank.controller.stop()

    async def sum_of_quotas(self) -> int:
        return sum(queue.nominal for queue in (await self.bank.cluster.observe(POOL)).queues)


@pytest.fixture
async def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    monkeypatch.setattr(
        "gpubank.controller.pool_loop.begun_until", lambda end, steps: begun_until(end if end == inf else 0.0, steps)
    )
    async with a_bank(tmp_path) as bank:
        for number in range(2, 2 + len(MANY) // 8):
            bank.cluster.add_node(f"node-{number}", 8, pool=POOL)
        yield Scene(bank)


async def test_a_round_raises_for_a_moment_and_the_next_ones_raise_the_rest(scene: Scene) -> None:
    await scene.agree(**EACH)
    await scene.loop.turn()
    assert scene.slow.raises() == [AT_ONCE] * 5
    assert sorted(write for write in scene.slow.written if write in RAISED) == RAISED
    assert await scene.sum_of_quotas() == len(MANY)


async def test_a_demand_that_comes_while_many_quotas_are_raised_is_told_before_they_are(scene: Scene) -> None:
    await scene.agree(a=EIGHT, b=EIGHT)
    scene.bank.submit("b", "own", 8)
    scene.bank.submit("b", "loan", 8, borrow=True)
    for _ in range(20):
        await scene.loop.turn()
        await scene.bank.cluster.advance(0.1)
    assert scene.bank.running() == {"own", "loan"}
    scene.slow.rounds.clear()
    told_at = list[int]()

    async def hear(*_: object, **__: object) -> None:
        told_at.append(sum(scene.slow.raises()))

    async def demand(write: tuple[str, Side, int]) -> None:
        """While the first of them are raised the lender submits."""
        if write in RAISED:
            scene.slow.before = None
            scene.bank.submit("a", "back", 8)
            await scene.bank.cluster.advance(1)

    scene.bank.processes.signal_needs = hear  # type: ignore[method-assign]
    scene.slow.before = demand
    await scene.agree(a=EIGHT, b=EIGHT, **EACH)
    await scene.loop.turn()
    assert told_at[0] <= AT_ONCE < sum(scene.slow.raises()) == len(MANY)


async def test_a_raise_that_loses_a_race_is_in_no_other_ones_way(scene: Scene) -> None:
    lost = list[tuple[str, Side, int]]()

    async def race(write: tuple[str, Side, int]) -> None:
        if write == RAISED[0] and len(lost) < 3:
            lost.append(write)
            raise ConflictError("somebody was first")

    scene.slow.before = race
    await scene.agree(**EACH)
    await scene.loop.turn()
    assert len(lost) == 3
    assert scene.slow.raises()[:4] == [AT_ONCE - 1] * 3 + [AT_ONCE], "who lost is tried again each time"
    assert await scene.sum_of_quotas() == len(MANY)


async def test_a_round_makes_all_lowerings_and_only_then_raises(scene: Scene) -> None:
    await scene.agree(**EACH, a=EIGHT)
    await scene.loop.turn()
    revision = (await scene.bank.books()).revision
    for group in MANY:
        await scene.bank.cluster.write_quota(POOL, group, Side.OWN, nominal=2, revision=revision)
    await scene.bank.cluster.write_quota(POOL, "a", Side.OWN, nominal=0, revision=revision)
    scene.slow.rounds.clear()
    await scene.loop.turn()
    assert sorted(scene.slow.rounds[0][:-1]) == RAISED, "here they are lowered to it"
    assert scene.slow.rounds[0][-1] == ("a", Side.OWN, 8)


async def test_a_write_that_fails_fails_the_turn_when_those_that_had_begun_are_done(scene: Scene) -> None:
    async def fails(write: tuple[str, Side, int]) -> None:
        if write == RAISED[0]:
            raise BackendError("the scheduler is gone")

    scene.slow.before = fails
    await scene.agree(**EACH)
    with pytest.raises(BackendError, match="the scheduler is gone"):
        await scene.loop.turn()
    assert [write for write in scene.slow.written if write in RAISED] == RAISED[1:AT_ONCE]


async def test_a_turn_that_does_nothing_but_write_quotas_is_a_sign_of_life_and_one_that_loses_every_race_is_none(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.agree(**EACH)
    await scene.loop.turn()
    revision = (await scene.bank.books()).revision
    monkeypatch.setattr("gpubank.controller.pool_loop.MAX_ROUNDS", 1)
    for lost in (False, True):
        for group in MANY:  # all of them are raised again
            await scene.bank.cluster.write_quota(POOL, group, Side.OWN, nominal=0, revision=revision)

        async def race(write: tuple[str, Side, int], lost: bool = lost) -> None:
            if lost:
                raise ConflictError("somebody was first")

        scene.slow.before = race
        assert await scene.loop.turn() == timedelta(0), "quotas are left to be written"
        assert await signs(scene) == (0 if lost else 1)


async def signs(scene: Scene) -> int:
    """How many signs of life a loop gives after its last turn, which did not come to an end."""
    leases = Leases()
    scene.loop._leases, scene.loop._beat_at = leases, None
    await scene.loop._beat(timedelta(0))
    return leases.renewed


class Leases:
    """Counts renewals."""

    renewed = 0

    async def read(self, name: str) -> Beat | None:
        return None

    async def renew(
        self, name: str, *, holder: str, duration: timedelta, promises: Mapping[str, int] | None = None
    ) -> None:
        self.renewed += 1
