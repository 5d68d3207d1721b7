"""What every command needs: the effective settings, and one place where errors become words and exit codes."""

import errno
import os
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeVar

import typer

from gpubank.domain.errors import BackendError, BankError, ConflictError, PolicyError

if TYPE_CHECKING:
    from gpubank.settings import Settings

T = TypeVar("T")

TRACE_VARIABLE: Final = "GPUBANK_TRACE"
"""Environment variable under which an error of the program itself is shown with its stack trace."""


class ExitCode(IntEnum):
    """Documented exit codes."""

    OK = 0
    REFUSED = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    UNREACHABLE = 5
    INTERNAL = 70
    INTERRUPTED = 130
    BROKEN_PIPE = 141


MEANINGS: Final[Mapping[ExitCode, str]] = MappingProxyType(
    {
        ExitCode.OK: "done",
        ExitCode.REFUSED: "refused: a policy, a check or a validation says no",
        ExitCode.USAGE: "the command line, a setting or a file cannot be read, or a name fits more than one thing",
        ExitCode.NOT_FOUND: "no such object",
        ExitCode.CONFLICT: "somebody else changed it meanwhile; look again",
        ExitCode.UNREACHABLE: "something that the bank needs does not answer, so the answer is none or not the whole;"
        " try again later",
        ExitCode.INTERNAL: f"an error of the program itself; {TRACE_VARIABLE}=1 shows where",
        ExitCode.INTERRUPTED: "interrupted (Ctrl-C)",
        ExitCode.BROKEN_PIPE: "whoever read the output has closed it",
    }
)
"""What every exit code means, for the reference."""


class NotFoundError(BankError):
    """Nothing of this name."""


class AmbiguousError(BankError):
    """The name fits more than one thing; the message lists them."""


def settings_of(context: typer.Context) -> "Settings":
    """The effective settings of this command; one that cannot be read ends it with a sentence.

    They are read when a command asks for them: what checks files offline needs none.
    """
    from gpubank.settings import Settings

    root = context.find_root()
    if isinstance(root.obj, Settings):
        return root.obj
    try:
        root.obj = settings = Settings.load(root.obj)
    except PolicyError as error:
        say(str(error))
        raise typer.Exit(ExitCode.USAGE) from error
    return settings


def exit_code(error: BankError) -> ExitCode:
    """The exit code of an error."""
    if isinstance(error, AmbiguousError):
        return ExitCode.USAGE
    if isinstance(error, NotFoundError):
        return ExitCode.NOT_FOUND
    if isinstance(error, ConflictError):
        return ExitCode.CONFLICT
    if isinstance(error, BackendError):
        return ExitCode.UNREACHABLE
    return ExitCode.REFUSED


def run(main: Callable[[], Awaitable[T]]) -> T:
    """Run a command's coroutine; an error of the bank becomes one sentence and an exit code, never a stack trace."""
    import asyncio  # help and offline checks do without

    async def whole() -> T:
        return await main()

    with explained():
        return asyncio.run(whole())


@contextmanager
def explained() -> Iterator[None]:
    """Turn whatever is raised inside into a sentence on stderr and an exit code."""
    try:
        yield
    except BankError as error:
        say(str(error))
        raise typer.Exit(exit_code(error)) from error
    except KeyboardInterrupt as error:
        raise typer.Exit(ExitCode.INTERRUPTED) from error
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise typer.Exit(ExitCode.BROKEN_PIPE) from error
        say(f"{error.filename or 'the system'}: {error.strerror or error}; see that it is there and may be used")
        raise typer.Exit(ExitCode.UNREACHABLE) from error
    except Exception as error:
        if _is_for_typer(error):
            raise
        if os.environ.get(TRACE_VARIABLE):
            traceback.print_exc()
        say(
            f"error of the program itself ({type(error).__name__}: {_first_line(error)}); nothing is known to be wrong"
            f" with the input. {TRACE_VARIABLE}=1 shows where, for a report"
        )
        raise typer.Exit(ExitCode.INTERNAL) from error


def say(sentence: str) -> None:
    """Tell a person something beside the output."""
    typer.echo(f"gpubank: {sentence}", err=True)


def _is_for_typer(error: Exception) -> bool:
    """Whether it is how typer itself ends a command: an exit, an abort, a usage error."""
    return type(error).__module__.startswith("typer.")


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0][:200] if lines else "no message"
