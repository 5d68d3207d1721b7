from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gpubank.domain.base import (
    ApiModel,
    Duration,
    GpuCount,
    Instant,
    Message,
    format_duration,
    format_instant,
    parse_duration,
    parse_instant,
)


class Sample(ApiModel):
    some_gpus: GpuCount = 1
    grace: Duration = timedelta(minutes=10)
    until: Instant | None = None


class Note(Message):
    some_gpus: int


@given(st.integers(0, 359_999_999_999))
def test_a_duration_reads_back_as_it_was_written(milliseconds: int) -> None:
    value = timedelta(milliseconds=milliseconds)
    assert parse_duration(format_duration(value)) == value


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("1500ms", timedelta(seconds=1.5)),
        ("1h30m", timedelta(minutes=90)),
        ("90s", timedelta(seconds=90)),
        ("0s", timedelta()),
        ("1h2m3s4ms", timedelta(hours=1, minutes=2, seconds=3, milliseconds=4)),
    ],
)
def test_durations_are_go_durations(text: str, want: timedelta) -> None:
    assert parse_duration(text) == want


@pytest.mark.parametrize(
    "text", ["", "10", "1.5h", "-1m", "1d", "m", "1m1h", "1m1m", " 1m", "1m\n", "PT1M", 5, None, True]
)
def test_what_is_no_duration_is_refused_with_a_remedy(text: object) -> None:
    with pytest.raises(ValueError, match="write it as in"):
        parse_duration(text)


def test_fractions_of_a_second_are_written_as_users_write_them() -> None:
    assert format_duration(timedelta(milliseconds=1500)) == "1500ms"
    assert format_duration(timedelta(hours=1, milliseconds=5)) == "1h5ms"
    assert format_duration(timedelta(seconds=90)) == "1m30s"


def test_the_wire_takes_camel_case_only_but_python_takes_names() -> None:
    assert Sample.from_wire({"someGpus": 3}) == Sample(some_gpus=3)
    with pytest.raises(ValidationError, match="some_gpus"):
        Sample.from_wire({"some_gpus": 3})


@pytest.mark.parametrize("value", ["3", True, 3.0, None])
def test_the_wire_takes_whole_numbers_only(value: object) -> None:
    with pytest.raises(ValidationError):
        Sample.from_wire({"someGpus": value})


def test_api_models_refuse_what_messages_ignore() -> None:
    with pytest.raises(ValidationError, match="more"):
        Sample.model_validate({"more": 1})
    assert Note.model_validate({"someGpus": 1, "more": 1}) == Note(some_gpus=1)


def test_models_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Sample().some_gpus = 2  # type: ignore[misc]


def test_instants_keep_their_moment_and_their_offset() -> None:
    want = datetime(2026, 11, 2, 18, tzinfo=timezone(timedelta(hours=8)))
    assert parse_instant("2026-11-02T18:00:00+08:00") == want
    assert format_instant(want) == "2026-11-02T18:00:00+08:00"
    assert parse_instant("2026-11-02T18:00:00.123456789Z") == datetime(2026, 11, 2, 18, 0, 0, 123456, tzinfo=UTC)
    assert Sample.from_wire({"until": "2026-11-02T10:00:00Z"}).until == want


@given(st.datetimes(timezones=st.just(UTC)))
def test_an_instant_reads_back_as_it_was_written(moment: datetime) -> None:
    assert parse_instant(format_instant(moment)) == moment


@pytest.mark.parametrize("value", ["2026-11-02", "2026-11-02T18:00:00", "2026-11-02 18:00:00Z", 1793642400, "soon"])
def test_what_is_no_instant_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="RFC 3339"):
        parse_instant(value)
