"""Which quotas a step of a Loan or a Reclaim writes."""

from datetime import UTC, datetime
from typing import Any

from activities.pools import Pools
from gpubank.domain.books import Books
from gpubank.domain.contract import Side
from gpubank.domain.facts import PoolFacts, QueueFacts
from gpubank.domain.transaction import CapacityChange, GuaranteeChange, Transaction

NOW = datetime(2026, 11, 2, 9, tzinfo=UTC)
IN_FORCE = {"a": 8, "b": 8, "c": 4}
QUOTAS = {"a": 4, "b": 4, "c": 8}


class Paper:
    """A ledger and a scheduler with three queues, which writes down what is written."""

    def __init__(self, epoch: int = 0) -> None:
        self.epoch = epoch
        self.written: list[tuple[str, int]] = []

    async def books(self, cluster: str, pool: str) -> Books:
        guarantees = tuple(GuaranteeChange(group=group, version=0, in_force=n) for group, n in IN_FORCE.items())
        head: dict[str, Any] = {"key": "open", "cluster": cluster, "pool": pool, "at": NOW, "actor": "test"}
        opening = Transaction(capacity=CapacityChange(capacity=20), guarantees=guarantees, **head)
        return Books(cluster=cluster, pool=pool).applied(opening).books

    async def observe(self, pool: str) -> PoolFacts:
        queues = tuple(
            QueueFacts(name=f"{group}.{pool}.own", group=group, kind=Side.OWN, nominal=nominal, stamp=1)
            for group, nominal in QUOTAS.items()
        )
        return PoolFacts(cluster="local", pool=pool, at=NOW, queues=queues, fail_safe_epoch=self.epoch)

    async def write_quota(self, pool: str, group: str, kind: Side, *, nominal: int, revision: int) -> None:
        self.written.append((group, nominal))


def pools(paper: Paper) -> Pools:
    parts: Any = paper
    return Pools("local", quota=parts, ledger=parts, terms=parts)


async def test_a_step_lowers_every_quota_and_raises_those_of_its_groups_alone() -> None:
    paper = Paper()
    await pools(paper).write_quotas("h100", "a")
    assert paper.written == [("c", 4), ("a", 8)]


async def test_a_step_raises_for_every_group_that_it_names() -> None:
    paper = Paper()
    await pools(paper).write_quotas("h100", "b", "a")
    assert paper.written[0] == ("c", 4)
    assert sorted(paper.written[1:]) == [("a", 8), ("b", 8)]


async def test_a_step_writes_no_quota_under_the_fail_safe() -> None:
    paper = Paper(epoch=3)
    await pools(paper).write_quotas("h100", "a")
    assert paper.written == []
