"""What every command needs: the effective settings, and one place where errors become words and exit codes.

| code | meaning |
|---|---|
| 0 | done |
| 1 | refused: a policy, a check or a validation says no |
| 2 | the command line, a setting or a file cannot be read |
| 3 | no such object |
| 4 | somebody else changed it meanwhile; look again |
| 5 | something that the bank needs does not answer; try again later |
"""

import asyncio
from collections.abc import Awaitable, Callable
from enum import IntEnum
from typing import TypeVar

import typer

from gpubank.domain.errors import BackendError, BankError, ConflictError
from gpubank.settings import Settings

T = TypeVar("T")


class ExitCode(IntEnum):
    """Documented exit codes."""

    OK = 0
    REFUSED = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    UNREACHABLE = 5


class NotFoundError(BankError):
    """Nothing of this name."""


def settings_of(context: typer.Context) -> Settings:
    """The effective settings of this command."""
    settings = context.find_root().obj
    assert isinstance(settings, Settings)
    return settings


def exit_code(error: BankError) -> ExitCode:
    """The exit code of an error."""
    if isinstance(error, NotFoundError):
        return ExitCode.NOT_FOUND
    if isinstance(error, ConflictError):
        return ExitCode.CONFLICT
    if isinstance(error, BackendError):
        return ExitCode.UNREACHABLE
    return ExitCode.REFUSED


def run(main: Callable[[], Awaitable[T]]) -> T:
    """Run a command's coroutine; an error of the bank becomes one sentence and an exit code, never a stack trace."""

    async def whole() -> T:
        return await main()

    try:
        return asyncio.run(whole())
    except BankError as error:
        typer.echo(f"gpubank: {error}", err=True)
        raise typer.Exit(exit_code(error)) from error
    except KeyboardInterrupt as error:
        raise typer.Exit(130) from error
