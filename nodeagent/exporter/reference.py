"""The reference page of the exporter, from the code itself: families in both dialects, labels, settings."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from gpubank.domain.attribution import CLAIM_FIELDS, MOST_LENGTHS, ORG_FIELDS
from nodeagent.attribution.mapping import MappingStatus
from nodeagent.exporter import names
from nodeagent.exporter.naming import CLASS_LABELS, YIELDING
from nodeagent.exporter.quantities import NOT_SHOWN, QUANTITIES, XID, Level, Named, Quantity

PATH: Final = "docs/reference/metrics-nodeagent.md"

_INTRODUCTION: Final = """\
<!-- Written by `gpubank schema write`; edit nodeagent/exporter instead. -->

# Metrics of the node's exporter

`python -m nodeagent.exporter --config FILE` serves these on `/metrics`, as text or OpenMetrics, whichever the
scraper prefers. Numbers that the hardware does not give are left out, never zero: `gpubank_gpu_capability` says which
those are. How to join them to pods: [attribute GPUs](../how-to/attribute-gpus.md).

## What is measured

One dialect at a time (`show.dialect`); a name never has two units. *gpu*: of the physical GPU, shown once whoever holds
its parts. *device*: of the GPU, or in MIG mode of each GPU instance. In OpenMetrics a counter of NVIDIA's whose name
does not end in `_total` is of unknown type, so that it keeps its name.
"""

_STATUS_MEANING: Final = {
    MappingStatus.MAPPED: "One pod holds it, and which one is beyond doubt.",
    MappingStatus.SHARED: "Several pods hold it; what it uses is nobody's alone.",
    MappingStatus.UNKNOWN: "Somebody holds it, and who cannot be said for sure; no pod is named.",
    MappingStatus.PARTITIONED: "A GPU in MIG mode; its instances are held, it is not.",
    MappingStatus.UNALLOCATED: "Nobody holds it.",
}

_LEVELS: Final = {
    Level.DEFAULT: "",
    Level.EXTENDED: "with `show.extended`",
    Level.TRAFFIC: "with `show.gpmTraffic`",
}


def page() -> str:
    """Render the page."""
    parts = [_INTRODUCTION, "| classic | unit | since 4.9 (`dcgm47`) | unit | of | type | meaning | source |"]
    parts += ["|---|---|---|---|---|---|---|---|"]
    parts += [_row(quantity) for quantity in (*QUANTITIES, XID)]
    parts += ["", "Not shown:", "", *(f"- `{name}`: {why}." for name, why in NOT_SHOWN.items())]
    parts += ["", "## What else is shown", "", "| family | type | meaning |", "|---|---|---|"]
    parts += [f"| `{name}` | {kind} | {_cell(text)} |" for name, kind, text in names.COLLECTED]
    parts += ["", "As of the scrape itself, also while nothing is collected:", ""]
    parts += ["| family | type | meaning |", "|---|---|---|"]
    parts += [f"| `{name}` | {kind} | {_cell(text)} |" for name, kind, text in names.LIVE]
    parts += ["", "## Labels", "", *_labels()]
    parts += ["", "## Settings", "", *_settings()]
    return "\n".join(parts).rstrip() + "\n"


def write(root: Path, *, check: bool = False) -> list[str]:
    """Write the page below `root` and return its path if it differed; with `check` nothing is written."""
    path, text = root / PATH, page()
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return []
    if not check:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return [PATH]


def _row(quantity: Quantity) -> str:
    level = _LEVELS[quantity.level]
    meaning = f"{quantity.meaning} ({level})" if level else quantity.meaning
    cells = [*_named(quantity.classic), *_named(quantity.dcgm47), str(quantity.scope), str(quantity.kind)]
    return "| " + " | ".join([*cells, _cell(meaning), _cell(quantity.source)]) + " |"


def _named(named: Named) -> tuple[str, str]:
    return f"`{named.name}`", named.unit or "–"


def _labels() -> Iterator[str]:
    yield "| label | on | meaning |"
    yield "|---|---|---|"
    yield "| `gpu` `UUID` `pci_bus_id` `device` `modelName` | measured | DCGM's: index, UUID of the physical GPU, … |"
    yield "| `GPU_I_PROFILE` `GPU_I_ID` | measured | MIG profile and GPU instance; absent of a whole GPU |"
    yield "| `Hostname`, in `dcgm47` `hostname` | measured, info | the node's name in the cluster |"
    yield "| `DCGM_FI_DRIVER_VERSION`, in `dcgm47` `DCGM_FI_SYSTEM_DRIVER_VERSION` | measured | the driver |"
    yield f"| {' '.join(f'`{name}`' for name in CLASS_LABELS)} | measured | what the device is sold as |"
    yield "| `mapping_status` | measured, info | what is known about who holds it, see below |"
    yield "| `pod` `namespace` `container` `pod_uid` | measured, info | who holds it; only where it is `mapped` |"
    org, claims = (
        ", ".join(f"`{name}` ({MOST_LENGTHS[name]})" for name in group) for group in (ORG_FIELDS, CLAIM_FIELDS)
    )
    yield f"| {org} | measured, info | from the BusinessGroup of the pod's namespace |"
    yield f"| {claims} | measured, info | what the pod says of itself |"
    yield "| `unverified` | info | which of those nobody has checked |"
    yield ""
    yield "In brackets the longest value; a longer one, or one with other characters than letters, digits and"
    yield "`. _ : / @ + -` (a cost center: plain text), is not shown at all. `show.podLabels` takes the labels of pods"
    yield "off the measured series, `show.podInfo` drops the info series, `show.fields` chooses fields. Beyond"
    yield "`show.labelBudget` labels give way, the last first: " + ", ".join(f"`{name}`" for name in YIELDING) + "."
    yield ""
    yield "| `mapping_status` | meaning |"
    yield "|---|---|"
    yield from (f"| `{status}` | {_STATUS_MEANING[status]} |" for status in MappingStatus)


def _settings() -> Iterator[str]:
    from nodeagent.exporter.settings import ExporterSettings  # pydantic, which the exporter itself does without

    yield "One YAML file, or the key `exporter.yaml` of a mounted ConfigMap. Unknown fields are refused."
    yield ""
    yield "| setting | default | meaning |"
    yield "|---|---|---|"
    yield from _fields(ExporterSettings, ExporterSettings().to_wire(), "")


def _fields(model: Any, defaults: dict[str, Any], prefix: str) -> Iterator[str]:
    from gpubank.schema.described import descriptions  # pydantic again

    said = descriptions(model)
    for name, field in model.model_fields.items():
        wire = field.alias or name
        default = defaults.get(wire)
        if isinstance(default, dict):
            yield from _fields(field.annotation, default, f"{prefix}{wire}.")
            continue
        shown = (
            "–" if default in (None, "", []) else f"`{', '.join(default) if isinstance(default, list) else default}`"
        )
        yield f"| `{prefix}{wire}` | {shown} | {_cell(said.get(name, ''))} |"


def _default(value: Any) -> str:
    if value in (None, "", []):
        return "–"
    if isinstance(value, list):
        return ", ".join(f"`{each}`" for each in value)
    return f"`{str(value).lower() if isinstance(value, bool) else f'{value:g}' if isinstance(value, float) else value}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
