"""`gpubank freeze` and `unfreeze`: leave everything as it is."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from gpubank.cli.context import NotFoundError, run, settings_of
from gpubank.cli.door import Door, open_door
from gpubank.cli.identity import check_reason, identity_of
from gpubank.domain.base import format_instant, parse_duration

PoolArgument = Annotated[list[str] | None, typer.Argument(help="Pools; give --all for every one.")]
AllOption = Annotated[bool, typer.Option("--all", help="Every pool.")]


def freeze(
    context: typer.Context,
    reason: Annotated[str, typer.Option("--reason", "-r", help="Why; waiting owners are told.")],
    pools: PoolArgument = None,
    everything: AllOption = False,
    lasting: Annotated[str | None, typer.Option("--for", help="How long, as in 2h; until unfrozen by default.")] = None,
    by: Annotated[str, typer.Option(help="Who orders it.", show_default="who runs the command")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be frozen.")] = False,
) -> None:
    """Stop new loans and new recalls of a pool; running recalls stop before their next irreversible step.

    No job is touched. It is written into the pool, so it holds while nothing else of the bank runs.
    """
    _check_names(pools, everything)
    span = _span(lasting) if lasting is not None else None

    async def order(door: Door) -> dict[str, Any]:
        check_reason(reason)
        until = {} if span is None else {"until": format_instant(datetime.now(UTC).replace(microsecond=0) + span)}
        return {"by": by or str(await identity_of(door.cluster)), "reason": reason, **until}

    async def main() -> None:
        async with open_door(settings_of(context)) as door:
            await _set(door, pools, everything, await order(door), dry_run=dry_run, verb="frozen")

    run(main)


def unfreeze(
    context: typer.Context,
    pools: PoolArgument = None,
    everything: AllOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be unfrozen.")] = False,
) -> None:
    """Let loans and recalls go on."""
    _check_names(pools, everything)

    async def main() -> None:
        async with open_door(settings_of(context)) as door:
            await _set(door, pools, everything, None, dry_run=dry_run, verb="unfrozen")

    run(main)


def _check_names(pools: list[str] | None, everything: bool) -> None:
    if bool(pools) == everything:
        raise typer.BadParameter("name one or more pools, or give --all")


def _span(text: str) -> timedelta:
    try:
        span = parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not a duration; write it as in 30m or 1h30m") from error
    if span <= timedelta():
        raise typer.BadParameter(f"{text!r} is over at once; write it as in 30m or 1h30m")
    return span


async def _set(
    door: Door, pools: list[str] | None, everything: bool, order: dict[str, Any] | None, *, dry_run: bool, verb: str
) -> None:
    """Write `spec.freeze` and nothing else; nothing is written if one of the pools does not exist."""
    bodies = []
    for name in await door.pools() if everything else list(dict.fromkeys(pools or ())):
        pool = await door.cluster.get("GPUPool", name)
        if pool is None:
            raise NotFoundError(f"pool {name!r} does not exist; `gpubank get GPUPool` lists what there is")
        bodies.append(pool)
    for pool in bodies:
        spec = {key: value for key, value in pool["spec"].items() if key != "freeze"}
        if order is not None:
            spec["freeze"] = order
        if not dry_run:
            await door.cluster.apply({**pool, "spec": spec})
        typer.echo(f"gpupool/{pool['metadata']['name']} {verb}" + (" (dry run)" if dry_run else ""))
