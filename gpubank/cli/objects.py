"""`gpubank apply|get|delete`: the bank's objects, and in embedded mode also Jobs and Deployments.

On a cluster kubectl does the same and more; these commands exist so that the embedded mode needs nothing else.
"""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from gpubank.cli.context import ExitCode, NotFoundError, run, settings_of
from gpubank.cli.door import open_door
from gpubank.cli.output import Column, Output, OutputOption, show
from gpubank.schema.manifest import UnreadableError, read_documents

NamespaceOption = Annotated[str | None, typer.Option("--namespace", "-n", help="Namespace of the object.")]


def apply(
    context: typer.Context,
    files: Annotated[list[str], typer.Option("--filename", "-f", help="YAML or JSON; '-' is standard input.")],
    namespace: NamespaceOption = None,
) -> None:
    """Create or replace every object of the files, in order; the first that is refused ends it."""
    documents = [document for name in files for document in read_manifests(name)]

    async def main() -> None:
        async with open_door(settings_of(context)) as door:
            for document in documents:
                meta = document.setdefault("metadata", {})
                if namespace and "namespace" not in meta and document.get("kind") not in CLUSTER_SCOPED:
                    meta["namespace"] = namespace
                await door.cluster.apply(document)
                typer.echo(f"{str(document.get('kind', '')).lower()}/{meta.get('name', '')} applied")

    run(main)


CLUSTER_SCOPED = ("GPUPool", "BusinessGroup")
COLUMNS = (
    Column("NAMESPACE", "namespace"),
    Column("NAME", "name"),
    Column("STATE", "state"),
    Column("MESSAGE", "message"),
)


def get(
    context: typer.Context,
    kind: Annotated[str, typer.Argument(help="GPUPool, BusinessGroup, GPUQuotaPolicy, ...; embedded also Job.")],
    name: Annotated[str | None, typer.Argument(help="One object; all by default.")] = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show objects with their state."""

    async def main() -> None:
        async with open_door(settings_of(context)) as door:
            items = [
                item
                for item in await door.cluster.list(kind)
                if (name is None or item["metadata"]["name"] == name)
                and (namespace is None or item["metadata"].get("namespace") == namespace)
            ]
        if name is not None and not items:
            raise NotFoundError(f"{kind} {name!r} does not exist; `gpubank get {kind}` lists what there is")
        rows = items if output in (Output.JSON, Output.YAML) else [_row(item) for item in items]
        show(rows, COLUMNS, output, name=lambda row: f"{kind.lower()}/{row['name']}", empty=f"there is no {kind}")

    run(main)


def delete(
    context: typer.Context,
    kind: Annotated[str, typer.Argument(help="Kind of the object.")],
    name: Annotated[str, typer.Argument(help="Name of the object.")],
    namespace: NamespaceOption = None,
) -> None:
    """Ask for the deletion of one object; the bank holds it back while a loan depends on it."""

    async def main() -> None:
        async with open_door(settings_of(context)) as door:
            if not await door.cluster.delete(kind, name, namespace):
                raise NotFoundError(f"{kind} {name!r} does not exist; `gpubank get {kind}` lists what there is")
        typer.echo(f"{kind.lower()}/{name} deleted")

    run(main)


def _row(item: dict[str, Any]) -> dict[str, Any]:
    status = item.get("status", {})
    conditions = {condition["type"]: condition for condition in status.get("conditions", [])}
    ready = conditions.get("Ready")
    state = status.get("state") or (("Ready" if ready["status"] == "True" else ready["reason"]) if ready else "")
    return {
        "namespace": item["metadata"].get("namespace", ""),
        "name": item["metadata"]["name"],
        "state": state,
        "message": "" if not ready or ready["status"] == "True" else ready.get("message", ""),
    }


def read_manifests(name: str) -> list[dict[str, Any]]:
    """Read one file of manifests; one that cannot be read ends the command before anything is applied."""
    source = "standard input" if name == "-" else name
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8-sig")
        return [document.body for document in read_documents(text, source)]
    except OSError as error:
        typer.echo(f"gpubank: file {name!r} cannot be read: {error.strerror}", err=True)
        raise typer.Exit(ExitCode.USAGE) from error
    except (UnreadableError, UnicodeDecodeError) as error:
        typer.echo(f"gpubank: {error}", err=True)
        raise typer.Exit(ExitCode.USAGE) from error
