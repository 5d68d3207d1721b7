"""The commands that the documents show: read from their fenced blocks, each with the page and line where it stands.

```console  `$ ` before each command, and below it what it prints
```sh       commands alone
anything else is no command: it says what it is by its language (```text for a drawing)
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from markdown_it import MarkdownIt

ROOT: Final = Path(__file__).parents[2]
CONSOLE: Final = "console"
SCRIPT: Final = "sh"
OTHERS: Final = frozenset({"json", "promql", "python", "text", "yaml"})
"""Languages of blocks that hold no commands."""

PROGRAMS: Final = frozenset(
    {"cat", "createdb", "curl", "echo", "export", "gpubank", "kill", "kubectl", "make", "openssl", "pip", "podman"}
    | {"promtool", "psql", "python", "sudo", "temporal"}
)
"""Programs that pages tell to run; a line in a block of text that begins with one would be a command in disguise."""

CLUSTER_PROGRAMS: Final = frozenset({"kubectl", "temporal"})
"""Programs of which commands in a page's text are run too."""

_PROMPT: Final = "$ "
_MORE: Final = "\\"


class DocumentError(Exception):
    """A block cannot be read; the message begins with page and line."""


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    page: str
    """Path below the root."""
    line: int
    """Line of its fence, from 1."""
    language: str
    lines: tuple[str, ...]
    generated: bool = False
    """Whether a program wrote the page."""


@dataclass(frozen=True)
class Command:
    """One command, which may go over several lines."""

    page: str
    line: int
    text: str
    shown: tuple[str, ...] = ()
    """What the page shows as its output; empty where it shows none."""

    @property
    def bare(self) -> str:
        """The command without the remark behind it."""
        return re.sub(r"\s+# .*", "", self.text)

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: `{self.bare}`"


def pages() -> list[str]:
    """Return every document that a reader is given."""
    found = {*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))}
    return sorted(str(path.relative_to(ROOT)) for path in found)


FOLDERS: Final = ("docs", "examples", "manifests")


def blocks(page: str, text: str | None = None) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    text = (ROOT / page).read_text() if text is None else text
    generated = text.startswith("<!-- Written by")
    fences = [token for token in MarkdownIt().parse(text) if token.type == "fence"]
    return [
        Block(page, token.map[0] + 1, token.info.strip(), tuple(token.content.splitlines()), generated)
        for token in fences
        if token.map is not None
    ]


def commands(page: str, text: str | None = None) -> list[Command]:
    """Return the commands of a page, in order; raise DocumentError where a block is not what its language says."""
    return [command for block in blocks(page, text) for command in _commands(block)]


def spoken() -> list[Command]:
    """Return the commands of CLUSTER_PROGRAMS that pages name in their text, each once, where it comes first."""
    found: dict[str, Command] = {}
    for page in pages():
        for token in MarkdownIt().enable("table").parse((ROOT / page).read_text()):
            for child in token.children or ():
                text = child.content
                if child.type == "code_inline" and text.split(" ")[0] in CLUSTER_PROGRAMS and " " in text:
                    found.setdefault(text, Command(page, (token.map or [0])[0] + 1, text))
    return list(found.values())


def written(page: str) -> list[Any]:
    """Return what stands in the YAML blocks of a page, as readers write it to files."""
    texts = ("\n".join(block.lines) for block in blocks(page) if block.language == "yaml")
    return [document for text in texts for document in yaml.safe_load_all(text)]


def _commands(block: Block) -> Iterator[Command]:
    if block.language == CONSOLE:
        yield from _console(block)
    elif block.language == SCRIPT:
        yield from (
            Command(block.page, line, text)
            for line, text in _joined(block, list(enumerate(block.lines, block.line + 1)))
            if text.strip() and not text.startswith("#")
        )
    elif block.language not in OTHERS:
        raise DocumentError(
            f"{block.page}:{block.line}: a block of language {block.language!r};"
            f" commands are `{CONSOLE}` or `{SCRIPT}`, else it is one of {', '.join(sorted(OTHERS))}"
        )
    elif block.language == "text" and not block.generated:
        for line, text in enumerate(block.lines, block.line + 1):
            if text.strip().startswith(_PROMPT) or text.split(" ")[0] in PROGRAMS:
                raise DocumentError(f"{block.page}:{line}: {text.strip()!r} is a command in a block of text")


def _console(block: Block) -> Iterator[Command]:
    """Split what a terminal shows at its prompts."""
    starts = [number for number, text in enumerate(block.lines) if text.startswith(_PROMPT)]
    if not starts or starts[0]:
        raise DocumentError(f"{block.page}:{block.line + 1}: a `{CONSOLE}` block begins with a prompt, '$ '")
    for start, end in zip(starts, [*starts[1:], len(block.lines)], strict=True):
        first = block.line + 1 + start
        said = [block.lines[start].removeprefix(_PROMPT), *block.lines[start + 1 : end]]
        typed = next((number for number, text in enumerate(said, 1) if not text.endswith(_MORE)), len(said))
        (joined,) = _joined(block, list(enumerate(said[:typed], first)))
        yield Command(block.page, first, joined[1], tuple(said[typed:]))


def _joined(block: Block, lines: Sequence[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Join lines that a backslash continues."""
    begun: list[tuple[int, str]] = []
    for line, text in lines:
        begun.append((line, text))
        if not text.endswith(_MORE):
            yield begun[0][0], "\n".join(each for _, each in begun)
            begun = []
    if begun:
        raise DocumentError(f"{block.page}:{begun[-1][0]}: a backslash at the end of a block continues nothing")
