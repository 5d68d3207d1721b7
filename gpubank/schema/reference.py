"""Reference pages: one per kind, one for the workload contract, one index."""

from collections.abc import Iterator
from typing import Any, Final

from gpubank.domain.base import API_VERSION
from gpubank.schema.contract import CONTRACT
from gpubank.schema.kinds import KINDS, Kind
from gpubank.schema.structural import json_schema

_GENERATED: Final = "<!-- Written by `gpubank schema write`; edit the models in gpubank/domain instead. -->\n"

_NOT_ACTED_ON: Final = {
    "InferenceScalingPolicy": "no service is scaled",
    "TidalPolicy": "no tide moves a GPU",
    "LowUtilizationPolicy": "nobody is told of idle GPUs",
}
"""Kinds that are checked and nothing more, with what does not happen."""

_NOT_IN_FORCE: Final = "**Accepted and validated, but not acted on yet:**"


def index() -> str:
    """Render the index of the reference."""
    rows = [
        f"| [{kind.name}]({kind.singular}.md) | `{kind.short_name}` | {kind.scope} | {_first_line(kind)} |"
        for kind in KINDS.values()
    ]
    return "\n".join(
        (
            _GENERATED,
            "# API reference",
            "",
            f"Group and version `{API_VERSION}`. Unknown fields are refused, numbers are whole and unquoted, names are"
            " camelCase, durations are whole hours, minutes, seconds and milliseconds as in `1h30m` or `1500ms`,"
            " instants are RFC 3339 with an offset. `gpubank policy validate FILE` checks files offline;"
            " the JSON Schemas beside these pages serve editors.",
            "",
            "| kind | short name | scope | what |",
            "|---|---|---|---|",
            *rows,
            "",
            f"{_NOT_IN_FORCE} {', '.join(_NOT_ACTED_ON)}, and `spec.channels` of a BusinessGroup. They are checked like"
            f" everything else; but {', '.join(_NOT_ACTED_ON.values())}, no channel is written to, and the status of"
            " the three kinds stays empty.",
            "",
            "What workloads say about themselves: [the workload contract](workload-contract.md).",
            "",
            "What people type: [the command line](cli.md).",
            "",
            "What is scraped: [the metrics](metrics.md) of controller, worker and watchdog.",
            "",
            "What processes can be told: [the settings](settings.md).",
            "",
        )
    )


def kind_page(kind: Kind) -> str:
    """Render the page of one kind."""
    schema = json_schema(kind.model)
    spec, status = schema["properties"]["spec"], schema["properties"]["status"]
    lines = [
        _GENERATED,
        f"# {kind.name}",
        "",
        schema["description"],
        "",
        *([f"{_NOT_IN_FORCE} {_NOT_ACTED_ON[kind.name]}.", ""] if kind.name in _NOT_ACTED_ON else []),
        f"`{API_VERSION}`, {kind.scope.lower()}, `kubectl get {kind.short_name}`.",
        "",
        "## spec",
        "",
        *_table(spec),
    ]
    if found := [*_rules(schema, ""), *_rules(spec, "spec")]:
        lines += ["", "### Rules between fields", "", *(f"- {rule}" for rule in found)]
    lines += ["", "## status", "", "Written by the bank alone.", "", *_table(status), ""]
    return "\n".join(lines)


def contract_page() -> str:
    """Render the page of the workload contract."""
    return "\n".join(
        (
            _GENERATED,
            "# Workload contract",
            "",
            "Labels and annotations on a Job or on its pod template; the Job's own come first. A malformed value"
            " counts as absent: it never makes a workload easier to stop.",
            "",
            "| where | name | values | meaning |",
            "|---|---|---|---|",
            *(f"| {row.place} | `{row.name}` | {row.values} | {row.meaning} |" for row in CONTRACT),
            "",
        )
    )


def _first_line(kind: Kind) -> str:
    return str(json_schema(kind.model)["description"]).splitlines()[0]


def _table(schema: dict[str, Any]) -> list[str]:
    rows = [
        f"| `{path}` | {_type(field)} | {_default(field, required=required)} | {_bounds(field)} | {_cell(field)} |"
        for path, field, required in _fields(schema, "")
    ]
    return ["| field | type | default | bounds | meaning |", "|---|---|---|---|---|", *rows]


def _fields(schema: dict[str, Any], prefix: str) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """Yield every field below, depth first, as path, schema and whether it is required."""
    for name, field in schema.get("properties", {}).items():
        path = f"{prefix}{name}"
        yield path, field, name in schema.get("required", ())
        if field.get("type") == "object":
            yield from _fields(field, f"{path}.")
        elif field.get("type") == "array":
            yield from _fields(field["items"], f"{path}[].")


def _type(field: dict[str, Any]) -> str:
    if "enum" in field:
        return " \\| ".join(f"`{value}`" for value in field["enum"])
    if field.get("type") == "array":
        return f"list of {_type(field['items'])}"
    if "duration(self)" in str(field.get("x-kubernetes-validations", "")):
        return "duration"
    if field.get("format") == "date-time":
        return "instant"
    return str(field.get("type", "any"))


def _default(field: dict[str, Any], *, required: bool) -> str:
    if required:
        return "**required**"
    if field.get("type") == "object":
        return "as below" if "default" in field else ""
    default = field.get("default")
    if default in (None, "", [], {}):
        return ""
    if isinstance(default, list):
        return ", ".join(f"`{item}`" for item in default)
    return f"`{default}`"


def _bounds(field: dict[str, Any]) -> str:
    inner = field.get("items", {})
    parts = [
        f"{word} {field[key]}"
        for key, word in (
            ("minimum", "≥"),
            ("maximum", "≤"),
            ("minItems", "items ≥"),
            ("maxItems", "items ≤"),
            ("maxProperties", "entries ≤"),
        )
        if key in field
    ]
    if "duration" not in (_type(field),) and "enum" not in field and field.get("format") != "date-time":
        parts += [f"characters ≤ {field['maxLength']}"] if "maxLength" in field else []
    parts += [rule["message"].removeprefix("must be a duration ") for rule in field.get("x-kubernetes-validations", ())
              if "properties" not in field]  # fmt: skip
    parts += [rule["message"] for rule in inner.get("x-kubernetes-validations", ()) if "properties" not in inner]
    return ", ".join(parts)


def _cell(field: dict[str, Any]) -> str:
    return str(field.get("description", "")).replace("\n", " ").replace("|", "\\|")


def _rules(schema: dict[str, Any], path: str) -> Iterator[str]:
    """Yield the rules between fields, wherever below they stand."""
    if "properties" in schema or not path:
        for rule in schema.get("x-kubernetes-validations", ()):
            where = path + rule.get("fieldPath", "")
            yield f"`{where}`: {rule['message']}" if where else rule["message"]
    if not path:
        return
    for name, field in schema.get("properties", {}).items():
        yield from _rules(field.get("items", field), f"{path}.{name}" + ("[]" if "items" in field else ""))
