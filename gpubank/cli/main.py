"""`gpubank`, also as `kubectl gpubank`: one command line for people and scripts.

Every flag can stand in the environment or in a file instead (`gpubank config show`). Exit codes: see
`gpubank.cli.context`.
"""

from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from gpubank.cli import config, hook, lab, ledger, policy, schema
from gpubank.cli.context import ExitCode
from gpubank.cli.exit import clean_exit
from gpubank.cli.freeze import freeze, unfreeze
from gpubank.cli.objects import apply, delete, get
from gpubank.cli.quota import quota
from gpubank.domain.errors import PolicyError
from gpubank.settings import Mode, Settings

app = typer.Typer(
    name="gpubank",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=True,
    help="A bank for GPUs: guaranteed, lent while idle, recalled after a verified checkpoint.",
)
app.command()(quota)
app.command()(freeze)
app.command()(unfreeze)
app.command()(apply)
app.command()(get)
app.command()(delete)
app.add_typer(policy.app, name="policy")
app.add_typer(ledger.app, name="ledger")
app.add_typer(lab.app, name="lab")
app.add_typer(hook.app, name="hook")
app.add_typer(config.app, name="config")
app.add_typer(schema.app, name="schema")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gpubank {metadata.version('gpubank')}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    mode: Annotated[Mode | None, typer.Option(help="embedded (default) or cluster.")] = None,
    state_dir: Annotated[Path | None, typer.Option(help="Folder of the embedded mode.")] = None,
    cluster: Annotated[str | None, typer.Option(help="Name of the cluster.")] = None,
    kubeconfig: Annotated[Path | None, typer.Option(help="Kubeconfig file.")] = None,
    kube_context: Annotated[str | None, typer.Option("--context", help="Context of the kubeconfig.")] = None,
    temporal_address: Annotated[str | None, typer.Option(help="host:port of Temporal's frontend.")] = None,
    temporal_namespace: Annotated[str | None, typer.Option(help="Temporal namespace.")] = None,
    database_url: Annotated[
        str | None, typer.Option(help="URL of the ledger; prefer GPUBANK_LEDGER__URL, for it holds a password.")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Guaranteed GPUs, lent while idle, recalled after a verified checkpoint."""
    flags = {
        "mode": mode,
        "state_dir": state_dir,
        "cluster.name": cluster,
        "cluster.kubeconfig": kubeconfig,
        "cluster.context": kube_context,
        "temporal.address": temporal_address,
        "temporal.namespace": temporal_namespace,
        "ledger.url": database_url,
        "log_level": log_level,
    }
    try:
        context.obj = Settings.load(flags)
    except PolicyError as error:
        typer.echo(f"gpubank: {error}", err=True)
        raise typer.Exit(ExitCode.USAGE) from error


def main() -> None:
    """Run the command line and leave cleanly, whatever client library still has threads."""
    try:
        code = app(standalone_mode=True)
    except SystemExit as stop:
        code = stop.code
    clean_exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    main()
