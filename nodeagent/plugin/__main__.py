"""`python -m nodeagent.plugin [--config FILE]`: the device plugin of one node, until SIGTERM.

Exits with 1 if settings, rules or marks are refused, 4 if another agent or another provider has the node, 0 when it
was told to stop.
"""

from pathlib import Path

from gpubank.exit import clean_exit
from nodeagent.nvml.library import PynvmlSession
from nodeagent.plugin.agent import Agent
from nodeagent.plugin.control import listening
from nodeagent.plugin.instance import Instance
from nodeagent.process import run_process, until_told
from nodeagent.settings import AgentSettings, load


async def serve(settings: AgentSettings) -> None:
    """Offer the node's devices until cancelled. Raises BankError if the node cannot be taken."""
    agent = Agent(PynvmlSession(), settings)
    try:
        await agent.start()
        async with listening(settings.state_directory, agent):
            await agent.run()
    finally:
        await agent.stop()


async def start(config: Path | None) -> None:
    """Run as told by the settings, until SIGTERM or SIGINT."""
    settings = load(config)
    with Instance(settings.state_directory):
        await until_told(serve(settings))


if __name__ == "__main__":
    code = run_process("nodeagent.plugin", "The device plugin of one node.", start)
    clean_exit(code)  # a thread that is stuck inside the driver would keep the interpreter from ending
