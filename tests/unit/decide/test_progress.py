"""A borrower that is recalled again and again still gets on: `minRunTime`, on time that is bent."""

from datetime import timedelta

from gpubank.domain.contract import Side
from tests.unit.decide.model import Model
from tests.unit.decide.parts import group_terms, pool_terms

RECALLS = 10
STAY = timedelta(minutes=10)


def test_a_borrower_that_is_recalled_ten_times_in_a_row_makes_progress_every_time() -> None:
    groups = (group_terms("a", 0), group_terms("b", 8))
    model = Model(pool_terms(*groups, capacity=8, min_run_time=STAY), {"n0": 8})
    model.settle()
    model.submit("x", "a", Side.BORROW, 8)
    model.settle()
    x, stays, waits = model.jobs["x"], [], []
    for number in range(RECALLS):
        own = model.submit(f"own{number}", "b", Side.OWN, 8)
        admitted, wanted = x.admitted_at, model.now
        assert admitted is not None
        while x.active:  # its owner wants the GPUs back at once, every time
            assert model.now < wanted + timedelta(minutes=30)
            if not model.round():
                model.now += timedelta(seconds=10)
        stays.append(model.now - admitted)
        model.settle()
        assert own.reserved
        waits.append(model.now - wanted)
        model.finish(own.uid)
        model.settle()
        assert x.reserved, f"it did not come back after recall {number + 1}"
        assert x.mark is not None
        assert x.mark.term == number + 2
    assert all(stay >= STAY for stay in stays[1:]), stays
    assert sum(stays, timedelta()) >= (RECALLS - 1) * STAY
    assert max(waits) <= STAY + timedelta(minutes=6), "an owner waits for a stay, and for the next try"
