"""A Temporal server as production has one: its history, its queues and its visibility in PostgreSQL.

    database ──temporal-sql-tool──▶ schemas ──temporal-server──▶ namespace ──▶ the bank's search attributes

One process with all four services, of the release that the dev server of the embedded mode is built from, and tuned as
that one is: beside each other the two differ in what is kept where. It listens on loopback, and whoever gets there may
do everything, as with the dev server.
"""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import psycopg
import yaml
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from gpubank.lab.build import GoProgram, build
from gpubank.lab.errors import TAIL_LINES, StartError, tail
from gpubank.lab.paths import state_root
from gpubank.lab.progress import Report, silent
from gpubank.lab.state import choose_ports, write_whole
from gpubank.simulation.processes import ProcessId, launch, stop

MODULE: Final = "go.temporal.io/server"
VERSION: Final = "1.32.0"
LOOPBACK: Final = "127.0.0.1"

SERVICES: Final = ("frontend", "history", "matching", "worker")
PORTS: Final = tuple(f"temporal-{service}{use}" for service in SERVICES for use in ("", "-membership"))
"""Names of the ports that it listens on; clients want the first. Its tables have room for none above 32,767."""
DATABASES: Final = {"temporal": "temporal", "temporal_visibility": "visibility"}
"""Schema of each database."""

DYNAMIC: Final[Mapping[str, Any]] = {
    # The defaults throttle task dispatch to one per 50 ms and timers to whole seconds.
    "history.transferProcessorMaxPollRPS": 2000,
    "history.visibilityProcessorMaxPollRPS": 2000,
    "history.timerProcessorMaxPollRPS": 2000,
    "history.timerProcessorMaxTimeShift": "10ms",
    # What the dev server sets by itself.
    "history.hostLevelCacheMaxSize": 8096,
    "frontend.namespaceRPS.visibility": 100,
}
"""Settings that a running server would also take: those of the dev server."""

START_TIMEOUT: Final = 60.0
SETTLE_TIMEOUT: Final = 30.0
STOP_SECONDS: Final = 10.0
_PLUGIN: Final = "postgres12"
# PostgreSQL as the lab starts it takes 100 in all, and each of the four services has pools of its own.
_CONNECTIONS: Final = {"temporal": 12, "temporal_visibility": 4}


def _program(name: str, package: str) -> GoProgram:
    return GoProgram(name=name, version=VERSION, wrapper="temporal", package=f"{MODULE}/{package}")


PROGRAM: Final = _program("temporal-server", "cmd/server")
SQL_TOOL: Final = _program("temporal-sql-tool", "cmd/tools/sql")


