"""How every command prints: a table for people, JSON and YAML for programs, names for pipes."""

import errno
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


_UNLIMITED: Final = 100_000
"""Columns of a pipe."""


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
        print_json({"items": list(rows)})
    elif output is Output.YAML:
        print_yaml({"items": [dict(row) for row in rows]})
    elif output is Output.NAME:
        for row in rows:
            sys.stdout.write(f"{name(row)}\n")
    elif rows:
        console().print(table(rows, columns, output, totals=totals))
    elif empty:
        typer.echo(empty, err=True)


def show_one(item: Mapping[str, Any], output: Output, *, name: str, text: Callable[[], None]) -> None:
    """Print one object; `text` prints it for people."""
    if output is Output.JSON:
        print_json(item)
    elif output is Output.YAML:
        print_yaml(item)
    elif output is Output.NAME:
        sys.stdout.write(f"{name}\n")
    else:
        text()


def print_facts(facts: Mapping[str, str], *, width: int = 12) -> None:
    """Print one line for each fact that there is; values begin in column `width`."""
    for name, value in facts.items():
        if value:
            typer.echo(f"{name + ':':<{width}}{value}")


def print_json(item: Mapping[str, Any]) -> None:
    """Print one JSON document."""
    sys.stdout.write(json.dumps(item, indent=2, ensure_ascii=False) + "\n")


def print_yaml(item: Mapping[str, Any]) -> None:
    """Print one YAML document."""
    import yaml

    yaml.safe_dump(dict(item), sys.stdout, sort_keys=False, allow_unicode=True)


def console() -> "Console":
    """Where tables go: as wide as they are, unless a terminal says how wide it is."""
    from rich.console import Console

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            """Leave it to the one place that knows the exit code."""
            raise BrokenPipeError(errno.EPIPE, "broken pipe")

    return Plain(width=None if sys.stdout.isatty() else _UNLIMITED, highlight=False)


def table(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[Column],
    output: Output = Output.TABLE,
    *,
    totals: Mapping[str, Any] | None = None,
) -> "Table":
    """Build the table of `rows`, kubectl's look: no lines, upper-case titles."""
    from rich.table import Table
    from rich.text import Text

    shown = [column for column in columns if output is Output.WIDE or not column.wide]
    result = Table(box=None, pad_edge=False, header_style="bold")
    for column in shown:
        result.add_column(column.title, justify="right" if column.right else "left", no_wrap=True, overflow="fold")
    for row in rows:
        result.add_row(*(Text(cell(row.get(column.field))) for column in shown))
    if totals:
        result.add_row(*(Text(cell(totals.get(column.field), blank="")) for column in shown), style="bold")
    return result


def cell(value: Any, blank: str = "-") -> str:
    """Write one value for a table."""
    if value is None or value == "":
        return blank
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ",".join(str(item) for item in value) or blank
    return str(value)


def instant(moment: datetime | str | None) -> str:
    """Write a moment for people: UTC, to the second; a dash for none."""
    if moment is None:
        return "-"
    found = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    return f"{found.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
