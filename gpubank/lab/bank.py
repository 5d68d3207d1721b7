"""The bank in a lab: what it needs installed, and its worker and controller as processes beside the real servers.

    lab (API server, Kueue) ◀── controller ──▶ Temporal ◀── worker ──▶ lab
                                    └────── PostgreSQL ──────┘

Cluster mode as anywhere else: the processes know each other only by the addresses in their settings.
"""

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import yaml

from gpubank.lab.access import namespace, wait_until
from gpubank.lab.errors import StartError, StateError, tail
from gpubank.lab.lab import Lab
from gpubank.lab.state import write_whole
from gpubank.schema import admission_policies, lease_policies, priority_policies
from gpubank.schema.crd import crds
from gpubank.settings import CONFIG_VARIABLE
from gpubank.simulation.processes import ProcessId, launch, stop

SYSTEM_NAMESPACE: Final = "gpubank-system"
"""Where the bank's own objects are, such as the controller's Lease."""

MODULES: Final[Mapping[str, str]] = {
    "worker": "workers.main",
    "controller": "gpubank.controller.main",
    "watchdog": "gpubank.watchdog.main",
}
"""The processes of cluster mode."""

START_TIMEOUT: Final = 60.0
STOP_GRACE: Final = 30.0
"""Seconds that a process has to end its work after SIGTERM; what a pod has by default."""


def install(lab: Lab, namespaces: Iterable[str] = ()) -> None:
    """Install the bank's kinds, its admission policies and its namespace, and create `namespaces` for its groups.

    May be repeated. Raises LabError where the API server refuses something.
    """
    wanted = [namespace(name) for name in (SYSTEM_NAMESPACE, *namespaces)]
    lab.apply([*crds(), *admission_policies(), *lease_policies(), *priority_policies(), *wanted])


class BankProcess:
    """One process of the bank, known by pid and start time, with its output in a log."""

    def __init__(self, name: str, settings: Path) -> None:
        """Describe the process `name` of `MODULES`; its log goes beside the file of its `settings`."""
        if name not in MODULES:
            raise StateError(f"the bank has no process {name!r}; it has {', '.join(MODULES)}")
        self.name, self.log = name, settings.with_name(f"{name}.log")
        self._settings = settings
        self._process: ProcessId | None = None

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.alive()

    @property
    def pid(self) -> int | None:
        """Its process id while it runs."""
        return self._process.pid if self._process is not None and self._process.alive() else None

    def start(self) -> None:
        """Start it unless it runs."""
        if self.alive:
            return
        # Nobody's settings but these: a variable of whoever starts it would win over the file.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("GPUBANK_")}
        env = {**inherited, CONFIG_VARIABLE: str(self._settings), "PYTHONUNBUFFERED": "1"}
        self._process = launch([sys.executable, "-m", MODULES[self.name]], env=env, log=self.log)

    def kill(self) -> None:
        """End it with SIGKILL, as a crash would."""
        if self._process is not None:
            stop(self._process, 0)

    def stop(self) -> bool:
        """End it with SIGTERM; False if it took SIGKILL after `STOP_GRACE`."""
        return self._process is None or stop(self._process, STOP_GRACE)

    def check(self) -> None:
        """Raise StartError, with the end of its log, if it is not running."""
        if not self.alive:
            raise StartError(f"the bank's {self.name} ended by itself; the end of {str(self.log)!r}:\n{tail(self.log)}")


class LabBank:
    """Worker and controller of one bank, beside a lab; as a context manager they run inside the block."""

    def __init__(
        self,
        lab: Lab,
        *,
        temporal: str,
        ledger: str,
        folder: Path,
        ui_url: str = "",
        cluster: str = "lab",
    ) -> None:
        """Describe the bank: Temporal's `host:port`, the ledger's URL, and where settings and logs go."""
        self.folder = folder
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lab = lab
        self.settings = self.folder / "gpubank.yaml"
        """Settings of every process; `GPUBANK_CONFIG` with this file makes the command line this bank's."""
        content: dict[str, Any] = {
            "mode": "cluster",
            "cluster": {"name": cluster, "kubeconfig": str(lab.kubeconfig)},
            "temporal": {"address": temporal, "ui_url": ui_url},
            "ledger": {"url": ledger},
            # The lab's pods are processes of this machine, and their hooks listen on loopback.
            "checkpoint": {"allowed_networks": ["127.0.0.0/8"]},
        }
        write_whole(self.settings, yaml.safe_dump(content, sort_keys=False))
        self.worker, self.controller = (BankProcess(name, self.settings) for name in ("worker", "controller"))

    @property
    def processes(self) -> tuple[BankProcess, ...]:
        """Every process, in the order of their start."""
        return self.worker, self.controller

    def start(self) -> None:
        """Start what does not run and wait until the controller leads; raise StartError with a log where it fails."""
        for process in self.processes:
            process.start()
        try:
            wait_until(self._leads, START_TIMEOUT, "a controller of the bank that leads")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End everything, the last started first."""
        for process in reversed(self.processes):
            process.stop()

    def check(self) -> None:
        """Raise StartError, with the end of its log, if a process ended by itself."""
        for process in self.processes:
            process.check()

    def _leads(self) -> bool:
        self.check()
        path = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases"
        with self._lab.api() as api:
            leases = api.request("GET", path)["items"]
        holders = {lease.get("spec", {}).get("holderIdentity") or "" for lease in leases}
        return any(holder.endswith(f"_{self.controller.pid}") for holder in holders)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
