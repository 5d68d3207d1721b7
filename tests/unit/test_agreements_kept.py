"""Agreements that are read again and again: what has not changed is neither read nor judged anew."""

import copy
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpubank.agreements import Agreements, Reader
from gpubank.domain.base import API_VERSION, format_instant

NOW = datetime(2026, 11, 2, 9, tzinfo=UTC)


class Store:
    """Hands out what it keeps; an edited object is another one."""

    def __init__(self, *bodies: dict[str, Any]) -> None:
        self.bodies = list(bodies)

    async def list(self, kind: str) -> Sequence[dict[str, Any]]:
        return [body for body in self.bodies if body["kind"] == kind]

    def edit(self, kind: str, **changes: Any) -> None:
        """Replace parts of the one object of a kind, as an API server does: what was handed out stays as it is."""
        index = next(number for number, body in enumerate(self.bodies) if body["kind"] == kind)
        changed = copy.deepcopy(self.bodies[index])
        for part, fields in changes.items():
            changed[part] = changed.get(part, {}) | fields
        self.bodies[index] = changed


def body(kind: str, name: str, spec: dict[str, Any], namespace: str = "") -> dict[str, Any]:
    metadata = {"name": name, "uid": f"uid-{name}", "creationTimestamp": format_instant(NOW - timedelta(hours=1))}
    if namespace:
        metadata["namespace"] = namespace
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}


def lease(hours: int = 1) -> dict[str, Any]:
    spec = {"pool": "h100", "gpus": 4, "until": format_instant(NOW + timedelta(hours=hours)), "reason": "a paper"}
    return body("CapacityLease", "paper", spec, "team-vision")


@pytest.fixture
def store() -> Store:
    share = {"businessGroup": "vision", "guaranteed": 8, "maxCapacity": 16}
    return Store(
        body("GPUPool", "h100", {"capacity": 16, "shares": [share]}),
        body("BusinessGroup", "vision", {"owner": "lin@example.com", "namespaces": ["team-vision"]}),
        body("GPUQuotaPolicy", "policy", {"businessGroup": "vision", "resourcePool": "h100", "guaranteed": 8},
             "team-vision"),
    )  # fmt: skip


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now


async def test_an_object_that_has_not_changed_is_read_once(store: Store) -> None:
    reader = Reader(store)
    first = await reader.read()
    store.edit("GPUQuotaPolicy", spec={"guaranteed": 4})
    second = await reader.read()
    assert second.pools[0] is first.pools[0]
    assert second.groups[0] is first.groups[0]
    assert (first.policies[0].spec.guaranteed, second.policies[0].spec.guaranteed) == (8, 4)


async def test_what_cannot_be_read_is_told_every_time(store: Store) -> None:
    store.edit("BusinessGroup", spec={"colour": "red"})
    reader = Reader(store)
    for _ in range(2):
        found = await reader.read()
        assert [each.message for each in found.unreadable] == [
            "spec.colour: not known to this version of the bank, and not in force"
        ]


async def test_an_object_that_is_gone_is_forgotten(store: Store) -> None:
    reader = Reader(store)
    await reader.read()
    del store.bodies[2]
    assert (await reader.read()).policies == ()


async def test_a_status_changes_nothing_that_was_agreed_and_is_read_all_the_same(store: Store) -> None:
    agreements = Agreements("local", store)
    _, first = await agreements.read()
    store.edit("GPUQuotaPolicy", status={"used": 3}, metadata={"resourceVersion": "7"})
    objects, second = await agreements.read()
    assert second is first
    assert (objects.policies[0].status.used, objects.policies[0].metadata.resource_version) == (3, "7")


@pytest.mark.parametrize(
    ("kind", "changes", "guaranteed"),
    [
        pytest.param("GPUQuotaPolicy", {"spec": {"guaranteed": 4}}, [4], id="policy"),
        pytest.param("GPUQuotaPolicy", {"metadata": {"deletionTimestamp": format_instant(NOW)}}, [], id="deleted"),
        pytest.param("BusinessGroup", {"spec": {"namespaces": ["elsewhere"]}}, [], id="group"),
        pytest.param("GPUPool", {"spec": {"shares": []}}, [], id="pool"),
        pytest.param("BusinessGroup", {"metadata": {"name": "speech"}}, [], id="renamed"),
    ],
)
async def test_an_edit_is_judged_at_the_next_question(
    store: Store, kind: str, changes: dict[str, Any], guaranteed: list[int]
) -> None:
    agreements = Agreements("local", store)
    assert [group.guaranteed for group in (await agreements.all_terms())["h100"].groups] == [8]
    store.edit(kind, **changes)
    assert [group.guaranteed for group in (await agreements.all_terms())["h100"].groups] == guaranteed


async def test_a_policy_that_is_gone_is_in_force_no_more(store: Store) -> None:
    agreements = Agreements("local", store)
    await agreements.read()
    del store.bodies[2]
    terms = await agreements.terms("h100")
    assert terms is not None
    assert terms.groups == ()
    assert await agreements.terms("a100") is None


async def test_a_lease_is_judged_anew_when_somebody_agrees_to_it_and_when_it_ends(store: Store) -> None:
    store.edit("GPUQuotaPolicy", spec={"borrowLimit": 8})
    store.bodies.append(lease(hours=1))
    clock = Clock()
    agreements = Agreements("local", store, clock=clock)

    async def verdict() -> str:
        return (await agreements.read())[1].verdicts["CapacityLease", "team-vision/paper"].reason

    assert await verdict() == "AwaitingApproval"
    said = {"type": "Approved", "status": "True", "reason": "Approved", "message": "", "observedGeneration": 1}
    said["lastTransitionTime"] = format_instant(NOW)
    store.edit("CapacityLease", status={"approvedBy": "ops", "conditions": [said]}, metadata={"generation": 1})
    assert await verdict() == "Applied"
    clock.now += timedelta(minutes=59)
    assert await verdict() == "Applied"
    clock.now += timedelta(minutes=1)
    assert await verdict() == "Expired"
    clock.now = NOW  # set back
    assert await verdict() == "Applied"
