"""The control plane's half: pods, groups and organisation in, one snapshot per node out."""

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpubank.controller.metadata import read_group, read_pod, read_slice
from gpubank.decide.attribution import Limits, PodSeen, bookings, claims_of, snapshots
from gpubank.domain.attribution import CLAIM_FIELDS, permitted
from gpubank.domain.group import BusinessGroup
from gpubank.domain.ledger import OrgUnit
from tests.unit.nodeagent_attribution.worlds import GPU, NOW

DAY = timedelta(days=1)


def a_group(name: str, *namespaces: str, cost_center: str = "CC-1", since: int = 0) -> BusinessGroup:
    created = f"2026-01-{since + 1:02d}T00:00:00Z"
    body = {
        "apiVersion": "platform.aik8s.run/v1alpha1",
        "kind": "BusinessGroup",
        "metadata": {"name": name, "creationTimestamp": created},
        "spec": {"namespaces": list(namespaces), "costCenter": cost_center, "owner": "somebody"},
    }
    group = read_group(body, None)
    assert group is not None
    return group


def a_unit(cost_center: str, start: datetime, end: datetime | None = None, *, recorded: int = 0) -> OrgUnit:
    return OrgUnit(
        business_group="search",
        cost_center=cost_center,
        department="d",
        valid_from=start,
        valid_to=end,
        recorded_at=NOW - DAY + timedelta(minutes=recorded),
    )


def a_pod(uid: str, namespace: str = "team-a", node: str = "gpu-0", **kwargs: Any) -> PodSeen:
    return PodSeen(uid, namespace, f"pod-{uid}", node, **kwargs)


def test_each_node_is_told_its_own_pods_and_no_others() -> None:
    found = snapshots([a_pod("u1"), a_pod("u2", node="gpu-1"), a_pod("u3", node="")], [], issued_at=NOW)
    assert {node: list(metadata.pods) for node, metadata in found.items()} == {"gpu-0": ["u1"], "gpu-1": ["u2"]}


def test_group_and_cost_center_follow_from_the_namespace_and_never_from_the_pod() -> None:
    body = {
        "metadata": {
            "uid": "u1",
            "name": "p",
            "namespace": "team-a",
            "labels": {
                "business_group": "stolen",
                "platform.aik8s.run/business-group": "stolen",
                "platform.aik8s.run/cost-center": "stolen",
                "cost_center": "stolen",
            },
        },
        "spec": {"nodeName": "gpu-0", "containers": [{"resources": {"limits": {"accelerator.aik8s.run/x": "1"}}}]},
    }
    pod = read_pod(body)
    assert pod is not None
    told = snapshots([pod], [a_group("search", "team-a")], issued_at=NOW)["gpu-0"].pods["u1"]
    assert told.at(NOW) == {"business_group": "search", "cost_center": "CC-1"}


def test_a_namespace_of_no_group_is_booked_to_nobody() -> None:
    told = snapshots([a_pod("u1")], [a_group("search", "team-b")], issued_at=NOW)["gpu-0"].pods["u1"]
    assert told.at(NOW) == {}


def test_a_namespace_of_two_groups_belongs_to_the_older() -> None:
    groups = [a_group("young", "team-a", since=5), a_group("old", "team-a", since=1)]
    assert bookings(groups, (), now=NOW)["team-a"][0].business_group == "old"


def test_what_a_pod_says_of_itself_is_unverified_until_admission_wrote_it() -> None:
    claims = {"owner_id": "ada", "model": "m"}
    pods = [a_pod("u1", claims=claims), a_pod("u2", claims=claims, verified=frozenset({"owner_id"}))]
    told = snapshots(pods, [], issued_at=NOW)["gpu-0"].pods
    assert (told["u1"].unverified, told["u2"].unverified) == (("owner_id", "model"), ("model",))


def test_the_organisation_of_the_ledger_counts_before_the_groups_own_cost_center() -> None:
    spans = bookings([a_group("search", "team-a")], [a_unit("CC-9", NOW - DAY)], now=NOW)["team-a"]
    assert [span.cost_center for span in spans] == ["CC-9"]


def test_a_change_to_come_is_told_with_its_time_and_a_correction_wins_over_what_was_recorded_before() -> None:
    org = [
        a_unit("old", NOW - 30 * DAY),
        a_unit("new", NOW + DAY),
        a_unit("corrected", NOW + DAY, recorded=1).model_copy(update={"recorded_at": NOW}),
        a_unit("far", NOW + 90 * DAY).model_copy(update={"recorded_at": NOW}),
    ]
    spans = bookings([a_group("search", "team-a")], org, now=NOW)["team-a"]
    assert [(span.cost_center, span.effective_from) for span in spans] == [
        ("old", datetime(1970, 1, 1, tzinfo=UTC)),
        ("corrected", NOW + DAY),
    ]


