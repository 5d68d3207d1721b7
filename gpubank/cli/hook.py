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
        str,
        typer.Argument(
            help="File to write, a folder to write it into (made if it ends in a slash), or '-' for standard output.",
        ),
    ] = FILE_NAME,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there and differs.")] = False,
) -> None:
    """Write the hook as one file: standard library only, Python 3.9 and newer."""
    source = single_file()
    if path == "-":
        sys.stdout.write(source)
        return
    folder = path.endswith("/") or Path(path).is_dir()
    target = Path(path, FILE_NAME) if folder else Path(path)
    try:
        if folder:
            target.parent.mkdir(parents=True, exist_ok=True)
        if not force and target.exists() and target.read_text(encoding="utf-8") != source:
            typer.echo(f"{str(target)!r} is there and differs; give --force to replace it", err=True)
            raise typer.Exit(1)
        target.write_text(source, encoding="utf-8")
    except OSError as error:
        typer.echo(f"cannot write {str(target)!r}: {error.strerror}; name a file in a folder that is there", err=True)
        raise typer.Exit(1) from error
    typer.echo(f"{target}: written")
