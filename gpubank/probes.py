"""How a process answers to scrapes and probes: `/metrics`, `/healthz`, `/readyz` on its own event loop.

On its own loop on purpose: a process whose loop is stuck answers no probe and is restarted. A probe says why it fails,
so that `kubectl describe pod` does too.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest

from gpubank.domain.errors import BackendError
from gpubank.settings import ObservabilitySettings

Check = Callable[[], Awaitable[str]]
"""Says what is the matter, or nothing."""

Exposition = Callable[[], Awaitable[str]]
"""Further metrics in the text format."""

CONTENT_TYPE: Final = "text/plain; version=0.0.4"


class Signs:
    """Signs of life that loops of a process must give again and again."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._until: dict[str, tuple[float, float]] = {}

    def give(self, name: str, *, within: float) -> None:
        """Give a sign that must be repeated within that many seconds."""
        self._until[name] = (self._monotonic(), within)

    def forget(self, name: str) -> None:
        """Expect none any more."""
        self._until.pop(name, None)

    def since(self, name: str) -> float | None:
        """Seconds since the last sign of that name."""
        known = self._until.get(name)
        return None if known is None else self._monotonic() - known[0]

    async def check(self) -> str:
        """Say which loops are silent."""
        now = self._monotonic()
        silent = {name: now - at for name, (at, within) in sorted(self._until.items()) if now - at > within}
        return "; ".join(f"{name} gave no sign of life for {seconds:.0f} s" for name, seconds in silent.items())


@dataclass(frozen=True)
class Probes:
    """What a process shows of itself."""

    registry: CollectorRegistry
    live: Sequence[Check] = ()
    """What only a restart mends."""

    ready: Sequence[Check] = ()
    """What the process waits for."""

    further: Exposition | None = None


@asynccontextmanager
async def serving(settings: ObservabilitySettings, probes: Probes) -> AsyncIterator[int]:
    """Answer until the block ends; yield the port, 0 where nothing is served.

    Raises `BackendError` where the port cannot be had.
    """
    if not settings.port:
        yield 0
        return
    runner = web.AppRunner(_application(probes), access_log=None, handle_signals=False, shutdown_timeout=1)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, settings.address, settings.port).start()
        except OSError as error:
            raise BackendError(
                f"observability.port {settings.port} of {settings.address!r} cannot be had: {error.strerror};"
                " set another one, or 0 for none"
            ) from error
        yield settings.port
    finally:
        await runner.cleanup()


def _application(probes: Probes) -> web.Application:
    async def metrics(_: web.Request) -> web.Response:
        text = generate_latest(probes.registry).decode()
        if probes.further is not None:
            text += await probes.further()
        return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE})

    async def healthz(_: web.Request) -> web.Response:
        return await _verdict(probes.live)

    async def readyz(_: web.Request) -> web.Response:
        return await _verdict(probes.ready)

    application = web.Application()
    application.router.add_get("/metrics", metrics)
    application.router.add_get("/healthz", healthz)
    application.router.add_get("/readyz", readyz)
    return application


async def _verdict(checks: Sequence[Check]) -> web.Response:
    problems = [problem for check in checks if (problem := await check())]
    return web.Response(text="; ".join(problems) + "\n", status=503) if problems else web.Response(text="ok\n")
