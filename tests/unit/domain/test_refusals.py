"""What is refused, in which words, and what the API server is told of the same rules."""

from datetime import date, timedelta
from typing import Annotated, Any

import pytest
from pydantic import TypeAdapter, ValidationError

from gpubank.domain.base import Duration, DurationBounds, PoolName, parse_duration
from gpubank.domain.cron import check_cron
from gpubank.domain.demand import Demand, DemandKind, DemandState
from gpubank.domain.errors import IllegalTransitionError, InvalidObjectError, Problem
from gpubank.domain.pool import GPUPool, PoolLimits
from gpubank.domain.refusal import read
from gpubank.domain.tidal import Day
from tests.unit.domain.bookkeeping import TEN


def test_a_duration_that_runs_backwards_is_refused_from_code_too() -> None:
    assert parse_duration(timedelta()) == timedelta()
    with pytest.raises(ValueError, match="never negative"):
        parse_duration(timedelta(milliseconds=-1))


def test_the_bounds_of_a_duration_are_checked_here_and_told_to_the_api_server() -> None:
    minutes = TypeAdapter(Annotated[Duration, DurationBounds("1m", "1h")])
    assert [minutes.validate_python(text) for text in ("1m", "60m")] == [timedelta(minutes=1), timedelta(hours=1)]
    with pytest.raises(ValidationError, match="from 1m to 1h; write a duration of at least 1m"):
        minutes.validate_python("59s999ms")
    with pytest.raises(ValidationError, match="from 1m to 1h; write a duration of at most 1h"):
        minutes.validate_python("1h1ms")
    assert minutes.json_schema()["x-kubernetes-validations"] == [
        {
            "rule": "duration(self) >= duration('1m') && duration(self) <= duration('1h')",
            "message": "must be a duration from 1m to 1h",
        }
    ]


def test_no_pool_is_named_like_a_borrow_queue_here_and_at_the_api_server() -> None:
    names = TypeAdapter(PoolName)
    assert names.validate_python("borrow-h100") == "borrow-h100"
    with pytest.raises(ValidationError, match="marks borrow queues"):
        names.validate_python("h100-borrow")
    assert names.json_schema()["x-kubernetes-validations"] == [
        {"rule": "!self.endsWith('-borrow')", "message": "must not end in -borrow"}
    ]


@pytest.mark.parametrize("expression", ["0 8 * * 5-1", "30-10 8 * * *"])
def test_a_cron_range_that_runs_backwards_is_refused_with_a_remedy(expression: str) -> None:
    with pytest.raises(ValueError, match="write a time that comes"):
        check_cron(expression)


def test_a_day_is_a_day_from_code_and_from_the_wire_and_nothing_else() -> None:
    days = TypeAdapter(Day)
    assert days.validate_python(date(2026, 10, 1)) == days.validate_python("2026-10-01") == date(2026, 10, 1)
    for value in ("2026-10-1", "20261001", "2026-02-30", 20261001, None):
        with pytest.raises(ValidationError, match="must be a day that exists"):
            days.validate_python(value)


def test_a_demand_moves_only_as_its_table_says() -> None:
    demand = Demand(
        demand_id="d",
        cluster="local",
        pool="h100",
        lender="b",
        kind=DemandKind.LIMIT,
        gpus=1,
        opened_at=TEN,
        due_at=TEN,
        state=DemandState.RAISED,
    )
    demand.check_move(DemandState.OPEN)
    demand.check_move(DemandState.RAISED)
    met = demand.model_copy(update={"state": DemandState.MET})
    met.check_move(DemandState.OPEN)
    with pytest.raises(IllegalTransitionError, match="'d'"):
        met.check_move(DemandState.RAISED)


def problems(body: dict[str, Any]) -> list[Problem]:
    """What is refused of a pool."""
    with pytest.raises(InvalidObjectError) as caught:
        read(GPUPool, {"apiVersion": "platform.aik8s.run/v1alpha1", "kind": "GPUPool", **body})
    return list(caught.value.problems)


def test_a_priority_class_stands_once_in_a_list() -> None:
    assert PoolLimits(allowed_priority_classes=("low", "high")).allowed_priority_classes == ("low", "high")
    with pytest.raises(ValidationError, match="is listed twice"):
        PoolLimits(allowed_priority_classes=("low", "high", "low"))


def test_a_misspelt_field_inside_a_list_is_told_the_fields_of_that_place() -> None:
    shares = [{"businessGroup": "vision", "guaranted": 8}]
    _, found = problems({"metadata": {"name": "h100"}, "spec": {"capacity": 8, "shares": shares}})
    assert (found.field, found.remedy) == ("spec.shares[0].guaranted", "write 'guaranteed', if you meant that")


def test_a_field_that_is_like_no_other_is_told_all_that_there_are() -> None:
    (found,) = problems({"metadata": {"name": "h100"}, "spec": {"capacity": 8, "xyzzy": 1}})
    assert found.rule == "is no field that exists here"
    assert found.remedy.startswith("remove it; there are resourceName, ")
