"""How every process logs: one line per event, as text for people or JSON for machines, on stderr."""

import json
import logging
from datetime import UTC, datetime
from typing import Final

from gpubank.settings import LogFormat

CHATTY: Final = ("httpx2", "httpcore2", "alembic", "aiosqlite", "sqlalchemy", "asyncio")
"""Libraries that report every call; only their warnings are shown."""


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time (RFC 3339), level, logger, message, and the error with its trace."""

    def format(self, record: logging.LogRecord) -> str:
        """Render one record."""
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def configure(level: str, style: LogFormat) -> None:
    """Send everything from `level` up to stderr."""
    handler = logging.StreamHandler()
    if style is LogFormat.JSON:
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in CHATTY:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLevelName(level)))
