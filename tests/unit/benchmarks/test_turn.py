"""Rounds of a pool's loop, small: whatever the benchmark stands in for is there."""

from benchmarks.turn import measure


async def test_a_loop_on_paper_turns_and_lends() -> None:
    figures = (await measure(groups=4, workloads=20, seconds=2)).figures
    assert (figures["groups"], figures["workloads"]) == (4, 20)
    assert figures["loans_granted"] > 0
