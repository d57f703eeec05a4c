"""Logs: a constant message plus fields, as text or as one JSON object a line. Payloads and secrets are never fields."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from duly.model.errors import InvalidInputError

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


class _Fields(logging.Formatter):
    def fields(self, record: logging.LogRecord) -> dict[str, object]:
        return {k: v for k, v in vars(record).items() if k not in _STANDARD}


class _TextLines(_Fields):
    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, tz=UTC).strftime("%H:%M:%S.%f")[:-3]
        parts = [f"{at} {record.levelname.lower():<7} {record.name}: {record.getMessage()}"]
        parts += [f"{k}={v}" for k, v in self.fields(record).items()]
        text = " ".join(parts)
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class _JsonLines(_Fields):
    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, tz=UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self.fields(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)


def add_to_every_line(fields: logging.Filter) -> None:
    """Have a filter see each record, and add fields to it, before it is written."""
    for handler in logging.getLogger().handlers:
        handler.addFilter(fields)


def set_up_logs(form: str, verbose: bool) -> None:
    """Send the logs to stderr. Raises InvalidInputError for an unknown format."""
    if form not in ("text", "json"):
        raise InvalidInputError(f"log format {form!r} is not known: text or json")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines() if form == "json" else _TextLines())
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler], force=True)
