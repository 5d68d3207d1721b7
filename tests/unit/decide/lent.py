"""A bank whose GPUs are lent out, for tests of demands."""

from gpubank.domain.contract import Side
from gpubank.domain.demand import Demand, DemandState
from gpubank.domain.terms import GroupTerms
from gpubank.domain.transaction import DemandChange, Transaction
from tests.unit.decide.model import Model
from tests.unit.decide.parts import CLUSTER, POOL, group_terms, pool_terms

OWN, BORROW = Side.OWN, Side.BORROW
OWN_DEMAND = f"{POOL}/b/Workload/own"


def lent_out(*groups: GroupTerms, capacity: int = 16, gpus: int = 16, **terms: object) -> Model:
    """B's GPUs are lent to a's job x."""
    groups = groups or (group_terms("a", 0), group_terms("b", 16))
    model = Model(pool_terms(*groups, capacity=capacity, **terms), {f"n{i}": 8 for i in range(capacity // 8)})
    model.settle()
    model.submit("x", "a", BORROW, gpus)
    model.settle()
    assert model.jobs["x"].reserved
    return model


def edit(model: Model, group: str, **update: object) -> None:
    groups = tuple(g.model_copy(update=update) if g.group == group else g for g in model.terms.groups)
    model.terms = model.terms.model_copy(update={"groups": groups})


def demand(model: Model, demand_id: str = OWN_DEMAND) -> Demand:
    found = model.books.demand(demand_id)
    assert found is not None, [d.demand_id for d in model.books.demands]
    return found


def end(model: Model, state: DemandState, demand_id: str = OWN_DEMAND) -> None:
    row = DemandChange(demand_id=demand_id, version=demand(model, demand_id).version, state=state)
    head = {"key": f"end/{model.books.revision}", "cluster": CLUSTER, "pool": POOL, "at": model.now, "actor": "test"}
    model.commit(Transaction.model_validate({**head, "demands": (row,)}))
