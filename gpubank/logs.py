"""How every process logs: one line per event, as text for people or JSON for machines, on stderr.

What a record carries beside its message (`extra`) are fields of their own: which Loan, which Reclaim, which pool. What
Temporal adds to the records of workflows and activities is laid flat among them: `workflow_id`, `activity_type`, …
"""

import json
import logging
from collections.abc import Mapping
from copy import copy
from datetime import UTC, datetime
from typing import Any, Final

from gpubank.settings import LogFormat

CHATTY: Final = ("httpx2", "httpcore2", "alembic", "aiosqlite", "sqlalchemy", "asyncio")
"""Libraries that report every call; only their warnings are shown."""


_OF_EVERY_RECORD: Final = logging.makeLogRecord({}).__dict__.keys() | {"message", "asctime"}


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time (RFC 3339), level, logger, message, fields, and the error with its trace."""

    def format(self, record: logging.LogRecord) -> str:
        """Render one record."""
        entry = fields(record) | {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    """Time, level and message, and the workflow that it is about."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """Render one record, with its trace if it has one."""
        if workflow := fields(record).get("workflow_id"):
            record = copy(record)  # other handlers show it in their own way
            record.msg, record.args = f"{record.getMessage()} ({workflow})", None
        return super().format(record)


def fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return what a record carries beside what every record has; mappings are laid flat, what is unknown left out."""
    found: dict[str, Any] = {}
    for key, value in record.__dict__.items():
        if key not in _OF_EVERY_RECORD and not key.startswith("_"):
            found |= value if isinstance(value, Mapping) else {key: value}
    return {key: value for key, value in found.items() if value is not None}


def configure(level: str, style: LogFormat) -> None:
    """Send everything from `level` up to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if style is LogFormat.JSON else TextFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in CHATTY:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLevelName(level)))
