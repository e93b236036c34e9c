"""Log lines of a worker: JSON objects for collectors, or short lines for people."""

import datetime
import json
import logging
import os
import sys
from typing import Any

FORMAT_VARIABLE = "RELAY_LOG_FORMAT"  # "json" or "human"; unset: human on a terminal
_FIELDS = ("worker", "incarnation", "phase", "step", "event")


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(),
            "level": record.levelname.lower(),
        }
        line |= {name: getattr(record, name) for name in _FIELDS if hasattr(record, name)}
        line["message"] = record.getMessage()
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


class _HumanFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        worker = f"worker {record.worker}: " if hasattr(record, "worker") else ""
        level = "" if record.levelno < logging.WARNING else record.levelname.lower() + ": "
        text = f"{worker}{level}{record.getMessage()}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class WorkerLog(logging.LoggerAdapter[logging.Logger]):
    """A logger whose records carry worker, incarnation, phase and step."""

    def __init__(self, worker: int) -> None:
        super().__init__(logging.getLogger("relay.worker"), {"worker": worker})

    def set(self, **fields: Any) -> None:
        """Change the fields that every later record carries."""
        self.extra = {**(self.extra or {}), **fields}

    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        """Join the adapter's fields with those of the call."""
        kwargs["extra"] = {**(self.extra or {}), **kwargs.get("extra", {})}
        return msg, kwargs


def set_up_logging() -> None:
    """Send the root logger's records to standard error in the format that the environment names."""
    chosen = os.environ.get(FORMAT_VARIABLE) or ("human" if sys.stderr.isatty() else "json")
    handler = logging.StreamHandler()
    handler.setFormatter(_HumanFormatter() if chosen == "human" else _JsonFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.captureWarnings(True)
