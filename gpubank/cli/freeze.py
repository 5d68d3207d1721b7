"""`gpubank freeze` and `unfreeze`: leave everything as it is."""

import getpass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from gpubank.cli.context import NotFoundError, run, settings_of
from gpubank.cli.door import Door, open_door
from gpubank.domain.base import format_instant, parse_duration
from gpubank.domain.errors import PolicyError

PoolArgument = Annotated[list[str] | None, typer.Argument(help="Pools; give --all for every one.")]
AllOption = Annotated[bool, typer.Option("--all", help="Every pool.")]


def freeze(
    context: typer.Context,
    reason: Annotated[str, typer.Option("--reason", "-r", help="Why; waiting owners are told.")],
    pools: PoolArgument = None,
    everything: AllOption = False,
    lasting: Annotated[str | None, typer.Option("--for", help="How long, as in 2h; until unfrozen by default.")] = None,
    by: Annotated[str, typer.Option(help="Who orders it.", show_default="the OS user")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be frozen.")] = False,
) -> None:
    """Stop new loans and new recalls; running recalls stop before their next irreversible step, no job is touched."""
    until = format_instant(datetime.now(UTC) + _span(lasting)) if lasting else None
    order = {"by": by or getpass.getuser(), "reason": reason} | ({"until": until} if until else {})
    _for_each(context, pools, everything, order, dry_run=dry_run, verb="frozen")


def unfreeze(
    context: typer.Context,
    pools: PoolArgument = None,
    everything: AllOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be unfrozen.")] = False,
) -> None:
    """Let loans and recalls go on."""
    _for_each(context, pools, everything, None, dry_run=dry_run, verb="unfrozen")


def _span(text: str) -> timedelta:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not a duration; write it as in 30m or 1h30m") from error


def _for_each(
    context: typer.Context,
    pools: list[str] | None,
    everything: bool,
    order: dict[str, Any] | None,
    *,
    dry_run: bool,
    verb: str,
) -> None:
    if bool(pools) == everything:
        raise typer.BadParameter("name one or more pools, or give --all")

    async def main() -> None:
        async with open_door(settings_of(context)) as door:
            names = await door.pools() if everything else list(pools or ())
            for name in names:
                await _set(door, name, order, dry_run=dry_run)
                typer.echo(f"gpupool/{name} {verb}" + (" (dry run)" if dry_run else ""))

    run(main)


async def _set(door: Door, name: str, order: dict[str, Any] | None, *, dry_run: bool) -> None:
    """Write `spec.freeze` and nothing else."""
    pool = await door.cluster.get("GPUPool", name)
    if pool is None:
        raise NotFoundError(f"pool {name!r} does not exist; `gpubank get GPUPool` lists what there is")
    spec = {key: value for key, value in pool["spec"].items() if key != "freeze"}
    if order is not None:
        if len(order["reason"]) > 1024:
            raise PolicyError("the reason is longer than 1024 characters; shorten it")
        spec["freeze"] = order
    if not dry_run:
        await door.cluster.apply({**pool, "spec": spec})
