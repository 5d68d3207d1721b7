"""`gpubank ledger ...`: what was borrowed and lent, what was done, and whether it all holds.

The ledger is read straight from its database, so that it answers while the bank is down.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gpubank.cli.context import ExitCode, run, settings_of
from gpubank.cli.options import PoolOption
from gpubank.cli.output import Column, Output, OutputOption, show, show_one
from gpubank.domain.errors import PolicyError

if TYPE_CHECKING:
    from gpubank.adapters.ledger import SqlLedger
    from gpubank.domain.base import Message
    from gpubank.domain.ledger import VerifyReport
    from gpubank.domain.loan import Line

app = typer.Typer(no_args_is_help=True, help="The ledger: postings, audit trail, and whether they hold.")

_HOUR_MS: Final = 3_600_000

BALANCES: Final = (
    Column("CLUSTER", "cluster", wide=True),
    Column("POOL", "pool"),
    Column("ACCOUNT", "account"),
    Column("BORROWED GPU-H", "borrowed", right=True),
    Column("LENT GPU-H", "lent", right=True),
    Column("BALANCE GPU-H", "balance", right=True),
    Column("BALANCE GPU-MS", "balanceGpuMs", wide=True, right=True),
)
POSTINGS: Final = (
    Column("ENTRY", "entry"),
    Column("CLUSTER", "cluster", wide=True),
    Column("POOL", "pool"),
    Column("ACCOUNT", "account"),
    Column("GPU-MS", "gpuMs", right=True),
    Column("HOUR", "hour"),
    Column("POSTED", "postedAt", wide=True),
)
LINES: Final = (
    Column("LINE", "lineId"),
    Column("CLUSTER", "cluster", wide=True),
    Column("POOL", "pool"),
    Column("LENDER", "lender"),
    Column("BORROWER", "borrower"),
    Column("GPUS", "gpus", right=True),
    Column("WORKLOAD", "shownWorkload"),
    Column("TERM", "term", right=True),
    Column("STATE", "state"),
    Column("GRANTED", "grantedAt"),
    Column("ENDED", "endedAt"),
    Column("DEMAND", "demand", wide=True),
    Column("REASON", "reason", wide=True),
)
AUDIT: Final = (
    Column("SEQ", "sequence", right=True),
    Column("AT", "at"),
    Column("ACTOR", "actor"),
    Column("ACTION", "action"),
    Column("SUBJECT", "subject"),
    Column("NOTE", "shownNote"),
    Column("DIGEST", "digest", wide=True),
)

GroupOption = Annotated[str | None, typer.Option("--group", "-g", help="Only this account: a group, or `pool`.")]


@app.callback()
def ledger() -> None:
    """The ledger: postings, audit trail, and whether they hold."""


@app.command("show")
def show_command(
    context: typer.Context,
    pool: PoolOption = None,
    group: GroupOption = None,
    postings: Annotated[bool, typer.Option("--postings", help="Every posting, newest first.")] = False,
    lines: Annotated[bool, typer.Option("--lines", help="Every line, ended ones included, newest first.")] = False,
    audit: Annotated[bool, typer.Option("--audit", help="The audit trail, newest first.")] = False,
    subject: Annotated[str | None, typer.Option(help="Only this line, demand or pool; with --audit.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="At most so many rows.")] = 100,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what every account borrowed and lent, or the rows behind it."""
    if postings + lines + audit > 1:
        raise typer.BadParameter("give one of --postings, --lines and --audit")
    if subject is not None and not audit:
        raise typer.BadParameter("--subject goes with --audit")
    if audit and (pool is not None or group is not None):
        raise typer.BadParameter("the audit trail is one for all pools; narrow it with --subject")

    async def main() -> None:
        async with _opened(context) as store:
            if postings:
                rows = _dumped(await store.postings(pool=pool, account=group, limit=limit))
                _show(rows, POSTINGS, output, lambda row: str(row["entry"]), "nothing is posted yet")
            elif lines:
                rows = [_line(line) for line in await store.lines(pool=pool, group=group, limit=limit)]
                _show(rows, LINES, output, lambda row: str(row["lineId"]), "there is no line")
            elif audit:
                rows = [_event(row) for row in _dumped(await store.audit(subject=subject, limit=limit))]
                _show(rows, AUDIT, output, lambda row: str(row["sequence"]), "the audit trail is empty")
            else:
                await _show_balances(store, pool, group, limit, output)

    run(main)


async def _show_balances(store: "SqlLedger", pool: str | None, group: str | None, limit: int, output: Output) -> None:
    found = [balance for balance in await store.balances(pool=pool) if group in (None, balance.account)]
    rows = [
        {
            **balance.model_dump(mode="json"),
            "balanceGpuMs": balance.borrowed_gpu_ms - balance.lent_gpu_ms,
            "borrowed": gpu_hours(balance.borrowed_gpu_ms),
            "lent": gpu_hours(balance.lent_gpu_ms),
            "balance": gpu_hours(balance.borrowed_gpu_ms - balance.lent_gpu_ms),
        }
        for balance in found[:limit]
    ]
    borrowed, lent = sum(b.borrowed_gpu_ms for b in found), sum(b.lent_gpu_ms for b in found)
    totals = {
        "account": "all",
        "borrowed": gpu_hours(borrowed),
        "lent": gpu_hours(lent),
        "balance": gpu_hours(borrowed - lent),
        "balanceGpuMs": borrowed - lent,
    }
    whole = group is None and len(found) <= limit
    _show(
        rows,
        BALANCES,
        output,
        lambda row: f"{row['pool']}/{row['account']}",
        "nothing is posted yet; `gpubank ledger post` posts every full hour",
        totals=totals if whole else None,
    )


