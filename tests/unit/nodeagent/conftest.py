"""A node for tests of the plugin: the stand-in for NVML below, a fake kubelet above, the agent between them."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpubank.domain.refusal import read
from nodeagent.nvml.library import PynvmlSession
from nodeagent.plugin.agent import Agent
from nodeagent.settings import AgentSettings
from tests.fakes.kubelet import FakeKubelet
from tests.native.facts import NvmlFacts

PREFIX = "accelerator.aik8s.run/"


@dataclass
class Node:
    """One node."""

    folder: Path
    facts: NvmlFacts
    kubelet: FakeKubelet
    start_agent: Callable[..., Awaitable[Agent]]
    stop_agent: Callable[[Agent], Awaitable[None]]

    async def sees(self, **allocatable: int) -> None:
        """Wait until the kubelet counts exactly this; dashes are underlines, dots are two of them."""
        wanted = {PREFIX + name.replace("__", ".").replace("_", "-"): count for name, count in allocatable.items()}
        await self.kubelet.until(wanted)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path is short enough for sockets."""
    path = Path(tempfile.mkdtemp(prefix="gpb-"))
    for name in ("plugins", "registry", "state", "driver"):
        (path / name).mkdir()
    yield path
    shutil.rmtree(path)


@pytest.fixture
async def node(folder: Path, nvml_facts: NvmlFacts) -> AsyncIterator[Node]:
    """A node without GPUs, with a running kubelet."""
    running: dict[Agent, tuple[asyncio.Task[None], AsyncExitStack]] = {}

    async def start(**changes: Any) -> Agent:
        settings = {
            "pluginDirectory": str(folder / "plugins"),
            "registryDirectory": str(folder / "registry"),
            "stateDirectory": str(folder / "state"),
            "driverDirectory": str(folder / "driver"),
            "intervals": {
                "health": 0.05,
                "inventory": 0.05,
                "events": 0.05,
                "sockets": 0.2,
                "nvml": 1,
                "allocate": 0.5,
            },
        }
        stack = AsyncExitStack()
        agent = await stack.enter_async_context(_started(read(AgentSettings, {**settings, **changes})))
        running[agent] = (asyncio.create_task(agent.run()), stack)
        return agent

    async def stop(agent: Agent) -> None:
        task, stack = running.pop(agent)
        task.cancel()
        failed = (await asyncio.gather(task, return_exceptions=True))[0]
        await stack.aclose()
        if failed is not None and not isinstance(failed, asyncio.CancelledError):
            raise failed

    kubelet = FakeKubelet(folder / "plugins")
    await kubelet.start()
    yield Node(folder, nvml_facts, kubelet, start, stop)
    nvml_facts.set_system(hang=0, hang_events=0)
    for gpu in list(nvml_facts.gpus):
        nvml_facts.change(gpu, hang=0)
    for agent in list(running):
        await stop(agent)
    await kubelet.stop()


@asynccontextmanager
async def _started(settings: AgentSettings) -> AsyncIterator[Agent]:
    agent = Agent(PynvmlSession(), settings)
    try:
        await agent.start()
        yield agent
    finally:
        await agent.stop()
