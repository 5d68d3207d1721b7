"""Least privilege, proved: every process works under its own account, misses no right, and has none to spare."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final

import httpx2
import pytest

from gpubank.adapters.kubernetes.agreements import PolledAgreements
from gpubank.adapters.kubernetes.connection import Connection
from gpubank.adapters.kubernetes.kueue.failsafe import KueueFailSafe
from gpubank.adapters.kubernetes.leases import KubernetesLeases
from gpubank.agreements import Agreements
from gpubank.domain.incident import IncidentPhase, IncidentWord, incident_id
from gpubank.domain.loan import LineState
from gpubank.domain.recall import LoanPhase
from gpubank.domain.terms import PoolTerms
from gpubank.lab.bank import SYSTEM_NAMESPACE
from gpubank.watchdog.main import teller
from gpubank.watchdog.watchdog import Watchdog
from tests.contract.lease_suite import asked, gone
from tests.fakes.node import FakeNode
from tests.support import restricted
from tests.support.bank import Bank
from tests.support.restricted import PROCESSES, Right, covers
from tests.support.running import RunningBank

pytestmark = [pytest.mark.temporal, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="session")]

KUEUE: Final = "kueue.x-k8s.io"
RACES: Final = {
    Right("controller", KUEUE, "localqueues", "get"): "read anew where Kueue wrote between look and write",
    Right("controller", KUEUE, "resourceflavors", "get"): "read anew where somebody wrote between look and write",
    Right("controller", KUEUE, "localqueues", "patch"): "labels that somebody took away are put back",
    Right("controller", KUEUE, "resourceflavors", "patch"): "node labels that somebody changed are put back",
    Right("watchdog", "", "events", "get", "default"): "two watchdogs that say the same",
    Right("watchdog", "", "events", "patch", "default"): "two watchdogs that say the same",
}
"""Rights that only a race or a stranger's edit calls for, and what for."""


@pytest.fixture(scope="module", autouse=True)
def rights() -> None:
    """Fail early and plainly where an exception names a right that nobody grants."""
    assert set(RACES) <= set().union(*(restricted.granted(process) for process in PROCESSES))


async def test_no_process_misses_a_right_and_every_right_is_used(lab_bank: RunningBank, tmp_path: Path) -> None:
    async with lab_bank.pool(tmp_path) as bank:
        await bank.agree((8,), vision=8, search=0)
        await answers_to_probes(lab_bank, bank.world.pool)
        await asked(bank, "search", "release", seconds=600, pool=bank.world.pool, gpus=8)
        await gone(bank, "search", "release")
        await recall_and_resume(bank)
        await a_broken_gpu(bank)
        await refuse_twice(bank, lab_bank)
        await fail_safe_and_back(lab_bank, bank)
        lab_bank.processes.check()
    await lab_bank.end()  # with the pool, its queues and its flavor are gone

    made = set(restricted.calls(lab_bank.lab))
    refused = {call for call in made if call.code == httpx2.codes.FORBIDDEN}
    rights = set().union(*(restricted.granted(process) for process in PROCESSES))
    # An API server that was just started refuses everybody everything until it has read its roles.
    problems = [f"refused: {each}" for each in sorted(refused) if not any(covers(right, each) for right in rights)]
    unused = (right for right in rights - set(RACES) if not any(covers(right, call) for call in made - refused))
    problems += [f"never used: {right}" for right in sorted(unused)]
    assert not problems, "\n".join(problems)


async def answers_to_probes(lab_bank: RunningBank, pool: str) -> None:
    async with httpx2.AsyncClient(trust_env=False) as http:
        for process in ("worker", "controller"):
            url = f"http://127.0.0.1:{restricted.port(lab_bank.processes, process)}"
            for path in ("/healthz", "/readyz"):
                answer = await http.get(url + path)
                assert (answer.status_code, answer.text) == (200, "ok\n"), (process, path)
            text = (await http.get(f"{url}/metrics")).text
            assert f'gpubank_build_info{{process="{process}"' in text
            if process == "controller":
                assert f'gpubank_capacity_gpus{{pool="{pool}"}} 8.0' in text
                assert "gpubank_ledger_imbalance_gpu_ms 0.0" in text
            else:
                assert "temporal_num_pollers{" in text
                assert "gpubank_stuck_workflows 0.0" in text


async def recall_and_resume(bank: Bank) -> None:
    await bank.borrow("search", "train", trains=bank.gate(opened=True))
    await bank.own("vision", "serve")
    await bank.placed("serve")
    await bank.loan_in("train", LoanPhase.PARKED)
    await bank.demand_met("vision")
    await bank.finish("vision", "serve")
    await bank.placed("train")
    await bank.finish("search", "train")
    await bank.loan_in("train", LoanPhase.CLOSED)

    async def returned() -> bool:
        lines = await bank.lines()
        return bool(lines) and all(line.state is LineState.RETURNED for line in lines)

    await bank.until(returned, "every line is returned")


