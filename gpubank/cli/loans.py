"""`gpubank loan ...`: who has whose GPUs, and how they come back."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gpubank.cli.context import run, settings_of
from gpubank.cli.door import open_door
from gpubank.cli.identity import Identity, check_reason, identity_of, said
from gpubank.cli.options import PoolOption, ReasonOption
from gpubank.cli.output import Column, Output, OutputOption, instant, show_one
from gpubank.cli.watch import Row, WatchOption, check_whole, present
from gpubank.domain.base import format_duration, format_instant, parse_duration
from gpubank.domain.errors import PolicyError

if TYPE_CHECKING:
    from gpubank.cli.loanbook import LoanView
    from gpubank.domain.recall import LoanState

app = typer.Typer(no_args_is_help=True, help="The loans: who has whose GPUs, since when, and how they come back.")

COLUMNS: Final = (
    Column("WORKLOAD", "workload"),
    Column("GROUP", "group"),
    Column("POOL", "pool"),
    Column("GPUS", "gpus", right=True),
    Column("LENDERS", "shownLenders"),
    Column("TERM", "term", right=True),
    Column("PHASE", "phase"),
    Column("SINCE", "shownSince"),
    Column("UID", "uid", wide=True),
    Column("LINES", "lines", wide=True),
    Column("DEADLINE", "shownDeadline", wide=True),
    Column("CHECKPOINT STEP", "checkpointStep", wide=True, right=True),
)

LoanArgument = Annotated[
    str, typer.Argument(metavar="LOAN", help="uid, loan/CLUSTER/UID, NAMESPACE/JOB, or a job's name that is unique.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and whether it may be.")]


@app.callback()
def loan() -> None:
    """The loans: who has whose GPUs, since when, and how they come back."""


@app.command("list")
def list_command(
    context: typer.Context,
    pool: PoolOption = None,
    group: Annotated[str | None, typer.Option("--group", "-g", help="Only loans to or from this group.")] = None,
    everything: Annotated[bool, typer.Option("--all", "-A", help="Ended loans too.")] = False,
    output: OutputOption = Output.TABLE,
    follow: WatchOption = False,
) -> None:
    """List loans: those that run, are wanted back, or are parked until there is room again."""

    async def main() -> None:
        from gpubank.cli.loandesk import find_loans

        async with open_door(settings_of(context)) as door:

            async def look() -> tuple[Sequence[Row], str]:
                found = await find_loans(
                    door, pool=pool, group=group, ended=everything, detailed=output is not Output.TABLE
                )
                return [view.model_dump(mode="json") for view in found.views], found.missing

            await door.check_pool(pool)
            empty = "there is no loan"
            await present(look, COLUMNS, output, name=_loan_name, empty=empty, follow=follow, shown=_shown)

    run(main)


@app.command("show")
def show_command(
    context: typer.Context, loan_id: LoanArgument, output: OutputOption = Output.TABLE, follow: WatchOption = False
) -> None:
    """Show everything about LOAN: every term, its lines, its audit trail, and where Temporal's UI shows it."""

    async def main() -> None:
        from gpubank.cli.loandesk import describe, resolve
        from gpubank.cli.loantext import print_detail

        async with open_door(settings_of(context)) as door:
            view = await resolve(door, loan_id)
            if follow:

                async def look() -> tuple[Sequence[Row], str]:
                    detail, missing = await describe(door, await resolve(door, view.loan))
                    return [detail.loan.model_dump(mode="json")], missing

                await present(look, COLUMNS, output, name=_loan_name, empty="", follow=True, shown=_shown)
            detail, missing = await describe(door, view)
            item = detail.model_dump(mode="json")
            wide = output is Output.WIDE
            show_one(item, output, name=view.loan, text=lambda: print_detail(detail, wide=wide))
        check_whole(missing)

    run(main)


