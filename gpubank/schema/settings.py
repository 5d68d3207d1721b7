"""Reference page of the settings: every one with its variable, its default and what it means."""

import inspect
import json
from collections.abc import Iterator
from typing import Any, Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gpubank.settings import Settings

_HEAD: Final = """<!-- Written by `gpubank schema write`; edit gpubank/settings.py instead. -->
# Settings

One model for every process: a flag wins over the environment, the environment over the file, and the file over the
default. The file is `$GPUBANK_CONFIG`, else `./gpubank.yaml`, else `~/.config/gpubank/config.yaml`; a dot in a name is
a level there. `gpubank config show` prints what is in force and where it comes from. What is no setting is refused. In
a cluster the file is the ConfigMap `gpubank-settings`, and secrets come from the environment.

"""
_TABLE: Final = "| setting | variable | type | default | meaning |\n|---|---|---|---|---|\n"
_BOUNDS: Final = (
    ("minimum", "at least {}"),
    ("exclusiveMinimum", "more than {}"),
    ("maximum", "at most {}"),
    ("exclusiveMaximum", "less than {}"),
)
_TYPES: Final = {"integer": "whole number", "number": "number", "boolean": "true or false", "array": "list"}
_COMPUTED: Final = {"state_dir": "`$XDG_STATE_HOME/gpubank`, else `~/.local/state/gpubank`"}
"""Defaults that depend on the machine."""


def settings_page() -> str:
    """Render the reference page."""
    schema = Settings.model_json_schema()
    sections = [name for name, field in Settings.model_fields.items() if _section(field) is not None]
    plain = [name for name in Settings.model_fields if name not in sections]
    parts = [_HEAD, _TABLE, *(_row(schema, schema, (name,), Settings.model_fields[name]) for name in plain)]
    for name in sections:
        section = _section(Settings.model_fields[name])
        assert section is not None
        parts += [f"\n## {name}\n\n{inspect.getdoc(section)}\n\n", _TABLE, *_rows(schema, section, (name,))]
    return "".join(parts)


def _rows(schema: dict[str, Any], section: type[BaseModel], path: tuple[str, ...]) -> Iterator[str]:
    for name, field in section.model_fields.items():
        if (inner := _section(field)) is not None:
            yield from _rows(schema, inner, (*path, name))
        else:
            yield _row(schema, schema["$defs"][section.__name__], (*path, name), field)


def _row(schema: dict[str, Any], of: dict[str, Any], path: tuple[str, ...], field: FieldInfo) -> str:
    variable = "GPUBANK_" + "__".join(path).upper()
    found = of["properties"][path[-1]]
    cells = (f"`{'.'.join(path)}`", f"`{variable}`", _type(schema, found), _default(path, field), _text(field))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _section(field: FieldInfo) -> type[BaseModel] | None:
    """Return the model of a section; a model of the domain's is one setting, written as in its own reference."""
    kind = field.annotation
    if isinstance(kind, type) and issubclass(kind, BaseModel) and kind.__module__ == Settings.__module__:
        return kind
    return None


def _type(schema: dict[str, Any], found: dict[str, Any]) -> str:
    options = [each for each in found.get("anyOf", [found]) if each.get("type") != "null"]
    (only,) = options
    if "$ref" in only:
        only = schema["$defs"][only["$ref"].rsplit("/", 1)[1]]
    if values := only.get("enum"):
        return " or ".join(f"`{value}`" for value in values)
    if only.get("format") == "password":
        return "secret"
    if only.get("format") == "path":
        return "path"
    kind = _TYPES.get(str(only.get("type")), "text" if only.get("type") == "string" else "mapping")
    return ", ".join([kind, *(text.format(only[key]) for key, text in _BOUNDS if key in only)])


def _default(path: tuple[str, ...], field: FieldInfo) -> str:
    if said := _COMPUTED.get(path[-1]):
        return said
    default = field.default
    if default is None or default == "" or default == ():
        return "–"
    return "as shipped" if isinstance(default, BaseModel) else f"`{json.dumps(default)}`".replace('"', "")


def _text(field: FieldInfo) -> str:
    return " ".join((field.description or "").split())
