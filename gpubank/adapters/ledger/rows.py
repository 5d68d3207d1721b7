"""Domain records to rows and back; the domain knows no table, and no table is a class."""

from typing import Any

from sqlalchemy import RowMapping

from gpubank.domain.books import Books, Guarantee
from gpubank.domain.contract import Side
from gpubank.domain.demand import Demand
from gpubank.domain.ledger import AuditEvent, OrgUnit, Posting, Span, WorkloadUse
from gpubank.domain.loan import Line, WorkloadKey

_WORKLOAD = ("uid", "namespace", "name", "job")


def _flat(key: WorkloadKey | None) -> dict[str, str | None]:
    return {f"workload_{part}": None if key is None else getattr(key, part) for part in _WORKLOAD}


def _key(row: RowMapping) -> WorkloadKey:
    return WorkloadKey(**{part: row[f"workload_{part}"] for part in _WORKLOAD})


def _plain(record: Any, *without: str) -> dict[str, Any]:
    """Fields of a record as Python values; nested records are left out by name."""
    return {name: getattr(record, name) for name in type(record).model_fields if name not in without}


def pool_row(books: Books) -> dict[str, Any]:
    """Row of `pools`."""
    return {
        "cluster": books.cluster,
        "pool": books.pool,
        "revision": books.revision,
        "capacity": books.capacity,
        "next_line": books.next_line,
    }


def guarantee_row(books: Books, guarantee: Guarantee) -> dict[str, Any]:
    """Row of `guarantees`."""
    return {
        "cluster": books.cluster,
        "pool": books.pool,
        "business_group": guarantee.group,
        **_plain(guarantee, "group"),
    }


def guarantee_of(row: RowMapping) -> Guarantee:
    """Read a row of `guarantees`."""
    return Guarantee(group=row["business_group"], **{name: row[name] for name in _fields(Guarantee, "group")})


def line_row(line: Line) -> dict[str, Any]:
    """Row of `lines`."""
    _, _, number = line.line_id.rpartition("-")
    side = Side.OWN.value if line.is_own else None  # as in rows of programs that know no sides
    row = {**_plain(line, "workload", "side"), **_flat(line.workload), "side": side}
    return {**row, "state": line.state.value, "number": int(number)}


def line_of(row: RowMapping) -> Line:
    """Read a row of `lines`."""
    side = Side(row["side"] or Side.BORROW)
    return Line(workload=_key(row), side=side, **{name: row[name] for name in _fields(Line, "workload", "side")})


def span_row(span: Span) -> dict[str, Any]:
    """Row of `line_spans`, without what the database adds."""
    return {**_plain(span, "workload"), **_flat(span.workload)}


def span_of(row: RowMapping) -> Span:
    """Read a row of `line_spans`."""
    return Span(workload=_key(row), **{name: row[name] for name in _fields(Span, "workload")})


def demand_row(demand: Demand, incarnation: int) -> dict[str, Any]:
    """Row of `demands`."""
    return {
        **_plain(demand, "workload"),
        **_flat(demand.workload),
        "incarnation": incarnation,
        "kind": demand.kind.value,
        "state": demand.state.value,
    }


def demand_of(row: RowMapping) -> Demand:
    """Read a row of `demands`."""
    workload = None if row["workload_uid"] is None else _key(row)
    return Demand(workload=workload, **{name: row[name] for name in _fields(Demand, "workload")})


def use_row(use: WorkloadUse) -> dict[str, Any]:
    """Row of `uses`."""
    return {**_plain(use, "workload", "group"), **_flat(use.workload), "business_group": use.group}


def use_of(row: RowMapping) -> WorkloadUse:
    """Read a row of `uses`."""
    names = _fields(WorkloadUse, "workload", "group")
    return WorkloadUse(workload=_key(row), group=row["business_group"], **{name: row[name] for name in names})


def org_row(unit: OrgUnit) -> dict[str, Any]:
    """Row of `org`, without what the database adds."""
    return _plain(unit)


def org_of(row: RowMapping) -> OrgUnit:
    """Read a row of `org`."""
    return OrgUnit(**{name: row[name] for name in _fields(OrgUnit)})


def posting_of(row: RowMapping) -> Posting:
    """Read a row of `postings`."""
    return Posting(**{name: row[name] for name in _fields(Posting)})


def event_of(row: RowMapping, detail: dict[str, Any]) -> AuditEvent:
    """Read a row of `audit`, whose detail was parsed by the caller."""
    return AuditEvent(detail=detail, **{name: row[name] for name in _fields(AuditEvent, "detail")})


def _fields(model: type[Any], *without: str) -> tuple[str, ...]:
    return tuple(name for name in model.model_fields if name not in without)
