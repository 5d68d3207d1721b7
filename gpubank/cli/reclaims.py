"""`gpubank reclaim ...`: who wants GPUs back, of whom, and who must agree."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gpubank.cli.context import run, say, settings_of
from gpubank.cli.door import open_door
from gpubank.cli.identity import Identity, check_reason, identity_of, said
from gpubank.cli.options import DryRunOption, PoolOption, ReasonOption
from gpubank.cli.output import Column, Output, OutputOption, console, instant, print_facts, show_one, table
from gpubank.cli.watch import Row, WatchOption, check_whole, present
from gpubank.domain.errors import PolicyError

if TYPE_CHECKING:
    from gpubank.cli.recallbook import ReclaimView
    from gpubank.domain.recall import ReclaimState

app = typer.Typer(no_args_is_help=True, help="The recalls: who wants GPUs back, of whom, and who must agree.")

COLUMNS: Final = (
    Column("POOL", "pool"),
    Column("LENDER", "lender"),
    Column("PHASE", "phase"),
    Column("GPUS", "gpus", right=True),
    Column("DEMANDS", "shownDemands", right=True),
    Column("VICTIMS", "shownVictims", right=True),
    Column("DUE", "shownDue"),
    Column("MUST APPROVE", "shownApprovers"),
    Column("RECLAIM", "reclaim", wide=True),
    Column("WAITING", "shownWaiting", wide=True),
    Column("JOBS", "shownJobs", wide=True),
)
VICTIMS: Final = (
    Column("JOB", "workload"),
    Column("GROUP", "group"),
    Column("GPUS", "gpus", right=True),
    Column("PHASE", "phase"),
    Column("ANSWER", "answer"),
    Column("REASON", "reason"),
    Column("LOAN", "loan", wide=True),
)

ReclaimArgument = Annotated[
    str, typer.Argument(metavar="RECLAIM", help="reclaim/CLUSTER/POOL/LENDER, POOL/LENDER, or a lender.")
]
DemandOption = Annotated[str, typer.Option("--demand", help="Only this demand; every one that waits by default.")]


@app.callback()
def reclaim() -> None:
    """The recalls: who wants GPUs back, of whom, and who must agree."""


@app.command("list")
def list_command(
    context: typer.Context,
    pool: PoolOption = None,
    lender: Annotated[str | None, typer.Option("--lender", "-l", help="Only this lender.")] = None,
    everything: Annotated[bool, typer.Option("--all", "-A", help="Recalls that have ended too.")] = False,
    output: OutputOption = Output.TABLE,
    follow: WatchOption = False,
) -> None:
    """List recalls: per lender what it waits for, by when, whose jobs are asked, and who must approve."""

    async def main() -> None:
        from gpubank.cli.recallbook import find_reclaims

        async with open_door(settings_of(context)) as door:

            async def look() -> tuple[Sequence[Row], str]:
                found = await find_reclaims(door, pool=pool, lender=lender, ended=everything)
                return [view.model_dump(mode="json") for view in found.views], found.missing

            empty = "nobody wants GPUs back"
            await present(look, COLUMNS, output, name=_name, empty=empty, follow=follow, shown=_shown)

    run(main)


@app.command("show")
def show_command(
    context: typer.Context,
    reclaim_id: ReclaimArgument,
    output: OutputOption = Output.TABLE,
    follow: WatchOption = False,
) -> None:
    """Show everything about RECLAIM: its demands, whose jobs are asked and what they answered, who must approve."""

    async def main() -> None:
        from gpubank.cli.recallbook import resolve

        async with open_door(settings_of(context)) as door:
            view, missing = await resolve(door, reclaim_id)
            if follow:

                async def look() -> tuple[Sequence[Row], str]:
                    now, unknown = await resolve(door, view.reclaim)
                    return [now.model_dump(mode="json")], unknown

                await present(look, COLUMNS, output, name=_name, empty="", follow=True, shown=_shown)
            show_one(view.model_dump(mode="json"), output, name=view.reclaim, text=lambda: _print(view, output))
        check_whole(missing)

    run(main)


@app.command("approve")
def approve_command(
    context: typer.Context,
    reclaim_id: ReclaimArgument,
    demand: DemandOption = "",
    reason: ReasonOption = "",
    dry_run: DryRunOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Approve what RECLAIM would take: its victims are told, saved and stopped."""
    _decide(context, reclaim_id, demand, reason, dry_run=dry_run, output=output, approved=True)


