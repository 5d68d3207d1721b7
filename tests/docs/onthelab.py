"""Scenes of the pages that are about a bank on a cluster: what each page takes for granted, and its walk."""

import asyncio
import contextlib
import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import yaml

from gpubank.domain.incident import Asks, IncidentPhase, incident_id
from gpubank.lab.access import namespace
from gpubank.lab.bank import SYSTEM_NAMESPACE, BankProcess
from tests.docs.cluster import CLUSTER, NAMESPACE, OVERLAY, POOL, ReadBank
from tests.docs.exempt import NAMED
from tests.docs.reading import Command, spoken, written
from tests.docs.shell import Ran
from tests.docs.walk import Walk
from tests.fakes.certificates import Certificates
from tests.fakes.node import FakeNode
from tests.support.waiting import seen

GROUP: Final = "platform.aik8s.run"
HOW_TO: Final = "docs/how-to"
PIA: Final = "pia@platform"


async def operate(bank: ReadBank) -> None:
    with bank.machine.walk(f"{HOW_TO}/operate.md") as walk:
        await walk.to_the_end()


async def your_job_was_recalled(bank: ReadBank) -> None:
    with bank.machine.walk(f"{HOW_TO}/your-job-was-recalled.md", {"NAMESPACE/NAME": "search/train"}) as walk:
        ran = await walk.on_to("gpubank loan show")
    assert "lent by search:8" in ran.out


async def fail_safe(bank: ReadBank) -> None:
    beats = {f"loop-{CLUSTER}-{POOL}", f"heartbeat-{CLUSTER}-{POOL}"}
    await seen(lambda: asyncio.to_thread(_has_leases, bank, beats), "signs of life")
    with bank.machine.walk(f"{HOW_TO}/fail-safe.md", {"POOL": POOL}) as walk:
        shown = await walk.on_to("kubectl -n gpubank-system get leases")
        assert {line.split()[0] for line in shown.out.splitlines()} >= {"LEASE", *beats}
        condition = await walk.on_to("kubectl get gpupool")
        assert json.loads(condition.out)["status"] == "False"
        await walk.to_the_end()