@app.command("return")
def return_command(
    context: typer.Context,
    loan_id: LoanArgument,
    reason: Annotated[str, typer.Option("--reason", "-r", help="Why; the job's owner is told.")],
    dry_run: DryRunOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Have the job of LOAN saved and stopped, and its GPUs returned; it comes back when there is room again."""

    async def main() -> None:
        from gpubank.cli.loandesk import resolve
        from gpubank.domain.notice import return_refusal
        from gpubank.domain.recall import Decision

        check_reason(reason)
        async with open_door(settings_of(context)) as door:
            view = await resolve(door, loan_id)
            processes, who = await door.processes(), await identity_of(door.cluster)
            if dry_run:
                state = await processes.loan_state(view.loan)
                _check(return_refusal(view.loan, state))
            else:
                decision = Decision(identity=who.name, verified=who.verified, reason=reason)
                state = await processes.return_now(view.loan, decision)
            item = _order(view, who, state, reason=reason, dry_run=dry_run)
            done = "would be saved, stopped and its" if dry_run else "is being saved and stopped, its"
            go = "would go back (dry run)" if dry_run else f"go back; `gpubank loan show {view.uid} --watch` follows it"
            show_one(
                item,
                output,
                name=view.loan,
                text=lambda: typer.echo(f"{view.workload} {done} {view.gpus} GPUs {go}"),
            )

    run(main)


@app.command("extend")
def extend_command(
    context: typer.Context,
    loan_id: LoanArgument,
    by: Annotated[str, typer.Option("--by", help="How much longer the notice lasts, as in 10m.")],
    reason: ReasonOption = "",
    dry_run: DryRunOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Give the recalled job of LOAN more time to save, within the pool's maxGracePeriod."""
    span = _span(by)

    async def main() -> None:
        from gpubank.cli.loandesk import resolve
        from gpubank.domain.notice import extension_refusal
        from gpubank.domain.recall import Extension

        check_reason(reason)
        async with open_door(settings_of(context)) as door:
            view = await resolve(door, loan_id)
            processes, who = await door.processes(), await identity_of(door.cluster)
            if dry_run:
                state = await processes.loan_state(view.loan)
                _check(extension_refusal(view.loan, state, span))
                deadline = state.deadline + span if state.deadline else None
            else:
                extension = Extension(by=span, identity=who.name, verified=who.verified, reason=reason)
                state = await processes.extend(view.loan, extension)
                deadline = state.deadline
            until = instant(deadline)
            item = _order(view, who, state, reason=reason, dry_run=dry_run)
            item |= {"by": format_duration(span), "deadline": format_instant(deadline) if deadline else None}
            done = f"notice would end {until} (dry run)" if dry_run else f"notice ends {until}"
            show_one(
                item,
                output,
                name=view.loan,
                text=lambda: typer.echo(f"{view.workload}: {done}, {format_duration(span)} later"),
            )

    run(main)


def _order(view: "LoanView", who: Identity, state: "LoanState", *, reason: str, dry_run: bool) -> dict[str, Any]:
    """What came of an order, for programs."""
    return {
        "loan": view.loan,
        "workload": view.workload,
        **said(who, reason, dry_run=dry_run),
        "state": state.model_dump(mode="json"),
    }


def _check(refusal: str) -> None:
    """Say what the Loan itself would say to the order."""
    if refusal:
        raise PolicyError(refusal)


def _span(text: str) -> timedelta:
    try:
        span = parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not a duration; write it as in 10m or 1h30m") from error
    if span <= timedelta():
        raise typer.BadParameter("a notice is only ever made longer; write it as in 10m or 1h30m")
    return span


def _loan_name(row: Row) -> str:
    return str(row["loan"])


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """Add what the columns of a table need."""
    shares = [f"{share['lender']}:{share['gpus']}" for share in row["lenders"]]
    return {
        **row,
        "shownLenders": shares,
        "shownSince": instant(row["since"]),
        "shownDeadline": instant(row["deadline"]),
    }
