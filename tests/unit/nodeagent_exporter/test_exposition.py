import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.exporter import exposition
from nodeagent.exporter.exposition import Family, Kind, clean, labels
from tests.unit.nodeagent_exporter.worlds import parsed

NASTY = st.text(max_size=80) | st.sampled_from(
    ['"', "\\", "\n", '\\"', '"} 1\nevil 2', "\r", "\x00", "\ud800", "é" * 300]
)
NAMES = st.sampled_from(["UUID", "pod", "namespace", "model", "a_b"])
LINE = re.compile(r'[a-zA-Z_:][a-zA-Z0-9_:]*(\{([a-zA-Z_]\w*="(\\[\\n"]|[^\\"\n])*",?)*\})? \S+')


def a_family(name: str = "some_gauge", kind: Kind = Kind.GAUGE, text: str = "Help.") -> Family:
    return Family(name, kind, text)


@given(rows=st.lists(st.tuples(st.dictionaries(NAMES, NASTY, max_size=4), st.floats()), max_size=8), text=NASTY)
def test_no_value_breaks_out_of_its_quotes_and_no_series_stands_twice(
    rows: list[tuple[dict[str, str], float]], text: str
) -> None:
    family = a_family(text=clean(text))
    for pairs, value in rows:
        family.add(labels(pairs), value)
    family.add("", 1)
    series = parsed([family])["some_gauge"]
    known = {frozenset((name, clean(value)) for name, value in pairs.items() if value) for pairs, _ in rows}
    assert {frozenset(pairs.items()) for pairs, _ in series} <= known | {frozenset()}
    body = exposition.text([family])
    assert body.encode()
    for line in body.splitlines()[2:]:
        assert LINE.fullmatch(line), line


@given(NASTY)
def test_a_cleaned_value_is_valid_utf8_of_bounded_length_without_control_characters(value: str) -> None:
    found = clean(value)
    assert len(found) <= 256
    assert found.encode().decode() == found
    assert clean(found) == found
    assert not any(ord(char) < 32 and char != "\n" for char in found)


def test_a_value_comes_out_of_the_parser_as_it_went_in() -> None:
    family, value = a_family(), 'a "quoted" \\ back\\\\slash\nand a line \\n'
    family.add(labels({"pod": value}), 1)
    assert parsed([family])["some_gauge"] == [({"pod": value}, 1)]


def test_the_first_sample_of_a_series_stands_and_the_second_is_counted() -> None:
    family = a_family()
    family.add(labels({"a": "1", "b": "2"}), 1)
    family.add(labels({"b": "2", "a": "1"}), 2)
    assert (list(family.samples.values()), family.refused) == ([1], 1)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_left_out(value: float) -> None:
    family = a_family()
    family.add("", value)
    assert (exposition.text([family]), family.refused) == ("", 1)


def test_a_family_of_a_name_that_was_there_is_not_written_again() -> None:
    first, second = a_family(), a_family()
    first.add("", 1)
    second.add(labels({"a": "b"}), 2)
    assert exposition.text([first, second]).count("# TYPE") == 1


@pytest.mark.parametrize("name", ["", "1a", "a b", 'a"b', "a{", "a\n", "é"])
def test_bad_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is no name"):
        a_family(name)
    with pytest.raises(ValueError, match="is no name"):
        labels({name: "x"})


def test_series_keep_their_names_in_openmetrics() -> None:
    ours, theirs, info = (
        a_family("x_errors_total", Kind.COUNTER),
        a_family("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", Kind.COUNTER),
        a_family("gpubank_gpu_pod_info", Kind.INFO),
    )
    for family in (ours, theirs, info):
        family.add("", 1)
    body = exposition.openmetrics([ours, theirs, info])
    assert "# TYPE x_errors counter\nx_errors_total 1\n" in body
    assert "# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION unknown\nDCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION 1\n" in body
    assert "# TYPE gpubank_gpu_pod info\ngpubank_gpu_pod_info 1\n" in body


@pytest.mark.parametrize(
    ("value", "text"), [(1, "1"), (1.0, "1"), (0.875, "0.875"), (9_876_543_210_123, "9876543210123"), (1e20, "1e+20")]
)
def test_numbers_are_written_without_loss(value: float, text: str) -> None:
    family = a_family()
    family.add("", value)
    assert f"some_gauge {text}\n" in exposition.text([family])
