"""TidalPolicy: when capacity flows from training to serving and back.

    daytime      08:30 ─────────────▶ 20:00      floor 6, training borrows at most 8
    nighttime    20:00 ─────────────▶ 07:30      floor 1, training borrows at most 40

A window opens at each moment of `start` and closes at the next moment of `end`, both in `timezone`; where windows
overlap, the higher floor and the lower borrow limit hold.
"""

from datetime import date, timedelta
from typing import Annotated, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_validator

from gpubank.domain.base import (
    SET,
    ApiModel,
    Duration,
    DurationBounds,
    GpuCount,
    ObjectName,
    PoolName,
    ReplicaCount,
    Rule,
    broken,
    first_twice,
    list_map,
    rules,
)
from gpubank.domain.cron import CronTime, same_times
from gpubank.domain.meta import ConditionedStatus, Resource

TIMEZONE_PATTERN = r"^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$"
DATE_PATTERN = r"^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$"


def _known_timezone(name: str) -> str:
    # `localtime` is a file of one machine, not a zone that all machines agree on.
    try:
        known = name != "localtime" and ZoneInfo(name) is not None
    except (ZoneInfoNotFoundError, ValueError, OSError):
        known = False
    if not known:
        raise broken("must be a time zone of the IANA database", "write it as in 'Asia/Shanghai' or 'UTC'", value=name)
    return name


def _date_only(value: object) -> object:
    # pydantic also reads numbers and moments at midnight as dates.
    if isinstance(value, date):
        return value
    try:
        return date.fromisoformat(value) if isinstance(value, str) and len(value) == 10 else _no_date(value)
    except ValueError:
        return _no_date(value)


def _no_date(value: object) -> object:
    raise broken("must be a day that exists", "write it as in '2026-10-01'", value=value)


Timezone = Annotated[str, Field(pattern=TIMEZONE_PATTERN, min_length=1, max_length=64), AfterValidator(_known_timezone)]
Day = Annotated[
    date,
    BeforeValidator(_date_only),
    PlainSerializer(date.isoformat, return_type=str),
    WithJsonSchema({"type": "string", "pattern": DATE_PATTERN, "maxLength": 10}),
]


class Window(ApiModel):
    """A recurring span of time with its own floor and borrow limit."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length=1, max_length=63)]
    """Name, unique in the policy; transitions and notices carry it."""

    start: CronTime
    """When the window opens."""

    end: CronTime
    """When it closes: the first such moment after it opened, so a window may cross midnight."""

    inference_replica_floor: ReplicaCount
    """Replicas that each scaling policy of this tide keeps while the window is open."""

    training_borrow_limit: GpuCount
    """Most GPUs that training borrows while the window is open."""

    prewarm_before: Annotated[Duration, DurationBounds("0s", "24h")] = timedelta()
    """How long before the window opens its replicas start, so that they serve when it does."""

    @model_validator(mode="after")
    def _opens(self) -> Self:
        if same_times(self.start, self.end):
            raise broken(
                "must differ from start, else the window closes as it opens and never is open",
                "write a later time",
                field="end",
                value=self.end,
            )
        return self

    model_config = rules(Rule("self.start != self.end", "must differ from start, else the window never is open", "end"))


class TidalReclaim(ApiModel):
    """How training gives GPUs back when its limit falls."""

    checkpoint_before: Annotated[Duration, DurationBounds("0s", "24h")] = timedelta(minutes=30)
    """How long before the limit falls the borrowers are asked for checkpoints."""

    grace_period: Annotated[Duration, DurationBounds("0s", "24h")] = timedelta(minutes=10)
    """Longest time that a victim gets to write its checkpoint; the pool's maxGracePeriod caps it."""


class TidalPolicySpec(ApiModel):
    """When capacity flows from training to serving and back."""

    timezone: Timezone
    """Time zone of every window, by its IANA name."""

    windows: Annotated[tuple[Window, ...], Field(min_length=1, max_length=32, json_schema_extra=list_map("name"))]
    """Windows; outside all of them nothing is asked."""

    reclaim: TidalReclaim = TidalReclaim()
    """How training gives GPUs back when its limit falls."""

    scaling_policies: Annotated[tuple[ObjectName, ...], Field(max_length=32, json_schema_extra=SET)] = ()
    """InferenceScalingPolicies of this namespace that the floors are for; none named means all of them."""

    pool: PoolName | None = None
    """Pool that the borrow limits are for; unset means every pool for which the group has a policy."""

    holidays: Annotated[tuple[Day, ...], Field(max_length=128, json_schema_extra=SET)] = ()
    """Days, in `timezone`, on which no window opens."""

    @model_validator(mode="after")
    def _nothing_is_listed_twice(self) -> Self:
        for field, names in (
            ("windows", (window.name for window in self.windows)),
            ("scalingPolicies", self.scaling_policies),
            ("holidays", (day.isoformat() for day in self.holidays)),
        ):
            if twice := first_twice(names):
                raise broken("nothing is listed twice", "list it once", field=field, value=twice)
        return self


class TidalPolicyStatus(ConditionedStatus):
    """Which windows are open, as last judged."""

    open_windows: tuple[str, ...] = ()
    """Names of the windows that are open."""


class TidalPolicy(Resource[TidalPolicySpec, TidalPolicyStatus]):
    """When capacity flows from training to serving and back."""

    kind: Literal["TidalPolicy"] = "TidalPolicy"
    spec: TidalPolicySpec
    status: TidalPolicyStatus = TidalPolicyStatus()
