"""Types that every API model shares: camelCase on the wire, units in the type, bounds in both.

Every bound stands twice, as a check of the model and as JSON Schema or CEL, because the API server must refuse
what the models refuse. `DurationBounds` writes both from one statement; cross-field rules are written in CEL next
to their validator, and one table of bad examples holds the two together.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Self

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    JsonValue,
    PlainSerializer,
    ValidationError,
    WithJsonSchema,
)
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

GROUP: Final = "platform.aik8s.run"
"""API group of every kind of the bank."""

VERSION: Final = "v1alpha1"
"""API version of every kind of the bank."""

API_VERSION: Final = f"{GROUP}/{VERSION}"
"""What `apiVersion` says in every object of the bank."""


def broken(rule: str, remedy: str, *, field: str = "", value: object = None) -> PydanticCustomError:
    """Build the error of a broken rule, to be raised by a validator.

    `field` is the wire path below the model that raises, `value` what stands there; both may be left out by a
    validator of a single field, for the caller knows them.
    """
    context = {"rule": rule, "remedy": remedy, "field": field, "value": value}
    return PydanticCustomError("broken_rule", "{rule}; {remedy}", context)


# ---------------------------------------------------------------------------------------------- durations

_UNITS: Final = {
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
}
# Digits are bounded so that every duration fits Go's int64 of nanoseconds, which CEL's duration() uses.
DURATION_PATTERN: Final = r"^([0-9]{1,6}h)?([0-9]{1,7}m)?([0-9]{1,8}s)?([0-9]{1,9}ms)?$"
DURATION_MAX_LENGTH: Final = 32


def parse_duration(value: object) -> timedelta:
    """Read `8h30m` or `1500ms`: whole hours, minutes, seconds, milliseconds, in this order, each at most once.

    A part of Go's syntax: no sign, no fraction, nothing below a millisecond. A bare number has no unit and is
    refused, as everything else is, with ValueError.
    """
    if isinstance(value, timedelta):
        if value < timedelta():
            raise broken("a duration is never negative", "write 0s or more", value=str(value))
        return value
    if not isinstance(value, str) or not value or not re.fullmatch(DURATION_PATTERN, value):
        raise broken(
            "a duration is whole hours, minutes, seconds and milliseconds, in this order",
            "write it as in '10m', '1h30m' or '1500ms'",
            value=value,
        )
    parts = re.findall(r"([0-9]+)(ms|h|m|s)", value)
    return sum((int(number) * _UNITS[unit] for number, unit in parts), timedelta())


def format_duration(value: timedelta) -> str:
    """Write a duration the way `parse_duration` reads it; what is below a millisecond is dropped."""
    milliseconds = value // timedelta(milliseconds=1)
    if milliseconds % 1000 and milliseconds < 60_000:
        return f"{milliseconds}ms"  # 1500ms rather than 1s500ms
    parts = []
    for unit, size in _UNITS.items():
        count, value = divmod(value, size)
        parts += [f"{count}{unit}"] if count else []
    return "".join(parts) or "0s"


Duration = Annotated[
    timedelta,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema({"type": "string", "pattern": DURATION_PATTERN, "minLength": 2, "maxLength": DURATION_MAX_LENGTH}),
]
"""A span of time, in Go's syntax on the wire."""


@dataclass(frozen=True, slots=True)
class DurationBounds:
    """Inclusive bounds, as a check and as a CEL rule, as in `Annotated[Duration, DurationBounds("1s", "24h")]`."""

    minimum: str
    maximum: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Check after the duration was read."""
        low, high = parse_duration(self.minimum), parse_duration(self.maximum)

        def check(value: timedelta) -> timedelta:
            if not low <= value <= high:
                raise broken(
                    f"must be from {self.minimum} to {self.maximum}",
                    f"write a duration of at {'least ' + self.minimum if value < low else 'most ' + self.maximum}",
                )
            return value

        inner = handler(source)
        return core_schema.no_info_after_validator_function(check, inner, serialization=inner.get("serialization"))

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Add the same bounds as a CEL rule."""
        schema = handler(core)
        rule = f"duration(self) >= duration('{self.minimum}') && duration(self) <= duration('{self.maximum}')"
        schema["x-kubernetes-validations"] = [
            {"rule": rule, "message": f"must be a duration from {self.minimum} to {self.maximum}"}
        ]
        return schema


# ------------------------------------------------------------------------------------------------ numbers

