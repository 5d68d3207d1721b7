"""`gpubank hook …`: the checkpoint hook for training images."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from gpubank.hook.export import FILE_NAME, single_file

app = typer.Typer(help="The checkpoint hook for training images.", no_args_is_help=True)


@app.callback()
def hook() -> None:
    """Give training scripts the hook by which the bank asks them for a checkpoint."""


@app.command()
def export(
    path: Annotated[
        Path, typer.Argument(help="File to write, a folder to write it into, or '-' for standard output.")
    ] = Path(FILE_NAME),
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there and differs.")] = False,
) -> None:
    """Write the hook as one file: standard library only, Python 3.9 and newer."""
    source = single_file()
    if str(path) == "-":
        sys.stdout.write(source)
        return
    target = path / FILE_NAME if path.is_dir() else path
    try:
        if not force and target.exists() and target.read_text(encoding="utf-8") != source:
            typer.echo(f"{str(target)!r} is there and differs; give --force to replace it", err=True)
            raise typer.Exit(1)
        target.write_text(source, encoding="utf-8")
    except OSError as error:
        typer.echo(f"cannot write {str(target)!r}: {error.strerror}; name a file in a folder that is there", err=True)
        raise typer.Exit(1) from error
    typer.echo(f"{target}: written")
