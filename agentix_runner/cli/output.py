"""stdout: it belongs to the result. Adapters that print, and readers that leave early, don't spoil it."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import TextIO

import click

from ..errors import JournalError
from ..text import wants_color


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
