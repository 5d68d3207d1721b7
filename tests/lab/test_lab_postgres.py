"""A private PostgreSQL: starts from either source of binaries, keeps its data over a crash, leaves nothing behind."""

import importlib.util
import os
from pathlib import Path

import psycopg
import pytest

from gpubank.lab import StartError
from gpubank.lab.postgres import WHEEL, Postgres

pytestmark = pytest.mark.postgres


def test_every_test_gets_an_empty_database(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SELECT count(*) FROM pg_stat_user_tables").fetchone() == (0,)
        connection.execute("CREATE TABLE ledger (id bigint PRIMARY KEY)")


def test_the_server_of_the_wheel_serves_too(tmp_path: Path) -> None:
    wheel = importlib.util.find_spec(WHEEL)
    if wheel is None or not wheel.submodule_search_locations:
        pytest.skip("the wheel with PostgreSQL is not installed")
    binaries = max(Path(wheel.submodule_search_locations[0]).glob("pginstall*/bin"))
    with Postgres(binaries=binaries) as server, psycopg.connect(server.url) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_committed_rows_survive_a_crash_of_the_server() -> None:
    with Postgres() as server:
        with psycopg.connect(server.url) as connection:
            connection.execute("CREATE TABLE loans (id text)")
            connection.execute("INSERT INTO loans VALUES ('l-1')")
        server.kill()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(server.url)
        server.start()
        with psycopg.connect(server.url) as connection:
            assert connection.execute("SELECT id FROM loans").fetchall() == [("l-1",)]
        folder = server.folder
    assert not folder.exists()


def test_nobody_enters_without_the_password() -> None:
    with Postgres() as server:
        stranger = f"postgresql://gpubank:guess@127.0.0.1:{server.port}/gpubank"
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(stranger)


def test_a_server_that_dies_at_start_shows_the_end_of_its_log() -> None:
    server = Postgres()
    try:
        server.start()
        server.stop()
        os.truncate(server.data / "postgresql.conf", 0)
        (server.data / "postgresql.conf").write_text("no_such_setting = 1\n")
        with pytest.raises(StartError, match="no_such_setting"):
            server.start()
    finally:
        server.close()
