"""`gpubank doctor`: whether everything that the bank needs is there and as it must be."""

import asyncio
from collections.abc import Sequence
from importlib import metadata
from platform import python_version
from typing import TYPE_CHECKING, Any

import typer

from gpubank.cli.context import ExitCode, run, settings_of
from gpubank.cli.output import Output, OutputOption, show_one
from gpubank.domain.errors import BankError

if TYPE_CHECKING:
    from gpubank.cli.checks.finding import Check
    from gpubank.settings import Settings


def doctor(context: typer.Context, output: OutputOption = Output.TABLE) -> None:
    """Check everything that the bank needs, and say what to do.

    One line per check: ok, warn or FAIL. Exits with 1 if any check fails.
    """

    async def main() -> None:
        from gpubank.settings import Mode

        settings = settings_of(context)
        checks = await (_embedded(settings) if settings.mode is Mode.EMBEDDED else _cluster(settings))
        passed = all(check.level != "FAIL" for check in checks)
        if output is Output.NAME:
            for check in checks:
                typer.echo(f"{check.area}/{check.level}")
        else:
            show_one(report(settings, checks), output, name="", text=lambda: _print(checks))
        if not passed:
            raise typer.Exit(ExitCode.REFUSED)

    run(main)


def report(settings: "Settings", checks: "Sequence[Check]") -> dict[str, Any]:
    """Everything that was found, for programs."""
    return {
        "mode": str(settings.mode),
        "ok": all(check.level != "FAIL" for check in checks),
        "checks": [check.model_dump(mode="json") for check in checks],
    }


def _print(checks: "Sequence[Check]") -> None:
    for check in checks:
        remedy = f"; {check.remedy}" if check.remedy else ""
        typer.echo(f"{check.level:<4}  {check.area:<9} {check.message}{remedy}")


def _program() -> "Check":
    from gpubank.cli.checks.finding import ok
    from gpubank.settings import config_file

    file = config_file()
    return ok(
        "program",
        f"gpubank {metadata.version('gpubank')}, Python {python_version()}, settings from"
        f" {str(file) if file else 'defaults, flags and the environment'}",
    )


async def _embedded(settings: "Settings") -> "list[Check]":
    """The embedded bank: whether it runs, and what it says about itself."""
    from gpubank.adapters.embedded import EmbeddedClient
    from gpubank.cli.checks.finding import fail, ok, warn
    from gpubank.cli.checks.ledger import check_ledger
    from gpubank.cli.checks.pools import pool_checks
    from gpubank.cli.checks.temporal import check_temporal
    from gpubank.cli.door import embedded_settings

    checks = [_program()]
    async with EmbeddedClient(settings.socket) as client:
        try:
            status = await client.status()
            pools = await client.list("GPUPool")
        except BankError as error:
            return [*checks, fail("bank", str(error))]
    ours, theirs = metadata.version("gpubank"), status["version"]
    running = f"version {theirs}, process {status['pid']}, socket {settings.socket}"
    if ours == theirs:
        checks.append(ok("bank", running))
    else:
        checks.append(warn("bank", f"{running}; this program is {ours}", "start the bank anew"))
    settings = embedded_settings(settings, status)
    temporal, ledger = await asyncio.gather(check_temporal(settings), check_ledger(settings.database_url))
    return [*checks, *temporal, *ledger, *pool_checks(pools, "the simulated cluster")]


async def _cluster(settings: "Settings") -> "list[Check]":
    """Cluster mode: each part by itself, for one that is down must not hide another."""
    from gpubank.cli.checks.temporal import check_temporal

    parts = await asyncio.gather(check_temporal(settings), _ledger(settings), _api_server(settings))
    return [_program(), *(check for part in parts for check in part)]


async def _ledger(settings: "Settings") -> "list[Check]":
    from gpubank.cli.checks.finding import fail
    from gpubank.cli.checks.ledger import check_ledger

    try:
        return await check_ledger(settings.database_url)
    except BankError as error:
        return [fail("ledger", str(error))]


async def _api_server(settings: "Settings") -> "list[Check]":
    from gpubank.cli.checks.cluster import check_cluster
    from gpubank.cli.checks.finding import fail
    from gpubank.cli.cluster import open_cluster

    try:
        async with open_cluster(settings) as cluster:
            return await check_cluster(cluster, settings)
    except BankError as error:
        return [fail("cluster", str(error))]
