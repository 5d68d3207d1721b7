"""The reference page of the command line, rendered from the commands themselves.

`gpubank schema write` writes it beside the reference of the kinds, and the same test compares it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from typer.main import get_command

from gpubank.cli.context import MEANINGS
from gpubank.cli.main import app

PATH: Final = "docs/reference/cli.md"
_GENERATED: Final = "<!-- Written by `gpubank schema write`; edit the commands in gpubank/cli instead. -->\n"
_INTRODUCTION: Final = """\
`gpubank` is the whole command line; the same program answers as `kubectl gpubank` when it stands on PATH as
`kubectl-gpubank`. Every global option can stand in the environment or in a file instead; `gpubank config show` prints
what is in force.

## Output

`-o table` (the default) and `-o wide` are for people and may change. `-o json` and `-o yaml` are for programs: fields
are only ever added. `-o name` prints one name per line. Notes and refusals go to standard error, never to standard
output. With `--watch` a terminal shows the table anew every second; anywhere else a line is appended for every row that
is new, changed or gone, with `-o json` as `{"at": ..., "type": "ADDED|MODIFIED|DELETED", "object": {...}}`.

An answer that is not the whole, because a part of the bank does not answer, is printed all the same; the command then
ends with exit code 5 and says on standard error what is missing.
"""


def page() -> str:
    """Render the page."""
    root: Any = get_command(app)
    parts = [_GENERATED, "# Command line", "", _INTRODUCTION, "## Exit codes", "", "| code | meaning |", "|---|---|"]
    parts += [f"| {code.value} | {meaning} |" for code, meaning in MEANINGS.items()]
    parts += ["", "## Global options", "", *_options(root, "gpubank"), "## Commands", ""]
    commands = list(_commands(root, "gpubank"))
    parts += ["| command | what it does |", "|---|---|"]
    parts += [f"| [`{path}`](#{_anchor(path)}) | {_cell(_help(command)[0])} |" for path, command in commands]
    for path, command in commands:
        first, *rest = _help(command)
        parts += ["", f"### {path}", "", "```text", _usage(command, path), "```", "", first]
        parts += [line for paragraph in rest for line in ("", paragraph)]
        if rows := _options(command, path):
            parts += ["", *rows[:-1]]
    return "\n".join(parts).rstrip() + "\n"


def write(root: Path, *, check: bool = False) -> list[str]:
    """Write the page below `root` and return its path if it differed; with `check` nothing is written."""
    path, text = root / PATH, page()
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return []
    if not check:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return [PATH]


def _commands(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every command that does something, by its path, in the order of the help."""
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        here = f"{path} {name}"
        if command.hidden:
            continue
        if hasattr(command, "list_commands"):
            yield from _commands(command, here)
        else:
            yield here, command


def _help(command: Any) -> list[str]:
    """Paragraphs of the help, each on one line."""
    return [" ".join(paragraph.split()) for paragraph in (command.help or "").split("\n\n")]


def _usage(command: Any, path: str) -> str:
    context = _context(command, path)
    return " ".join((path, *command.collect_usage_pieces(context)))


def _options(command: Any, path: str) -> list[str]:
    """Rows of arguments and options, and an empty line; nothing where there are none."""
    context = _context(command, path)
    rows = []
    for param in command.get_params(context):
        record = param.get_help_record(context)
        if record is None or param.name in ("help", "install_completion", "show_completion"):
            continue
        names, meaning = record
        required = " **required**" if param.required and param.param_type_name == "option" else ""
        rows.append(f"| `{_cell(names)}` | {_cell(meaning.replace('[required]', '').strip())}{required} |")
    return ["| argument or option | meaning |", "|---|---|", *rows, ""] if rows else []


def _context(command: Any, path: str) -> Any:
    # As wide as it takes: a help record is one line here.
    return command.context_class(command, info_name=path, terminal_width=10_000, max_content_width=10_000)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _anchor(title: str) -> str:
    return title.replace(" ", "-")
