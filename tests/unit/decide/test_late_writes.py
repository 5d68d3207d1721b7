"""Raises that land late: whoever writes may have worked them out from books that others have moved on since.

Controller and workers write the same queues, and a raise takes its time. So one may land any while after it was begun,
in any order, or never, unless its queue bears a later stamp by then.
"""

from datetime import timedelta
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpubank.decide.compile import QuotaWrite, stages, writes
from gpubank.decide.step import Step
from gpubank.domain.contract import Side
from tests.unit.decide.model import Model
from tests.unit.decide.parts import RETRYABLE, group_terms, pool_terms

pytestmark = pytest.mark.timeout(600)


class LateModel(Model):
    """Lowers at once, and raises some time: between any two things that anybody does."""

    luck: Random | None = None
    """Says which raise lands when; without it every one does at once."""

    begun: tuple[QuotaWrite, ...] = ()

    def write(self, *, crash_after: int | None = None) -> int:
        facts = self.facts()
        seen = {(queue.group, queue.kind): queue.nominal for queue in facts.queues}
        asked = writes(self.books, facts)
        for write in (write for stage in stages(asked, facts) for write in stage[:crash_after]):
            if write.nominal > seen[write.group, write.kind]:
                self.begun += (write,)
            else:
                self._land(write)
        self._land_some()
        return len(asked)

    def step(self, *, crash_after: int | None = None) -> Step:
        self._land_some()
        return super().step(crash_after=crash_after)

    def fence(self) -> int:
        self._land_some()
        return super().fence()

    def work(self) -> str:
        self._land_some()
        return super().work()

    def _land_some(self) -> None:
        begun, self.begun = self.begun, ()
        for write in begun:
            if self.luck is None or self.luck.random() < 0.1:
                self._land(write)
            elif self.luck.random() < 0.98:  # else its writer has died
                self.begun += (write,)

    def _land(self, write: QuotaWrite) -> None:
        """Write one queue, unless it bears a later stamp."""
        queue = self.queues[write.group, write.kind]
        if write.revision >= queue.stamp:
            queue.old = max(queue.old, queue.nominal)
            queue.nominal, queue.stamp = write.nominal, write.revision


GROUPS = ("a", "b", "c")


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(luck=st.randoms(use_true_random=True))
def test_no_raise_that_lands_late_lends_anything_twice(luck: Random) -> None:
    terms = pool_terms(*(group_terms(name, 8, lending_limit=8) for name in GROUPS), capacity=24)
    model = LateModel(
        terms.model_copy(update={"resume_after": timedelta(seconds=1)}), {f"node-{i}": 8 for i in range(3)}
    )
    model.settle()
    model.luck = luck
    for number in range(60):
        act = luck.random()
        running = sorted(uid for uid, job in model.jobs.items() if job.reserved)
        if act < 0.35:
            group, side = luck.choice(GROUPS), luck.choice([Side.OWN, Side.BORROW])
            model.submit(f"job-{number}", group, side, luck.choice([1, 2, 4, 8]), contract=RETRYABLE)
        elif act < 0.6 and running:
            model.finish(luck.choice(running))
        model.round()
        model.check()
        model.now += timedelta(milliseconds=300)
    model.luck = None
    assert not model.settle()
    model.check()
