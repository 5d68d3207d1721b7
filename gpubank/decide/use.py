"""Loans in use: who runs on which line, what nobody uses, and how it closes.

reserved, lines short     lines of the group that nobody uses are given to it (the scheduler admits whom it likes)
lines that nobody uses    CLOSING: 5 s after the grant; at once if their Workload finished, is gone or was
                          switched off by somebody else, or runs on less
CLOSING, fenced           RETURNED; back to GRANTED where somebody was quicker
"""

from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from gpubank.decide.desk import Desk, line_order
from gpubank.domain.contract import Side
from gpubank.domain.facts import WorkloadFacts
from gpubank.domain.loan import Line, LineState
from gpubank.domain.transaction import Move, Reattach, Split

ADMISSION_WAIT: Final = timedelta(seconds=5)
"""How long a granted line waits for its Workload to be admitted."""


def backing(desk: Desk, uid: str) -> int:
    """GPUs of the lines that the Workload runs on, recalled ones included."""
    gpus = 0
    for line in desk.books.lines_of(uid):
        if line.state is LineState.GRANTED or line.state is LineState.RECALLED:
            gpus += line.gpus
    return gpus


def unbacked(desk: Desk, borrower: str | None = None) -> list[tuple[WorkloadFacts, int]]:
    """Borrow Workloads that hold quota without enough lines, and how much they lack, in the order of admission."""

    def find() -> list[tuple[WorkloadFacts, int]]:
        reserved = [workload for workload in desk.stirring(Side.BORROW) if workload.reserved]
        lacks = [(workload, workload.gpus - backing(desk, workload.key.uid)) for workload in reserved]
        found = [item for item in lacks if item[1] > 0]
        return sorted(found, key=lambda item: (item[0].admitted_at or desk.now, item[0].key.uid))

    found = desk.once("unbacked", find)
    return [item for item in found if borrower in (None, item[0].group)]


def spare(desk: Desk, uid: str) -> int:
    """GPUs of the Workload's granted lines that it does not use."""
    workload = desk.workload(uid)
    granted = recalled = 0
    for line in desk.books.lines_of(uid):
        if line.state is LineState.GRANTED:
            granted += line.gpus
        elif line.state is LineState.RECALLED:
            recalled += line.gpus
    in_use = workload.gpus if workload is not None and workload.reserved and not workload.finished else 0
    return max(granted - max(in_use - recalled, 0), 0)


def novated(desk: Desk) -> frozenset[str]:
    """Lines that an offer is about to replace."""

    def found() -> frozenset[str]:
        return frozenset(line.replaces for line in desk.lines(LineState.OFFERED) if line.replaces is not None)

    return desk.once("novated", found)


def _by_workload(lines: Iterable[Line]) -> dict[str, list[Line]]:
    found: dict[str, list[Line]] = {}
    for line in lines:
        found.setdefault(line.workload.uid, []).append(line)
    return {uid: found[uid] for uid in sorted(found)}


def reattach(desk: Desk) -> None:
    """Give unused lines of a group to the Workloads of the same group that hold their quota."""
    for workload, lack in unbacked(desk):
        for line in desk.lines(LineState.GRANTED):
            if line.borrower != workload.group or line.workload.uid == workload.key.uid:
                continue
            part = min(lack, line.gpus, spare(desk, line.workload.uid))
            if part <= 0 or line.line_id in novated(desk):
                continue
            change = Reattach(
                line_id=line.line_id,
                version=line.version,
                gpus=part,
                workload=workload.key,
                term=workload.next_term,
            )
            meant = f"{line.line_id}, meant for {line.workload.title}"
            note = f"{workload.key.title} was admitted on {part} GPUs of {meant}"
            desk.write(f"reattach/{workload.key.uid}/{line.line_id}", note, reattachments=[change])
            lack -= part
            if lack <= 0:
                break


def settle_closing(desk: Desk) -> None:
    """Return closing lines whose queue is fenced, or grant them again where somebody was admitted on them."""
    for borrower in sorted({line.borrower for line in desk.lines(LineState.CLOSING)}):
        lines = [line for line in desk.lines(LineState.CLOSING) if line.borrower == borrower]
        lack = sum(missing for _, missing in unbacked(desk, borrower))
        if lack > 0:
            _grant_again(desk, borrower, lines, lack)
        else:
            _return(desk, borrower, lines)
    reattach(desk)


