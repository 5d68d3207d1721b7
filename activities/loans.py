"""What a Loan does to its lines and its Workload, from the recall on.

    recall_lines   GRANTED ─▶ RECALLED     release_lines   RECALLED ─▶ GRANTED
    stop           active=false            await_gone      RECALLED ─▶ RETURNED, once pods and quota are gone
    resume         active=true

Own work that makes room for its group has a line on the own side: RECALLED from the first, taken right before the stop
(the own queue is lowered, so that nobody comes in), and at its end in the place of GRANTED too.

A late attempt can stop nobody: it stops only what bears recalled lines of its own term, against the version of the
Workload that it read first, and every attempt ends by itself before the server starts another.
"""

import asyncio
from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from temporalio import activity

from activities.failures import not_yet, settled
from activities.interfaces import LoanCalls
from activities.leftovers import Leftovers
from activities.pools import RECALLED_ACTION, Pools, groups_of, in_state
from gpubank.decide.comeback import may_come_back
from gpubank.decide.desk import FENCE_POLL, Desk
from gpubank.domain.books import Books
from gpubank.domain.contract import ReclaimClass, Side
from gpubank.domain.demand import DemandKind, DemandState
from gpubank.domain.facts import Mark, PoolFacts, WorkloadFacts
from gpubank.domain.loan import Line, LineState
from gpubank.domain.policy import OnCheckpointFailure
from gpubank.domain.recall import RecallOrder
from gpubank.domain.steps import GoneResult, LoanSight, LoanStep, RecalledLines, ReleaseStep, StopResult
from gpubank.domain.transaction import Move, Take, Transaction

ATTEMPT_SECONDS: Final = 10
"""Longest attempt of a step that cannot be taken back; the server waits 15 s before it starts another."""

END_POLL: Final = timedelta(seconds=30)
"""How often a parked Workload is looked after: one that goes while no controller leads is told of by nobody."""

_WANTED: Final = (DemandState.OPEN, DemandState.RAISED)
"""States of a demand that a Reclaim works on; one that ended PARTIAL wants nothing until it is tried again."""


