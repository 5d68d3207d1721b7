"""How every command prints: a table for people, JSON and YAML for programs, names for pipes."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

import typer
import yaml
from rich.console import Console
from rich.table import Table


class Output(StrEnum):
    """Formats of `-o`."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


OutputOption = Annotated[Output, typer.Option("-o", "--output", help="table, wide, json, yaml or name.")]


class Column(NamedTuple):
    """One column of a table."""

    title: str
    field: str
    """Key of the row; what is not there prints as `-`."""

    wide: bool = False
    """Only in `-o wide`."""

    right: bool = False
    """Numbers stand right."""


def show(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[Column],
    output: Output,
    *,
    name: Callable[[Mapping[str, Any]], str],
    empty: str = "",
    totals: Mapping[str, Any] | None = None,
) -> None:
    """Print rows; `name` gives the line of `-o name`, `empty` is said on stderr where a table has no row."""
    if output is Output.JSON:
        json.dump({"items": list(rows)}, sys.stdout, indent=2, ensure_ascii=False)
        sys.stdout.write("\n")
    elif output is Output.YAML:
        yaml.safe_dump({"items": [dict(row) for row in rows]}, sys.stdout, sort_keys=False, allow_unicode=True)
    elif output is Output.NAME:
        for row in rows:
            sys.stdout.write(f"{name(row)}\n")
    elif not rows:
        typer.echo(empty, err=True)
    else:
        Console(width=None if sys.stdout.isatty() else 200).print(table(rows, columns, output, totals=totals))


def show_one(item: Mapping[str, Any], output: Output, *, name: str, text: Callable[[], None]) -> None:
    """Print one object; `text` prints it for people."""
    if output is Output.JSON:
        json.dump(item, sys.stdout, indent=2, ensure_ascii=False)
        sys.stdout.write("\n")
    elif output is Output.YAML:
        yaml.safe_dump(dict(item), sys.stdout, sort_keys=False, allow_unicode=True)
    elif output is Output.NAME:
        sys.stdout.write(f"{name}\n")
    else:
        text()


def table(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[Column],
    output: Output = Output.TABLE,
    *,
    totals: Mapping[str, Any] | None = None,
) -> Table:
    """Build the table of `rows`, kubectl's look: no lines, upper-case titles."""
    shown = [column for column in columns if output is Output.WIDE or not column.wide]
    result = Table(box=None, pad_edge=False, header_style="bold")
    for column in shown:
        result.add_column(column.title, justify="right" if column.right else "left", no_wrap=True, overflow="fold")
    for row in rows:
        result.add_row(*(_cell(row.get(column.field)) for column in shown))
    if totals:
        result.add_row(*(_cell(totals.get(column.field), blank="") for column in shown), style="bold")
    return result


def _cell(value: Any, blank: str = "-") -> str:
    if value is None or value == "":
        return blank
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ",".join(str(item) for item in value) or blank
    return str(value)
