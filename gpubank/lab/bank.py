"""The bank in a lab: what it needs installed, and its worker and controller as processes beside the real servers.

    lab (API server, Kueue) ◀── controller ──▶ Temporal ◀── worker ──▶ lab
                                    └────── PostgreSQL ──────┘

Cluster mode as anywhere else: the processes know each other only by the addresses in their settings.
"""

import os
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from gpubank.lab.access import namespace, wait_until
from gpubank.lab.errors import StartError, StateError, tail
from gpubank.lab.lab import Lab
from gpubank.schema.admission import admission_policies
from gpubank.schema.crd import crds
from gpubank.simulation.processes import ProcessId, launch, stop

SYSTEM_NAMESPACE: Final = "gpubank-system"
"""Where the bank's own objects are, such as the controller's Lease."""

MODULES: Final[Mapping[str, str]] = {"worker": "workers.main", "controller": "gpubank.controller.main"}
"""The processes of cluster mode, in the order of their start."""

START_TIMEOUT: Final = 60.0
STOP_GRACE: Final = 30.0
"""Seconds that a process has to end its work after SIGTERM; what a pod has by default."""


def install(lab: Lab, namespaces: Iterable[str] = ()) -> None:
    """Install the bank's kinds, its admission policies and its namespace, and create `namespaces` for its groups.

    May be repeated. Raises LabError where the API server refuses something.
    """
    wanted = [namespace(name) for name in (SYSTEM_NAMESPACE, *namespaces)]
    lab.apply([*crds(), *admission_policies(), *wanted])


class BankProcess:
    """One process of the bank, known by pid and start time, with its output in a log."""

    def __init__(self, name: str, settings: Mapping[str, str], folder: Path) -> None:
        """Describe the process `name` of `MODULES`; `settings` are its GPUBANK_ variables, `folder` takes its log."""
        if name not in MODULES:
            raise StateError(f"the bank has no process {name!r}; it has {', '.join(MODULES)}")
        self.name, self.log = name, folder / f"{name}.log"
        self._settings, self._folder = dict(settings), folder
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
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("GPUBANK_")}
        # Nobody's settings but these: the variable names a file, and an empty one holds none.
        nothing = self._folder / "settings.yaml"
        self._folder.mkdir(parents=True, exist_ok=True)
        nothing.touch()
        env = {**inherited, "GPUBANK_CONFIG": str(nothing), **self._settings, "PYTHONUNBUFFERED": "1"}
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
        cluster: str = "lab",
        folder: Path | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Describe the bank: Temporal's `host:port`, the ledger's URL, and further `settings` as GPUBANK_ variables."""
        self.folder = folder or Path(tempfile.mkdtemp(prefix="gpubank-lab-bank-"))
        self._lab = lab
        self.settings = {
            "GPUBANK_MODE": "cluster",
            "GPUBANK_CLUSTER__NAME": cluster,
            "GPUBANK_CLUSTER__KUBECONFIG": str(lab.kubeconfig),
            "GPUBANK_TEMPORAL__ADDRESS": temporal,
            "GPUBANK_LEDGER__URL": ledger,
            # The lab's pods are processes of this machine, and their hooks listen on loopback.
            "GPUBANK_CHECKPOINT__ALLOWED_NETWORKS": '["127.0.0.0/8"]',
            **(settings or {}),
        }
        self.worker, self.controller = (BankProcess(name, self.settings, self.folder) for name in MODULES)

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
