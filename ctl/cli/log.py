"""Where the log goes: standard error, in plain lines; coloured only for a person at a terminal."""

import logging
import os
import sys
from typing import Any

from sched_ctl.errors import printable

__all__ = ["formatter", "only_errors", "set_up"]

# sd-daemon(3): under systemd a line may begin with its priority
JOURNAL = {logging.ERROR: "<3>", logging.WARNING: "<4>", logging.INFO: "<6>", logging.DEBUG: "<7>"}
COLOURS = {logging.ERROR: "\033[31m", logging.WARNING: "\033[33m", logging.DEBUG: "\033[2m"}


class _Line(logging.Formatter):
    def __init__(self, style: str) -> None:
        super().__init__("%(message)s")
        self._style_name = style

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  logging's name
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802
        # Indented, so that no error's text looks like a line of the log.
        lines = super().formatException(ei).splitlines()
        return "\n".join("  " + printable(line) for line in lines)

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if self._style_name == "journal":
            prefix = JOURNAL.get(record.levelno, "")
            return "\n".join(prefix + line for line in text.splitlines())
        clock = self.formatTime(record, "%H:%M:%S")
        if self._style_name == "terminal" and record.levelno in COLOURS:
            text = f"{COLOURS[record.levelno]}{text}\033[0m"
        return f"{clock} {text}"


def formatter(style: str) -> logging.Formatter:
    """style: "plain", "journal" (systemd's) or "terminal", in colours."""
    return _Line(style)


def set_up(level: int = logging.INFO) -> None:
    style = "plain"
    if os.environ.get("JOURNAL_STREAM") and not sys.stderr.isatty():
        style = "journal"
    elif sys.stderr.isatty() and not os.environ.get("NO_COLOR"):
        style = "terminal"
    handler = logging.StreamHandler()
    handler.setFormatter(formatter(style))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for chatty in ("httpx", "httpcore", "asyncio", "matplotlib"):
        logging.getLogger(chatty).setLevel(max(level, logging.WARNING))


def only_errors() -> None:
    """From now on, of a command that shows what is to be known; with --debug all of it stays."""
    root = logging.getLogger()
    if root.level != logging.DEBUG:
        root.setLevel(logging.ERROR)
