"""Quotas are lowered before any is raised."""

from gpubank.decide.compile import QuotaWrite, stages
from gpubank.domain.contract import Side
from gpubank.domain.facts import PoolFacts, QueueFacts
from tests.unit.decide.parts import CLUSTER, NOW, POOL


def write(group: str, nominal: int) -> QuotaWrite:
    return QuotaWrite(group=group, kind=Side.OWN, nominal=nominal, revision=1)


def test_what_raises_a_quota_goes_out_last_and_nothing_goes_out_twice() -> None:
    queues = tuple(QueueFacts(name=f"{g}.{POOL}.own", group=g, kind=Side.OWN, nominal=4) for g in "abc")
    facts = PoolFacts(cluster=CLUSTER, pool=POOL, at=NOW, queues=queues)
    lower, same, higher, new = write("a", 3), write("b", 4), write("c", 5), write("d", 1)
    assert stages([new, higher, same, lower], facts) == ((same, lower), (new, higher))
    assert stages([higher], facts) == ((), (higher,))
    assert stages([lower], facts) == ((lower,), ())
    assert stages([], facts) == ((), ())
