"""`gpubank loan show` for people."""

from typing import Final

import typer

from gpubank.cli.loandesk import LoanDetail
from gpubank.cli.output import Column, Output, console, instant, print_facts, table

LATEST: Final = 20
"""Audit events that are shown unless `-o wide` asks for all."""

TERMS: Final = (
    Column("TERM", "term", right=True),
    Column("FROM", "from"),
    Column("TO", "to"),
    Column("GPUS", "gpus", right=True),
    Column("LENDERS", "lenders"),
    Column("ENDED BECAUSE", "because"),
    Column("CHECKPOINT", "checkpoint"),
)
LINES: Final = (
    Column("LINE", "line"),
    Column("LENDER", "lender"),
    Column("GPUS", "gpus", right=True),
    Column("TERM", "term", right=True),
    Column("STATE", "state"),
    Column("SINCE", "since"),
    Column("PLEDGED TO", "demand"),
    Column("REASON", "reason"),
)
AUDIT: Final = (
    Column("TIME", "at"),
    Column("WHO", "actor"),
    Column("WHAT", "action"),
    Column("OF", "subject"),
    Column("NOTE", "note"),
)


def print_detail(detail: LoanDetail, *, wide: bool) -> None:
    """Print everything about one loan."""
    view = detail.loan
    whose = "own work that makes room" if view.own else f"lent by {', '.join(map(str, view.lenders))}"
    facts = {
        "Loan": view.loan,
        "Workload": view.workload,
        "Group": view.group,
        "Pool": f"{view.pool} (cluster {view.cluster})",
        "GPUs": f"{view.gpus}, {whose}" if view.lenders or view.own else str(view.gpus),
        "Phase": f"{view.phase}, term {view.term}, since {instant(view.since)}",
        "Last": detail.note,
        "Temporal": detail.ui,
    }
    print_facts(facts)
    for order in detail.orders:
        by = order.lender if order.reclaim else "a person"
        typer.echo(f"{'Wanted by:':<12}{by}, notice ends {instant(view.deadline)}: {order.reason} ({order.demand})")
    terms = [
        {
            "term": term.term,
            "from": instant(term.started_at),
            "to": instant(term.ended_at),
            "gpus": term.gpus,
            "lenders": term.lenders,
            "because": term.ended_because,
            "checkpoint": f"step {term.checkpoint.step} {term.checkpoint.uri}" if term.checkpoint else "",
        }
        for term in detail.terms
    ]
    lines = [
        {
            "line": line.line_id,
            "lender": line.lender,
            "gpus": line.gpus,
            "term": line.term,
            "state": line.state,
            "since": instant(line.moved_at),
            "demand": line.demand,
            "reason": line.reason,
        }
        for line in detail.lines
    ]
    events = [event.model_dump() | {"at": instant(event.at)} for event in detail.audit]
    shown = events if wide else events[-LATEST:]
    for title, rows, columns in (("Terms", terms, TERMS), ("Lines", lines, LINES), ("Audit trail", shown, AUDIT)):
        if rows:
            typer.echo(f"\n{title}")
            console().print(table(rows, columns, Output.TABLE))
    if len(shown) < len(events):
        typer.echo(f"... and {len(events) - len(shown)} earlier ones; -o wide shows all")
