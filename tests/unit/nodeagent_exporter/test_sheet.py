from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.attribution.attributor import Source, SourceState
from nodeagent.attribution.mapping import UNKNOWN, Attribution, DeviceMapping, Holder, MappingStatus
from nodeagent.exporter import names
from nodeagent.exporter.entities import entities
from nodeagent.exporter.naming import LEAST_BUDGET, Naming
from nodeagent.exporter.quantities import QUANTITIES, XID, Dialect, Level, Scope
from nodeagent.exporter.sheet import Collected
from nodeagent.exporter.telemetry import Reading
from nodeagent.exporter.xids import XidCount
from nodeagent.nvml.snapshot import MigDevice, Unreadable
from tests.unit.nodeagent_attribution.worlds import GPU, GPU2, MIG, MIG2, a_gpu, a_mig_gpu
from tests.unit.nodeagent_exporter.worlds import (
    MIB,
    VALUES,
    Series,
    a_holder,
    mapped,
    options,
    parsed,
    shared,
    two_gpus,
    written,
)


def one(series: Series, name: str, **wanted: str) -> tuple[dict[str, str], float]:
    found = [row for row in series.get(name, []) if wanted.items() <= row[0].items()]
    assert len(found) == 1, (name, wanted, series.get(name))
    return found[0]


def test_a_whole_gpu_is_shown_by_the_classic_names_and_units_with_its_holder() -> None:
    series = parsed(written(two_gpus({GPU: mapped(business_group="search", cost_center="CC-1")})))
    labels, power = one(series, "DCGM_FI_DEV_POWER_USAGE", UUID=GPU)
    assert power == 412.345
    assert labels == {
        "gpu": "0",
        "UUID": GPU,
        "pci_bus_id": "0000:18:00.0",
        "device": "nvidia0",
        "modelName": "NVIDIA H100 80GB HBM3",
        "Hostname": "gpu-0",
        "DCGM_FI_DRIVER_VERSION": "580.95.05",
        "accelerator_class": "h100-80gb",
        "accelerator_partition": "full",
        "mapping_status": "mapped",
        "pod": "pod-u1",
        "namespace": "team-a",
        "container": "main",
        "pod_uid": "u1",
        "business_group": "search",
        "cost_center": "CC-1",
    }
    values = {
        "DCGM_FI_DEV_SM_CLOCK": 1980,
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 9_876_543,
        "DCGM_FI_DEV_GPU_UTIL": 87,
        "DCGM_FI_DEV_FB_USED": 40,
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.125,
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": 2,
    }
    assert {name: one(series, name, UUID=GPU, gpu="0")[1] for name in values} == values


def test_the_newer_dialect_has_its_own_names_and_units_and_none_of_the_classic_ones() -> None:
    series = parsed(written(two_gpus(), options(Dialect.DCGM47)))
    values = {
        "DCGM_FI_DEV_SM_CLOCK_HERTZ": 1_980_000_000,
        "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL": 9876.543,
        "DCGM_FI_DEV_GPU_UTIL_RATIO": 0.87,
        "DCGM_FI_DEV_FB_USED_BYTES": 40 * MIB + 5,
        "DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND": 2000 * 1024,
    }
    assert {name: one(series, name, UUID=GPU)[1] for name in values} == values
    assert one(series, "DCGM_FI_DEV_BOARD_POWER_WATTS", UUID=GPU)[0]["hostname"] == "gpu-0"
    classic = {quantity.classic.name for quantity in QUANTITIES if quantity.classic.name != quantity.dcgm47.name}
    assert not classic & set(series)


def test_a_name_means_one_unit_in_whichever_dialect_it_occurs() -> None:
    meanings: dict[str, set[tuple[str, str, Any]]] = {}
    for quantity in QUANTITIES:
        for named in (quantity.classic, quantity.dcgm47):
            meanings.setdefault(named.name, set()).add((quantity.key, named.unit, named.scale))
    assert all(len(found) == 1 for found in meanings.values())