@app.command("deny")
def deny_command(
    context: typer.Context,
    reclaim_id: ReclaimArgument,
    reason: Annotated[str, typer.Option("--reason", "-r", help="Why; whoever waits is told.")],
    demand: DemandOption = "",
    dry_run: DryRunOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Deny what RECLAIM would take: nobody is stopped, and who waits is told why."""
    _decide(context, reclaim_id, demand, reason, dry_run=dry_run, output=output, approved=False)


def _decide(
    context: typer.Context,
    reclaim_id: str,
    demand: str,
    reason: str,
    *,
    dry_run: bool,
    output: Output,
    approved: bool,
) -> None:
    async def main() -> None:
        from gpubank.cli.recallbook import resolve
        from gpubank.domain.recall import Decision

        check_reason(reason)
        async with open_door(settings_of(context)) as door:
            view, _ = await resolve(door, reclaim_id)
            processes, who = await door.processes(), await identity_of(door.cluster)
            asked = _asked(view, demand)
            if dry_run:
                state = await processes.reclaim_state(view.reclaim)
            else:
                decision = Decision(identity=who.name, verified=who.verified, reason=reason, demand=demand)
                state = await (processes.approve if approved else processes.deny)(view.reclaim, decision)
            if view.approvers and who.name not in view.approvers:
                say(f"note: {who} is none of {view.lender}'s admins ({', '.join(view.approvers)}); it is recorded who"
                    " decided")  # fmt: skip
            verb = "approved" if approved else "denied"
            item = _decided(view, who, state, asked, verb=verb, reason=reason, dry_run=dry_run)
            done = f"would be {verb} by {who} (dry run)" if dry_run else f"{verb} by {who}"
            text = f"{view.reclaim}: {', '.join(asked)} {done}"
            show_one(item, output, name=view.reclaim, text=lambda: typer.echo(text))

    run(main)


def _asked(view: "ReclaimView", demand: str) -> list[str]:
    """Return the demands that the decision is about; `PolicyError` where none waits for one."""
    waits = [each.demand for each in view.demands if each.phase == "AwaitingApproval"]
    asked = [name for name in waits if demand in ("", name)]
    if asked:
        return asked
    if not demand:
        raise PolicyError(f"reclaim {view.reclaim!r} is {view.phase}: nothing in it waits for approval")
    have = ", ".join(waits) or "none does"
    raise PolicyError(f"demand {demand!r} of {view.reclaim!r} does not wait for approval; waiting: {have}")


def _decided(
    view: "ReclaimView",
    who: Identity,
    state: "ReclaimState",
    asked: list[str],
    *,
    verb: str,
    reason: str,
    dry_run: bool,
) -> dict[str, Any]:
    return {
        "reclaim": view.reclaim,
        "decision": verb,
        "demands": asked,
        **said(who, reason, dry_run=dry_run),
        "state": state.model_dump(mode="json"),
    }


def _name(row: Row) -> str:
    return str(row["reclaim"])


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """Add what the columns of a table need."""
    victims = [victim for demand in row["demands"] for victim in demand["victims"]]
    live = [demand for demand in row["demands"] if demand["state"]]
    approvers = row["approvers"] or ["an admin of the lender; none is named"]
    return {
        **row,
        "shownDemands": len(live),
        "shownVictims": len(victims),
        "shownDue": instant(row["dueAt"]) + (" OVERDUE" if row["overdue"] else ""),
        "shownApprovers": approvers if row["needsApproval"] else None,
        "shownWaiting": [demand["workload"] or demand["kind"] for demand in live],
        "shownJobs": [f"{victim['workload']}={victim['answer'] or victim['phase'] or 'asked'}" for victim in victims],
    }


def _print(view: "ReclaimView", output: Output) -> None:
    """Print everything about one recall."""
    approvers = ", ".join(view.approvers) or "an admin of the lender"
    facts = {
        "Reclaim": view.reclaim,
        "Lender": view.lender,
        "Pool": f"{view.pool} (cluster {view.cluster})",
        "Phase": view.phase,
        "Due": instant(view.due_at) + (", OVERDUE" if view.overdue else "") if view.due_at else "",
        "Approval": f"awaited of {approvers}" if view.needs_approval else "",
        "Temporal": view.ui,
    }
    print_facts(facts)
    for demand in view.demands:
        typer.echo(f"\nDemand {demand.demand}")
        waiting = f" for {demand.workload}" if demand.workload else ""
        typer.echo(f"  {demand.phase}: {demand.gpus} GPUs{waiting}, due {instant(demand.due_at)}")
        if demand.reason:
            typer.echo(f"  {demand.reason}")
        if demand.approved_by:
            typer.echo(f"  approved by {demand.approved_by}")
        if demand.victims:
            rows = [victim.model_dump(mode="json") for victim in demand.victims]
            console().print(table(rows, VICTIMS, output))
