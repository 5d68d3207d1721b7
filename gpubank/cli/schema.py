"""`gpubank schema …`: CRDs, JSON Schema and reference pages from the models."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gpubank.domain.errors import PolicyError
from gpubank.schema import KINDS, crd, json_schema, kind_named, write
from gpubank.schema.files import to_yaml

app = typer.Typer(help="CRDs, JSON Schema and reference pages, rendered from the models.", no_args_is_help=True)


class Form(StrEnum):
    """Forms of a schema."""

    CRD = "crd"
    JSON_SCHEMA = "json-schema"


@app.callback()
def schema() -> None:
    """Render CRDs, JSON Schema and reference pages from the models."""


@app.command("write")
def write_command(
    root: Annotated[Path, typer.Option("--root", help="Folder that holds manifests/ and docs/.")] = Path(),
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit with 1 if a file differs.")] = False,
) -> None:
    """Write manifests/crds, manifests/base/admission and docs/reference."""
    from gpubank.cli import reference  # it imports every command
    from nodeagent.exporter import reference as exporter

    try:
        changed = sorted(
            [*write(root, check=check), *reference.write(root, check=check), *exporter.write(root, check=check)]
        )
    except OSError as error:
        typer.echo(f"gpubank: cannot write {str(error.filename)!r}: {error.strerror}; name another --root", err=True)
        raise typer.Exit(2) from error
    for path in changed:
        typer.echo(f"{path}: {'differs' if check else 'written'}")
    if check and changed:
        typer.echo("gpubank: generated files differ from the models; run `gpubank schema write`", err=True)
        raise typer.Exit(1)
    if not changed:
        typer.echo("every generated file is up to date")


@app.command("show")
def show_command(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="Kind, plural or short name, as in GPUPool or gqp.")],
    form: Annotated[Form, typer.Option("--output", "-o", help="CRD as YAML, or JSON Schema for editors.")] = Form.CRD,
) -> None:
    """Print the schema of KIND."""
    try:
        found = kind_named(kind)
    except PolicyError as error:
        typer.echo(f"gpubank: {error}", err=True)
        raise typer.Exit(2) from error
    if form is Form.CRD:
        typer.echo(to_yaml(crd(found)), nl=False)
    else:
        typer.echo(json.dumps(json_schema(found.model), indent=2, ensure_ascii=False))


@app.command("list")
def list_command() -> None:
    """Print the kinds, with their short names and scopes."""
    for kind in KINDS.values():
        typer.echo(f"{kind.name:<24}{kind.short_name:<8}{kind.scope}")