def test_a_gpu_in_mig_mode_shows_power_once_and_memory_per_instance() -> None:
    series = parsed(written(two_gpus({MIG: mapped("u1"), MIG2: mapped("u2")})))
    labels, _ = one(series, "DCGM_FI_DEV_POWER_USAGE", UUID=GPU2)
    assert (labels["mapping_status"], labels.get("pod"), labels.get("GPU_I_ID")) == ("partitioned", None, None)
    first, used = one(series, "DCGM_FI_DEV_FB_USED", UUID=GPU2, GPU_I_ID="7")
    assert (first["pod_uid"], first["GPU_I_PROFILE"], used) == ("u1", "1g.10gb", 3)
    assert one(series, "DCGM_FI_DEV_FB_USED", UUID=GPU2, GPU_I_ID="8")[0]["pod_uid"] == "u2"
    assert len([row for row in series["DCGM_FI_DEV_FB_USED"] if row[0]["UUID"] == GPU2]) == 2


def test_a_shared_gpu_shows_its_power_once_and_names_nobody_but_the_info_series_names_all() -> None:
    series = parsed(written(two_gpus({GPU: shared("u1", "u2")})))
    labels, _ = one(series, "DCGM_FI_DEV_POWER_USAGE", UUID=GPU)
    assert (labels["mapping_status"], labels.get("pod_uid")) == ("shared", None)
    rows = [row for row, _ in series["gpubank_gpu_pod_info"]]
    assert [(row["pod_uid"], row["mapping_status"]) for row in rows] == [("u1", "shared"), ("u2", "shared")]


def test_a_device_whose_holder_nobody_knows_names_no_pod_anywhere() -> None:
    series = parsed(written(two_gpus({GPU: UNKNOWN})))
    for name in ("DCGM_FI_DEV_POWER_USAGE", "gpubank_gpu_pod_info"):
        labels, _ = one(series, name, UUID=GPU)
        assert labels["mapping_status"] == "unknown"
        assert not {"pod", "pod_uid", "namespace"} & set(labels)


def test_compute_instances_of_one_gpu_instance_are_shown_once_and_are_shared_if_two_pods_hold_them() -> None:
    gpu = a_mig_gpu(GPU2, 1, MigDevice(MIG, "1c.3g.40gb", 1, 0), MigDevice(MIG2, "1c.3g.40gb", 1, 1))
    seen = two_gpus(
        {MIG: mapped("u1"), MIG2: mapped("u2")},
        gpus=(gpu,),
        readings={GPU2: Reading({}, {1: {"memory_used": MIB}})},
    )
    labels, _ = one(parsed(written(seen)), "DCGM_FI_DEV_FB_USED", UUID=GPU2)
    assert labels["mapping_status"] == "shared"
    alone = two_gpus({MIG: mapped("u1")}, gpus=(gpu,), readings=seen.readings)
    assert one(parsed(written(alone)), "DCGM_FI_DEV_FB_USED", UUID=GPU2)[0]["pod_uid"] == "u1"


def test_what_the_hardware_does_not_say_is_left_out_and_the_capability_is_zero() -> None:
    seen = two_gpus(readings={GPU: Reading({"power": 1000})})
    series = parsed(written(seen))
    assert set(series) & {quantity.classic.name for quantity in QUANTITIES} == {"DCGM_FI_DEV_POWER_USAGE"}
    capable = {row["capability"]: value for row, value in series["gpubank_gpu_capability"] if row["UUID"] == GPU}
    assert (capable["power"], capable["gpm"], capable["utilization"], capable["xid_events"]) == (1, 0, 0, 1)


def test_a_gpu_that_does_not_answer_shows_no_old_numbers_and_says_so() -> None:
    seen = two_gpus({GPU: mapped()}, readings={}, unreadable=(Unreadable(5, "lost", lost=True),))
    series = parsed(written(seen))
    assert "DCGM_FI_DEV_POWER_USAGE" not in series
    assert [value for _, value in series["gpubank_gpu_readable"]] == [0, 0]
    assert one(series, "gpubank_gpus_unreadable")[1] == 1
    assert one(series, "gpubank_gpu_pod_info", UUID=GPU)[0]["pod_uid"] == "u1"


def test_xids_are_a_gauge_that_sticks_and_a_counter_per_number() -> None:
    counts = (XidCount(GPU, None, "79", 2), XidCount(GPU2, 7, "94", 1), XidCount("GPU-gone", None, "1", 1))
    series = parsed(written(two_gpus(last_xids={GPU: 79}, xid_counts=counts)))
    assert one(series, XID.classic.name, UUID=GPU)[1] == 79
    assert one(series, XID.classic.name, UUID=GPU2)[1] == 0
    assert one(series, "gpubank_xid_errors_total", UUID=GPU, xid="79")[1] == 2
    assert one(series, "gpubank_xid_errors_total", UUID=GPU2, xid="94")[0]["GPU_I_ID"] == "7"
    assert len(series["gpubank_xid_errors_total"]) == 2
    deaf = parsed(written(two_gpus(listening=frozenset())))
    assert XID.classic.name not in deaf, "0 would say that there was none"


