"""`gpubank quota`: who has what."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from gpubank.cli.context import run, settings_of
from gpubank.cli.door import Door, open_door
from gpubank.cli.options import PoolOption
from gpubank.cli.output import Column, Output, OutputOption
from gpubank.cli.watch import Row, WatchOption, present
from gpubank.domain.errors import BackendError

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

GroupOption = Annotated[str | None, typer.Option("--group", "-g", help="Only this business group.")]


def quota(
    context: typer.Context,
    pool: PoolOption = None,
    group: GroupOption = None,
    output: OutputOption = Output.TABLE,
    follow: WatchOption = False,
) -> None:
    """Show who has what: guaranteed, used, borrowed, lent, lendable and pending GPUs, per group and pool."""

    async def main() -> None:
        async with open_door(settings_of(context)) as door:

            async def look() -> tuple[Sequence[Row], str]:
                return await quota_rows(door, pool, group)

            await present(
                look,
                COLUMNS,
                output,
                name=lambda row: f"{row['pool']}/{row['group']}",
                empty="no group has a policy in force; `gpubank apply -f` takes pools, groups and policies",
                follow=follow,
            )

    run(main)


async def quota_rows(door: Door, pool: str | None, group: str | None) -> tuple[list[dict[str, Any]], str]:
    """Rows of every pool, or of one, and why those of some are missing; empty if none are."""
    from gpubank.decide.overview import overview

    agreement = await door.agreement()
    rows: list[dict[str, Any]] = []
    missing: list[str] = []
    for name in await door.pools(pool):
        terms = agreement.terms.get(name)
        if terms is None:
            missing.append(f"pool {name!r} cannot be read; `gpubank get GPUPool {name}` says why")
            continue
        try:
            facts = await door.cluster.observe(name)
        except BackendError as error:
            missing.append(f"pool {name!r}: {error}")
            continue
        books = await (await door.ledger()).books(door.cluster_name, name)
        rows += [
            row.model_dump(mode="json") for row in overview(facts, books, terms) if group is None or row.group == group
        ]
    return rows, "; ".join(missing)
