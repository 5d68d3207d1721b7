"""`python -m nodeagent.plugin [--config FILE]`: the device plugin of one node, until SIGTERM.

Exits with 1 if settings, rules or marks are refused, 4 if another agent or another provider has the node, 0 when it
was told to stop.
"""

import argparse
import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

from gpubank.domain.errors import BankError, ConflictError
from nodeagent.nvml.library import PynvmlSession
from nodeagent.plugin.agent import Agent
from nodeagent.plugin.control import listening
from nodeagent.plugin.instance import Instance
from nodeagent.settings import AgentSettings, load


async def serve(settings: AgentSettings) -> None:
    """Run until SIGTERM or SIGINT. Raises BankError if the node cannot be taken."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    agent = Agent(PynvmlSession(), settings)
    try:
        await agent.start()
        async with listening(settings.state_directory, agent):
            work = asyncio.create_task(agent.run())
            stopped = asyncio.create_task(stop.wait())
            await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            if work.done():
                work.result()  # it ends only by failing
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
    finally:
        await agent.stop()


def main() -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m nodeagent.plugin", description="The device plugin of one node.")
    parser.add_argument("--config", type=Path, help="settings file, or the folder of a mounted ConfigMap")
    parser.add_argument("--log-level", default="INFO", choices=("DEBUG", "INFO", "WARNING", "ERROR"))
    options = parser.parse_args()
    logging.basicConfig(level=options.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        settings = load(options.config)
        with Instance(settings.state_directory):
            asyncio.run(serve(settings))
    except BankError as error:
        sys.stderr.write(f"gpubank node agent: {error}\n")
        return 4 if isinstance(error, ConflictError) else 1
    return 0


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    sys.stderr.flush()
    os._exit(code)  # a thread that is stuck inside the driver would keep the interpreter from ending