def _grant_again(desk: Desk, borrower: str, lines: list[Line], lack: int) -> None:
    """Grant closing lines again; those of the Workloads that were admitted after all come first."""
    admitted = {workload.key.uid for workload, _ in unbacked(desk, borrower)}
    moves = []
    for line in sorted(lines, key=lambda line: (line.workload.uid not in admitted, *line_order(line))):
        if lack <= 0:
            break
        moves.append(_move(line, LineState.GRANTED, "somebody was admitted on it", release=True))
        lack -= line.gpus
    desk.write(f"regrant/{borrower}", f"{borrower} was admitted on lines that were closing", moves=moves)


def _return(desk: Desk, borrower: str, lines: list[Line]) -> None:
    queue = desk.facts.queue(borrower, Side.BORROW)
    running = sum(
        line.gpus
        for line in desk.lines(LineState.RECALLED)
        if line.borrower == borrower
        and not line.is_own
        and (w := desk.workload(line.workload.uid)) is not None
        and w.reserved
    )
    if queue is not None and queue.reserved - running > desk.books.granted(borrower):
        return
    moves = [
        _move(line, LineState.RETURNED, line.reason)
        for line in lines
        if (queue is None or desk.fenced(borrower, Side.BORROW, line.revision)) and _left(desk, line)
    ]
    desk.write(f"return/{borrower}", f"{borrower} gives back what it does not use", moves=moves)


def _left(desk: Desk, line: Line) -> bool:
    """Whether the line's Workload has left the GPUs; one that was evicted may still have pods that end."""
    workload = desk.workload(line.workload.uid)
    if workload is None or workload.finished or workload.reserved or not workload.pod_facts:
        return True
    return desk.lasted(line.moved_at, desk.terms.max_termination)


def close_unused(desk: Desk) -> None:
    """Begin to close what nobody uses."""
    granted = [line for line in desk.stirring_lines() if line.state is LineState.GRANTED]
    for uid, lines in _by_workload(granted).items():
        if (unused := spare(desk, uid)) > 0:
            workload = desk.workload(uid)
            reason, at_once = _unused_because(desk, workload)
            ready = [line for line in lines if at_once or _waited(desk, line)]
            if ready and not at_once:
                desk.lapsed.add(uid)
            _close(desk, uid, [line for line in ready if line.line_id not in novated(desk)], unused, reason)


def _unused_because(desk: Desk, workload: WorkloadFacts | None) -> tuple[str, bool]:
    """Why a Workload does not use its lines, and whether that is final."""
    if workload is None:
        return "its Workload is gone", True
    if workload.finished:
        return "its Workload finished", True
    if workload.reserved:
        return "its Workload needs less", True
    if not workload.active:
        return "its Workload was switched off", True
    if desk.frozen:
        return "the pool is frozen", True
    return "its Workload was not admitted", False


def _waited(desk: Desk, line: Line) -> bool:
    return desk.lasted(line.granted_at or line.moved_at, ADMISSION_WAIT)


def _close(desk: Desk, uid: str, lines: list[Line], unused: int, reason: str) -> None:
    """Close `unused` GPUs of the lines, newest lines first; of the last one only a part where that is enough."""
    moves, splits = [], []
    for line in sorted(lines, key=line_order, reverse=True):
        if unused <= 0:
            break
        if line.gpus > unused:
            splits.append(Split(line_id=line.line_id, version=line.version, gpus=unused))
            line = line.model_copy(
                update={"line_id": f"{desk.books.pool}-{desk.books.next_line}", "version": 1, "gpus": unused}
            )
        moves.append(_move(line, LineState.CLOSING, reason))
        unused -= line.gpus
    desk.write(f"close/{uid}", f"lines of {lines[0].workload.title if lines else uid} close: {reason}",
               splits=splits, moves=moves)  # fmt: skip


def _move(line: Line, state: LineState, reason: str, *, release: bool = False) -> Move:
    return Move(
        line_id=line.line_id,
        version=line.version,
        from_state=line.state,
        to_state=state,
        release=release,
        reason=reason,
    )
