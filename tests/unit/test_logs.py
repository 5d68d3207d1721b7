"""Every record as one line, with what it is about in fields of its own."""

import json
import logging
import sys

from gpubank.logs import JsonFormatter, TextFormatter


def record(message: str, *values: object, **fields: object) -> logging.LogRecord:
    made = logging.getLogger("gpubank.test").makeRecord(
        "gpubank.test", logging.INFO, "file", 1, message, values, None, extra=fields
    )
    made.created = 1_800_000_000.25
    return made


def test_a_line_of_json_has_the_time_the_message_and_every_field() -> None:
    line = JsonFormatter().format(record("pool %s: ünsaved", "h100", loans=["loan/c/1"], reclaims=None))
    assert json.loads(line) == {
        "time": "2027-01-15T08:00:00.250+00:00",
        "level": "INFO",
        "logger": "gpubank.test",
        "message": "pool h100: ünsaved",
        "loans": ["loan/c/1"],
    }


def test_what_temporal_adds_is_laid_flat_and_its_private_marks_are_left_out() -> None:
    details = {"workflow_id": "loan/c/1", "attempt": 2}
    entry = json.loads(JsonFormatter().format(record("moved", temporal_workflow=details, __temporal_mark="x", at=...)))
    assert (entry["workflow_id"], entry["attempt"], entry["at"]) == ("loan/c/1", 2, "Ellipsis")
    assert not [key for key in entry if key.startswith(("_", "temporal"))]


def test_a_field_cannot_stand_for_the_time_or_the_level() -> None:
    assert json.loads(JsonFormatter().format(record("x", level="none")))["level"] == "INFO"


def test_an_error_comes_with_its_trace_in_the_same_line() -> None:
    try:
        raise ValueError("no such queue")
    except ValueError:
        made = record("turn failed")
        made.exc_info = sys.exc_info()
    line = JsonFormatter().format(made)
    assert "\n" not in line
    assert "no such queue" in json.loads(line)["error"]


def test_a_line_for_people_ends_with_the_workflow_that_it_is_about() -> None:
    text = TextFormatter()
    assert text.format(record("moved", temporal_workflow={"workflow_id": "loan/c/1"})).endswith("moved (loan/c/1)")
    assert text.format(record("moved")).endswith("INFO    moved")