@app.command()
def verify(
    context: typer.Context,
    published: Annotated[
        str | None, typer.Option("--published", help="A head that was printed once; the chain must still hold it.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Prove that every posting is right and balances, and that no row was touched since it was written.

    Exits 1 and names the first bad row of each kind if it does not hold. Keep the head that is printed elsewhere: it
    is what shows later that nothing was cut off at the end.
    """

    async def main() -> bool:
        async with _opened(context) as store:
            report = await store.verify()
            kept = published is None or await store.holds(published)
        item = {**report.model_dump(mode="json"), "ok": report.ok and kept}
        if published is not None:
            item["publishedHeadHeld"] = kept
        show_one(item, output, name=report.head, text=lambda: _say_report(report, published, kept=kept))
        return report.ok and kept

    if not run(main):
        raise typer.Exit(ExitCode.REFUSED)


def _say_report(report: "VerifyReport", published: str | None, *, kept: bool) -> None:
    counts = f"{report.postings} postings, {report.lines} lines, {report.audit_events} audit events"
    for finding in report.findings:
        typer.echo(f"{finding.kind}  {finding.row}: {finding.message}")
    if not kept:
        typer.echo(f"BrokenChain  audit: no link has the published digest {published}")
    if report.ok and kept:
        typer.echo(f"the ledger holds: {counts}; head {report.head}")
    else:
        typer.echo(f"the ledger does not hold: {counts}; head {report.head}")


@app.command()
def post(
    context: typer.Context,
    until: Annotated[str | None, typer.Option(help="Up to this instant (RFC 3339); now, where it is left out.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Post every full hour, and the last part of every ended line, that is not posted yet.

    The bank does so by itself every hour; repeating it changes nothing.
    """

    async def main() -> None:
        limit = _instant(until)
        async with _opened(context) as store:
            count = await store.post(until=limit)
        item = {"entries": count, "until": limit.isoformat().replace("+00:00", "Z")}
        show_one(item, output, name=str(count), text=lambda: typer.echo(f"posted {count} entries"))

    run(main)


@app.command()
def migrate(context: typer.Context) -> None:
    """Make or upgrade the ledger's tables; safe to repeat, and from many machines at once."""

    async def main() -> None:
        from gpubank.adapters.ledger import migrate

        url = settings_of(context).database_url
        revision = await migrate(url)
        typer.echo(f"the ledger's schema is {revision}, in {_database(url)}")

    run(main)


def _database(url: str) -> str:
    """Name a database for people: no user, no password, none of its URL's parameters."""
    from sqlalchemy.engine import make_url

    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        return f"the SQLite file {parsed.database!r}"
    port = f":{parsed.port}" if parsed.port else ""
    return f"the PostgreSQL database {parsed.database!r} on {parsed.host or 'the default host'}{port}"


@asynccontextmanager
async def _opened(context: typer.Context) -> AsyncIterator["SqlLedger"]:
    from gpubank.adapters.ledger import SqlLedger

    async with await SqlLedger.open(settings_of(context).database_url, upgrade=False) as store:
        yield store


def _instant(text: str | None) -> datetime:
    now = datetime.now(UTC)
    if text is None:
        return now
    try:
        instant = datetime.fromisoformat(text)
    except ValueError as error:
        raise PolicyError(f"{text!r} is no instant; write it as in '2026-11-02T18:00:00Z'") from error
    if instant.tzinfo is None:
        raise PolicyError(f"{text!r} has no offset; write it as in '2026-11-02T18:00:00Z'")
    if instant > now:
        raise PolicyError(f"{text!r} is ahead; only hours that are over can be posted")
    return instant


def gpu_hours(gpu_ms: int) -> str:
    """Write GPU-milliseconds as GPU-hours with three digits; what is less is cut off, towards zero."""
    hours, rest = divmod(abs(gpu_ms) * 1000 // _HOUR_MS, 1000)
    return f"{'-' if gpu_ms < 0 and (hours or rest) else ''}{hours}.{rest:03}"


def _dumped(records: Iterable["Message"]) -> list[dict[str, Any]]:
    return [record.model_dump(mode="json") for record in records]


def _line(line: "Line") -> dict[str, Any]:
    return {**line.model_dump(mode="json"), "shownWorkload": line.workload.short}


def _event(row: dict[str, Any]) -> dict[str, Any]:
    detail = row["detail"]
    return {**row, "shownNote": detail.get("note") or detail.get("reason") or ""}


def _show(
    rows: Sequence[dict[str, Any]],
    columns: tuple[Column, ...],
    output: Output,
    name: Callable[[dict[str, Any]], str],
    empty: str,
    *,
    totals: dict[str, Any] | None = None,
) -> None:
    """Print rows; what is only for tables stays out of JSON and YAML."""
    if output in (Output.JSON, Output.YAML):
        rows = [{key: value for key, value in row.items() if not key.startswith("shown")} for row in rows]
    show(rows, columns, output, name=lambda row: name(dict(row)), empty=empty, totals=totals)