class LoanActivities(LoanCalls):
    """Implements `LoanCalls` on a pool's books and its scheduler."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools

    @activity.defn(name="loan.look")
    async def look(self, step: LoanStep) -> LoanSight:
        """Return what stands in the books and at the scheduler."""
        facts, books = await self._read(step)
        workload = facts.workload(step.workload.uid)
        lines = books.lines_of(step.workload.uid)
        held = in_state(lines, LineState.GRANTED, LineState.RECALLED)
        return LoanSight(
            found=workload is not None,
            finished=_over(workload),
            pods_gone=workload is None or workload.gone,
            stopped=workload is not None and workload.parked and _is_ours(workload, step),
            placed=workload is not None and workload.placed,
            gpus=sum(line.gpus for line in held) or (workload.gpus if workload is not None else 0),
            term=_term(workload, held, step.term),
            admitted_at=workload.admitted_at if workload is not None else None,
            lenders=_lenders(held),
            granted_lines=_ids(in_state(held, LineState.GRANTED)),
            # One that is only chosen is its Reclaim's: nobody has to finish it here.
            recalled_lines=_ids(line for line in in_state(held, LineState.RECALLED) if not line.is_chosen),
            own=_own(workload, held),
            recalls=await self._pools.recalls(step.loan),
            live_demands=tuple(d.demand_id for d in books.demands if d.state in _WANTED),
        )

    @activity.defn(name="loan.recall_lines")
    async def recall_lines(self, step: LoanStep) -> RecalledLines:
        """Move the Workload's granted lines to RECALLED and lower the borrower's queue; waits while frozen."""

        async def attempt() -> RecalledLines:
            facts, books = await self._read(step)
            await self._pools.check_in_force(facts)
            workload = facts.workload(step.workload.uid)
            if not _over(workload):
                books = await self._recall(step, books)
            lines = in_state(books.lines_of(step.workload.uid), LineState.RECALLED)
            if lines:
                await self._pools.write_quotas(step.pool, groups_of(lines))
                await self._pools.ledger.note(
                    key=step.key(f"{RECALLED_ACTION}-{step.recall}"),
                    at=self._pools.now(),
                    actor=step.loan,
                    subject=step.loan,
                    action=RECALLED_ACTION,
                    detail={"reason": step.reason, "lines": ", ".join(_ids(lines)), "term": step.term},
                )
            return RecalledLines(
                lines=_ids(lines),
                gpus=sum(line.gpus for line in lines),
                lenders=_lenders(lines),
                term=_term(workload, lines, step.term),
                own=_own(workload, lines),
                finished=_over(workload),
            )

        return await settled(attempt)

    @activity.defn(name="loan.release_lines")
    async def release_lines(self, release: ReleaseStep) -> bool:
        """Move the Workload's recalled lines back to GRANTED and raise the borrower's queue."""
        step = release.step

        async def attempt() -> bool:
            facts, books = await self._read(step)
            workload = facts.workload(step.workload.uid)
            if workload is not None and workload.parked and _is_ours(workload, step):
                return False
            moves = tuple(
                Move(
                    line_id=line.line_id,
                    version=line.version,
                    from_state=LineState.RECALLED,
                    to_state=LineState.RETURNED if line.is_own else LineState.GRANTED,
                    release=release.drop_pledges or line.is_own,
                    reason=step.reason,
                )
                for line in in_state(books.lines_of(step.workload.uid), LineState.RECALLED)
            )
            await self._commit(step, f"release-{step.recall}", books, moves, f"keeps its GPUs: {step.reason}")
            await self._pools.write_quotas(step.pool, groups_of(books.lines_of(step.workload.uid)))
            return True

        return await settled(attempt)

    @activity.defn(name="loan.stop")
    async def stop(self, step: LoanStep) -> StopResult:
        """Deactivate the Workload in one write, if its lines are still recalled; waits while frozen."""

        async def attempt() -> StopResult:
            # The facts come first: the write below is refused if the Workload moved on since.
            facts, books = await self._read(step)
            workload = facts.workload(step.workload.uid)
            if workload is None or workload.finished:
                return StopResult.GONE
            mark = Mark(loan=step.loan, term=step.term, step="stop")
            if workload.mark == mark and not workload.active:
                return StopResult.STOPPED
            lines = books.lines_of(step.workload.uid)
            recalled = in_state(lines, LineState.RECALLED)
            if not recalled or any(line.term != step.term for line in recalled) or workload.next_term > step.term:
                return StopResult.REFUSED
            if in_state(lines, LineState.GRANTED):  # came after the recall, as by a line given over to this Workload
                await self._recall(step, books)
            await self._pools.check_in_force(facts)
            if in_own := tuple(line for line in recalled if line.is_own):
                if not workload.reserved:
                    return StopResult.REFUSED
                await self._take(step, facts, books, in_own)
            if not step.asked and await self._pools.is_leased(facts, books, step.workload.uid):
                return StopResult.LEASED
            if self._is_stale(step, workload):
                return StopResult.STALE
            if step.unsaved:
                terms = await self._pools.terms(step.pool)
                if terms.on_checkpoint_failure(step.borrower) is OnCheckpointFailure.PROTECT:
                    return StopResult.PROTECTED
            await self._pools.quota.stop(step.pool, step.workload, mark, seen=workload.version)
            return StopResult.STOPPED

        async with asyncio.timeout(ATTEMPT_SECONDS):
            return await settled(attempt)

    def _is_stale(self, step: LoanStep, workload: WorkloadFacts) -> bool:
        """Whether more would be lost than when the stop was ordered: it may have waited, for a freeze or a worker."""
        late = step.good_until is not None and self._pools.now() > step.good_until
        return late or (step.idle and workload.works)

    @activity.defn(name="loan.await_gone")
    async def await_gone(self, step: LoanStep) -> GoneResult:
        """Look, patiently; return the recalled lines when neither pods nor quota are held, else "not yet".

        What others of the group were admitted on while the queue was being lowered is granted again: the controller
        gives it to them, and the Reclaim plans anew.
        """
        left = Leftovers(self._pools, step)

        async def attempt() -> GoneResult:
            facts, books = await self._read(step)
            workload = facts.workload(step.workload.uid)
            if workload is not None and not workload.gone:
                await self._stop_again(step, facts, books, workload)
                held = "quota" if workload.reserved else f"{len(workload.pod_facts)} pods"
                raise not_yet(f"workload {workload.key.name!r} still holds {held}")
            lines = in_state(books.lines_of(step.workload.uid), LineState.RECALLED)
            taken = bool(lines) and await left.are_taken(facts, books, lines)
            moves = tuple(
                Move(
                    line_id=line.line_id,
                    version=line.version,
                    from_state=LineState.RECALLED,
                    to_state=LineState.GRANTED if taken else LineState.RETURNED,
                    release=taken,
                    reason="others of its group were admitted on it" if taken else step.reason,
                )
                for line in lines
            )
            at = self._pools.now()
            note = "leaves its GPUs to others of its group" if taken else f"is back with its lenders: {step.reason}"
            await self._commit(step, f"return-{step.recall}", books, moves, note)
            # An attempt that died may have returned them already: then nobody says any more whose they were.
            await self._pools.write_quotas(step.pool, groups_of(lines) if lines else None)
            return GoneResult(at=at, lines=_ids(lines), finished=_over(workload))

        return await self._pools.patiently(step.pool, lambda: settled(attempt), about=step.workload)

    @activity.defn(name="loan.resume")
    async def resume(self, step: LoanStep) -> bool:
        """Reactivate the parked Workload for `step.term`; False if there is nothing to resume. Waits while frozen."""

        async def attempt() -> bool:
            facts, books = await self._read(step)
            workload = facts.workload(step.workload.uid)
            if workload is None or workload.finished:
                return False
            mark = Mark(loan=step.loan, term=step.term, step="resume")
            if workload.active:
                return workload.mark == mark
            offered = in_state(books.lines_of(step.workload.uid), LineState.OFFERED, LineState.GRANTED)
            ours = workload.parked and _is_ours(workload, step) and not workload.given_up
            if not ours or workload.next_term != step.term:
                return False
            if workload.kind is Side.OWN:
                terms = await self._pools.terms(step.pool)
                if not may_come_back(Desk(facts, books, terms, self._pools.now()), workload):
                    return False
            elif sum(line.gpus for line in offered) < workload.gpus:
                return False
            await self._pools.check_in_force(facts)
            await self._pools.quota.resume(step.pool, step.workload, mark, seen=workload.version)
            return True

        async with asyncio.timeout(ATTEMPT_SECONDS):
            return await settled(attempt)

    @activity.defn(name="loan.await_end")
    async def await_end(self, step: LoanStep) -> bool:
        """Look once, patiently, whether the Workload finished or is gone; else "not yet"."""
        facts = await self._pools.quota.observe(step.pool)
        if not _over(facts.workload(step.workload.uid)):
            raise not_yet("it has not ended", again=END_POLL)
        return True

    @activity.defn(name="loan.return_order")
    async def return_order(self, step: LoanStep) -> RecallOrder | None:
        """Make the recall that a person asked for, by the borrower's policy; None if there is nothing to return."""
        facts, books = await self._read(step)
        workload = facts.workload(step.workload.uid)
        lines = in_state(books.lines_of(step.workload.uid), LineState.GRANTED)
        if workload is None or workload.finished or not lines:
            return None
        terms = await self._pools.terms(step.pool)
        group = terms.group(step.borrower)
        now = self._pools.now()
        grace = min(group.grace_period, terms.max_grace_period) if group is not None else terms.max_grace_period
        return RecallOrder(
            reclaim="",
            demand=step.key(f"return-{step.recall}"),
            lender=lines[0].lender,
            kind=DemandKind.RETURN,
            reason=step.reason,
            line_ids=_ids(lines),
            needs_checkpoint=workload.contract.reclaim_class is ReclaimClass.CHECKPOINTABLE,
            on_checkpoint_failure=terms.on_checkpoint_failure(step.borrower),
            deadline=now + grace,
            latest_deadline=now + max(grace, terms.max_grace_period),
            max_checkpoint_age=terms.max_checkpoint_age,
        )

    async def _read(self, step: LoanStep) -> tuple[PoolFacts, Books]:
        return await self._pools.quota.observe(step.pool), await self._pools.books(step.pool)

    async def _stop_again(self, step: LoanStep, facts: PoolFacts, books: Books, workload: WorkloadFacts) -> None:
        """Stop what somebody switched on again while it was being stopped: its GPUs are promised already."""
        mark = Mark(loan=step.loan, term=step.term, step="stop")
        recalled = in_state(books.lines_of(step.workload.uid), LineState.RECALLED)
        if not (workload.active and workload.reserved and workload.mark == mark and recalled):
            return
        await self._pools.check_in_force(facts)
        await self._pools.quota.stop(step.pool, step.workload, mark, seen=workload.version)
        await self._pools.ledger.note(
            key=step.key(f"stop-again-{step.recall}@{workload.version}"),
            at=self._pools.now(),
            actor=step.loan,
            subject=step.loan,
            action="stop again",
            detail={"reason": "somebody switched it on while it was being stopped", "term": step.term},
        )

    async def _take(self, step: LoanStep, facts: PoolFacts, books: Books, lines: Iterable[Line]) -> None:
        """Lower the own queue by what the Workload holds, and wait until no admission cycle can know the old quota."""
        takes = tuple(Take(line_id=line.line_id, version=line.version) for line in lines if line.is_chosen)
        if takes:
            note = f"leaves its GPUs: {step.reason}"
            books = await self._commit(step, f"take-{step.recall}", books, (), note, takes=takes)
            await self._pools.write_quotas(step.pool, [step.borrower])
        queue = facts.queue(step.borrower, Side.OWN)
        revision = max(line.revision for line in books.lines_of(step.workload.uid))
        if queue is not None and queue.fenced < revision:
            if queue.stamp < revision and not takes:  # whoever took it may have died before the quota was written
                await self._pools.write_quotas(step.pool, [step.borrower])
            raise not_yet(f"queue {queue.name!r} is not fenced at revision {revision} yet", again=FENCE_POLL)

    async def _recall(self, step: LoanStep, books: Books) -> Books:
        moves = tuple(
            Move(
                line_id=line.line_id,
                version=line.version,
                from_state=LineState.GRANTED,
                to_state=LineState.RECALLED,
                reason=step.reason,
            )
            for line in in_state(books.lines_of(step.workload.uid), LineState.GRANTED)
        )
        return await self._commit(step, f"recall-{step.recall}", books, moves, f"is recalled: {step.reason}")

    async def _commit(
        self,
        step: LoanStep,
        name: str,
        books: Books,
        moves: tuple[Move, ...],
        note: str,
        *,
        takes: tuple[Take, ...] = (),
    ) -> Books:
        """Move lines as they were read; the revision in the key keeps a later move of the same name apart."""
        if not moves and not takes:
            return books
        return await self._pools.commit(
            Transaction(
                key=f"{step.key(name)}@{books.revision}",
                cluster=step.cluster,
                pool=step.pool,
                at=self._pools.now(),
                actor=step.loan,
                note=f"{step.workload.title} {note}",
                moves=moves,
                takes=takes,
            )
        )


def _over(workload: WorkloadFacts | None) -> bool:
    return workload is None or workload.finished


def _own(workload: WorkloadFacts | None, lines: Iterable[Line]) -> bool:
    """Whether it is own work of its group, by the cluster, or by the books where it is gone."""
    return workload.kind is Side.OWN if workload is not None else any(line.is_own for line in lines)


def _is_ours(workload: WorkloadFacts, step: LoanStep) -> bool:
    return workload.mark is not None and workload.mark.loan == step.loan


def _term(workload: WorkloadFacts | None, lines: Iterable[Line], fallback: int) -> int:
    """Term of the lines; without any, the one that the Workload is in or was stopped in."""
    terms = [line.term for line in lines]
    if terms:
        return max(terms)
    return workload.mark.term if workload is not None and workload.mark is not None else fallback


def _ids(lines: Iterable[Line]) -> tuple[str, ...]:
    return tuple(line.line_id for line in lines)


def _lenders(lines: Iterable[Line]) -> tuple[str, ...]:
    return tuple(sorted({line.lender for line in lines}))
