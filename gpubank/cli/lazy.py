"""A command line that imports only the command it runs: help and offline checks wait for no client they never use.

Entry("loan", "gpubank.cli.loans:app", "The loans ...")  ──▶ listed with its help, imported when it is called

It is also the one place that turns whatever a command raises into a sentence and an exit code.
"""

import importlib
from typing import Any, ClassVar, NamedTuple

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group_from_info
from typer.models import TyperInfo

from gpubank.cli.context import explained


class Entry(NamedTuple):
    """One command of the top level."""

    name: str
    target: str
    """`module:attribute`: a function, or a `typer.Typer` that holds more commands."""

    help: str
    """First sentence of the command's own help; a test compares."""


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


class LazyGroup(TyperGroup):
    """The top level: lists without importing, and lets no error of a command out as a stack trace."""

    entries: ClassVar[tuple[Entry, ...]] = ()

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self._entries = {entry.name: entry for entry in self.entries}
        # Known by name from the start, for completion and suggestions.
        self.commands: Any = dict.fromkeys(self._entries)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return one command, imported by now; None where there is none."""
        if cmd_name in self._entries and self.commands[cmd_name] is None:
            self.commands[cmd_name] = load(self._entries[cmd_name])
        return self.commands.get(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands from the table alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(entry.name, entry.help) for entry in self.entries])

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with explained():
            return super().invoke(ctx)
