"""What may be told about a pod, and from when on."""

from datetime import timedelta

import pytest

from gpubank.domain.attribution import OrgSpan, PodMetadata, permitted
from tests.unit.domain.bookkeeping import TEN

HOUR = timedelta(hours=1)


def test_a_pod_is_booked_to_where_its_namespace_stands_at_the_time() -> None:
    spans = (OrgSpan(TEN, "vision"), OrgSpan(TEN + HOUR, "vision", "CC-7"))
    pod = PodMetadata("u", "team", "p", spans, {"owner_id": "lin", "queue": "h100"}, frozenset({"queue"}))
    claims = {"owner_id": "lin", "queue": "h100"}
    assert pod.at(TEN - HOUR) == claims
    assert pod.at(TEN) == {"business_group": "vision", **claims}
    assert pod.at(TEN + HOUR) == {"business_group": "vision", "cost_center": "CC-7", **claims}
    assert pod.unverified == ("owner_id",)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("workload_type", "training", True),
        ("workload_type", "mining", False),
        ("cost_center", "研究 7", True),
        ("cost_center", " CC-7", False),
        ("cost_center", "CC\n7", False),
        ("owner_id", "lin@example.com", True),
        ("owner_id", "lin tian", False),
        ("owner_id", "l" * 63, True),
        ("owner_id", "l" * 64, False),
        ("owner_id", "", False),
        ("owner_id", 7, False),
        ("shoe_size", "44", False),
    ],
)
def test_a_value_is_told_as_it_is_or_not_at_all(name: str, value: object, told: bool) -> None:
    assert permitted(name, value) == (value if told else None)
