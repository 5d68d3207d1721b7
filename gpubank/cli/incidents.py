"""`gpubank incident ...`: broken GPUs, what has been done about them, and what people must do."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gpubank.cli.context import run, settings_of
from gpubank.cli.door import open_door
from gpubank.cli.identity import check_reason, identity_of, said
from gpubank.cli.options import DryRunOption, PoolOption, ReasonOption
from gpubank.cli.output import Column, Output, OutputOption, console, instant, print_facts, show_one, table
from gpubank.cli.watch import Row, WatchOption, present
from gpubank.domain.errors import PolicyError

if TYPE_CHECKING:
    from gpubank.cli.incidentbook import IncidentDetail
    from gpubank.domain.incident import Word

app = typer.Typer(no_args_is_help=True, help="Broken GPUs: what was done, and what people must do.")

COLUMNS: Final = (
    Column("POOL", "pool"),
    Column("NODE", "node"),
    Column("GPU", "gpu"),
    Column("PHASE", "phase"),
    Column("CAUSE", "cause"),
    Column("SINCE", "shownSince"),
    Column("APPROVAL", "shownApproval"),
    Column("ENDED", "shownEnded", wide=True),
    Column("INCIDENT", "incident", wide=True),
)
FAULTS: Final = (
    Column("FAULT", "cause"),
    Column("CLASS", "fault"),
    Column("ASKS FOR", "action"),
    Column("FIRST", "shownFirst"),
    Column("LAST", "shownLast"),
    Column("TIMES", "count", right=True),
)
PODS: Final = (Column("POD", "shownPod"), Column("GPUS", "gpus", right=True), Column("STATE", "state"))
HISTORY: Final = (Column("SINCE", "shownAt"), Column("PHASE", "phase"), Column("BECAUSE", "why"))

IncidentArgument = Annotated[
    str,
    typer.Argument(metavar="INCIDENT", help="incident/CLUSTER/NODE/GPU, NODE/GPU, a GPU's UUID, or a node with one."),
]


@app.callback()
def incident() -> None:
    """Broken GPUs: what was done, and what people must do."""


@app.command("list")
def list_command(
    context: typer.Context,
    pool: PoolOption = None,
    node: Annotated[str | None, typer.Option("--node", "-n", help="Only this node.")] = None,
    everything: Annotated[bool, typer.Option("--all", "-A", help="Incidents that have ended too.")] = False,
    output: OutputOption = Output.TABLE,
    follow: WatchOption = False,
) -> None:
    """List incidents: which GPU, what is wrong, how far it has got, and whether a person must approve."""

    async def main() -> None:
        from gpubank.cli.incidentbook import find_incidents

        async with open_door(settings_of(context)) as door:

            async def look() -> tuple[Sequence[Row], str]:
                found = await find_incidents(door, pool=pool, node=node, ended=everything)
                return [view.model_dump(mode="json") for view in found], ""

            await door.check_pool(pool)
            empty = "no GPU is known to be broken"
            await present(look, COLUMNS, output, name=_name, empty=empty, follow=follow, shown=_shown)

    run(main)


@app.command("show")
def show_command(context: typer.Context, incident_id: IncidentArgument, output: OutputOption = Output.TABLE) -> None:
    """Show everything about INCIDENT: its faults, pods that must leave, what it waits for, and its history."""

    async def main() -> None:
        from gpubank.cli.incidentbook import detail, resolve

        async with open_door(settings_of(context)) as door:
            found = await detail(door, await resolve(door, incident_id))
            show_one(found.model_dump(mode="json"), output, name=found.incident, text=lambda: _print(found, output))

    run(main)


@app.command("repaired")
def repaired_command(
    context: typer.Context,
    incident_id: IncidentArgument,
    reason: ReasonOption = "",
    dry_run: DryRunOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Say that the GPU of INCIDENT is repaired: it is put back, unless it still reports a fault itself."""
    _decide(context, incident_id, "repaired", reason, dry_run=dry_run, output=output)


