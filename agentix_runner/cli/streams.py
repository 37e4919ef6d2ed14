"""The two streams of the command line: log lines go to stderr, whatever adapters do to logging; stdout belongs to the
result, and neither adapters that print nor readers that leave early spoil it."""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout, suppress
from typing import TextIO

import click

from ..errors import JournalError
from ..text import clean, printable, wants_color

LOGGER = "agentix_runner"


class LineHandler(logging.StreamHandler):  # type: ignore[type-arg] # Python 3.10 can't subscript it
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


def ensure_streams() -> None:
    """Where the caller closed stdout or stderr (`>&-`), write to nowhere instead of failing."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - it is for the rest of the process


@contextmanager
def reserved_stdout() -> Iterator[TextIO]:
    """The stream for the result. All else that is written to stdout inside, by adapters, C code or child processes of
    this process, goes to stderr: it neither mixes with the result, nor fails when the result's reader has left."""
    out = sys.stdout
    try:
        real = out.fileno() == 1
    except (OSError, ValueError):
        real = False  # not a file: a test's, or a notebook's
    if not real:
        with redirect_stdout(sys.stderr):
            yield out
            sys.stderr.flush()
        return
    out.flush()
    if isinstance(out, io.TextIOWrapper):
        out.reconfigure(line_buffering=True)  # stderr is, and nobody expects prints to wait for the end of the run
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with os.fdopen(os.dup(kept), "w", encoding=out.encoding) as stream:
            yield stream
    finally:
        with suppress(OSError):  # nobody reads stderr any more
            out.flush()
        os.dup2(kept, 1)
        os.close(kept)


def write(text: str, stream: TextIO) -> None:
    """Write `text` and a line end. A reader that has left (`| head`) is no error.

    Raises:
        JournalError: it can't be written for another reason (disk full).
    """
    try:
        shown = text if wants_color(stream) else click.unstyle(text)
        # As bytes, so that what the stream's encoding can't hold is an escape, not an error.
        click.echo(shown.encode(stream.encoding or "utf-8", "backslashreplace"), file=stream)
    except BrokenPipeError:
        _give_up(stream)
    except OSError as exc:
        _give_up(stream)
        raise JournalError(f"the result can't be written to stdout: {exc.strerror}") from exc


def _give_up(stream: TextIO) -> None:
    """Let what is left in `stream` go to nowhere, so that no later flush of it fails."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
    stream.flush()