def test_after_the_end_of_a_row_the_groups_own_cost_center_counts_again() -> None:
    org = [a_unit("CC-9", NOW - DAY, NOW + DAY)]
    spans = bookings([a_group("search", "team-a")], org, now=NOW)["team-a"]
    assert [span.cost_center for span in spans] == ["CC-9", "CC-1"]


def test_the_mirror_of_a_static_pod_is_told_by_the_uid_that_the_kubelet_knows() -> None:
    told = snapshots([a_pod("mirror", static_uid="hash")], [], issued_at=NOW)["gpu-0"]
    assert list(told.pods) == ["hash"]


def test_a_pod_that_claims_the_uid_of_another_does_not_take_its_place() -> None:
    victim, thief = a_pod("u5"), a_pod("u1", namespace="evil", static_uid="u5")
    told = snapshots([thief, victim], [], issued_at=NOW)["gpu-0"]
    assert told.pods["u5"].namespace == "team-a"


def test_a_node_is_told_no_more_than_the_limit() -> None:
    found = snapshots([a_pod(f"u{n:03d}") for n in range(50)], [], issued_at=NOW, limits=Limits(pods=10))
    assert list(found["gpu-0"].pods) == [f"u{n:03d}" for n in range(10)]


TEXT = st.text(max_size=150)


@given(labels=st.dictionaries(st.sampled_from(["owner-id", "model", "model-version", "workload-type"]), TEXT), uid=TEXT)
def test_only_allowed_fields_with_allowed_values_are_told(labels: dict[str, str], uid: str) -> None:
    said = claims_of({f"platform.aik8s.run/{name}": value for name, value in labels.items()} | {"secret": "x"}, {}, uid)
    assert set(said) <= set(CLAIM_FIELDS)
    assert all(permitted(name, value) == value for name, value in said.items())


def test_a_model_whose_name_is_no_label_stands_in_an_annotation() -> None:
    assert claims_of({}, {"platform.aik8s.run/model": "meta-llama/Llama-3.1-70B"}) == {
        "model": "meta-llama/Llama-3.1-70B"
    }


def test_pods_without_devices_are_not_kept_and_those_with_claims_are() -> None:
    metadata = {"uid": "u1", "name": "p", "namespace": "n"}
    plain = {"nodeName": "gpu-0", "containers": [{"resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}]}
    assert read_pod({"metadata": metadata, "spec": plain}) is None
    assert read_pod({"metadata": metadata, "spec": {**plain, "resourceClaims": [{"name": "gpu"}]}}) is not None
    assert read_pod({"metadata": metadata, "spec": {"containers": plain["containers"]}}) is None, "it has no node yet"


def test_only_admissions_own_word_verifies_a_field() -> None:
    body = {
        "metadata": {
            "uid": "u1",
            "name": "p",
            "namespace": "n",
            "annotations": {"bank.platform.aik8s.run/verified-fields": "owner_id, model"},
        },
        "spec": {"nodeName": "gpu-0", "resourceClaims": [{"name": "gpu"}]},
    }
    untrusted, trusted = read_pod(body), read_pod(body, trust_verified=True)
    assert untrusted is not None
    assert trusted is not None
    assert (untrusted.verified, trusted.verified) == (frozenset(), frozenset({"owner_id", "model"}))


def test_the_devices_of_a_resource_slice_are_told_by_uuid_in_both_versions() -> None:
    def a_slice(device: dict[str, Any]) -> dict[str, Any]:
        spec = {"nodeName": "gpu-0", "driver": "gpu.nvidia.com", "pool": {"name": "gpu-0"}, "devices": [device]}
        return {"metadata": {"name": "s1"}, "spec": spec}

    attributes = {"uuid": {"string": GPU}}
    for device in ({"name": "gpu-0", "attributes": attributes}, {"name": "gpu-0", "basic": {"attributes": attributes}}):
        found = read_slice(a_slice(device), None)
        assert found is not None
        assert found.devices == {"gpu.nvidia.com/gpu-0/gpu-0": GPU}
    assert read_slice({"metadata": {"name": "s"}, "spec": {"driver": "net"}}, None) is None
