"""A command line that imports only the command it runs: help and offline checks must not wait for clients they never use.

    Entry("loan", "gpubank.cli.loans:app", "The loans ...")  ──▶ listed with its help, imported when it is called
"""

import importlib
import sys
import traceback
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group_from_info
from typer.models import TyperInfo

from gpubank.cli.context import ExitCode
from gpubank.domain.errors import BankError

Command = TyperCommand | TyperGroup


class Entry(NamedTuple):
    """One command of the top level."""

    name: str
    target: str
    """`module:attribute`: a function, or a `typer.Typer` that holds more commands."""

    help: str
    """What the command's own help says first; a test compares."""


class LazyCommands(dict[str, Any]):
    """Commands by name; each is imported when it is first asked for."""

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        super().__init__(dict.fromkeys(entries))
        self.entries = entries

    def get(self, name: str, default: Any = None) -> Any:
        """Return one command, or `default` where there is none."""
        return self[name] if name in self else default

    def __getitem__(self, name: str) -> Any:
        found = super().__getitem__(name)
        if found is None:
            found = load(self.entries[name])
            self[name] = found
        return found

    def items(self) -> Any:
        """Return names and commands; names are what callers use, so nothing is imported."""
        return super().items()


def load(entry: Entry) -> Any:
    """Import one command."""
    module, _, attribute = entry.target.partition(":")
    target = getattr(importlib.import_module(module), attribute)
    if isinstance(target, typer.Typer):
        return get_group_from_info(
            TyperInfo(target, name=entry.name),
            pretty_exceptions_short=False,
            rich_markup_mode=None,
            suggest_commands=True,
        )
    single = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    single.command(entry.name)(target)
    return get_command(single)


class BankGroup(TyperGroup):
    """The top level: lists without importing, and turns whatever a command raises into a sentence and an exit code."""

    def load(self, entries: tuple[Entry, ...]) -> None:
        """Take the commands that there are."""
        self.commands = LazyCommands({entry.name: entry for entry in entries})

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands from the table alone."""
        assert isinstance(self.commands, LazyCommands)
        with formatter.section("Commands"):
            formatter.write_dl([(entry.name, entry.help) for entry in self.commands.entries.values()])

    def invoke(self, ctx: Any) -> Any:
        """Run the command; no error of a command reaches the terminal as a stack trace."""
        try:
            return super().invoke(ctx)
        except BankError as error:
            typer.echo(f"gpubank: {error}", err=True)
        return None