MAX_GPUS: Final = 1_000_000
"""More GPUs than any pool has; the bound keeps sums far from overflow."""

GpuCount = Annotated[int, Field(ge=0, le=MAX_GPUS)]
"""Whole GPUs, none allowed."""

PositiveGpuCount = Annotated[int, Field(ge=1, le=MAX_GPUS)]
"""Whole GPUs, at least one."""


def bounded(gpus: int) -> int:
    """Return at least 0 and at most `MAX_GPUS`.

    Anybody may submit a Job of a billion GPUs, which waits for ever: it must not be what nobody can reckon with.
    """
    return min(max(gpus, 0), MAX_GPUS)


Percent = Annotated[int, Field(ge=0, le=100)]
"""Whole percent."""

ReplicaCount = Annotated[int, Field(ge=0, le=10_000)]
"""Whole replicas, none allowed."""

# -------------------------------------------------------------------------------------------------- names

LABEL_PATTERN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
SUBDOMAIN_PATTERN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
LABEL_KEY_PATTERN: Final = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
LABEL_VALUE_PATTERN: Final = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"

BORROW_SUFFIX: Final = "-borrow"
"""Ends the name of a LocalQueue that admits borrowed work; hence no pool may end so."""

POOL_NAME_MAX_LENGTH: Final = 63 - len(BORROW_SUFFIX)
"""A pool's name plus `-borrow` is the value of a label, which holds 63 characters."""


def _not_borrow(name: str) -> str:
    if name.endswith(BORROW_SUFFIX):
        raise broken(f"no pool's name ends in {BORROW_SUFFIX!r}, which marks borrow queues", "name the pool otherwise")
    return name


def check_name(name: str, *, max_length: int = 63) -> None:
    """Refuse the name of a pool or group that is no DNS label without dots, or ends in `-borrow`."""
    if len(name) > max_length or not re.fullmatch(LABEL_PATTERN, name):
        raise broken(
            f"must be a DNS label without dots of at most {max_length} characters",
            "use lower-case letters, digits and dashes",
            field="metadata.name",
            value=name,
        )
    if max_length == POOL_NAME_MAX_LENGTH and name.endswith(BORROW_SUFFIX):
        raise broken(
            f"no pool's name ends in {BORROW_SUFFIX}, which marks borrow queues",
            "name the pool otherwise",
            field="metadata.name",
            value=name,
        )


