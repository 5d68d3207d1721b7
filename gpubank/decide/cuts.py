"""A transaction in the making that cuts lines into parts: it knows beforehand which ids the parts will bear."""

from datetime import datetime
from typing import Final

from gpubank.decide.desk import line_order
from gpubank.domain.books import Books
from gpubank.domain.demand import Demand
from gpubank.domain.facts import WorkloadFacts
from gpubank.domain.loan import Line, LineState
from gpubank.domain.transaction import Choose, DemandChange, Move, Offer, Pledge, Split, Swap, Transaction

FIRST_VERSION: Final = 1
"""Version of a line that the transaction itself begins."""


class Cuts:
    """Collects the rows of one transaction about existing lines."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._lines: dict[str, Line] = {}
        """Lines that what was collected has changed, or begun."""

        self._next = books.next_line
        self._splits: list[Split] = []
        self._swaps: list[Swap] = []
        self._pledges: list[Pledge] = []
        self._offers: list[Offer] = []
        self._choices: list[Choose] = []
        self._moves: list[Move] = []
        self._demands: list[DemandChange] = []

    def line(self, line_id: str) -> Line:
        """Return a line as it stands after what was collected."""
        return self._lines.get(line_id) or self._books.line_index.by_id[line_id]

    def lines_of(self, workload_uid: str) -> tuple[str, ...]:
        """Ids of the Workload's granted and recalled lines, parts included."""
        running = (LineState.GRANTED, LineState.RECALLED)
        before = {line.line_id for line in self._books.lines_of(workload_uid)}
        parts = {line.line_id for line in self._lines.values() if line.workload.uid == workload_uid}
        found = sorted((self.line(line_id) for line_id in before | parts), key=line_order)
        # Choices come last among what begins lines.
        first = self._books.next_line + len(self._splits) + len(self._offers)
        begun = (
            f"{self._books.pool}-{first + n}" for n, c in enumerate(self._choices) if c.workload.uid == workload_uid
        )
        return (*(line.line_id for line in found if line.state in running), *begun)

    def cut(self, line_id: str, gpus: int) -> str:
        """Return the id of a line of exactly `gpus` GPUs: the line itself, or a part cut off it."""
        line = self.line(line_id)
        if line.gpus == gpus:
            return line_id
        self._splits.append(Split(line_id=line_id, version=line.version, gpus=gpus))
        part = line.model_copy(
            update={"line_id": f"{self._books.pool}-{self._next}", "version": FIRST_VERSION, "gpus": gpus}
        )
        self._next += 1
        self._lines[line_id] = line.model_copy(update={"gpus": line.gpus - gpus})
        self._lines[part.line_id] = part
        return part.line_id

    def pledge(self, line_id: str, demand: str | None) -> None:
        """Pledge a line, or take it from its demand; nothing where it is so already."""
        line = self.line(line_id)
        if line.demand != demand:
            self._pledges.append(Pledge(line_id=line_id, version=line.version, demand=demand))
            self._lines[line_id] = line.model_copy(update={"demand": demand})

    def swap(self, line_id: str, other_id: str) -> None:
        """Exchange the lenders of two lines of equal size."""
        one, other = self.line(line_id), self.line(other_id)
        self._swaps.append(Swap(line_id=line_id, version=one.version, other_id=other_id, other_version=other.version))
        self._lines[line_id] = one.model_copy(update={"lender": other.lender})
        self._lines[other_id] = other.model_copy(update={"lender": one.lender})

    def close(self, line_id: str, demand: str, reason: str) -> None:
        """Begin to close a line that nobody uses, for a demand."""
        line = self.line(line_id)
        self._moves.append(
            Move(
                line_id=line_id,
                version=line.version,
                from_state=line.state,
                to_state=LineState.CLOSING,
                demand=demand,
                reason=reason,
            )
        )
        self._lines[line_id] = line.model_copy(update={"state": LineState.CLOSING, "demand": demand})

    def novate(self, line_id: str, lender: str) -> None:
        """Offer a line of another lender in the place of this one."""
        line = self.line(line_id)
        self._offers.append(
            Offer(
                lender=lender,
                borrower=line.borrower,
                gpus=line.gpus,
                workload=line.workload,
                term=line.term,
                replaces=line_id,
            )
        )

    def choose(self, workload: WorkloadFacts, demand: str) -> None:
        """Choose own work that has no line yet to make room for a demand of its group."""
        self._choices.append(
            Choose(
                group=workload.group,
                gpus=workload.gpus,
                workload=workload.key,
                term=workload.next_term,
                demand=demand,
            )
        )

    def keep_idle(self, demand: Demand, idle: int) -> None:
        """Set what is kept free for a demand."""
        if idle != demand.idle:
            self._demands.append(
                DemandChange(demand_id=demand.demand_id, version=demand.version, state=demand.state, idle=idle)
            )

    def transaction(self, key: str, actor: str, note: str, at: datetime) -> Transaction | None:
        """Return what was collected; None where that is nothing."""
        transaction = Transaction(
            key=key,
            cluster=self._books.cluster,
            pool=self._books.pool,
            at=at,
            actor=actor,
            note=note,
            splits=tuple(self._splits),
            swaps=tuple(self._swaps),
            pledges=tuple(self._pledges),
            offers=tuple(self._offers),
            choices=tuple(self._choices),
            moves=tuple(self._moves),
            demands=tuple(self._demands),
        )
        return None if transaction.is_empty else transaction
