"""Small collections for tests of what is shown."""

from collections.abc import Mapping, Sequence
from typing import Any

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from nodeagent.attribution.mapping import Attribution, DeviceMapping, Holder, MappingStatus
from nodeagent.exporter import exposition
from nodeagent.exporter.exposition import Family
from nodeagent.exporter.naming import Naming
from nodeagent.exporter.quantities import Dialect, Level, shown
from nodeagent.exporter.sheet import Collected, Options, families
from nodeagent.exporter.telemetry import Reading
from nodeagent.nvml.snapshot import MigDevice
from tests.unit.nodeagent_attribution.worlds import GPU, GPU2, MIG, MIG2, a_gpu, a_mig_gpu

MIB = 1024 * 1024
VALUES = {
    "sm_clock": 1980,
    "gpu_temperature": 61,
    "power": 412_345,
    "energy": 9_876_543,
    "gpu_utilization": 87,
    "memory_used": 40 * MIB + 5,
    "memory_total": 80 * MIB,
    "gr_engine_active": 12.5,
    "nvlink_throughput": 2000.0,
}

Series = dict[str, list[tuple[dict[str, str], float]]]


def a_holder(uid: str = "u1", pod: str = "train-0", **fields: str) -> Holder:
    return Holder(uid, "team-a", pod, "main", fields, tuple(name for name in fields if name == "model"))


def mapped(uid: str = "u1", **fields: str) -> DeviceMapping:
    return DeviceMapping(MappingStatus.MAPPED, (a_holder(uid, f"pod-{uid}", **fields),))


def shared(*uids: str) -> DeviceMapping:
    return DeviceMapping(MappingStatus.SHARED, tuple(a_holder(uid, f"pod-{uid}") for uid in uids))


def two_gpus(attribution: Mapping[str, DeviceMapping] | None = None, **changes: Any) -> Collected:
    """A whole GPU, and one that is cut into two MIG devices."""
    migs = (MigDevice(MIG, "1g.10gb", 7, 0), MigDevice(MIG2, "1g.10gb", 8, 0))
    board = {key: value for key, value in VALUES.items() if key in ("sm_clock", "gpu_temperature", "power", "energy")}
    sliced = {"memory_used": 3 * MIB, "gr_engine_active": 50.0}
    known: dict[str, Any] = {
        "gpus": (a_gpu(), a_mig_gpu(GPU2, 1, *migs)),
        "driver": "580.95.05",
        "readings": {GPU: Reading(VALUES, gpm=True), GPU2: Reading(board, {7: sliced, 8: sliced}, gpm=True)},
        "attribution": Attribution(attribution or {}),
        "classes": {GPU: {"accelerator_class": "h100-80gb", "accelerator_partition": "full"}},
        "listening": frozenset({GPU, GPU2}),
    }
    return Collected(**{**known, **changes})


def options(dialect: Dialect = Dialect.CLASSIC, levels: Sequence[Level] = (Level.DEFAULT,), **changes: Any) -> Options:
    return Options(shown(frozenset(levels)), dialect, **changes)


def written(seen: Collected, given: Options | None = None, naming: Naming | None = None) -> list[Family]:
    given = given or options()
    return families(seen, naming or Naming(host="gpu-0", dialect=given.dialect), given)


def parsed(found: Sequence[Family]) -> Series:
    """Read both formats with prometheus_client's own parsers and return the series, which must be the same."""
    text, openmetrics = exposition.text(found), exposition.openmetrics(found) + exposition.END
    types = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    from_text = dict(_samples(parse_text(text), types))
    from_openmetrics = dict(_samples(parse_openmetrics(openmetrics), types))  # type: ignore[no-untyped-call]
    assert from_text == from_openmetrics
    for body in (text, openmetrics):
        headers = [line.split()[2] for line in body.splitlines() if line.startswith("# TYPE")]
        assert len(headers) == len(set(headers))
        samples = [line.rpartition(" ")[0] for line in body.splitlines() if not line.startswith("#")]
        assert len(samples) == len(set(samples)) == len(from_text)
    series: Series = {}
    for (name, labels), value in from_text.items():
        series.setdefault(name, []).append((dict(labels), value))
    return series


def _samples(metrics: Any, types: set[str]) -> Any:
    for metric in metrics:
        for sample in metric.samples:
            # The text parser calls every counter `_total`, also one that is not.
            name = sample.name if sample.name in types else sample.name.removesuffix("_total")
            yield (name, frozenset(sample.labels.items())), sample.value
