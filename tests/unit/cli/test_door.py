"""The way to the bank: the embedded bank's socket, and who is asking."""

import getpass
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from gpubank.adapters.embedded import EmbeddedClient
from gpubank.adapters.ledger import migrate
from gpubank.cli.door import open_door
from gpubank.cli.identity import Identity, identity_of
from gpubank.domain.errors import BackendError
from gpubank.settings import Settings
from tests.unit.cli.bench import FakeCluster


@pytest.fixture
async def settings(home: Path) -> AsyncIterator[Settings]:
    """Settings of an embedded bank whose socket answers, and whose every list is a bug."""
    found = Settings.load({"state_dir": home, "temporal.address": "127.0.0.1:1"})
    database = f"sqlite:///{home / 'elsewhere.db'}"
    await migrate(database)

    async def status(_: web.Request) -> web.Response:
        return web.json_response({"temporal": "127.0.0.1:2", "ui": "http://127.0.0.1:3", "database": database})

    async def broken(_: web.Request) -> web.Response:
        raise RuntimeError("boom")

    app = web.Application()
    app.add_routes([web.get("/v1/status", status), web.get("/v1/objects/GPUPool", broken)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.UnixSite(runner, str(found.socket)).start()
    yield found
    await runner.cleanup()


async def test_addresses_are_those_that_the_running_bank_tells(settings: Settings) -> None:
    async with open_door(settings) as door:
        assert door.settings.temporal.address == "127.0.0.1:2"
        assert door.settings.temporal.ui_url == "http://127.0.0.1:3"
        assert door.settings.database_url.endswith("elsewhere.db")
        assert await door.ledger.pools() == []


async def test_a_bank_that_fails_is_told_from_one_that_is_not_there(settings: Settings) -> None:
    async with EmbeddedClient(settings.socket) as client:
        with pytest.raises(BackendError, match=r"failed at GET /v1/objects/GPUPool \(500\); its log says why"):
            await client.list("GPUPool")


async def test_an_os_user_is_unverified_and_one_without_a_name_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless() -> str:
        raise KeyError("uid not found: 12345")

    assert await identity_of(FakeCluster([], user="eva")) == Identity("eva", verified=True)
    monkeypatch.setattr(getpass, "getuser", lambda: "mia")
    assert str(await identity_of(FakeCluster([]))) == "mia (unverified)"
    monkeypatch.setattr(getpass, "getuser", nameless)
    assert await identity_of(FakeCluster([])) == Identity("unknown", verified=False)
