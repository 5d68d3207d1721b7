"""The bank's processes beside a lab: what they say when they cannot start."""

from pathlib import Path

import pytest
import yaml

from gpubank.lab import StartError, StateError
from gpubank.lab.bank import BankProcess
from tests.support.waiting import until


def process(folder: Path, name: str = "worker") -> BankProcess:
    """A process that reaches neither a cluster nor Temporal."""
    settings = folder / "gpubank.yaml"
    ledger, kubeconfig = f"sqlite:///{folder / 'ledger.db'}", str(folder / "none")
    content = {"mode": "cluster", "ledger": {"url": ledger}, "cluster": {"kubeconfig": kubeconfig}}
    settings.write_text(yaml.safe_dump(content))
    return BankProcess(name, settings)


@pytest.mark.parametrize("name", ["worker", "controller"])
def test_a_process_that_cannot_start_is_told_with_the_end_of_its_log(tmp_path: Path, name: str) -> None:
    started = process(tmp_path, name)
    started.start()
    until(lambda: not started.alive, "the end of a process without a cluster")
    with pytest.raises(StartError, match=f"(?s){name} ended by itself.*kubeconfig .* cannot be used"):
        started.check()
    assert started.pid is None


def test_a_process_that_never_ran_can_be_stopped_and_killed(tmp_path: Path) -> None:
    idle = process(tmp_path)
    idle.kill()
    assert idle.stop()
    with pytest.raises(StartError, match="no log"):
        idle.check()


def test_the_bank_has_no_other_processes(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="it has worker, controller"):
        process(tmp_path, "watchman")
