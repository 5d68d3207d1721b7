"""The reporter as a process of its own, without Temporal: it keeps what it sees, is killed, and starts again."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from nodeagent.reporting.spool import Spool
from tests.fakes.plugin import fake_plugin
from tests.support.waiting import seen

ROOT = Path(__file__).parents[3]


def start(config: Path, log: Path) -> "subprocess.Popen[str]":
    with log.open("a") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "nodeagent.reporter", "--config", str(config)],
            cwd=ROOT,
            env={**os.environ, "NODE_NAME": "n1"},
            stderr=file,
            text=True,
        )


async def test_what_it_has_seen_outlives_it_and_only_one_runs(tmp_path: Path) -> None:
    spool, log = tmp_path / "spool", tmp_path / "log"
    async with fake_plugin() as (plugin, folder):
        body = {
            "temporal": {"address": "127.0.0.1:1"},
            "pluginDirectory": str(folder),
            "spoolDirectory": str(spool),
            "podResourcesSocket": str(folder / "none.sock"),
            "look": 0.1,
        }
        (tmp_path / "reporter.yaml").write_text(yaml.safe_dump(body))
        plugin.fault("lost", "hardware")
        process = start(tmp_path, log)
        try:
            await _waits(spool, 1, process, log)
            second = await asyncio.to_thread(start(tmp_path, log).wait, 60)
            assert second == 4
            process.kill()
            await asyncio.to_thread(process.wait, 30)
            plugin.fault("xid 79", "hardware")
            process = start(tmp_path, log)
            await _waits(spool, 2, process, log)
            assert [waiting.edge.cause for waiting in Spool(spool).waiting()] == ["lost", "xid 79"]
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 30) == 0
        finally:
            process.kill()
            await asyncio.to_thread(process.wait, 30)
    assert "Temporal at 127.0.0.1:1 does not answer" in log.read_text()


async def _waits(spool: Path, count: int, process: "subprocess.Popen[str]", log: Path) -> None:
    def there() -> bool:
        assert process.poll() is None, log.read_text()
        return spool.is_dir() and len(Spool(spool).waiting()) >= count

    await seen(lambda: asyncio.to_thread(there), f"{count} reports in the spool", 60, say=log.read_text)


def test_settings_that_are_none_end_it_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "reporter.yaml").write_text("cluster: [x]\n")
    log = tmp_path / "log"
    assert start(tmp_path, log).wait(60) == 1
    assert log.read_text().startswith("nodeagent.reporter: ")
    assert "Traceback" not in log.read_text()


@pytest.mark.parametrize(
    "module", ["nodeagent.plugin.__main__", "nodeagent.exporter.main", "nodeagent.reporting.orders"]
)
def test_nothing_else_on_the_node_needs_temporals_sdk(module: str) -> None:
    code = f"import sys, {module}; sys.exit('temporalio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
