"""`gpubank up`: the whole bank in one process, on a simulated cluster."""

import asyncio
import signal
from typing import Annotated, Any

import typer

from gpubank.cli.context import run, settings_of
from gpubank.cli.objects import read_manifests
from gpubank.domain.errors import PolicyError
from gpubank.embedded.bank import EmbeddedBank, embedded_bank
from gpubank.logs import configure
from gpubank.settings import Mode, Settings


def up(
    context: typer.Context,
    files: Annotated[
        list[str] | None, typer.Option("--filename", "-f", help="Pools, groups, policies and jobs to begin with.")
    ] = None,
    nodes: Annotated[
        list[str] | None, typer.Option("--nodes", help="POOL=COUNTxGPUS, as in h100=4x8; simulated nodes, repeatable.")
    ] = None,
) -> None:
    """Run the embedded bank until Ctrl-C: Temporal's dev server, worker, controller, simulated cluster, SQLite."""
    settings = settings_of(context)
    if settings.mode is not Mode.EMBEDDED:
        raise typer.BadParameter("`up` runs the embedded mode; on a cluster the worker and the controller are deployed")
    manifests = [body for name in files or () for body in read_manifests(name)]
    wanted = [_nodes(text) for text in nodes or ()]
    configure(settings.log_level, settings.log_format)
    run(lambda: _serve(settings, manifests, wanted))


def _nodes(text: str) -> tuple[str, int, int]:
    pool, _, size = text.partition("=")
    count, _, gpus = size.partition("x")
    if not pool or not count.isdigit() or not gpus.isdigit():
        raise typer.BadParameter(
            f"{text!r} names no nodes; write POOL=COUNTxGPUS, as in h100=4x8", param_hint="--nodes"
        )
    return pool, int(count), int(gpus)


async def _serve(settings: Settings, manifests: list[dict[str, Any]], nodes: list[tuple[str, int, int]]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with embedded_bank(settings) as bank:
        for pool, count, gpus in nodes:
            await bank.add_nodes(pool, count, gpus)
        await _apply(bank, manifests)
        typer.echo(f"the bank is up; Temporal's UI: {bank.server.ui_url}")
        typer.echo("in another terminal: gpubank quota, gpubank loan list, gpubank apply -f FILE; Ctrl-C ends it")
        await stop.wait()


async def _apply(bank: EmbeddedBank, manifests: list[dict[str, Any]]) -> None:
    for body in manifests:
        kind, name = body.get("kind"), body.get("metadata", {}).get("name")
        try:
            if kind in ("Job", "Deployment"):
                bank.cluster.submit(body)
            else:
                await bank.cluster.objects.apply(body)
        except PolicyError as error:
            raise PolicyError(f"{kind} {name!r}: {error}") from error
