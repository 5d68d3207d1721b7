"""Every `gpubank` command that the how-to pages show is one that the command line takes, options and all."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from typer.main import get_command

from gpubank.cli.main import app

HOW_TO: Final = Path(__file__).parents[2] / "docs" / "how-to"
ROOT_COMMAND: Final[Any] = get_command(app)


def commands(page: Path) -> Iterator[str]:
    """Yield the commands in a page's blocks, lines continued by a backslash as one, and in its inline code."""
    text = page.read_text()
    blocks = re.findall(r"^```(?:console|sh|bash)?\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line.strip().removeprefix("$ ") for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    for found in (*lines, *inline):
        if re.match(r"gpubank [a-z]", found):
            yield re.sub(r"\s+#.*", "", found)


def cases() -> list[Any]:
    found = {(page.name, command) for page in HOW_TO.glob("*.md") for command in commands(page)}
    return [pytest.param(command, id=f"{page}: {command}") for page, command in sorted(found)]


def parse(command: str) -> str:
    """Parse a command down to what runs, running nothing; return its path. Raises where it is not taken."""
    here, context = ROOT_COMMAND, ROOT_COMMAND.make_context("gpubank", shlex.split(command)[1:])
    while hasattr(here, "list_commands"):
        _, here, rest = here.resolve_command(context, [*context._protected_args, *context.args])
        context = here.make_context(here.name, rest, parent=context)
    return str(context.command_path)


@pytest.mark.parametrize("command", cases())
def test_a_command_of_the_how_to_pages_is_taken(command: str) -> None:
    assert parse(command).startswith("gpubank ")


@pytest.mark.parametrize("command", ["gpubank loan shwo a/b", "gpubank freeze x --reason y --fro 2h"])
def test_a_command_that_is_misspelt_would_be_found(command: str) -> None:
    with pytest.raises(Exception, match="No such"):
        parse(command)
