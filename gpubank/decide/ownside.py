"""Own work that makes room for more important work of its group; `decide.comeback` says when it comes back.

    may make room   reserved, of a class that onlyPreempt names, suspendable, of lower priority; serving work never
    is owed         waiting own work that fits what is left of the guarantee, or does so once such work is stopped:
                    in the scheduler's order, each victim counting for one of them

Under `withinGroup: Never` nobody makes room, and nothing is owed for it; who is stopped comes back as ever.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gpubank.domain.contract import Side
from gpubank.domain.facts import WorkloadFacts
from gpubank.domain.loan import Line
from gpubank.domain.policy import WithinGroup
from gpubank.domain.terms import GroupTerms


class Holder(NamedTuple):
    """Own work that may make room."""

    workload: WorkloadFacts
    wanted_by: str | None
    """uid of the Workload that it was chosen for; None while it is chosen for nobody."""


def may_make_room(workload: WorkloadFacts, terms: GroupTerms | None) -> bool:
    """Whether its group's policy lets this own Workload be stopped for more important work of the group."""
    if terms is None or terms.within_group is not WithinGroup.LOWER_PRIORITY:
        return False
    holds = workload.kind is Side.OWN and workload.reserved and workload.active and not workload.finished
    stopping = workload.contract.reclaim_class.preempt_class
    return holds and workload.gpus > 0 and workload.suspendable and stopping in terms.only_preempt


def net_reserved(reserved: int, workloads: Iterable[WorkloadFacts], lines: Sequence[Line]) -> int:
    """Return what own work holds beside that which is being stopped, whose lines stand for it.

    Of what leaves the queue's count and the Workloads tell at different times: the greater of the two is believed.
    """
    leaving = {line.workload.uid for line in lines if not line.is_chosen}
    others = sum(w.gpus for w in workloads if w.reserved and w.key.uid not in leaving)
    return max(others, reserved - sum(line.gpus for line in lines if not line.is_chosen))


def owed(waiting: Iterable[WorkloadFacts], left: int, holders: Iterable[Holder]) -> tuple[WorkloadFacts, ...]:
    """Return who is owed GPUs: `waiting` is in the scheduler's order, `left` what the guarantee has left.

    What a victim has more than is needed counts for nobody: it is free once the victim has left.
    """
    room = sorted(holders, key=lambda h: (h.workload.priority, h.workload.key.uid))
    found = []
    for workload in waiting:
        victims = _victims(workload, workload.gpus - left, room)
        if victims is None:
            continue
        found.append(workload)
        left = max(left - max(workload.gpus - sum(h.workload.gpus for h in victims), 0), 0)
        room = [holder for holder in room if holder not in victims]
    return tuple(found)


def _victims(workload: WorkloadFacts, short: int, room: Sequence[Holder]) -> Sequence[Holder] | None:
    """Return who would make room for what it is short of; None where that is not enough."""
    uid, found = workload.key.uid, []
    for holder in sorted(room, key=lambda h: h.wanted_by != uid):
        if short <= 0:
            break
        if holder.wanted_by in (None, uid) and holder.workload.priority < workload.priority:
            found.append(holder)
            short -= holder.workload.gpus
    return found if short <= 0 else None