def _has_leases(bank: ReadBank, names: set[str]) -> bool:
    with bank.lab.api() as api:
        found = api.request("GET", f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases")["items"]
    return names <= {each["metadata"]["name"] for each in found}


async def leases(bank: ReadBank) -> None:
    page = f"{HOW_TO}/leases.md"
    until = (datetime.now(UTC) + timedelta(hours=6)).replace(microsecond=0)
    (lease,) = [each for each in written(page) if each.get("kind") == "CapacityLease"]
    lease["spec"]["until"] = f"{until:%Y-%m-%dT%H:%M:%SZ}"
    await asyncio.to_thread(_add_namespace, bank, lease["metadata"]["namespace"])
    await asyncio.to_thread(bank.lab.apply, [lease])
    await _lease_reason(bank, lease, "AwaitingApproval")
    names = {"2026-12-01 20:00:00Z": f"{until:%Y-%m-%d %H:%M:%SZ}"}
    pia = await asyncio.to_thread(bank.lab.user, PIA, group="system:masters")
    with bank.machine.walk(page, names, KUBECONFIG=str(pia)) as walk:
        await walk.to_the_end()
    await _lease_reason(bank, lease, "Applied")


def _add_namespace(bank: ReadBank, name: str) -> None:
    """Let group search have one more namespace."""
    with bank.lab.api() as api:
        api.apply(namespace(name))
        path = "/apis/platform.aik8s.run/v1alpha1/businessgroups/search"
        group = api.request("GET", path)
        group["spec"]["namespaces"].append(name)
        api.request("PUT", path, json=group)


async def _lease_reason(bank: ReadBank, lease: dict[str, Any], reason: str) -> None:
    def look() -> bool:
        with bank.lab.api() as api:
            conditions = api.request("GET", api.path_of(lease)).get("status", {}).get("conditions", [])
        return any(each["type"] == "Ready" and each["reason"] == reason for each in conditions)

    await seen(lambda: asyncio.to_thread(look), f"a lease that is {reason}")


async def gpu_incidents(bank: ReadBank) -> None:
    node, uuid = bank.node(1), "GPU-0f3c"
    broken = FakeNode(bank.client.temporal, CLUSTER, node, uuid)
    incident = incident_id(CLUSTER, node, uuid)

    async def is_so(holds: Callable[[Any], object], what: str) -> None:
        async def look() -> bool:
            return bool(holds(await bank.client.incident_state(incident)))

        await seen(look, what)

    with bank.machine.walk(f"{HOW_TO}/gpu-incidents.md", {"NODE": node, "GPU-UUID": uuid}) as walk:
        async with _closed(bank, bank.node(0)), broken.serving():
            await bank.client.signal_incident(CLUSTER, node, uuid, [broken.fault("lost", "hardware", "LOST")])
            await is_so(lambda state: state.asks is Asks.CORDON, "an incident that asks")
            await walk.on_to("gpubank incident approve")
            await is_so(lambda state: state.phase is IncidentPhase.TICKETED, "a ticket")
            await walk.to_the_end()
            await is_so(lambda state: state.phase is IncidentPhase.RETIRED, "the end")


@asynccontextmanager
async def _closed(bank: ReadBank, node: str) -> AsyncIterator[None]:
    """Have a person cordon a node meanwhile, so that much of the pool is out."""

    def close(closed: bool) -> None:
        with bank.lab.api() as api:
            api.request(
                "PATCH", f"/api/v1/nodes/{node}", json={"spec": {"unschedulable": closed}},
                headers={"content-type": "application/merge-patch+json"},
            )  # fmt: skip

    await asyncio.to_thread(close, True)
    try:
        yield
    finally:
        await asyncio.to_thread(close, False)


async def install_node_agent(bank: ReadBank) -> None:
    folder = bank.machine.folder
    _certificates(folder)
    overlays = folder / "manifests" / "nodeagent" / "overlays"
    shutil.copytree(overlays / "full", overlays / OVERLAY)
    names = {"NODE": bank.node(0, "h100-pool"), "YOURS": OVERLAY}
    with bank.machine.walk(f"{HOW_TO}/install-node-agent.md", names) as walk:
        await walk.to_the_end()


def _certificates(folder: Path) -> None:
    """Put what an issuer of certificates has made where the page expects it."""
    (folder / ".certificates").mkdir()
    made = Certificates(folder / ".certificates").issue("gpubank-node")
    files = {"tls.crt": made.certificate, "tls.key": made.key, "ca.crt": made.authorities}
    for name, file in files.items():
        (folder / name).write_bytes(file.read_bytes())


async def upgrade(bank: ReadBank) -> None:
    with contextlib.ExitStack() as stack:
        walk = stack.enter_context(bank.machine.walk(f"{HOW_TO}/upgrade.md", {"YOURS": OVERLAY}))
        await _worker(stack, bank, "0.1.0")
        await _taken(walk, f"{CURRENT} --build-id 0.1.0 --yes --namespace {NAMESPACE}")
        await _worker(stack, bank, "0.2.0")
        await walk.on_to("kubectl apply")
        await _taken(walk, f"temporal worker deployment describe --name gpubank --namespace {NAMESPACE} | grep 0.2.0")
        ramp, *_ = [each for each in spoken() if each.text.startswith(RAMP)]
        await Walk(walk.page, walk.shell, left=[ramp]).on_to(RAMP, typed="y\n")
        await walk.on_to(CURRENT, typed="y\n")
        await walk.on_to(CURRENT, typed="y\n")
        await walk.to_the_end()
        await _taken(walk, f"{CURRENT} --unversioned --yes --namespace {NAMESPACE}")


RAMP: Final = "temporal worker deployment set-ramping-version"
CURRENT: Final = "temporal worker deployment set-current-version --deployment-name gpubank"


async def _worker(stack: contextlib.ExitStack, bank: ReadBank, build: str) -> None:
    """Run a versioned worker of a build beside the others."""
    folder = bank.machine.folder / f".worker-{build}"
    folder.mkdir(exist_ok=True)
    settings = yaml.safe_load((bank.processes.folder / "worker" / "gpubank.yaml").read_text())
    settings["worker"] = {"deployment": "gpubank", "build_id": build}
    settings["observability"] = {"port": 0}
    file = folder / "gpubank.yaml"
    file.write_text(yaml.safe_dump(settings))
    worker = BankProcess("worker", file)
    stack.callback(worker.stop)
    await asyncio.to_thread(worker.start)


async def _taken(walk: Walk, command: str) -> None:
    """Repeat a command until it is taken, as who waits for a rollout does."""
    last = Ran(0, "", "")

    async def taken() -> bool:
        nonlocal last
        last = await asyncio.to_thread(walk.shell.run, command)
        return last.code == 0

    await seen(taken, command, 60, say=lambda: last.said, every=0.5)


async def in_passing(bank: ReadBank) -> None:
    """Run what pages name in their text, and nobody's scene has run."""
    said = [each for each in spoken() if not each.text.startswith(RAMP)]
    assert {each.text for each in said} >= NAMED
    left = [Command(each.page, each.line, f"{each.text} --help") if each.text in NAMED else each for each in said]
    names = {
        "CLUSTER": CLUSTER,
        "POOL": POOL,
        "NODE": bank.node(0),
        "YOURS": OVERLAY,
        "job NAME": "job train -n search",
    }
    names |= {f"{lease}-CLUSTER-POOL": f"{lease}-{CLUSTER}-{POOL}" for lease in ("loop", "heartbeat")}
    with bank.machine.terminal("in-passing", EDITOR="true") as shell:
        await Walk("in passing", shell, names, left).to_the_end()


async def remove(bank: ReadBank) -> None:
    """Go on with the page that installed the bank, to its end; nothing of the bank is left then."""
    await bank.page.to_the_end(timeout=120)
    with bank.lab.api() as api:
        kinds = api.request("GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions")["items"]
        queues = api.request("GET", "/apis/kueue.x-k8s.io/v1beta2/clusterqueues")["items"]
    assert [each["metadata"]["name"] for each in kinds if each["spec"]["group"] == GROUP] == []
    assert [each["metadata"]["name"] for each in queues] == []


SCENES: Final[Mapping[str, Callable[[ReadBank], Awaitable[None]]]] = {
    f"{HOW_TO}/operate.md": operate,
    f"{HOW_TO}/your-job-was-recalled.md": your_job_was_recalled,
    f"{HOW_TO}/fail-safe.md": fail_safe,
    f"{HOW_TO}/leases.md": leases,
    f"{HOW_TO}/gpu-incidents.md": gpu_incidents,
    f"{HOW_TO}/install-node-agent.md": install_node_agent,
    f"{HOW_TO}/upgrade.md": upgrade,
}
"""In the order in which they are read."""
