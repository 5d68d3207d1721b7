"""The figures of benchmarks: computed right, written whole, and never asserted on."""

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.report import Report, arguments, growth_exponent, percentile, positive, ratio, spread


def test_a_percentile_is_a_value_that_was_measured() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([float(number) for number in range(1, 31)], 0.95) == 29.0
    assert percentile([7.0], 0.95) == 7.0


def test_nothing_measured_has_no_percentile() -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        percentile([], 0.5)


def test_a_spread_is_median_95th_percentile_and_maximum() -> None:
    assert spread([4.0, 1.0, 2.0, 3.0]) == {"p50": 2.5, "p95": 4.0, "max": 4.0}


def test_a_ratio_is_ours_over_theirs_and_refused_where_the_peer_measured_nothing() -> None:
    assert ratio(3.0, 2.0) == 1.5
    with pytest.raises(ValueError, match="no ratio"):
        ratio(3.0, 0.0)


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0])
def test_the_growth_exponent_is_the_power_of_the_size(exponent: float) -> None:
    sizes = [1_000, 10_000, 100_000]
    assert growth_exponent(sizes, [5 * size**exponent for size in sizes]) == pytest.approx(exponent)


def test_a_report_is_written_with_its_machine_and_its_ratios_are_shown(tmp_path: Path) -> None:
    said, file = StringIO(), tmp_path / "out.json"
    report = Report("demo", ("what", "ms"), figures={"admitted_p95_ratio": 1.25})
    report.row("step", 12.5)
    report.finish(file, Console(file=said, width=120))
    assert "12.50" in said.getvalue()
    assert "admitted_p95_ratio = 1.25" in said.getvalue()
    written = json.loads(file.read_text())
    assert written["figures"] == {"admitted_p95_ratio": 1.25}
    assert written["machine"].keys() >= {"processor", "cores", "python", "at", "load_before", "load_after"}


def test_the_file_of_a_report_is_an_argument_of_every_benchmark() -> None:
    assert arguments("demo").parse_args([]).json is None
    assert arguments("demo").parse_args(["--json", "out.json"]).json == Path("out.json")


@pytest.mark.parametrize("text", ["0", "-1", "x"])
def test_a_count_below_one_is_refused(text: str) -> None:
    parser = arguments("demo")
    parser.add_argument("--pairs", type=positive)
    with pytest.raises(SystemExit):
        parser.parse_args(["--pairs", text])
