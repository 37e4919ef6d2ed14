"""What the runner logs in another process, on its way to the log of the process that started the run.

The records of a process are collected, and each rollout that ends there takes home what there is.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
from collections import deque
from collections.abc import Iterable, Mapping

from attrs import frozen

ROOT = "agentix_runner"
LOGGERS = (ROOT, f"{ROOT}.sandbox")
MOST_LINES = 2000
MOST_CHARS = 16_000
"""What is kept between two rollouts: the newest lines, each up to so many characters."""

_MARK = secrets.token_hex(8)


def this_process() -> str:
    """Names this process, among those on other machines and its own forks too."""
    return f"{_MARK}-{os.getpid()}"


@frozen
class Line:
    """A log record as plain data."""

    logger: str
    level: int
    text: str
    created: float
    instance_id: str = ""
    phase: str = ""


def levels() -> dict[str, int]:
    """From which level on this process wants log records, by logger."""
    return {name: logging.getLogger(name).getEffectiveLevel() for name in LOGGERS}


class Lines(logging.Handler):
    """Collects the runner's log records in a process that only works for another one."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: deque[Line] = deque(maxlen=MOST_LINES)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
            if record.exc_info:
                text += "\n" + logging.Formatter().formatException(record.exc_info)
        except Exception:
            text = str(record.msg)
        about = (str(getattr(record, name, "")) for name in ("instance_id", "phase"))
        self._kept.append(Line(record.name, record.levelno, text[:MOST_CHARS], record.created, *about))

    def take(self) -> list[Line]:
        """What has come since the last time."""
        taken = []
        with contextlib.suppress(IndexError):  # others may take at the same time
            while True:
                taken.append(self._kept.popleft())
        return taken


_lines: Lines | None = None
_installing = threading.Lock()


def collecting(host: str, wanted: Mapping[str, int]) -> Lines | None:
    """The collector of this process, at the levels `wanted`; None in the process `host` itself, where the records are
    at home."""
    global _lines
    if host == this_process():
        return None
    with _installing:
        root = logging.getLogger(ROOT)
        if _lines is None or _lines not in root.handlers:
            _lines = Lines()
            if host.startswith(_MARK):  # a fork of that process, with copies of its handlers
                root.handlers.clear()
            root.addHandler(_lines)
            root.propagate = False  # a worker's own log would tell everything a second time
        for name, level in wanted.items():
            logging.getLogger(name).setLevel(level)
        return _lines


def log_again(lines: Iterable[Line]) -> None:
    """Log `lines` in this process, as if they had been logged here."""
    for line in lines:
        logger = logging.getLogger(line.logger)
        if logger.isEnabledFor(line.level):
            record = logger.makeRecord(line.logger, line.level, "", 0, "%s", (line.text,), None)
            record.created = line.created
            record.instance_id, record.phase = line.instance_id, line.phase
            logger.handle(record)