class TemporalServer:
    """One server in one folder; as a context manager it runs inside the block."""

    def __init__(
        self,
        database: str,
        folder: Path | None = None,
        *,
        ports: Mapping[str, int] | None = None,
        report: Report = silent,
    ) -> None:
        """Describe a server on the PostgreSQL at the URL `database`, whose user may create databases there.

        What is not given is chosen: a folder, which `close` then removes, and free ports.
        """
        self._database = database
        self._own_folder = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="gpubank-temporal-"))
        self._ports = ports or choose_ports(PORTS, state_root())
        self._report = report
        self._process: ProcessId | None = None

    @property
    def address(self) -> str:
        """host:port of the frontend."""
        return f"{LOOPBACK}:{self._ports[PORTS[0]]}"

    @property
    def log(self) -> Path:
        return self.folder / "temporal.log"

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return self._process.pid if self._process and self._process.alive() else None

    def start(self) -> str:
        """Start the server, compiling and setting up what there is not yet; return `address`.

        Raises BuildError, or StartError with the end of the log.
        """
        if self.pid is not None:
            return self.address
        argv = [str(build(PROGRAM, report=self._report).binary), *self.arguments()]
        self.prepare()
        self._process = launch(argv, env=_environment(), log=self.log)
        try:
            self._await()
            self.settle()
        except BaseException as error:
            self.stop()
            if isinstance(error, StartError):
                raise StartError(f"{error}; its log is {self.log} and ends with\n{tail(self.log)}") from error
            raise
        return self.address

    def stop(self) -> None:
        """Stop the server; what it has written stays in the database."""
        if self._process:
            stop(self._process, STOP_SECONDS)
            self._process = None

    def close(self) -> None:
        """Stop the server and remove its folder if it was not given."""
        self.stop()
        if self._own_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- the steps of a start

    def prepare(self) -> None:
        """Make the databases, and bring their schemas to the server's version. Raises StartError."""
        try:
            with psycopg.connect(self._database, autocommit=True) as connection:
                there = {name for (name,) in connection.execute("SELECT datname FROM pg_database")}
                for database in DATABASES:
                    if database not in there:
                        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database)))
        except psycopg.Error as error:
            why = str(error).strip()
            raise StartError(
                f"temporal cannot make its databases: {why}; give it a user that may create databases"
            ) from error
        for database, schema in DATABASES.items():
            self._tool(database, "setup-schema", "--version", "0.0")
            self._tool(database, "update-schema", "--schema-name", f"postgresql/v12/{schema}")

    def arguments(self) -> list[str]:
        """Write the configuration, and return what follows the binary on the command line."""
        file, dynamic = self.folder / "config.yaml", self.folder / "dynamic.yaml"
        write_whole(dynamic, yaml.safe_dump({name: [{"value": value}] for name, value in DYNAMIC.items()}))
        write_whole(file, yaml.safe_dump(self.configuration(dynamic), sort_keys=False))
        return ["--config-file", str(file), "--allow-no-auth", "start"]

    def configuration(self, dynamic: Path) -> dict[str, Any]:
        """Return the server's configuration."""
        known = conninfo_to_dict(self._database)
        stores = {
            name: {
                "sql": {
                    "pluginName": _PLUGIN,
                    "databaseName": name,
                    "connectAddr": f"{known['host']}:{known['port']}",
                    "connectProtocol": "tcp",
                    "user": known["user"],
                    "password": known["password"],
                    "maxConns": connections,
                    "maxIdleConns": connections,
                    "maxConnLifetime": "1h",
                }
            }
            for name, connections in _CONNECTIONS.items()
        }
        services = {
            service: {
                "rpc": {
                    "grpcPort": self._ports[f"temporal-{service}"],
                    "membershipPort": self._ports[f"temporal-{service}-membership"],
                    "bindOnIP": LOOPBACK,
                }
            }
            for service in SERVICES
        }
        here = {"enabled": True, "initialFailoverVersion": 1, "rpcName": "frontend", "rpcAddress": self.address}
        off = {"history": {"state": "disabled"}, "visibility": {"state": "disabled"}}
        return {
            "log": {"stdout": True, "level": "warn"},
            "persistence": {
                "defaultStore": "temporal",
                "visibilityStore": "temporal_visibility",
                "numHistoryShards": 4,
                "datastores": stores,
            },
            "global": {"membership": {"maxJoinDuration": "30s", "broadcastAddress": LOOPBACK}},
            "services": services,
            "clusterMetadata": {
                "enableGlobalNamespace": False,
                "failoverVersionIncrement": 10,
                "masterClusterName": "active",
                "currentClusterName": "active",
                "clusterInformation": {"active": here},
            },
            "dcRedirectionPolicy": {"policy": "noop"},
            "archival": off,
            "namespaceDefaults": {"archival": off},
            "dynamicConfigClient": {"filepath": str(dynamic), "pollInterval": "60s"},
        }

    def missing(self) -> str | None:
        """Look once: None when the frontend takes connections, else what is in the way."""
        try:
            with socket.create_connection((LOOPBACK, self._ports[PORTS[0]]), timeout=2):
                return None
        except OSError as error:
            return f"its frontend at {self.address} does not answer: {error}"

    def settle(self) -> None:
        """Make the namespace and have it know the bank's search attributes. Raises StartError."""
        # Only here: its client takes longer to import than the whole lab, and few labs have a Temporal server.
        from gpubank.lab.temporal_namespace import open_namespace

        open_namespace(self.address, SETTLE_TIMEOUT)

    # ---- inside

    def _await(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while (why := self.missing()) is not None:
            alive = self.pid is not None
            if not alive or time.monotonic() > deadline:
                what = f"is not ready after {START_TIMEOUT:g} s: {why}" if alive else "died while it started"
                raise StartError(f"temporal {what}")
            time.sleep(0.05)

    def _tool(self, database: str, *command: str) -> None:
        known = conninfo_to_dict(self._database)
        options = {"endpoint": known["host"], "port": known["port"], "user": known["user"]}
        options |= {"plugin": _PLUGIN, "database": database}
        done = subprocess.run(
            [
                build(SQL_TOOL, report=self._report).binary,
                *(part for name, value in options.items() for part in (f"--{name}", str(value))),
                *command,
            ],
            # Not on the command line, where every user of the machine could read it.
            env=_environment() | {"SQL_PASSWORD": str(known["password"])},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            said = "\n".join(f"  {line[:400]}" for line in done.stdout.splitlines()[-TAIL_LINES:])
            raise StartError(f"{SQL_TOOL.name}: `{command[0]}` of database {database!r} failed, the end is\n{said}")


def _environment() -> dict[str, str]:
    # A proxy for the outside must not get between services on loopback; other settings belong to another server.
    hidden = {"http_proxy", "https_proxy", "all_proxy"}
    return {
        name: value
        for name, value in os.environ.items()
        if name.lower() not in hidden and not name.startswith(("TEMPORAL_", "SQL_", "PG"))
    }
