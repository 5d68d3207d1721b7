"""`gpubank apply|get|delete`: the bank's objects, and in embedded mode also Jobs and Deployments.

On a cluster kubectl does the same and more; these commands exist so that the embedded mode needs nothing else.
"""

import sys
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from gpubank.cli.context import ExitCode, NotFoundError, run, say, settings_of
from gpubank.cli.door import open_door
from gpubank.cli.output import Column, Output, OutputOption, show
from gpubank.schema import KINDS, kind_named
from gpubank.schema.kinds import Scope
from gpubank.schema.manifest import UnreadableError, read_documents

NamespaceOption = Annotated[str | None, typer.Option("--namespace", "-n", help="Namespace of the object.")]


def apply(
    context: typer.Context,
    files: Annotated[list[str], typer.Option("--filename", "-f", help="YAML or JSON; '-' is standard input.")],
    namespace: NamespaceOption = None,
) -> None:
    """Create or replace every object of the files, in order; the first that is refused ends it."""
    documents = [document for name in files for document in read_manifests(name)]
    for document in documents:
        _place(document, namespace)
    if not documents:
        say("nothing to apply: the files hold no object")
        raise typer.Exit(ExitCode.USAGE)

    async def main() -> None:
        async with open_door(settings_of(context)) as door:
            for document in documents:
                await door.cluster.apply(document)
                typer.echo(f"{document['kind'].lower()}/{document['metadata']['name']} applied")

    run(main)


def _place(document: dict[str, Any], namespace: str | None) -> None:
    """Check that an object says what it is, and put it where `--namespace` wants it unless it says so itself."""
    kind, meta = document.get("kind"), document.get("metadata")
    if not isinstance(kind, str) or not isinstance(meta, dict) or not isinstance(meta.get("name"), str):
        raise typer.BadParameter("an object lacks kind or metadata.name; `gpubank policy validate FILE` says where")
    scope = KINDS[kind].scope if kind in KINDS else Scope.NAMESPACED
    if namespace and scope is Scope.NAMESPACED:
        meta.setdefault("namespace", namespace)


JOB_KINDS: Final = {"job": "Job", "jobs": "Job", "deployment": "Deployment", "deployments": "Deployment"}
"""Kinds of work that the embedded mode takes beside the bank's own, as people type them."""


def kind_of(text: str) -> str:
    """Return the kind that is meant by a kind, plural or short name; `NotFoundError` if there is none."""
    from gpubank.domain.errors import PolicyError

    if text.lower() in JOB_KINDS:
        return JOB_KINDS[text.lower()]
    try:
        return kind_named(text).name
    except PolicyError as error:
        known = [*KINDS, "Job", "Deployment"]
        close = get_close_matches(text.lower(), [name.lower() for name in known], n=1)
        hint = next((f"; did you mean {name!r}?" for name in known if close == [name.lower()]), "")
        raise NotFoundError(f"{text!r} is no kind; there are {', '.join(known)}{hint}") from error


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
            wanted = kind_of(kind)
            items = [
                item
                for item in await door.cluster.list(wanted)
                if (name is None or item["metadata"]["name"] == name)
                and (namespace is None or item["metadata"].get("namespace") == namespace)
            ]
        if name is not None and not items:
            raise NotFoundError(f"{wanted} {name!r} does not exist; `gpubank get {wanted}` lists what there is")
        rows = items if output in (Output.JSON, Output.YAML) else [_row(item) for item in items]
        show(rows, COLUMNS, output, name=lambda row: f"{wanted.lower()}/{row['name']}", empty=f"there is no {wanted}")

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
            wanted = kind_of(kind)
            if not await door.cluster.delete(wanted, name, namespace):
                raise NotFoundError(f"{wanted} {name!r} does not exist; `gpubank get {wanted}` lists what there is")
        typer.echo(f"{wanted.lower()}/{name} deleted")

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
        say(f"{source} cannot be read: {error.strerror}; name a file that can")
        raise typer.Exit(ExitCode.USAGE) from error
    except UnicodeDecodeError as error:
        say(f"{source} is no text in UTF-8; save it so")
        raise typer.Exit(ExitCode.USAGE) from error
    except UnreadableError as error:
        say(str(error))
        raise typer.Exit(ExitCode.USAGE) from error
