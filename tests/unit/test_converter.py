"""Messages become payloads and are messages again, and all workflows share the validators that do it."""

from datetime import UTC, datetime
from typing import Any

import pytest
from temporalio.contrib.pydantic import pydantic_data_converter

from gpubank.converter import DATA_CONVERTER, BankPayloadConverter
from gpubank.domain.recall import Decision, Granted

GRANT = Granted(term=2, gpus=8, lenders=("search",), at=datetime(2026, 11, 30, tzinfo=UTC))


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (GRANT, Granted),
        (GRANT, Granted | None),
        (None, Granted | None),
        ([GRANT], list[Granted]),
        (b"\x00\xff", bytes),
        ("text", str),
        ({"gpus": 8}, dict[str, int]),
    ],
)
def test_a_value_is_the_same_after_the_way_through_a_payload(value: Any, hint: Any) -> None:
    convert = DATA_CONVERTER.payload_converter

    assert convert.from_payloads(convert.to_payloads([value]), [hint]) == [value]


def test_payloads_are_those_of_the_library_so_older_histories_stay_readable() -> None:
    values = [GRANT, Decision(identity="ada", reason="maintenance"), None, b"bytes", 8]

    ours, theirs = (each.payload_converter.to_payloads(values) for each in (DATA_CONVERTER, pydantic_data_converter))

    assert ours == theirs


def test_what_one_run_has_built_the_next_one_uses() -> None:
    first, second = BankPayloadConverter(), BankPayloadConverter()
    payloads = first.to_payloads([GRANT])
    hint: Any = Granted | None

    first.from_payloads(payloads, [hint])
    built = _validators_built()
    second.from_payloads(payloads, [hint])

    assert _validators_built() == built
    assert all(second.converters[encoding] is part for encoding, part in first.converters.items())


def _validators_built() -> int:
    part: Any = BankPayloadConverter().converters[b"json/plain"]
    return int(part._type_adapter.cache_info().misses)
