"""JSON Schema of a model in the two dialects: for editors, and as the structural schema that Kubernetes takes.

pydantic's own output needs five repairs for either: defaults as we write them on the wire (`10m`, not `PT10M`; no
nulls), no `null` alternatives (absent is not null), definitions in place, no titles that repeat names, one
description per field. Kubernetes also takes no `const`, no key patterns and no `additionalProperties: false`.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core.core_schema import ModelSchema

from gpubank.domain.base import format_duration
from gpubank.schema.described import descriptions

_NULL: Final = {"type": "null"}
JsonObject = dict[str, Any]


class WireSchema(GenerateJsonSchema):
    """JSON Schema whose defaults are written as on the wire."""

    def encode_default(self, dft: Any) -> Any:
        """Write a default the way users would."""
        if isinstance(dft, timedelta):
            return format_duration(dft)
        if isinstance(dft, BaseModel):
            return dft.model_dump(mode="json", by_alias=True, exclude_none=True)
        return super().encode_default(dft)

    def model_schema(self, schema: ModelSchema) -> JsonObject:
        """Render a model, with what it says of its fields."""
        model: type[BaseModel] = schema["cls"]
        rendered = super().model_schema(schema)
        for name, said in descriptions(model).items():
            of_field = rendered["properties"][model.model_fields[name].alias or name]
            of_field.setdefault("description", said)
        return rendered


def json_schema(model: type[BaseModel]) -> JsonObject:
    """Render the JSON Schema of a model for editors and validators: closed, without references or nulls."""
    schema = model.model_json_schema(by_alias=True, schema_generator=WireSchema)
    inlined: JsonObject = _inlined(schema, schema.get("$defs", {}))
    return inlined


def structural_schema(model: type[BaseModel]) -> JsonObject:
    """Render the schema of a model as the structural subset that Kubernetes takes."""
    structural: JsonObject = _structural(json_schema(model))
    return structural


def _inlined(node: Any, defs: Mapping[str, Any]) -> Any:
    if isinstance(node, list):
        return [_inlined(item, defs) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        target = defs[node["$ref"].rsplit("/", 1)[-1]]
        return _inlined(_merged(target, node, "$ref"), defs)
    if _NULL in node.get("anyOf", ()):
        (other,) = (option for option in node["anyOf"] if option != _NULL)
        return _inlined(_merged(other, {k: v for k, v in node.items() if k != "default"}, "anyOf"), defs)
    dropped = ("$defs", "title")
    return {
        key: {name: _inlined(child, defs) for name, child in value.items()}
        if key == "properties"
        else value
        if key in ("default", "x-kubernetes-validations")
        else _inlined(value, defs)
        for key, value in node.items()
        if key not in dropped
    }


def _merged(target: JsonObject, node: JsonObject, consumed: str) -> JsonObject:
    """Put the field's own words over what it refers to; what the referenced type says of itself gives way."""
    own = {key: value for key, value in node.items() if key != consumed}
    both = [*target.get("x-kubernetes-validations", ()), *own.get("x-kubernetes-validations", ())]
    return {**target, **own, **({"x-kubernetes-validations": both} if both else {})}


def _structural(node: Any) -> Any:
    if isinstance(node, list):
        return [_structural(item) for item in node]
    if not isinstance(node, dict):
        return node
    out: JsonObject = {}
    for key, value in node.items():
        if key == "properties":
            out[key] = {name: _structural(child) for name, child in value.items()}
        elif key == "patternProperties":
            (pattern,) = value
            out["additionalProperties"] = _structural(value[pattern])
            longest = node.get("propertyNames", {}).get("maxLength")
            rule = f"self.all(key, key.matches('{pattern}')" + (f" && key.size() <= {longest})" if longest else ")")
            out["x-kubernetes-validations"] = [{"rule": rule, "message": "keys must be keys of labels"}]
        elif key == "const":
            out["enum"] = [value]
        elif key == "default":
            out[key] = value
        elif key != "propertyNames" and not (key == "additionalProperties" and value is False):
            out[key] = _structural(value)
    return out
