import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubank.domain.cron import CRON_PATTERN, check_cron, same_times

FIELDS = (range(60), range(24), range(1, 29), range(1, 13), range(7))


@st.composite
def field(draw: st.DrawFn, values: range) -> str:
    one, other = sorted((draw(st.sampled_from(values)), draw(st.sampled_from(values))))
    return draw(st.sampled_from(["*", str(one), f"{one}-{other}", f"*/{draw(st.integers(1, 9))}", f"{one},{other}"]))


@given(st.tuples(*(field(values) for values in FIELDS)))
def test_whatever_cron_knows_is_accepted_as_it_stands(fields: tuple[str, ...]) -> None:
    expression = " ".join(fields)
    assert check_cron(expression) == expression
    assert same_times(expression, expression)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("0 8 * * 1-5", "0 8 * * MON-FRI"),
        ("0 8 * * 0", "00 08 * * 7"),
        ("*/30 8 * * *", "0,30 8 * * *"),
    ],
)
def test_the_same_times_are_known_however_they_are_written(one: str, other: str) -> None:
    assert same_times(one, other)


@pytest.mark.parametrize(("one", "other"), [("0 8 * * *", "0 9 * * *"), ("0 8 1 * *", "0 8 * * 1")])
def test_other_times_are_other(one: str, other: str) -> None:
    assert not same_times(one, other)


@pytest.mark.parametrize("expression", ["0 8 30 2 *", "0 8 31 4,6,9,11 *"])
def test_a_day_that_no_month_has_never_comes(expression: str) -> None:
    assert re.fullmatch(CRON_PATTERN, expression)
    with pytest.raises(ValueError, match="never comes"):
        check_cron(expression)


def test_a_leap_day_comes() -> None:
    assert check_cron("0 8 29 2 *")


@pytest.mark.parametrize(
    "expression", ["", "* * * *", "* * * * * *", "@hourly", "0 8 * * mon", "0 8 L * *", "0 8 * * 1#2", "*/0 * * * *"]
)
def test_what_others_read_differently_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match="five fields"):
        check_cron(expression)