@app.command("retire")
def retire_command(
    context: typer.Context,
    incident_id: IncidentArgument,
    reason: ReasonOption,
    keep_cordon: Annotated[bool, typer.Option("--keep-cordon", help="Leave its node cordoned.")] = False,
    dry_run: DryRunOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Take the GPU of INCIDENT out for good; its node takes pods again unless told otherwise."""
    _decide(context, incident_id, "retire", reason, dry_run=dry_run, output=output, keep_cordon=keep_cordon)


@app.command("approve")
def approve_command(
    context: typer.Context,
    incident_id: IncidentArgument,
    reason: ReasonOption = "",
    dry_run: DryRunOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Approve what INCIDENT waits for: a cordon beyond the pool's share, or going on although pods are left."""
    _decide(context, incident_id, "approve", reason, dry_run=dry_run, output=output)


_DONE: Final[Mapping["Word", str]] = {"repaired": "said to be repaired", "retire": "retired", "approve": "approved"}


def _decide(
    context: typer.Context,
    incident_id: str,
    what: "Word",
    reason: str,
    *,
    dry_run: bool,
    output: Output,
    keep_cordon: bool = False,
) -> None:
    async def main() -> None:
        from gpubank.cli.incidentbook import combined, resolve
        from gpubank.domain.incident import IncidentWord, word_refusal

        check_reason(reason)
        async with open_door(settings_of(context)) as door:
            view = await resolve(door, incident_id)
            processes, who = await door.processes(), await identity_of(door.cluster)
            if dry_run:
                state = await processes.incident_state(view.incident)
                if refusal := word_refusal(view.incident, state, what):
                    raise PolicyError(refusal)
            else:
                word = IncidentWord(identity=who.name, verified=who.verified, reason=reason, keep_cordon=keep_cordon)
                calls = {
                    "repaired": processes.repaired,
                    "retire": processes.retire,
                    "approve": processes.approve_incident,
                }
                state = await calls[what](view.incident, word)
            item = {
                "incident": view.incident,
                "decision": what,
                **said(who, reason, dry_run=dry_run),
                "state": combined(door, view, state).model_dump(mode="json"),
            }
            done = f"would be {_DONE[what]} by {who} (dry run)" if dry_run else f"{_DONE[what]} by {who}"
            show_one(item, output, name=view.incident, text=lambda: typer.echo(f"{view.incident}: {done}"))

    run(main)


def _name(row: Row) -> str:
    return str(row["incident"])


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """Add what the columns of a table need."""
    return {
        **row,
        "shownSince": instant(row["startedAt"]),
        "shownEnded": instant(row["endedAt"]),
        "shownApproval": "AWAITED" if row["needsApproval"] else None,
    }


def _print(found: "IncidentDetail", output: Output) -> None:
    """Print everything about one incident."""
    facts = {
        "Incident": found.incident,
        "GPU": found.gpu,
        "Node": f"{found.node} (pool {found.pool or 'none'}, cluster {found.cluster})",
        "Phase": found.phase,
        "Cordoned": {"Node": "the whole node", "Gpu": "only the GPU"}.get(found.cordoned, "nothing"),
        "Cause": f"{found.cause}: {found.reason}" if found.cause else "",
        "Approval": f"awaited: {found.waits_for}" if found.waits_for else "",
        "Waiting": "; ".join(found.waiting),
        "Ticket": found.ticket,
        "Repaired": found.repaired_by,
        "Policy": found.policy,
        "Last": found.note,
        "Temporal": found.ui,
    }
    print_facts(facts)
    faults = [fault.model_dump(mode="json") for fault in found.faults]
    pods = [pod.model_dump(mode="json") for pod in found.pods]
    history = [record.model_dump(mode="json") for record in found.history]
    for rows, columns in (
        ([{**r, "shownFirst": instant(r["firstAt"]), "shownLast": instant(r["lastAt"])} for r in faults], FAULTS),
        ([{**r, "shownPod": f"{r['namespace']}/{r['name']}"} for r in pods], PODS),
        ([{**r, "shownAt": instant(r["at"])} for r in history], HISTORY),
    ):
        if rows:
            typer.echo("")
            console().print(table(rows, columns, output))
