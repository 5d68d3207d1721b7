"""`gpubank`, also as `kubectl gpubank`: one command line for people and scripts.

Every flag can stand in the environment or in a file instead (`gpubank config show`). Exit codes: see
`gpubank.cli.context`.
"""

import sys
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from gpubank.cli.lazy import Entry, LazyGroup
from gpubank.exit import clean_exit

_FOLDER: Final = "gpubank.cli"


class Root(LazyGroup):
    """The commands that there are, in the order of the help."""

    entries = (
        Entry("up", f"{_FOLDER}.up:up", "Run the embedded bank until Ctrl-C."),
        Entry("quota", f"{_FOLDER}.quota:quota", "Show who has what: guaranteed, used, borrowed, lent, lendable."),
        Entry("loan", f"{_FOLDER}.loans:app", "The loans: who has whose GPUs, since when, and how they come back."),
        Entry("reclaim", f"{_FOLDER}.reclaims:app", "The recalls: who wants GPUs back, of whom, and who must agree."),
        Entry("lease", f"{_FOLDER}.leases:app", "The leases: whose borrowed work no recall takes, and until when."),
        Entry("incident", f"{_FOLDER}.incidents:app", "Broken GPUs: what was done, and what people must do."),
        Entry("freeze", f"{_FOLDER}.freeze:freeze", "Stop new loans and new recalls of a pool."),
        Entry("unfreeze", f"{_FOLDER}.freeze:unfreeze", "Let loans and recalls go on."),
        Entry("apply", f"{_FOLDER}.objects:apply", "Create or replace every object of the files, in order."),
        Entry("get", f"{_FOLDER}.objects:get", "Show objects with their state."),
        Entry("delete", f"{_FOLDER}.objects:delete", "Ask for the deletion of one object."),
        Entry("policy", f"{_FOLDER}.policy:app", "Check policies before anybody applies them."),
        Entry("ledger", f"{_FOLDER}.ledger:app", "The ledger: postings, audit trail, and whether they hold."),
        Entry("doctor", f"{_FOLDER}.doctor:doctor", "Check everything that the bank needs, and say what to do."),
        Entry("lab", f"{_FOLDER}.lab:app", "A real control plane on this machine: etcd, Kubernetes, Kueue, fake GPUs."),
        Entry("nodeagent", f"{_FOLDER}.nodeagent:app", "What the node agent makes of a node's GPUs."),
        Entry("hook", f"{_FOLDER}.hook:app", "The checkpoint hook for training images."),
        Entry("config", f"{_FOLDER}.config:app", "The effective settings."),
        Entry("schema", f"{_FOLDER}.schema:app", "CRDs, JSON Schema and reference pages, rendered from the models."),
    )


app = typer.Typer(
    name="gpubank",
    cls=Root,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=True,
    help="A bank for GPUs: guaranteed, lent while idle, recalled after a verified checkpoint.",
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata

        typer.echo(f"gpubank {metadata.version('gpubank')}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    mode: Annotated[Literal["embedded", "cluster"] | None, typer.Option(help="embedded (default) or cluster.")] = None,
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
    context.obj = {
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


def program_name(called: str) -> str:
    """What help calls the program: kubectl runs a plugin under a file name that nobody types."""
    return "kubectl gpubank" if Path(called).name.removesuffix(".exe") == "kubectl-gpubank" else "gpubank"


def main() -> None:
    """Run the command line and leave cleanly, whatever client library still has threads."""
    try:
        app(prog_name=program_name(sys.argv[0]))
        code: object = 0
    except SystemExit as stop:
        code = stop.code
    clean_exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    main()
