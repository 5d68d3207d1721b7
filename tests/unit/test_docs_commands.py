"""Every `gpubank` command that a page names in its text is one that the command line takes, options and all.

Commands in blocks are run: see tests/docs.
"""

import re
import shlex
from typing import Any, Final

import pytest
from markdown_it import MarkdownIt
from typer.main import get_command

from gpubank.cli.main import app
from tests.docs.reading import ROOT, pages

LISTS: Final = {"CHANGELOG.md", "docs/reference/cli.md"}
"""Pages that name commands as titles, without what they need."""

ROOT_COMMAND: Final[Any] = get_command(app)


def cases() -> list[Any]:
    tokens = (
        (page, token)
        for page in sorted({*pages()} - LISTS)
        for token in MarkdownIt().enable("table").parse((ROOT / page).read_text())
    )
    inline = {
        (page, child.content) for page, token in tokens for child in token.children or () if child.type == "code_inline"
    }
    return [
        pytest.param(text, id=f"{page}: {text}")
        for page, text in sorted(inline)
        if re.match(r"gpubank [a-z]+( |$)", text)
    ]


def parse(command: str) -> str:
    """Parse a command down to what runs, running nothing; return its path. Raises where it is not taken."""
    here, context = ROOT_COMMAND, ROOT_COMMAND.make_context("gpubank", shlex.split(command)[1:])
    while hasattr(here, "list_commands"):
        _, here, rest = here.resolve_command(context, [*context._protected_args, *context.args])
        context = here.make_context(here.name, rest, parent=context)
    return str(context.command_path)


@pytest.mark.parametrize("command", cases())
def test_a_command_that_a_page_names_is_taken(command: str) -> None:
    assert parse(command).startswith("gpubank ")


@pytest.mark.parametrize("command", ["gpubank loan shwo a/b", "gpubank freeze x --reason y --fro 2h"])
def test_a_command_that_is_misspelt_would_be_found(command: str) -> None:
    with pytest.raises(Exception, match="No such"):
        parse(command)