@dataclass(frozen=True, slots=True)
class _NotBorrow:
    """Refuse names that end in `-borrow`, as a check and as a CEL rule."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(_not_borrow, handler(source))

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core)
        schema["x-kubernetes-validations"] = [
            {"rule": f"!self.endsWith('{BORROW_SUFFIX}')", "message": f"must not end in {BORROW_SUFFIX}"}
        ]
        return schema


GroupName = Annotated[str, Field(pattern=LABEL_PATTERN, min_length=1, max_length=63)]
"""Name of a business group: a DNS label, hence without dots."""

PoolName = Annotated[str, Field(pattern=LABEL_PATTERN, min_length=1, max_length=POOL_NAME_MAX_LENGTH), _NotBorrow()]
"""Name of a pool: a DNS label of at most 56 characters that does not end in `-borrow`."""

NamespaceName = Annotated[str, Field(pattern=LABEL_PATTERN, min_length=1, max_length=63)]
"""Name of a namespace."""

ObjectName = Annotated[str, Field(pattern=SUBDOMAIN_PATTERN, min_length=1, max_length=253)]
"""Name of any Kubernetes object."""

ApiVersion = Annotated[
    str, Field(pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?v[0-9][a-z0-9]*$", min_length=1, max_length=317)
]
"""Group and version of another kind, as in `batch/v1`."""

KindName = Annotated[str, Field(pattern=r"^[A-Z][A-Za-z0-9]*$", min_length=1, max_length=63)]
"""Name of another kind, as in `Job`."""

LabelKey = Annotated[str, Field(pattern=LABEL_KEY_PATTERN, min_length=1, max_length=317)]
"""Key of a label or annotation, with or without a prefix."""

LabelValue = Annotated[str, Field(pattern=LABEL_VALUE_PATTERN, max_length=63)]
"""Value of a label."""

ShortText = Annotated[str, Field(min_length=1, max_length=256)]
"""One line for people."""

# ------------------------------------------------------------------------------------------------ instants

INSTANT_PATTERN: Final = (
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})$"
)


def parse_instant(value: object) -> datetime:
    """Read an RFC 3339 instant with its offset; what is below a microsecond is dropped. Raises ValueError."""
    # pydantic would also read Unix seconds and dates; on the wire only this is meant.
    if isinstance(value, datetime):
        return value
    if not isinstance(value, str) or not re.fullmatch(INSTANT_PATTERN, value):
        raise broken(
            "an instant is a date and time with its offset (RFC 3339)",
            "write it as in '2026-11-02T18:00:00Z' or '2026-11-02T18:00:00+08:00'",
            value=value,
        )
    try:
        return datetime.fromisoformat(re.sub(r"(\.[0-9]{6})[0-9]+", r"\1", value))
    except ValueError as error:
        raise broken("must be a date and time that exists", "write another one", value=value) from error


def format_instant(value: datetime) -> str:
    """Write an instant as RFC 3339, in its own offset; UTC is `Z`, whole seconds carry no fraction."""
    return value.isoformat().replace("+00:00", "Z")


def clock(moment: datetime | None) -> str:
    """Write a moment for people, or a dash."""
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC" if moment is not None else "–"


Instant = Annotated[
    AwareDatetime,
    BeforeValidator(parse_instant),
    PlainSerializer(format_instant, return_type=str),
    WithJsonSchema({"type": "string", "format": "date-time", "pattern": INSTANT_PATTERN, "maxLength": 64}),
]
"""A moment, RFC 3339 with an offset on the wire."""

# -------------------------------------------------------------------------------------------------- models


_NULL: Final = broken("must not be null", "write a value, or remove the line")


def _nulls(value: object, loc: tuple[int | str, ...]) -> Iterator[tuple[int | str, ...]]:
    """Yield where nulls stand."""
    if value is None:
        yield loc
    elif isinstance(value, Mapping):
        for key, child in value.items():
            yield from _nulls(child, (*loc, key))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _nulls(child, (*loc, index))


class ApiModel(BaseModel):
    """A frozen record of the API; unknown fields are errors; schemas describe a field by the docstring below it."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        extra="forbid",
        frozen=True,
    )

    @classmethod
    def from_wire(cls, body: Mapping[str, Any]) -> Self:
        """Read what a user wrote: camelCase names only, no number in quotes, no `true` for 1, no `16.0` for 16.

        A null is refused too: the API server drops some and refuses others, so it never means what it seems to.
        Raises pydantic's ValidationError; `gpubank.domain.refusal` puts it in words for users.
        """
        if nulls := [*_nulls(body.get("spec", body), ("spec",) if "spec" in body else ())]:
            raise ValidationError.from_exception_data(
                cls.__name__, [InitErrorDetails(type=_NULL, loc=loc, input=None) for loc in nulls], "json"
            )
        return cls.model_validate_json(json.dumps(body), strict=True, by_alias=True, by_name=False)

    def to_wire(self) -> dict[str, Any]:
        """Write it as Kubernetes reads it: camelCase, durations and instants as text, nothing that is absent."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class StatusModel(ApiModel):
    """A frozen record that only the bank writes; unknown fields are ignored, for old controllers meet new ones."""

    model_config = ConfigDict(extra="ignore")


class Message(BaseModel):
    """What workflows, activities and workers send each other; unknown fields are ignored, for old meets new."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        extra="ignore",
        frozen=True,
    )


# ----------------------------------------------------------------------------------------------- CEL rules


@dataclass(frozen=True, slots=True)
class Rule:
    """A cross-field rule in CEL, said a second time for the API server next to the validator that says it here."""

    rule: str
    """CEL over `self`, the object that the model describes."""

    message: str
    """What is asked, for people."""

    field: str = ""
    """Wire name of the field that the refusal points to, below `self`; empty points to `self`."""


def rules(*rules: Rule) -> ConfigDict:
    """Return the `model_config` that hands these rules to the API server."""
    validations: list[JsonValue] = [
        {"rule": rule.rule, "message": rule.message, **({"fieldPath": f".{rule.field}"} if rule.field else {})}
        for rule in rules
    ]
    return ConfigDict(json_schema_extra={"x-kubernetes-validations": validations})


def first_twice(names: Iterable[str]) -> str | None:
    """Return the first name that stands there a second time."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


SET: Final[dict[str, JsonValue]] = {"x-kubernetes-list-type": "set"}
"""Schema extra of a list in which nothing stands twice."""


def list_map(*keys: str) -> dict[str, JsonValue]:
    """Schema extra of a list of objects that these fields tell apart."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}
