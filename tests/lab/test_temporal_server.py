"""The Temporal server on PostgreSQL: set up as it should be, wordy where it fails, and a home for the bank's workflows.

What it serves is tested where it is built already, as `make test` does first: `gpubank lab build --with temporal` takes
minutes, which no test's time-out should count.
"""

import asyncio
import json
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from gpubank.client import BankClient
from gpubank.domain.recall import LoanPhase
from gpubank.embedded.devserver import TUNING, find_binary
from gpubank.lab import Lab, StartError, StateError, state, temporal
from gpubank.lab.build import Built, GoProgram, cached
from gpubank.lab.components import choose
from gpubank.lab.components.postgres import POSTGRES
from gpubank.lab.components.temporal import TEMPORAL
from gpubank.lab.postgres import Postgres
from gpubank.lab.temporal import DYNAMIC, PORTS, PROGRAM, SQL_TOOL, VERSION, TemporalServer
from gpubank.settings import TemporalSettings
from tests.fakes.bank import fake_bank
from tests.plugins.lab import missing

NOWHERE = "postgresql://gpubank:s3cret@127.0.0.1:1/gpubank"


def test_it_is_of_the_release_that_the_dev_server_is_of_and_tuned_as_it() -> None:
    said = subprocess.run([find_binary(), "--version"], capture_output=True, text=True, check=True).stdout
    assert f"Server {VERSION}," in said
    assert {name: json.loads(value) for name, value in TUNING.items()}.items() <= DYNAMIC.items()


def test_it_listens_on_loopback_with_every_port_its_own(tmp_path: Path) -> None:
    server = TemporalServer(NOWHERE, tmp_path, ports={name: number for number, name in enumerate(PORTS, 20_000)})
    content = server.configuration(tmp_path / "dynamic.yaml")
    listening = [service["rpc"] for service in content["services"].values()]
    assert {rpc["bindOnIP"] for rpc in listening} == {"127.0.0.1"}
    numbers = [rpc[port] for rpc in listening for port in ("grpcPort", "membershipPort")]
    assert sorted(numbers) == list(range(20_000, 20_000 + len(PORTS)))
    assert server.address == f"127.0.0.1:{content['services']['frontend']['rpc']['grpcPort']}"


def test_only_its_user_may_read_the_configuration_that_has_the_password(tmp_path: Path) -> None:
    file = Path(TemporalServer(NOWHERE, tmp_path).arguments()[1])
    stores = yaml.safe_load(file.read_text())["persistence"]["datastores"]
    assert {(store["sql"]["connectAddr"], store["sql"]["password"]) for store in stores.values()} == {
        ("127.0.0.1:1", "s3cret")
    }
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_lab_with_it_has_postgresql_first() -> None:
    assert [each.name for each in choose(["temporal"])][-2:] == ["postgres", "temporal"]


def test_a_lab_without_it_says_how_to_have_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUBANK_LAB_STATE", str(tmp_path))
    plain = state.State(name="plain", phase="ready", boot=state.boot_id(), ports={}, components=("postgres",))
    state.write(tmp_path / "plain", plain)
    with pytest.raises(StateError, match="gpubank lab up --name plain --with temporal"):
        _ = Lab("plain").temporal_address


def test_who_may_not_enter_the_database_is_told_what_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"(?s)cannot make its databases.*may create databases"):
        TemporalServer(NOWHERE, tmp_path).prepare()


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Shell scripts in the place of the server and its tool; a test changes them before it starts the server."""
    scripts = {PROGRAM.name: "exec sleep 300", SQL_TOOL.name: "exit 0"}

    def build(program: GoProgram, **_: object) -> Built:
        made = Built(program, tmp_path)
        made.binary.write_text(f"#!/bin/sh\n{scripts[program.name]}\n")
        made.binary.chmod(0o755)
        return made

    monkeypatch.setattr(temporal, "build", build)
    return scripts


def test_a_schema_that_cannot_be_set_up_is_named_with_the_tools_words(
    programs: dict[str, str], postgres_server: Postgres, tmp_path: Path
) -> None:
    programs[SQL_TOOL.name] = 'case "$*" in *update-schema*) echo "no such version"; exit 3;; esac'
    with pytest.raises(StartError, match=r"(?s)`update-schema` of database 'temporal' failed.*no such version"):
        TemporalServer(postgres_server.url, tmp_path).start()


def test_the_password_stands_on_no_command_line(
    programs: dict[str, str], postgres_server: Postgres, tmp_path: Path
) -> None:
    programs[SQL_TOOL.name] = 'echo "$* / $SQL_PASSWORD"; exit 1'
    with pytest.raises(StartError) as failed:
        TemporalServer(postgres_server.url, tmp_path).start()
    flags, _, password = str(failed.value).splitlines()[-1].partition(" / ")
    assert password in postgres_server.url
    assert password not in flags


def test_a_server_that_dies_at_start_shows_the_end_of_its_log(
    programs: dict[str, str], postgres_server: Postgres, tmp_path: Path
) -> None:
    programs[PROGRAM.name] = "echo no such shard; exit 1"
    server = TemporalServer(postgres_server.url, tmp_path)
    with pytest.raises(StartError, match=r"(?s)died while it started.*no such shard"):
        server.start()
    assert server.pid is None


# ---- the real one


@pytest.fixture
def built() -> None:
    if not all(cached(program) for program in (PROGRAM, SQL_TOOL)):
        missing("the Temporal server is not built; run `gpubank lab build --with temporal`")


@pytest.fixture
def server(built: None) -> Iterator[TemporalServer]:
    """A server on a PostgreSQL of its own."""
    with Postgres() as postgres, TemporalServer(postgres.url) as server:
        yield server


@pytest.mark.postgres
@pytest.mark.temporal
async def test_a_loan_runs_is_found_and_is_there_after_a_restart(server: TemporalServer) -> None:
    async with fake_bank(await connected(server.address), {"research": 8, "serving": 8}) as bank:
        job = await bank.borrow("research", "train")
        await bank.loan_in(job, LoanPhase.ACTIVE)

        async def listed() -> bool:
            rows = await bank.client.loans(borrower="research", phase=LoanPhase.ACTIVE)
            return [row.loan for row in rows] == [bank.loan(job)]

        await bank.until(listed, "the Loan is in the list")
    await asyncio.to_thread(server.stop)
    assert server.pid is None
    await asyncio.to_thread(server.start)
    assert server.pid is not None
    rows = await (await connected(server.address)).loans(borrower="research")
    assert [row.loan for row in rows] == [bank.loan(job)]


@pytest.mark.postgres
@pytest.mark.temporal
@pytest.mark.usefixtures("built")
def test_a_lab_serves_it_and_has_it_back_after_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUBANK_LAB_STATE", str(tmp_path))
    lab = Lab("temporal", nodes=0)
    lab.components = (replace(POSTGRES, ports=(*POSTGRES.ports, "kube-apiserver")), TEMPORAL)
    try:
        lab.up()
        asyncio.run(empty(lab.temporal_address))
        lab.kill("temporal")
        lab.start("temporal")
        asyncio.run(empty(lab.temporal_address))
    finally:
        lab.clean()


async def empty(address: str) -> None:
    """See that the bank's namespace is there, and nothing in it."""
    assert await (await connected(address)).loans(borrower="research") == []


async def connected(address: str) -> BankClient:
    return await BankClient.connect(TemporalSettings(address=address))
