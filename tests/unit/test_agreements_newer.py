"""Objects that were written for a newer version: what is known of them stays in force."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from gpubank.agreements import agreement, read_objects
from gpubank.domain.base import API_VERSION

NOW = datetime(2026, 11, 2, 9, tzinfo=UTC)


class Store:
    """Objects by kind."""

    def __init__(self, *bodies: dict[str, Any]) -> None:
        self._bodies = bodies

    async def list(self, kind: str) -> Sequence[dict[str, Any]]:
        return [body for body in self._bodies if body["kind"] == kind]


def body(kind: str, name: str, spec: dict[str, Any], namespace: str = "") -> dict[str, Any]:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}


def pool(**more: Any) -> dict[str, Any]:
    share = {"businessGroup": "vision", "guaranteed": 8, "maxCapacity": 16, **more.pop("share", {})}
    return body("GPUPool", "h100", {"capacity": 16, "shares": [share], **more})


def group() -> dict[str, Any]:
    return body("BusinessGroup", "vision", {"owner": "lin@example.com", "namespaces": ["team-vision"]})


def policy(**more: Any) -> dict[str, Any]:
    spec = {"businessGroup": "vision", "resourcePool": "h100", "guaranteed": 8, **more}
    return body("GPUQuotaPolicy", "policy", spec, "team-vision")


async def test_a_field_that_is_not_known_yet_leaves_the_rest_in_force_and_is_told() -> None:
    reclaim = {"gracePeriod": "5m", "snapshots": {"keep": 3}}
    store = Store(pool(share={"color": "red"}, tier=2), group(), policy(reclaimPolicy=reclaim))
    objects = await read_objects(store)
    terms = agreement("local", objects, now=NOW).terms["h100"]
    assert [(each.group, each.guaranteed) for each in terms.groups] == [("vision", 8)]
    assert [(each.body["kind"], each.message) for each in objects.unreadable] == [
        ("GPUPool", "spec.shares.0.color, spec.tier: not known to this version of the bank, and not in force"),
        ("GPUQuotaPolicy", "spec.reclaimPolicy.snapshots: not known to this version of the bank, and not in force"),
    ]


async def test_an_object_without_what_is_needed_is_left_out_whatever_else_it_says() -> None:
    wrong = policy(tier=2)
    del wrong["spec"]["guaranteed"]
    objects = await read_objects(Store(pool(), group(), wrong))
    assert objects.policies == ()
    assert [each.message for each in objects.unreadable] == ["spec.guaranteed: Field required"]


async def test_what_is_read_is_not_changed() -> None:
    newer = policy(tier=2)
    await read_objects(Store(newer))
    assert newer["spec"]["tier"] == 2