def test_info_and_direct_labels_can_each_be_switched_off() -> None:
    seen = two_gpus({GPU: mapped()})
    without_labels = parsed(written(seen, options(direct=False)))
    assert "pod" not in one(without_labels, "DCGM_FI_DEV_POWER_USAGE", UUID=GPU)[0]
    assert "gpubank_gpu_pod_info" in without_labels
    without_info = parsed(written(seen, options(info=False)))
    assert one(without_info, "DCGM_FI_DEV_POWER_USAGE", UUID=GPU)[0]["pod_uid"] == "u1"
    assert "gpubank_gpu_pod_info" not in without_info


def test_beside_another_exporter_only_attribution_is_shown_also_without_nvml() -> None:
    seen = Collected(attribution=Attribution({GPU: mapped(model="llama")}))
    series = parsed(written(seen, options(levels=())))
    labels, value = one(series, "gpubank_gpu_pod_info", UUID=GPU)
    assert (labels["pod_uid"], labels["model"], labels["unverified"], value) == ("u1", "llama", "model", 1)
    assert not any(name.startswith("DCGM") for name in series)


def test_the_info_series_joins_every_number_of_a_device_to_one_pod() -> None:
    attribution = {GPU: mapped("u1"), MIG: mapped("u2"), MIG2: shared("u3", "u4")}
    series = parsed(written(two_gpus(attribution)))
    info = [row for row, _ in series["gpubank_gpu_pod_info"] if row["mapping_status"] == "mapped"]
    keys = [(row["UUID"], row.get("GPU_I_ID", "")) for row in info]
    assert len(keys) == len(set(keys)), "a join on these finds one row"
    measured = {(row["UUID"], row.get("GPU_I_ID", "")) for row, _ in series["DCGM_FI_DEV_FB_USED"]}
    assert set(keys) <= measured


def test_the_label_budget_takes_labels_from_the_least_needed_and_says_which() -> None:
    everything = dict.fromkeys(
        ("business_group", "cost_center", "owner_id", "queue", "workload_uid", "model", "model_version"), "x"
    )
    naming = Naming(host="gpu-0", budget=LEAST_BUDGET)
    series = parsed(written(two_gpus({GPU: mapped(**everything)}), naming=naming))
    labels, _ = one(series, "DCGM_FI_DEV_POWER_USAGE", UUID=GPU)
    assert len(labels) == LEAST_BUDGET
    assert {"UUID", "pod_uid", "pod", "namespace", "business_group", "mapping_status"} <= set(labels)
    assert {row["label"] for row, _ in series["gpubank_exporter_labels_dropped"]} == naming.dropped
    assert {"model_version", "model"} <= naming.dropped


def test_every_series_stays_within_thirty_labels_with_everything_on() -> None:
    everything = dict.fromkeys(
        (
            "business_group",
            "cost_center",
            "owner_id",
            "queue",
            "workload_type",
            "workload_uid",
            "model",
            "model_version",
        ),
        "x",
    )
    classes = dict.fromkeys(("accelerator_class", "accelerator_model", "accelerator_partition"), "x")
    seen = two_gpus({GPU: mapped(**everything), MIG: mapped(**everything)}, classes={GPU: classes, MIG: classes})
    naming = Naming(host="gpu-0")
    for rows in parsed(written(seen, naming=naming)).values():
        assert all(len(labels) <= 30 for labels, _ in rows)
    assert naming.dropped == set()


def test_counts_say_how_many_devices_are_in_which_state() -> None:
    seen = two_gpus({GPU: UNKNOWN, MIG: mapped()})
    counted = {row["mapping_status"]: value for row, value in parsed(written(seen))["gpubank_gpu_devices"]}
    assert counted == {"mapped": 1, "shared": 0, "unknown": 1, "partitioned": 1, "unallocated": 1}


