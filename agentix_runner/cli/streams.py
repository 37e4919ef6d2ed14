"""The command line's log lines: from the `agentix_runner` logger to stderr, whatever adapters do to logging."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, TextIO

from ..text import clean, printable

LOGGER = "agentix_runner"


if TYPE_CHECKING:
    _Handler = logging.StreamHandler[TextIO]
else:
    _Handler = logging.StreamHandler  # can't be subscripted before Python 3.11


class LineHandler(_Handler):
    """Writes to a terminal or a pipe; `around` is entered for each write (to take a progress line away)."""

    around: Callable[[], AbstractContextManager[None]] = staticmethod(nullcontext)

    def emit(self, record: logging.LogRecord) -> None:
        with self.around():
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Nobody reads stderr any more, or a log call is faulty: neither may stop the run."""


class LineFormatter(logging.Formatter):
    """`12:03:11 WARNING text`, every character printable; with the instance and phase where the record has them."""

    def format(self, record: logging.LogRecord) -> str:
        level = "" if record.levelno == logging.INFO else f"{record.levelname} "
        about = " ".join(clean(v, 80) for v in (getattr(record, k, None) for k in ("instance_id", "phase")) if v)
        text = f"{self.formatTime(record, '%H:%M:%S')} {level}{f'[{about}] ' if about else ''}{_message(record)}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return printable(text)


def _message(record: logging.LogRecord) -> str:
    # Indented, so that what a sandbox prints can't pass for a log line of its own.
    return record.getMessage().rstrip("\n").replace("\n", "\n    ")


@contextmanager
def logging_to(stream: TextIO, *, verbose: bool, quiet: bool) -> Iterator[LineHandler]:
    """Inside, agentix_runner's log lines are written to `stream`: errors only (`quiet`), debugging and the sandboxes'
    output too (`verbose`), or what is between. The root logger is left alone."""
    logger = logging.getLogger(LOGGER)
    sandbox = logging.getLogger(f"{LOGGER}.sandbox")
    before = (logger.level, logger.propagate, sandbox.level)
    handler = LineHandler(stream)
    handler.setFormatter(LineFormatter())
    logger.addHandler(handler)
    logger.propagate = False  # an adapter that configures the root logger would double every line
    logger.setLevel(logging.ERROR if quiet else logging.DEBUG if verbose else logging.INFO)
    sandbox.setLevel(logging.DEBUG if verbose else logging.ERROR)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]
        sandbox.setLevel(before[2])
        handler.close()
