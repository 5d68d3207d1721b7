"""`gpubank ledger ...` on a ledger in a file."""

import asyncio
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from gpubank.adapters.ledger import SqlLedger
from gpubank.cli.ledger import gpu_hours
from gpubank.cli.main import app
from tests.plugins.ledger import TEN, by_hand, lent, minutes, only, returned


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A ledger in which 4 GPUs of b served a from 10:15 to 11:30."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    address = f"sqlite:///{tmp_path / 'ledger.db'}"

    async def fill() -> None:
        async with await SqlLedger.open(address, clock=lambda: TEN + timedelta(hours=2)) as ledger:
            await returned(ledger, only(await lent(ledger, 4, after_ten=15)), 90)
            await ledger.post(until=minutes(120))

    asyncio.run(fill())
    return address


def call(url: str, *words: str) -> Result:
    return CliRunner().invoke(app, ["--database-url", url, "ledger", *words])


def items(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)["items"]
    return found


def test_balances_are_shown_per_account_and_sum_to_zero(url: str) -> None:
    result = call(url, "show")
    assert result.exit_code == 0
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["POOL", "ACCOUNT", "BORROWED", "GPU-H", "LENT", "GPU-H", "BALANCE", "GPU-H"],
        ["h100", "a", "5.000", "0.000", "5.000"],
        ["h100", "b", "0.000", "5.000", "-5.000"],
        ["all", "5.000", "5.000", "0.000"],
    ]
    assert [line.split()[1] for line in call(url, "show", "--group", "a").stdout.splitlines()[1:]] == ["a"]


def test_balances_as_json_are_exact_and_stable(url: str) -> None:
    assert items(call(url, "show", "-o", "json", "--group", "b")) == [
        {
            "cluster": "local",
            "pool": "h100",
            "account": "b",
            "borrowedGpuMs": 0,
            "lentGpuMs": 18_000_000,
            "balanceGpuMs": -18_000_000,
            "borrowed": "0.000",
            "lent": "5.000",
            "balance": "-5.000",
        }
    ]


def test_postings_are_shown_newest_first(url: str) -> None:
    assert items(call(url, "show", "--postings", "--group", "a", "-o", "json")) == [
        {
            "entry": f"h100-1/1/2026-03-01T{hour}Z",
            "account": "a",
            "cluster": "local",
            "pool": "h100",
            "lineId": "h100-1",
            "gpuMs": gpu_ms,
            "hour": f"2026-03-01T{hour}:00:00Z",
            "postedAt": "2026-03-01T12:00:00Z",
        }
        for hour, gpu_ms in (("11", 7_200_000), ("10", 10_800_000))
    ]
    assert call(url, "show", "--postings", "--limit", "1", "-o", "name").stdout == "h100-1/1/2026-03-01T11Z\n"


def test_lines_are_shown_with_their_ends(url: str) -> None:
    table = call(url, "show", "--lines").stdout.splitlines()
    want = "h100-1 h100 b a 4 team-a/job-1 1 Returned 2026-03-01T10:15:00Z 2026-03-01T11:30:00Z"
    assert table[1].split() == want.split()
    (line,) = yaml.safe_load(call(url, "show", "--lines", "-o", "yaml").stdout)["items"]
    assert (line["lineId"], line["workload"]["uid"]) == ("h100-1", "u-1")
    assert not [key for key in line if key.startswith("shown")]
    assert items(call(url, "show", "--lines", "--pool", "other", "-o", "json")) == []


def test_the_audit_trail_of_one_line_tells_its_life(url: str) -> None:
    events = items(call(url, "show", "--audit", "--subject", "h100-1", "-o", "json"))
    assert [event["action"] for event in events] == ["Returned", "Recalled", "Granted", "Offered"]
    assert events[0]["detail"]["rows"]["lines"][0]["ended_at"] == "2026-03-01T11:30:00.000000+00:00"


@pytest.mark.parametrize(
    "words",
    [("--postings", "--lines"), ("--subject", "x"), ("--audit", "--pool", "x"), ("--limit", "0")],
)
def test_flags_that_do_not_go_together_are_a_usage_error(url: str, words: tuple[str, ...]) -> None:
    assert call(url, "show", *words).exit_code == 2


