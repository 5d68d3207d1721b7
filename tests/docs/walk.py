"""A walk through one page: its commands, run in its order, with a page's own names in place of its placeholders."""

import asyncio
import re
import shutil
from collections.abc import Mapping, Sequence
from typing import Final

from tests.docs.exempt import EXEMPT
from tests.docs.reading import Command, commands
from tests.docs.shell import Ran, Shell

_BUILT_IN: Final = frozenset({"echo", "export", "kill", "until"})
"""What bash does by itself."""


def lacking(page: str, env: Mapping[str, str]) -> list[str]:
    """Return the programs that a page's commands begin with and that this machine has not got."""
    run = [each for each in commands(page) if (each.page, each.bare) not in EXEMPT]
    words = {each.text.split()[0] for each in run} - _BUILT_IN
    return sorted(word for word in words if "=" not in word and shutil.which(word, path=env["PATH"]) is None)


class Walk:
    """One page in one terminal. A command fails the test, with page and line, unless it exits 0 and prints what the
    page shows.
    """

    def __init__(
        self,
        page: str,
        shell: Shell,
        names: Mapping[str, str] | None = None,
        left: Sequence[Command] | None = None,
    ) -> None:
        """Open a page; `names` says what a reader writes in place of each placeholder.

        With `left` it is these commands instead, from wherever they are.
        """
        self.page, self.shell = page, shell
        self.left = list(commands(page) if left is None else left)
        """What has not been run yet."""
        self._names = dict(names or {})
        text = "\n".join("\n".join((each.text, *each.shown)) for each in self.left)
        unused = [name for name in self._names if not re.search(_place(name), text)]
        assert not unused, f"{page}: no command has the placeholder {', '.join(unused)}"
        self._places = re.compile("|".join(map(_place, sorted(self._names, key=len, reverse=True))))

    async def on_to(self, words: str, *, typed: str = "", code: int = 0, timeout: float = 60) -> Ran:
        """Run on up to the next command that begins with `words`, and return what came of it."""
        while self.left:
            command = self.left[0]
            if command.text.startswith(words):
                return await self._run(typed, code, timeout)
            await self._run("", 0, timeout)
        raise AssertionError(f"{self.page}: no command is left that begins with {words!r}")

    async def to_the_end(self, *, timeout: float = 60) -> None:
        """Run whatever is left."""
        while self.left:
            await self._run("", 0, timeout)

    async def _run(self, typed: str, code: int, timeout: float) -> Ran:
        command = self.left.pop(0)
        exempt = EXEMPT.get((command.page, command.bare))
        text = self.said(command.text) if exempt is None else exempt.instead
        try:
            ran = await asyncio.to_thread(self.shell.run, text, typed=typed, timeout=timeout)
        except TimeoutError as error:
            raise AssertionError(f"{command}: {error}") from None
        assert ran.code == code, f"{command} exits with {ran.code} as `{text}`, not {code}:\n{ran.said[-4000:]}"
        if exempt is None:
            self._compare(command, ran)
        return ran

    def _compare(self, command: Command, ran: Ran) -> None:
        """Hold what it prints against what the page shows, but for spaces at the ends of lines."""
        shown = [self.said(line).rstrip() for line in command.shown if line.strip()]
        printed = [line.rstrip() for line in ran.out.splitlines() if line.strip()]
        if shown:
            assert printed == shown, f"{command} prints something else than the page shows"

    def said(self, text: str) -> str:
        """Return a text of the page with names in place of placeholders."""
        if not self._names:
            return text
        # All at once: a name that is put in is no place for another.
        return self._places.sub(lambda found: self._names[found[0]], text)


def _place(name: str) -> str:
    """Match a placeholder that stands alone: NAME, but not in NAMESPACE."""
    before = r"(?<![\w-])" if name[0].isalnum() else ""
    after = r"(?![\w-])" if name[-1].isalnum() else ""
    return f"{before}{re.escape(name)}{after}"