def test_sources_say_whether_they_answer_and_how_often_they_were_asked() -> None:
    sources = {Source.POD_RESOURCES: SourceState(calls=7, problem="silent"), Source.PODS_API: SourceState(calls=3)}
    series = parsed(written(two_gpus(sources=sources, failures={"gpu_hung": 2})))
    assert one(series, "gpubank_attribution_source_up", source="pod_resources")[1] == 0
    assert one(series, "gpubank_attribution_source_calls_total", source="pods_api")[1] == 3
    assert one(series, "gpubank_exporter_errors_total", source="gpu_hung")[1] == 2


def test_the_names_of_families_never_collide_in_either_format() -> None:
    ours = [name for name, _, _ in (*names.COLLECTED, *names.LIVE)]
    for dialect in Dialect:
        all_names = [*ours, XID.named(dialect).name, *(quantity.named(dialect).name for quantity in QUANTITIES)]
        assert len(all_names) == len(set(all_names))
        bare = [name.removesuffix("_total").removesuffix("_info") for name in all_names]
        assert len(bare) == len(set(bare))


STATUSES = st.sampled_from(
    [mapped("u1"), mapped("u2"), shared("u1", "u2"), UNKNOWN, DeviceMapping(MappingStatus.UNALLOCATED)]
)
NASTY = st.text(max_size=40) | st.sampled_from(['"', "\\", "\n", '"} 1\nx 2', "\ud800"])
NUMBERS = st.floats() | st.integers(-(2**70), 2**70)
READINGS = st.dictionaries(st.sampled_from([*VALUES, "nonsense"]), NUMBERS, max_size=6)


@settings(max_examples=60)
@given(
    statuses=st.fixed_dictionaries({}, optional={GPU: STATUSES, MIG: STATUSES, MIG2: STATUSES}),
    values=READINGS,
    sliced=READINGS,
    name=NASTY,
    bus=NASTY,
    driver=NASTY,
    profile=NASTY,
    pod=NASTY,
    field=NASTY,
    gi=st.integers(0, 3),
    dialect=st.sampled_from(Dialect),
    budget=st.integers(0, 40),
)
def test_whatever_nvml_and_pods_say_both_formats_can_be_read_and_no_series_stands_twice(
    statuses: dict[str, DeviceMapping],
    values: dict[str, float],
    sliced: dict[str, float],
    name: str,
    bus: str,
    driver: str,
    profile: str,
    pod: str,
    field: str,
    gi: int,
    dialect: Dialect,
    budget: int,
) -> None:
    evil = Holder("u9", pod, pod, pod, {"model": field, "owner_id": field}, ("model",))
    statuses = {uuid: _with(mapping, evil) for uuid, mapping in statuses.items()}
    migs = (MigDevice(MIG, profile, gi, 0), MigDevice(MIG2, profile, gi if budget % 2 else 9, 1))
    seen = two_gpus(
        statuses,
        # Two GPUs that say they are the same one: a driver gone mad must not produce a series twice.
        gpus=(a_gpu(name=name, pci_bus_id=bus), a_gpu(name=name, pci_bus_id=bus), a_mig_gpu(GPU2, 1, *migs)),
        readings={GPU: Reading(values), GPU2: Reading(values, {gi: sliced, 9: sliced})},
        driver=driver,
    )
    levels = tuple(Level)
    parsed(written(seen, options(dialect, levels), Naming(host="gpu-0", dialect=dialect, budget=budget)))


def _with(mapping: DeviceMapping, holder: Holder) -> DeviceMapping:
    return DeviceMapping(mapping.status, (holder,)) if mapping.status is MappingStatus.MAPPED else mapping


@pytest.mark.parametrize("scope", Scope)
def test_every_scope_has_quantities_and_every_entity_has_its_own(scope: Scope) -> None:
    assert [quantity for quantity in QUANTITIES if quantity.scope is scope]
    kinds = [entity.can_be_held for entity in entities(two_gpus().gpus, Attribution())]
    assert kinds == [True, False, True, True]


def test_a_holder_without_metadata_is_shown_by_its_pod_alone() -> None:
    mapping = DeviceMapping(MappingStatus.MAPPED, (a_holder("u1"),))
    labels, _ = one(parsed(written(two_gpus({GPU: mapping}))), "gpubank_gpu_pod_info", UUID=GPU)
    assert set(labels) == {"UUID", "Hostname", "mapping_status", "pod", "namespace", "container", "pod_uid"}
