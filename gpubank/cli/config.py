"""`gpubank config`: what a process would run with."""

import json
import sys
from typing import Annotated, Any

import typer
import yaml

from gpubank.cli.context import settings_of
from gpubank.cli.output import Output
from gpubank.settings import config_file

app = typer.Typer(no_args_is_help=True, help="The effective settings.")


@app.command()
def show(
    context: typer.Context,
    output: Annotated[Output, typer.Option("-o", "--output", help="table, json or yaml.")] = Output.TABLE,
) -> None:
    """Print the effective settings, without secrets, and where they come from."""
    settings = settings_of(context).public()
    if output is Output.JSON:
        json.dump(settings, sys.stdout, indent=2)
        sys.stdout.write("\n")
    elif output is Output.YAML:
        yaml.safe_dump(settings, sys.stdout, sort_keys=False)
    else:
        typer.echo(f"# file: {config_file() or 'none'}; flags and GPUBANK_* variables win over it")
        for name, value in _flat(settings):
            typer.echo(f"{name} = {json.dumps(value)}")


def _flat(settings: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for name, value in settings.items():
        rows += _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else [(f"{prefix}{name}", value)]
    return rows
