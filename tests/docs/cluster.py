"""The lab and the bank in which pages are read: each brought up by the commands of the page that says how.

evaluate-with-the-lab.md ──▶ ReadLab ──install.md──▶ ReadBank: deployments played by fake nodes, and beside them
                                                    the same processes for real, with the rights of the manifests
"""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from gpubank.adapters.ledger import SqlLedger
from gpubank.client import BankClient
from gpubank.domain.contract import QUEUE_LABEL, RETRYABLE_LABEL, WORKLOAD_TYPE_LABEL
from gpubank.domain.loan import LineState
from gpubank.embedded.devserver import DevServer
from gpubank.lab import Lab
from gpubank.lab.access import namespace
from gpubank.lab.bank import LabBank
from gpubank.lab.paths import cache_root
from gpubank.lab.postgres import USER, Postgres, find_binaries
from gpubank.settings import TemporalSettings
from tests.docs.shell import Shell, checkout, environment
from tests.docs.walk import Walk
from tests.support.restricted import restrict
from tests.support.waiting import seen

LAB_PAGE: Final = "docs/how-to/evaluate-with-the-lab.md"
INSTALL_PAGE: Final = "docs/how-to/install.md"
POOL: Final = "h100-rdma-training"
"""The pool of examples/pool.yaml."""
OVERLAY: Final = "production"
"""The reader's overlay, which stands for YOURS."""
CLUSTER: Final = "lab"
NAMESPACE: Final = "gpubank"
"""Namespace in Temporal, as the page makes it."""
DATABASE: Final = "gpubank-read"
HASTE: Final = {"revision": "haste", "burst": "100ms", "quiet": "100ms", "probation": "100ms"}
"""Settings of incidents that let no reader wait for minutes."""


@dataclass
class ReadLab:
    """A reader's machine with a lab."""

    lab: Lab
    folder: Path
    """The reader's copy of the project, where commands are typed."""
    env: dict[str, str]
    """The reader's environment, which pages add to."""
    page: Walk
    """The page that started it, with what it still has to say."""

    @contextlib.contextmanager
    def walk(self, page: str, names: Mapping[str, str] | None = None, **env: str) -> Iterator[Walk]:
        """Open a page in a terminal of its own."""
        with self.terminal(page, **env) as shell:
            walk = Walk(page, shell, names)
            yield walk
            assert not walk.left, f"{walk.left[0]} was not reached"

    def terminal(self, page: str, **env: str) -> Shell:
        """Open a terminal."""
        return Shell(self.folder / ".terminals" / Path(page).stem, {**self.env, **env}, self.folder)


@dataclass
class ReadBank:
    """A bank that a reader has installed in it."""

    machine: ReadLab
    processes: LabBank
    client: BankClient
    ledger: SqlLedger
    page: Walk
    """The page that installed it, with what it says about the removal."""

    @property
    def lab(self) -> Lab:
        return self.machine.lab

    def node(self, number: int, pool: str = POOL) -> str:
        """Return the name of a node of a pool."""
        with self.lab.api() as api:
            nodes = api.request("GET", "/api/v1/nodes", params={"labelSelector": f"accelerator.aik8s.run/pool={pool}"})
        return sorted(str(each["metadata"]["name"]) for each in nodes["items"])[number]


@asynccontextmanager
async def read_lab(folder: Path, kubectl: Path) -> AsyncIterator[ReadLab]:
    """Do what the page says up to the point where its lab can be used."""
    home = folder / "home"
    programs = {"kubectl": kubectl, "createdb": find_binaries() / "createdb"}
    env = environment(home, programs, GPUBANK_LAB_CACHE=str(cache_root()))
    (folder / "gpubank").mkdir()
    lab = Lab()
    lab.folder = home / ".local" / "state" / "gpubank" / "lab" / lab.name  # where a reader with this home finds it
    try:
        with Shell(folder / "terminal", env, checkout(folder / "gpubank")) as shell:
            walk = Walk(LAB_PAGE, shell)
            await walk.on_to("gpubank lab up")
            await walk.on_to("export KUBECONFIG")
            ran = await asyncio.to_thread(shell.run, 'echo -n "$KUBECONFIG"')
            assert ran.out == str(lab.kubeconfig)
            yield ReadLab(lab, folder / "gpubank", {**env, "KUBECONFIG": ran.out}, walk)
    finally:
        await asyncio.to_thread(lab.clean)


