"""What the node's asyncio processes share: their command line, and how they end."""

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpubank.domain.errors import BankError, ConflictError


def run_process(name: str, description: str, start: Callable[[Path | None], Coroutine[Any, Any, None]]) -> int:
    """Read `--config` and `--log-level`, run what `start` makes of the first, and return the exit code.

    It is 0 when the process was told to stop, 4 if another one has the node, 1 for anything else that is amiss, which
    is then said in one line on standard error after `name`.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description=description)
    parser.add_argument("--config", type=Path, help="settings file, or the folder of a mounted ConfigMap")
    parser.add_argument("--log-level", default="INFO", choices=("DEBUG", "INFO", "WARNING", "ERROR"))
    options = parser.parse_args()
    logging.basicConfig(level=options.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        asyncio.run(start(options.config))
    except BankError as error:
        sys.stderr.write(f"{name}: {error}\n")
        return 4 if isinstance(error, ConflictError) else 1
    return 0


async def until_told(work: Coroutine[Any, Any, None]) -> None:
    """Do work that ends only by failing, until SIGTERM or SIGINT. Raises what it raises."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    working = asyncio.create_task(work)
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({working, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if working.done():
        working.result()
    working.cancel()
    with suppress(asyncio.CancelledError):
        await working
