"""The way to the bank: the embedded bank's socket, a cluster whose ledger is away, and who is asking."""

import asyncio
import getpass
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from typer.testing import Result

from gpubank.adapters.embedded import EmbeddedClient
from gpubank.adapters.ledger import SqlLedger, migrate
from gpubank.cli.door import open_door
from gpubank.cli.identity import Identity, identity_of
from gpubank.domain.errors import BackendError
from gpubank.settings import Settings
from tests.plugins.ledger import by_hand
from tests.unit.cli.bench import FakeCluster
from tests.unit.cli.records import objects

Call = Callable[..., Result]
NOWHERE = "postgresql://me:secret@127.0.0.1:1/ledger"


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
        assert await (await door.ledger()).pools() == []


@pytest.fixture
def cluster(home: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """What `--mode cluster` finds behind its kubeconfig."""
    found = FakeCluster(objects(), user="eva")

    @asynccontextmanager
    async def opened(settings: Settings) -> AsyncIterator[FakeCluster]:
        yield found

    monkeypatch.setattr("gpubank.cli.cluster.open_cluster", opened)
    return found


@pytest.fixture
def older(home: Path) -> str:
    """URL of a ledger that nobody has migrated yet."""
    url = f"sqlite:///{home / 'older.db'}"
    asyncio.run(migrate(url))
    by_hand(url, "UPDATE alembic_version SET version_num = '0000'")
    return url


@pytest.mark.parametrize("ledger", ["away", "older", "unset"])
def test_the_brake_holds_whatever_the_ledger_is(
    ledger: str, older: str, cluster: FakeCluster, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ledger != "unset":
        monkeypatch.setenv("GPUBANK_LEDGER__URL", {"away": NOWHERE, "older": older}[ledger])
    frozen = call("--mode", "cluster", "freeze", "h100", "--reason", "the database is away")
    assert (frozen.exit_code, frozen.stdout) == (0, "gpupool/h100 frozen\n"), frozen.output
    assert cluster.applied[0]["spec"]["freeze"] == {"by": "eva", "reason": "the database is away"}
    cluster.objects = [cluster.applied[0]]
    loose = call("--mode", "cluster", "unfreeze", "--all")
    assert (loose.exit_code, loose.stdout) == (0, "gpupool/h100 unfrozen\n"), loose.output
    assert "freeze" not in cluster.applied[1]["spec"]


@pytest.mark.parametrize("words", [("quota",), ("loan", "list"), ("loan", "list", "--watch"), ("reclaim", "list")])
def test_what_reads_the_books_says_that_they_must_be_migrated(
    words: tuple[str, ...], older: str, cluster: FakeCluster, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUBANK_LEDGER__URL", older)
    result = call("--mode", "cluster", *words)
    assert result.exit_code == 5
    assert "ledger schema is 0000" in result.stderr
    assert result.stderr.endswith("run `gpubank ledger migrate`\n")
    assert result.stdout == ""


def test_what_reads_the_books_says_that_they_are_away(
    cluster: FakeCluster, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUBANK_LEDGER__URL", NOWHERE)
    result = call("--mode", "cluster", "loan", "show", "tune")
    assert result.exit_code == 5
    assert "ledger database: " in result.stderr
    assert "see that it runs and try again" in result.stderr
    assert "secret" not in result.output


async def test_the_ledger_is_opened_once_by_whoever_reads_it_first_and_closed_with_the_door(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    news: list[str] = []
    opening, closing = SqlLedger.open, SqlLedger.aclose

    async def opened(url: str, *, upgrade: bool) -> SqlLedger:
        news.append("opened")
        return await opening(url, upgrade=upgrade)

    async def closed(ledger: SqlLedger) -> None:
        await closing(ledger)
        news.append("closed")

    monkeypatch.setattr(SqlLedger, "open", opened)
    monkeypatch.setattr(SqlLedger, "aclose", closed)
    async with open_door(settings):
        pass
    assert news == []
    async with open_door(settings) as door:
        assert news == []
        first, second = await asyncio.gather(door.ledger(), door.ledger())
        assert first is second
        assert (await first.books("local", "h100")).lines == ()
        assert news == ["opened"]
    assert news == ["opened", "closed"]


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
