"""Transactions that are drawn at random, for properties of the ledger."""

from typing import Any

from hypothesis import strategies as st

from gpubank.domain.books import Books
from gpubank.domain.demand import MOVES as DEMAND_MOVES
from gpubank.domain.demand import DemandKind
from gpubank.domain.loan import MOVES
from gpubank.domain.transaction import DemandChange, DemandOpening, GuaranteeChange, Move, Offer, Split
from tests.plugins.ledger import job, minutes


def drawn(data: st.DataObject, books: Books) -> dict[str, Any]:
    """Draw something to write to the books, sensible or not."""
    kinds = ["offer", "open", "guarantee", *(["move", "split"] if books.lines else [])]
    kinds += ["change"] if books.demands else []
    kind = data.draw(st.sampled_from(kinds))
    if kind == "offer":
        lender, borrower = data.draw(st.permutations(["a", "b"]))
        gpus = data.draw(st.integers(1, 4))
        return {"offers": (Offer(lender=lender, borrower=borrower, gpus=gpus, workload=job(), term=1),)}
    if kind == "open":
        name = f"{books.pool}/{data.draw(st.sampled_from('xy'))}"  # demands of all pools of a cluster share their names
        opening = DemandOpening(
            demand_id=name, lender="b", kind=DemandKind.LIMIT, gpus=2, idle=1, due_at=minutes(60)
        )  # fmt: skip
        return {"openings": (opening,)}
    if kind == "guarantee":
        row = books.guarantee("a")
        in_force = data.draw(st.integers(0, 12))
        return {"guarantees": (GuaranteeChange(group="a", version=row.version, in_force=in_force),)}
    if kind == "change":
        demand = data.draw(st.sampled_from(books.demands))
        ends = data.draw(st.sampled_from(sorted(DEMAND_MOVES[demand.state])))
        return {"demands": (DemandChange(demand_id=demand.demand_id, version=demand.version, state=ends),)}
    line = data.draw(st.sampled_from(books.lines))
    if kind == "split":
        return {"splits": (Split(line_id=line.line_id, version=line.version, gpus=1),)}
    state = data.draw(st.sampled_from(sorted(MOVES[line.state])))
    pledge = data.draw(st.sampled_from([None, *(demand.demand_id for demand in books.demands)]))
    move = Move(line_id=line.line_id, version=line.version, from_state=line.state, to_state=state, demand=pledge)
    return {"moves": (move,)}
