"""A run of tests that used Temporal's client ends with its own exit status, and with its coverage."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

FAILING = "import temporalio.client\n\ndef test_fails():\n    assert False\n"
PASSING = "import temporalio.client\n\ndef test_passes():\n    pass\n"


@pytest.mark.parametrize(("code", "status"), [(PASSING, 0), (FAILING, 1)])
def test_the_exit_status_of_the_run_is_kept(tmp_path: Path, code: str, status: int) -> None:
    done = _run(tmp_path, code, "-m", "pytest")
    assert done.returncode == status, done.stdout + done.stderr
    assert "1 passed" in done.stdout or "1 failed" in done.stdout


def test_coverage_of_the_run_is_written(tmp_path: Path) -> None:
    data = tmp_path / "data"
    done = _run(tmp_path, PASSING, "-m", "coverage", "run", f"--data-file={data}", "-m", "pytest")
    assert done.returncode == 0, done.stdout + done.stderr
    assert data.stat().st_size > 0


def _run(folder: Path, code: str, *command: str) -> subprocess.CompletedProcess[str]:
    test = folder / "test_it.py"
    test.write_text(code)
    arguments = ["-p", "tests.plugins.exit", "-p", "no:cacheprovider", "-q", "--rootdir", str(folder), str(test)]
    return subprocess.run(
        [sys.executable, *command, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