def test_verify_proves_a_sound_ledger_and_prints_its_head(url: str) -> None:
    result = call(url, "verify")
    assert result.exit_code == 0
    assert result.stdout.startswith("the ledger holds: 4 postings, 1 lines, ")
    report = json.loads(call(url, "verify", "-o", "json").stdout)
    assert (report["ok"], report["findings"]) == (True, [])
    head = call(url, "verify", "-o", "name").stdout.strip()
    assert head == report["head"]
    assert call(url, "verify", "--published", head).exit_code == 0


def test_verify_names_the_first_bad_row_and_exits_1(url: str) -> None:
    by_hand(url, "UPDATE postings SET gpu_ms = gpu_ms + 1 WHERE id = 1")
    result = call(url, "verify")
    assert result.exit_code == 1
    assert "Unbalanced  postings local/h100-1/1/2026-03-01T10Z: its 2 halves sum to 1 GPU-ms, not 0" in result.stdout
    report = json.loads(call(url, "verify", "-o", "json").stdout)
    assert (report["ok"], report["findings"][0]["kind"]) == (False, "Unbalanced")


def test_verify_misses_a_head_that_was_published_and_is_gone(url: str) -> None:
    result = call(url, "verify", "--published", "f" * 64)
    assert result.exit_code == 1
    assert "no link has the published digest" in result.stdout


def test_post_catches_up_and_repeating_it_changes_nothing(url: str) -> None:
    by_hand(url, "DELETE FROM postings", "UPDATE line_spans SET posted_until = NULL")
    assert call(url, "post", "--until", "2026-03-01T11:00:00Z", "-o", "name").stdout == "1\n"
    assert call(url, "post").stdout == "posted 1 entries\n"
    assert call(url, "post").stdout == "posted 0 entries\n"
    assert call(url, "verify").exit_code == 0


@pytest.mark.parametrize("until", ["soon", "2026-03-01T11:00:00", "2999-01-01T00:00:00Z"])
def test_post_refuses_an_instant_that_is_none_or_ahead(url: str, until: str) -> None:
    result = call(url, "post", "--until", until)
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"gpubank: {until!r}" in result.stderr


def test_a_ledger_that_is_not_there_is_not_made_by_looking(url: str, tmp_path: Path) -> None:
    missing = tmp_path / "deep" / "other.db"
    result = call(f"sqlite:///{missing}", "verify")
    assert result.exit_code == 5
    assert "does not exist" in result.stderr
    assert not missing.parent.exists()
    said = f"the ledger's schema is 0002_from_0001, in the SQLite file {str(missing)!r}\n"
    assert call(f"sqlite:///{missing}", "migrate").stdout == said
    assert call(f"sqlite:///{missing}", "verify").exit_code == 0


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("postgresql+psycopg://bank:secret@db.svc:5433/gpubank?sslmode=verify-full", "'gpubank' on db.svc:5433"),
        ("postgresql://bank:secret@db.svc/gpubank?options=secret", "'gpubank' on db.svc"),
        ("postgresql:///gpubank", "'gpubank' on the default host"),
    ],
)
def test_migrate_names_the_database_and_no_secret(monkeypatch: pytest.MonkeyPatch, address: str, name: str) -> None:
    async def migrate(_url: str) -> str:
        return "0002_from_0001"

    monkeypatch.setattr("gpubank.adapters.ledger.migrate", migrate)
    said = f"the ledger's schema is 0002_from_0001, in the PostgreSQL database {name}\n"
    assert call(address, "migrate").stdout == said


@pytest.mark.parametrize(
    ("gpu_ms", "want"),
    [(0, "0.000"), (3_600_000, "1.000"), (-5_400_000, "-1.500"), (3_599, "0.000"), (-3_599, "0.000"), (3_600, "0.001")],
)
def test_gpu_hours_are_cut_towards_zero(gpu_ms: int, want: str) -> None:
    assert gpu_hours(gpu_ms) == want
