"""The command line as its users meet it: words in; output, sentence and exit code out."""

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gpubank.cli import freeze, incidents, leases, loans, objects, quota, reclaims
from gpubank.cli.main import app
from tests.unit.cli.bench import Bench, fill

Call = Callable[..., Result]
GOLDEN = Path(__file__).parent / "golden"
WRITES = os.environ.get("GOLDEN") == "write"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home: no settings file and no variable of the tester reaches the command."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("GPUBANK_")]:
        monkeypatch.delenv(name)
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("LOGNAME", "tester")
    return tmp_path


@pytest.fixture(scope="session")
def books(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ledger's file, written once."""
    path = tmp_path_factory.mktemp("books") / "ledger.db"
    asyncio.run(fill(f"sqlite:///{path}"))
    return path


@pytest.fixture
def bench(books: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A bank in a known state, behind the door of every command."""
    shutil.copy(books, home / "ledger.db")
    found = Bench(f"sqlite:///{home / 'ledger.db'}")
    for module in (freeze, incidents, leases, loans, objects, quota, reclaims):
        monkeypatch.setattr(module, "open_door", found.open_door)
    return found


@pytest.fixture
def call(home: Path) -> Call:
    """Run `gpubank ...`."""

    def run(*words: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(app, list(words), input=stdin, prog_name="gpubank")

    return run


@pytest.fixture
def golden() -> Callable[[str, str], None]:
    """Compare JSON with a golden file; GOLDEN=write writes it anew, to be read before it is kept."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / f"{name}.json"
        found: Any = json.loads(text)
        if WRITES:
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        assert found == json.loads(path.read_text(encoding="utf-8"))

    return compare
