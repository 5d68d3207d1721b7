"""Refusals in words: what pydantic found, as problems that name field, value, rule and remedy.

read(GPUQuotaPolicy, body)  ─▶  the policy, or InvalidObjectError with every problem at once
"""

import json
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, Final, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gpubank.domain.base import (
    LABEL_KEY_PATTERN,
    LABEL_PATTERN,
    LABEL_VALUE_PATTERN,
    SUBDOMAIN_PATTERN,
    ApiModel,
)
from gpubank.domain.errors import InvalidObjectError, Problem

ModelT = TypeVar("ModelT", bound=ApiModel)

_SHOWN: Final = 80
"""Characters of a value that are shown."""

_PATTERNS: Final[Mapping[str, tuple[str, str]]] = {
    LABEL_PATTERN: ("must be a DNS label without dots", "use lower-case letters, digits and inner dashes"),
    SUBDOMAIN_PATTERN: ("must be a Kubernetes name", "use lower-case letters, digits, inner dashes and dots"),
    LABEL_KEY_PATTERN: ("must be the key of a label or annotation", "write it as in 'example.com/name'"),
    LABEL_VALUE_PATTERN: ("must be the value of a label", "use letters, digits, inner dashes, dots and underscores"),
}


def read(model: type[ModelT], body: Mapping[str, Any]) -> ModelT:
    """Read an object that a user wrote.

    Raises InvalidObjectError with every problem that was found; a rule between fields is only judged once the
    fields themselves are right.
    """
    try:
        return model.from_wire(body)
    except ValidationError as error:
        raise InvalidObjectError(subject_of(body), problems_of(error, model)) from error


def subject_of(body: Mapping[str, Any]) -> str:
    """Name an object as messages do: kind and name, whatever of the two there is."""
    metadata = body.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    return f"{body.get('kind') or 'object'} {name!r}" if name else f"{body.get('kind') or 'object'} without name"


def problems_of(error: ValidationError, model: type[BaseModel]) -> tuple[Problem, ...]:
    """Put pydantic's errors in words, in the order of the fields."""
    return tuple(_problem(detail, model) for detail in error.errors(include_url=False))


def _problem(detail: ErrorDetails, model: type[BaseModel]) -> Problem:
    context = detail.get("ctx", {})
    loc = tuple(part for part in detail["loc"] if part != "[key]")
    if detail["type"] == "broken_rule":
        below = context["field"]
        found = context["value"]
        if found is None and not below and not isinstance(detail["input"], dict | list | tuple | BaseModel):
            found = detail["input"]
        value = "" if found is None and below else shown(found) if not isinstance(found, BaseModel) else ""
        return Problem(path_of((*loc, below) if below else loc), value, context["rule"], context["remedy"])
    if detail["type"] == "extra_forbidden":
        return _unknown_field(loc, model)
    if detail["type"] == "missing":
        return Problem(path_of(loc), "", "is required", "write it")
    rule, remedy = _words(detail["type"], context, detail["msg"])
    return Problem(path_of(loc), shown(detail["input"]), rule, remedy)


def _unknown_field(loc: tuple[int | str, ...], model: type[BaseModel]) -> Problem:
    name, known = str(loc[-1]), _fields_at(model, loc[:-1])
    near = get_close_matches(name, known, n=1, cutoff=0.6)
    remedy = f"write {near[0]!r}, if you meant that" if near else f"remove it; there are {', '.join(known)}"
    return Problem(path_of(loc), "", "is no field that exists here", remedy)


_WORDS: Final[Mapping[str, Callable[[Mapping[str, Any]], tuple[str, str]]]] = {
    "greater_than_equal": lambda c: (f"must be at least {c['ge']}", f"write {c['ge']} or more"),
    "less_than_equal": lambda c: (f"must be at most {c['le']}", f"write {c['le']} or less"),
    "string_too_short": lambda c: ("must not be empty", "write something"),
    "string_too_long": lambda c: (f"must have at most {c['max_length']} characters", "shorten it"),
    "too_short": lambda c: (f"must list at least {c['min_length']}", "list more, or remove the field"),
    "too_long": lambda c: (f"must list at most {c['max_length']}", "list fewer"),
    "enum": lambda c: (f"must be one of {c['expected']}", "write one of them, spelled so"),
    "literal_error": lambda c: (f"must be {c['expected']}", f"write {c['expected']}"),
    "string_pattern_mismatch": lambda c: _PATTERNS.get(
        c["pattern"], (f"must match {c['pattern']}", "write it in that form")
    ),
}
_TYPES: Final[Mapping[str, tuple[str, str]]] = {
    "int": ("must be a whole number", "write digits alone, without quotes or a decimal point"),
    "string": ("must be text", "put it in quotes"),
    "bool": ("must be true or false", "write true or false, without quotes"),
    "tuple": ("must be a list", "write one item per line, each after a dash"),
    "list": ("must be a list", "write one item per line, each after a dash"),
    "dict": ("must be a mapping", "write one `name: value` per line"),
    "model": ("must be a mapping", "write one `name: value` per line"),
    "datetime": ("must be a date and time that exists", "write it as in '2026-11-02T18:00:00Z'"),
    "date": ("must be a day that exists", "write it as in '2026-10-01'"),
    "timezone": ("must carry its offset", "write it as in '2026-11-02T18:00:00Z'"),
}


def _words(kind: str, context: Mapping[str, Any], message: str) -> tuple[str, str]:
    if kind in _WORDS:
        return _WORDS[kind](context)
    # pydantic's names of type errors begin with the type, as in int_type, int_parsing, int_from_float.
    return _TYPES.get(kind.split("_", 1)[0], (message[:1].lower() + message[1:], "correct it"))


def shown(value: object) -> str:
    """Write a value as JSON, shortened."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def path_of(loc: tuple[int | str, ...]) -> str:
    """Write a location as users do: `spec.windows[0].start`."""
    path = ""
    for part in loc:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def _fields_at(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """List the wire names of the fields at a location below the model."""
    here: type[BaseModel] = model
    for part in loc:  # indexes, and keys of mappings, are no fields: what is below is of the same model
        field = next((field for field in here.model_fields.values() if field.alias == part), None)
        here = (*_models_in(field.annotation), here)[0] if field else here
    return [field.alias or name for name, field in here.model_fields.items()]


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    itself = [annotation] if isinstance(annotation, type) and issubclass(annotation, BaseModel) else []
    return [*itself, *(model for argument in get_args(annotation) for model in _models_in(argument))]
