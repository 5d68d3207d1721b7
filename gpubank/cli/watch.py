"""`--watch`: a table that lives on a terminal, lines that are appended anywhere else.

terminal      the whole table, drawn anew
table, wide   a line with its time for every row that is new, changed or gone
json          one object per line: {"at": ..., "type": "ADDED" | "MODIFIED" | "DELETED", "object": {...}}
yaml          the same as documents
name          the name of every row that is new or changed
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer

from gpubank.cli.context import ExitCode, say
from gpubank.cli.output import Column, Output, cell, console, print_yaml, show, table
from gpubank.domain.base import format_instant

PERIOD: Final = 1.0
"""Seconds between two looks."""

Row = Mapping[str, Any]
Look = Callable[[], Awaitable[Sequence[Row]]]
Looker = Callable[[], Awaitable[tuple[Sequence[Row], str]]]
"""Rows, and why something is missing from them; empty if nothing is."""

Name = Callable[[Row], str]
Shown = Callable[[Row], Row]
"""Adds what the columns of a table need; JSON and YAML go without."""

WatchOption = Annotated[bool, typer.Option("--watch", "-w", help="Follow what changes until interrupted.")]


async def present(
    look: Looker,
    columns: Sequence[Column],
    output: Output,
    *,
    name: Name,
    empty: str,
    follow: bool,
    shown: Shown | None = None,
) -> None:
    """Print what `look` finds, once or again and again; what is missing from it is an error only at the end."""

    def dressed(rows: Sequence[Row]) -> Sequence[Row]:
        return rows if shown is None or output in (Output.JSON, Output.YAML) else [shown(row) for row in rows]

    if follow:
        said = ""

        async def rows_of() -> Sequence[Row]:
            nonlocal said
            rows, missing = await look()
            if missing and missing != said:
                say(f"incomplete: {missing}")
            said = missing
            return dressed(rows)

        await watch(rows_of, columns, output, name=name)
    rows, missing = await look()
    show(dressed(rows), columns, output, name=name, empty=empty)
    check_whole(missing)


def check_whole(missing: str) -> None:
    """End the command with `UNREACHABLE` if something is missing from what was printed."""
    if missing:
        say(f"incomplete: {missing}")
        raise typer.Exit(ExitCode.UNREACHABLE)


async def pause() -> None:
    """Wait until the next look."""
    await asyncio.sleep(PERIOD)


def on_terminal() -> bool:
    """Whether a person looks at the output itself."""
    return sys.stdout.isatty()


async def watch(look: Look, columns: Sequence[Column], output: Output, *, name: Name) -> None:
    """Show what `look` returns, again and again; only an interrupt or an error ends it."""
    if output in (Output.TABLE, Output.WIDE) and on_terminal():
        from rich.live import Live

        with Live(console=console(), auto_refresh=False) as live:
            while True:
                live.update(table(await look(), columns, output), refresh=True)
                await pause()
    before: dict[str, Row] = {}
    printer = _Printer(columns, output, name)
    while True:
        after = {name(row): row for row in await look()}
        for kind, row in _changes(before, after):
            printer.show(kind, row)
        sys.stdout.flush()
        before = after
        await pause()


def _changes(before: Mapping[str, Row], after: Mapping[str, Row]) -> Iterator[tuple[str, Row]]:
    for key, row in after.items():
        if key not in before:
            yield "ADDED", row
        elif row != before[key]:
            yield "MODIFIED", row
    for key, row in before.items():
        if key not in after:
            yield "DELETED", row


class _Printer:
    """Appends changes to the output."""

    def __init__(self, columns: Sequence[Column], output: Output, name: Name) -> None:
        self._columns = [column for column in columns if output is Output.WIDE or not column.wide]
        self._output, self._name = output, name
        self._headed = False

    def show(self, kind: str, row: Row) -> None:
        now = datetime.now(UTC)
        event = {"at": format_instant(now.replace(microsecond=0)), "type": kind, "object": dict(row)}
        if self._output is Output.JSON:
            sys.stdout.write(json.dumps(event, ensure_ascii=False) + "\n")
        elif self._output is Output.YAML:
            sys.stdout.write("---\n")
            print_yaml(event)
        elif self._output is Output.NAME:
            if kind != "DELETED":
                sys.stdout.write(f"{self._name(row)}\n")
        else:
            if not self._headed:
                self._headed = True
                self._line("TIME", [column.title for column in self._columns])
            self._line(f"{now:%H:%M:%S}Z", [cell(row.get(column.field)) for column in self._columns], kind)

    def _line(self, time: str, values: Sequence[str], kind: str = "") -> None:
        # Widths of what is yet to come are unknown, so every column has a fair share.
        padded = [value.ljust(max(len(column.title), 11)) for value, column in zip(values, self._columns, strict=True)]
        text = "  ".join((time.ljust(9), *padded)).rstrip()
        sys.stdout.write(f"{text}{'  (gone)' if kind == 'DELETED' else ''}\n")
