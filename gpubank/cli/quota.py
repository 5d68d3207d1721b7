"""`gpubank quota`: who has what."""

import asyncio
from datetime import timedelta
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live

from gpubank.cli.context import run, settings_of
from gpubank.cli.door import Door, open_door
from gpubank.cli.output import Column, Output, OutputOption, show, table
from gpubank.decide.overview import overview

COLUMNS = (
    Column("POOL", "pool"),
    Column("GROUP", "group"),
    Column("GUARANTEED", "guaranteed", right=True),
    Column("IN FORCE", "inForce", wide=True, right=True),
    Column("USED", "used", right=True),
    Column("BORROWED", "borrowed", right=True),
    Column("BORROW LIMIT", "borrowLimit", wide=True, right=True),
    Column("LENT", "lent", right=True),
    Column("LENDABLE", "lendable", right=True),
    Column("LENDING LIMIT", "lendingLimit", wide=True, right=True),
    Column("PLEDGED", "pledged", wide=True, right=True),
    Column("PENDING", "pending", right=True),
    Column("PENDING BORROW", "pendingBorrow", wide=True, right=True),
)

WatchOption = Annotated[bool, typer.Option("--watch", "-w", help="Show it anew every second until interrupted.")]
PoolOption = Annotated[str | None, typer.Option("--pool", "-p", help="Only this pool.")]
GroupOption = Annotated[str | None, typer.Option("--group", "-g", help="Only this business group.")]


def quota(
    context: typer.Context,
    pool: PoolOption = None,
    group: GroupOption = None,
    output: OutputOption = Output.TABLE,
    watch: WatchOption = False,
) -> None:
    """Show per group and pool what is guaranteed, used, borrowed, lent, lendable and pending, in GPUs."""

    async def main() -> None:
        async with open_door(settings_of(context)) as door:
            if watch and output in (Output.TABLE, Output.WIDE):
                await _watch(door, pool, group, output)
                return
            rows = await quota_rows(door, pool, group)
            show(
                rows,
                COLUMNS,
                output,
                name=lambda row: f"{row['pool']}/{row['group']}",
                empty="no group has a policy in force; `gpubank apply -f` takes pools, groups and policies",
            )

    run(main)


async def quota_rows(door: Door, pool: str | None, group: str | None) -> list[dict[str, Any]]:
    """Rows of every pool, or of one."""
    agreement = await door.agreement()
    rows: list[dict[str, Any]] = []
    for name in await door.pools(pool):
        facts = await door.cluster.observe(name)
        books = await door.ledger.books(door.settings.cluster.name, name)
        rows += [
            row.model_dump(mode="json", by_alias=True)
            for row in overview(facts, books, agreement.terms[name])
            if group is None or row.group == group
        ]
    return rows


async def _watch(door: Door, pool: str | None, group: str | None, output: Output) -> None:
    with Live(console=Console(), auto_refresh=False) as live:
        while True:
            live.update(table(await quota_rows(door, pool, group), COLUMNS, output), refresh=True)
            await asyncio.sleep(timedelta(seconds=1).total_seconds())
