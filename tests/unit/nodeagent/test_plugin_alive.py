"""What the kubelet's probe of the plugin learns."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from nodeagent.plugin import alive
from nodeagent.plugin.control import listening


class Agent:
    """Answers, or does not."""

    def __init__(self, broken: bool = False) -> None:
        self._broken = broken

    def inspect(self) -> dict[str, Any]:
        if self._broken:
            raise ZeroDivisionError
        return {"gpus": []}

    async def quarantine(self, uuid: str, by: str, reason: str, key: str = "") -> bool:
        return False

    async def release(self, uuid: str, key: str = "") -> bool:
        return False


async def probe(folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["alive", str(folder)])
    return await asyncio.to_thread(alive.main)


async def test_an_agent_that_answers_is_alive_and_one_that_is_gone_or_broken_is_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = folder / "state"
    assert await probe(state, monkeypatch) == 1
    assert "does not answer" in capsys.readouterr().err
    async with listening(state, Agent()):
        assert await probe(state, monkeypatch) == 0
    async with listening(state, Agent(broken=True)):
        assert await probe(state, monkeypatch) == 1
    assert await probe(state, monkeypatch) == 1