async def a_broken_gpu(bank: Bank) -> None:
    """An incident closes a node, has its pod evicted, and opens it again, with a person's word on the repair."""
    client = bank.client
    await bank.own("vision", "infer")
    (pod,) = (await bank.placed("infer")).pod_facts
    gpu = FakeNode(client.temporal, bank.world.cluster, pod.node, "GPU-1")
    incident = incident_id(gpu.cluster, gpu.node, gpu.uuid)

    def in_phase(phase: IncidentPhase) -> Callable[[], Awaitable[bool]]:
        async def look() -> bool:
            return (await client.incident_state(incident)).phase is phase

        return look

    async with gpu.serving():
        await client.signal_incident(gpu.cluster, gpu.node, gpu.uuid, [gpu.fault("lost", "hardware", "LOST")])
        await bank.until(in_phase(IncidentPhase.TICKETED), "the node is empty")
        assert not [node for node in (await bank.facts()).nodes if node.ready]
        state = await client.incident_state(incident)
        assert [(each.name, each.gone) for each in state.pods] == [(pod.name, True)]
        gpu.mend()
        await client.repaired(incident, IncidentWord(identity="ann"))
        await bank.until(in_phase(IncidentPhase.UNCORDONED), "the node takes pods again")
    await client.retire(incident, IncidentWord(identity="ann", reason="the end of the scene"))
    await bank.placed("infer")
    await bank.finish("vision", "infer")


async def refuse_twice(bank: Bank, lab_bank: RunningBank) -> None:
    """A policy beyond its share is refused by an Event, and by another controller with the same words."""
    for again in (False, True):
        if again:
            await asyncio.to_thread(lab_bank.processes.controller.stop)
            await asyncio.to_thread(lab_bank.processes.start)
        await bank.share("vision", 4)
        await bank.until(is_ready(bank, "False"), "the policy is refused")
        await bank.share("vision", 8)
        await bank.until(is_ready(bank, "True"), "the policy is in force")
        await bank.settled()


def is_ready(bank: Bank, status: str) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        policy = await bank.policy("vision") or {}
        conditions = (policy.get("status") or {}).get("conditions") or []
        return any(each["type"] == "Ready" and each["status"] == status for each in conditions)

    return look


async def fail_safe_and_back(lab_bank: RunningBank, bank: Bank) -> None:
    """A watchdog that has no patience takes the pool, and gives it back when it has some."""
    await bank.stop_auditing()  # of quotas, which are the watchdog's meanwhile
    async with impatient_watchdog(lab_bank, bank) as patience:
        await bank.until(in_fail_safe(bank, held=True), "the pool is under its fail-safe")
        patience.after = timedelta(seconds=15)  # a beat and a half
        await bank.until(in_fail_safe(bank, held=False), "the bank has the pool back", 120)
    await bank.settled()


def in_fail_safe(bank: Bank, *, held: bool) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        facts = await bank.facts()
        everywhere = all(queue.fail_safe for queue in facts.queues) and facts.fail_safe_epoch != 0
        return everywhere if held else not facts.in_fail_safe

    return look


class Patience:
    """How long a watchdog waits for a sign of life, whatever the pool says."""

    def __init__(self, pool: str, terms: Agreements) -> None:
        self.after = timedelta(milliseconds=500)
        self._pool, self._terms = pool, terms

    async def terms(self) -> Mapping[str, PoolTerms]:
        """Return the terms of the one pool; those of others are nobody's business here."""
        found = (await self._terms.all_terms())[self._pool]
        return {self._pool: found.model_copy(update={"fail_safe_after": self.after})}


@asynccontextmanager
async def impatient_watchdog(lab_bank: RunningBank, bank: Bank) -> AsyncIterator[Patience]:
    """Run the watchdog as its process wires it, under its own account, for one pool."""
    lab, folder = lab_bank.lab, lab_bank.processes.folder / "watchdog"
    config = await asyncio.to_thread(restricted.kubeconfig, lab, "watchdog", folder)
    async with Connection.open(config) as connection:
        patience = Patience(bank.world.pool, Agreements(bank.world.cluster, PolledAgreements(connection)))
        watchdog = Watchdog(
            bank.world.cluster,
            terms=patience.terms,
            leases=KubernetesLeases(connection, SYSTEM_NAMESPACE),
            backend=KueueFailSafe(connection),
            tell=teller(connection),
        )
        running = asyncio.create_task(watchdog.run(0.5))
        try:
            yield patience
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
