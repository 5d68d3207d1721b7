"""Quotas are lowered before any is raised."""

from gpubank.decide.compile import QuotaWrite, stages
from gpubank.domain.contract import Side
from gpubank.domain.facts import PoolFacts, QueueFacts
from tests.unit.decide.parts import CLUSTER, NOW, POOL


def write(group: str, nominal: int) -> QuotaWrite:
    return QuotaWrite(group=group, kind=Side.OWN, nominal=nominal, revision=1)


def stamped(nominal: int, stamps: dict[str, int]) -> PoolFacts:
    """Own queues of one quota that bear these stamps."""
    queues = tuple(
        QueueFacts(name=f"{group}.{POOL}.own", group=group, kind=Side.OWN, nominal=nominal, stamp=stamp)
        for group, stamp in stamps.items()
    )
    return PoolFacts(cluster=CLUSTER, pool=POOL, at=NOW, queues=queues)


def test_what_raises_a_quota_goes_out_last_and_nothing_goes_out_twice() -> None:
    queues = tuple(QueueFacts(name=f"{g}.{POOL}.own", group=g, kind=Side.OWN, nominal=4) for g in "abc")
    facts = PoolFacts(cluster=CLUSTER, pool=POOL, at=NOW, queues=queues)
    lower, same, higher, new = write("a", 3), write("b", 4), write("c", 5), write("d", 1)
    assert stages([new, higher, same, lower], facts) == ((same, lower), (new, higher))
    assert stages([higher], facts) == ((higher,),)
    assert stages([lower], facts) == ((lower,),)
    assert stages([], facts) == ()


def test_what_was_written_longest_ago_goes_out_first_so_that_nothing_waits_behind_the_rest_for_ever() -> None:
    stamps = {"a": 9, "b": 3, "c": 7, "d": 2, "e": 8}
    facts = stamped(4, stamps)
    lowerings, raises = [write("a", 3), write("d", 2)], [write("b", 5), write("c", 6), write("e", 7), write("new", 1)]
    assert stages([*lowerings, *raises], facts) == (
        (write("d", 2), write("a", 3)),
        (write("new", 1), write("b", 5), write("c", 6), write("e", 7)),
    )


def test_however_often_others_are_raised_again_each_has_its_turn_when_everybody_has_had_one() -> None:
    at_a_time, names = 3, [f"g{number}" for number in range(9)] + ["zoe"]
    stamps = dict.fromkeys(names, 0)
    for revision in range(1, 1 + len(names)):
        (raises,) = stages([write(name, 1) for name in names], stamped(0, stamps))
        for each in raises[:at_a_time]:
            stamps[each.group] = revision
        if stamps["zoe"]:
            break
    assert stamps["zoe"] == 4, "ten queues, three at a time"