@asynccontextmanager
async def read_bank(machine: ReadLab, postgres: Postgres) -> AsyncIterator[ReadBank]:
    """Do what the page says, with the examples' pool and groups, and have a group borrow."""
    folder = machine.folder / ".bank"
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(DevServer(folder / "temporal", search_attributes={}))
        ledger = postgres.url_of(DATABASE).replace("postgresql://", "postgresql+psycopg://")
        processes = LabBank(machine.lab, temporal=server.address, ledger=ledger, folder=folder, cluster=CLUSTER)
        settings = yaml.safe_load(processes.settings.read_text())
        settings["temporal"]["namespace"] = NAMESPACE
        settings["incidents"] = {"policy": HASTE}
        processes.settings.write_text(yaml.safe_dump(settings))
        machine.env.update(_reach(postgres, server.address))
        machine.env["GPUBANK_CONFIG"] = str(_own_settings(settings, folder / "reader.yaml"))
        # The tests' server has a database of that name already: it makes one for its own user.
        names = {"createdb gpubank": f"createdb {DATABASE}", "YOURS": OVERLAY, "PASSWORD": "secret", "KEY": "key"}
        names |= {"NAMESPACE": "search", "NAME": "train"}
        walk = Walk(INSTALL_PAGE, stack.enter_context(machine.terminal(INSTALL_PAGE)), names)
        await walk.on_to("createdb")
        _write_overlay(machine.folder / "manifests" / "overlays", server.address)
        await walk.on_to("kubectl -n gpubank-system rollout status")
        await asyncio.to_thread(restrict, machine.lab, processes)
        stack.push_async_callback(asyncio.to_thread, processes.stop)
        await asyncio.to_thread(processes.start)
        await walk.on_to("kubectl get gpupools")
        await asyncio.to_thread(_prepare_examples, machine.lab)
        await walk.on_to("kubectl get gpuquotapolicies")
        client = await BankClient.connect(TemporalSettings(address=server.address, namespace=NAMESPACE))
        books = await stack.enter_async_context(await SqlLedger.open(ledger))
        bank = ReadBank(machine, processes, client, books, walk)
        await _borrow(bank)
        yield bank


def _reach(postgres: Postgres, temporal: str) -> dict[str, str]:
    """Return what the clients of PostgreSQL and Temporal find their servers by."""
    password = postgres.url.split(":")[2].split("@")[0]
    return {
        "PGHOST": "127.0.0.1",
        "PGPORT": str(postgres.port),
        "PGUSER": USER,
        "PGPASSWORD": password,
        "TEMPORAL_ADDRESS": temporal,
    }


def _own_settings(settings: Mapping[str, Any], file: Path) -> Path:
    """Write a person's settings: those of the bank, with the person's own kubeconfig."""
    cluster = {key: value for key, value in settings["cluster"].items() if key != "kubeconfig"}
    file.write_text(yaml.safe_dump({**settings, "cluster": cluster}))
    return file


def _write_overlay(overlays: Path, temporal: str) -> None:
    """Copy the example and change what is marked in it."""
    shutil.copytree(overlays / "example", overlays / OVERLAY)
    file = overlays / OVERLAY / "settings.yaml"
    configmap = yaml.safe_load(file.read_text())
    settings = yaml.safe_load(configmap["data"]["gpubank.yaml"])
    settings["cluster"]["name"], settings["temporal"]["address"] = CLUSTER, temporal
    configmap["data"]["gpubank.yaml"] = yaml.safe_dump(settings)
    file.write_text(yaml.safe_dump(configmap))


def _prepare_examples(lab: Lab) -> None:
    """Make what the examples are about: nodes of their pool, namespaces of their groups."""
    labels = {
        f"accelerator.aik8s.run/{name}": value for name, value in (("vendor", "nvidia"), ("lifecycle", "reserved"))
    }
    lab.add_nodes(POOL, 8, labels=labels, model="h100", fabric="rdma")
    lab.apply([namespace(name) for name in ("search", "search-serving", "ads")])


async def _borrow(bank: ReadBank) -> None:
    """Have group search borrow 8 GPUs for a job of its own."""
    gpus = {"nvidia.com/gpu": "8"}
    labels = {QUEUE_LABEL: f"{POOL}-borrow", RETRYABLE_LABEL: "true", WORKLOAD_TYPE_LABEL: "training"}
    container = {"name": "main", "image": "none", "resources": {"requests": gpus, "limits": gpus}}
    pod = {"restartPolicy": "Never", "containers": [container]}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train", "namespace": "search", "labels": labels},
        "spec": {"template": {"metadata": {"labels": labels}, "spec": pod}},
    }
    await asyncio.to_thread(bank.lab.apply, [job])

    async def granted() -> bool:
        lines = await bank.ledger.lines(open_only=True)
        return bool(lines) and all(line.state is LineState.GRANTED for line in lines)

    await seen(granted, "a loan for search/train")
