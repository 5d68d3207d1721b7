"""PostgreSQL as a component: for whoever evaluates the bank with the database it has in production."""

import secrets
import shutil
import tempfile
from os import geteuid
from pathlib import Path
from typing import Final

from gpubank.lab.components.base import Component, Context
from gpubank.lab.postgres import Postgres
from gpubank.lab.state import write_whole

_PASSWORD: Final = "password"
_ELSEWHERE: Final = "elsewhere"


def server(context: Context) -> Postgres:
    """Return the lab's PostgreSQL server."""
    kept = context.data("postgres")
    password, elsewhere = kept / _PASSWORD, kept / _ELSEWHERE
    if not password.exists():
        write_whole(password, secrets.token_urlsafe(16))
    folder = kept / "server"
    if geteuid() == 0:
        # The server runs as a user without rights then, who cannot enter root's state folder.
        if not elsewhere.exists():
            write_whole(elsewhere, tempfile.mkdtemp(prefix="gpubank-lab-postgres-"))
        folder = Path(elsewhere.read_text())
    return Postgres(folder, port=context.port("postgres"), password=password.read_text())


def _clear(folder: Path) -> None:
    elsewhere = folder / "data" / "postgres" / _ELSEWHERE
    if elsewhere.exists():
        shutil.rmtree(elsewhere.read_text(), ignore_errors=True)


POSTGRES = Component(
    name="postgres",
    command=lambda context: server(context).argv(),
    ready=lambda context: server(context).missing(),
    ports=("postgres",),
    environment=lambda context: {"LC_ALL": "C"},
    prepare=lambda context: server(context).prepare(),
    clear=_clear,
    # SIGTERM waits for every client to leave; the lab waits no longer than this, and nothing committed is lost.
    stop_grace=1,
)
