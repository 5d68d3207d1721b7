"""Leases as the controller sees to them: their status, their audit trail, and what it never overwrites."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gpubank.cli.identity import Identity
from gpubank.cli.leasebook import approved, revoked
from gpubank.controller.metrics import ControllerMetrics
from gpubank.decide.lease import protected_now
from gpubank.domain.base import format_instant
from gpubank.domain.lease import CapacityLease
from tests.unit.controller.harness import POOL, Bank, a_bank

EIGHT = {"guaranteed": 8, "borrowLimit": 8}
PIA = Identity("pia", verified=True)


@pytest.fixture
async def bank(tmp_path: Path) -> AsyncIterator[Bank]:
    async with a_bank(tmp_path) as bank:
        await bank.agree(a=EIGHT, b=EIGHT)
        await bank.let(1)
        yield bank


async def ask(bank: Bank, *, minutes: float = 30, gpus: int = 8) -> None:
    end = (bank.cluster.clock.now() + timedelta(minutes=minutes)).replace(microsecond=0)
    spec = {"pool": POOL, "gpus": gpus, "until": format_instant(end), "reason": "release week"}
    await bank.apply("CapacityLease", "release", spec, namespace="team-a")


async def lease(bank: Bank) -> CapacityLease:
    body = await bank.cluster.objects.get("CapacityLease", "release", "team-a")
    assert body is not None
    return CapacityLease.from_wire(body)


async def decide(bank: Bank, how: Any, *, seen: str | None = None) -> None:
    found = await lease(bank)
    status = how(found, PIA, "", bank.cluster.clock.now().replace(microsecond=0))
    await bank.cluster.objects.patch_status(
        "CapacityLease",
        "release",
        "team-a",
        status.model_dump(mode="json", by_alias=True, exclude_none=True),
        seen=found.metadata.resource_version if seen is None else seen,
    )


async def ready(bank: Bank) -> tuple[str, str]:
    return (await bank.conditions("CapacityLease", "release", "team-a"))["Ready"]


async def audited(bank: Bank) -> list[tuple[str, str]]:
    events = await bank.ledger.audit(subject="lease/team-a/release")
    return [(event.action, event.actor) for event in sorted(events, key=lambda event: event.sequence)]


async def kept(bank: Bank) -> set[str]:
    terms = bank.controller.terms(POOL)
    assert terms is not None
    facts = await bank.cluster.observe(POOL)
    found = protected_now(facts, await bank.books(), terms, bank.cluster.clock.now())
    return {facts.workload(uid).key.job for uid in found}  # type: ignore[union-attr]


def leased_gpus(bank: Bank) -> float | None:
    found = ControllerMetrics(bank.cluster.clock.now)
    found.turned(POOL, 0.02, bank.loop.facts, bank.loop.books, bank.controller.terms(POOL))
    return found.registry.get_sample_value("gpubank_leased_gpus", {"pool": POOL, "group": "a"})


async def test_a_lease_goes_its_way_and_every_step_of_it_is_audited_with_who_took_it(bank: Bank) -> None:
    bank.submit("a", "own", 8)
    await bank.let(3)
    bank.submit("a", "loan", 8, borrow=True)
    await bank.let(3)
    assert bank.running() == {"own", "loan"}
    await ask(bank)
    await bank.let(0.2)
    assert await ready(bank) == ("False", "AwaitingApproval")
    assert await kept(bank) == set()
    await decide(bank, approved)
    await bank.let(0.2)
    assert await ready(bank) == ("True", "Applied")
    assert await kept(bank) == {"Job/loan"}
    assert leased_gpus(bank) == 8
    await decide(bank, revoked)
    await bank.let(0.2)
    assert await ready(bank) == ("False", "Revoked")
    assert await kept(bank) == set()
    assert leased_gpus(bank) == 0
    await decide(bank, approved)
    await bank.let(0.2)
    await ask(bank, gpus=4)
    await bank.let(0.2)
    assert await ready(bank) == ("False", "AwaitingApproval")
    assert await kept(bank) == set(), "what was approved is another spec"
    await decide(bank, approved)
    await bank.let(0.2)
    assert await ready(bank) == ("True", "Applied")
    assert await audited(bank) == [
        ("lease AwaitingApproval", "controller"),
        ("lease Applied", "pia"),
        ("lease Revoked", "pia"),
        ("lease Applied", "pia"),
        ("lease AwaitingApproval", "controller"),
        ("lease Applied", "pia"),
    ]
    assert (await bank.ledger.verify()).ok


async def test_the_audit_trail_has_who_approved_each_spec_and_why_however_fast_it_was_edited(bank: Bank) -> None:
    await ask(bank)
    await decide(bank, approved)
    await bank.let(0.2)
    await ask(bank, gpus=4)  # and approved before the controller looks, by a name that nobody has confirmed
    found = await lease(bank)
    status = approved(found, Identity("bob", verified=False), "half of it", bank.cluster.clock.now())
    await bank.cluster.objects.patch_status(
        "CapacityLease",
        "release",
        "team-a",
        status.model_dump(mode="json", by_alias=True, exclude_none=True),
        seen=found.metadata.resource_version,
    )
    await bank.let(0.2)
    assert await ready(bank) == ("True", "Applied")
    events = sorted(await bank.ledger.audit(subject="lease/team-a/release"), key=lambda event: event.sequence)
    assert [event.actor for event in events] == ["pia", "bob"]
    assert events[-1].detail["approval"] == "approved by bob (unverified): half of it"
    assert (events[-1].detail["for"], events[-1].detail["generation"]) == ("4 GPUs in pool demo", 2)
    await bank.let(1)
    assert len(await bank.ledger.audit(subject="lease/team-a/release")) == 2, "said once"


async def test_an_approval_that_another_takes_the_place_of_is_audited_too(bank: Bank) -> None:
    await ask(bank)
    await decide(bank, approved)
    await bank.let(0.2)
    await decide(bank, revoked)
    found = await lease(bank)
    status = approved(found, Identity("bob", verified=True), "again", bank.cluster.clock.now())
    body = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    seen = found.metadata.resource_version
    await bank.cluster.objects.patch_status("CapacityLease", "release", "team-a", body, seen=seen)
    await bank.let(0.2)
    assert await audited(bank) == [("lease Applied", "pia"), ("lease Applied", "bob")]


async def test_a_lease_ends_by_itself(bank: Bank) -> None:
    await ask(bank, minutes=0.05)
    await decide(bank, approved)
    await bank.let(0.2)
    assert await ready(bank) == ("True", "Applied")
    await bank.let(3.5)
    assert await ready(bank) == ("False", "Expired")


async def test_an_approval_that_comes_while_the_controller_looks_is_not_overwritten(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ask(bank)
    objects, get = bank.cluster.objects, bank.cluster.objects.get

    async def slow(kind: str, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        if kind == "CapacityLease":  # the controller has judged it, and is about to write
            monkeypatch.setattr(objects, "get", get)
            await decide(bank, approved)
        return await get(kind, name, namespace)

    monkeypatch.setattr(objects, "get", slow)
    await bank.controller.reconcile()
    assert (await lease(bank)).approved
    await bank.let(0.2)
    assert (await lease(bank)).approved
    assert await ready(bank) == ("True", "Applied")


async def test_a_pool_says_who_names_a_class_that_it_does_not_allow(bank: Bank) -> None:
    bank.cluster.priority_classes["urgent"] = 9
    conditions = await bank.conditions("GPUPool", POOL)
    assert conditions["PriorityUnlisted"] == ("False", "ClassesAllowed")
    manifest = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": "hasty",
            "namespace": "team-a",
            "labels": {"kueue.x-k8s.io/queue-name": POOL, "kueue.x-k8s.io/priority-class": "urgent"},
        },
        "spec": {
            "template": {
                "spec": {
                    "restartPolicy": "Never",
                    "containers": [{"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
                }
            }
        },
    }
    bank.cluster.submit(manifest)
    spec = (await bank.cluster.objects.get("GPUPool", POOL) or {})["spec"]
    await bank.apply("GPUPool", POOL, {**spec, "limits": {"allowedPriorityClasses": ["calm"]}})
    await bank.let(1)
    conditions = await bank.conditions("GPUPool", POOL)
    assert conditions["PriorityUnlisted"] == ("True", "ClassNotAllowed")
    body = await bank.cluster.objects.get("GPUPool", POOL)
    assert body is not None
    (said,) = [each for each in body["status"]["conditions"] if each["type"] == "PriorityUnlisted"]
    assert "team-a/hasty (urgent)" in said["message"]
