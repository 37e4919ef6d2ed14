"""Text for a terminal: what comes from datasets, agents and sandboxes is untrusted and may not steer it."""

from __future__ import annotations

import os
import unicodedata
from typing import TextIO

MAX_LINE = 500


def clean(text: object, limit: int = MAX_LINE) -> str:
    """`text` as one printable line of at most `limit` characters: runs of white space become one space, and control
    characters (also those that reorder text) are shown as escapes."""
    line = " ".join(printable(str(text)[: 8 * limit]).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def printable(text: str) -> str:
    """`text` with every character that is not printable, line ends and tabs apart, shown as an escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else _escape(c) for c in text.replace("\r\n", "\n"))


def _escape(char: str) -> str:
    # Other white space (no-break spaces, \v) is harmless, and splitting treats it as such.
    return " " if char.isspace() and char not in "\x1c\x1d\x1e\x1f\x85" else ascii(char)[1:-1]


def cut_to(line: str, width: int) -> str:
    """As much of a printable line as fits into `width` columns of a terminal."""
    for end, char in enumerate(line):
        if not unicodedata.combining(char):
            width -= 2 if unicodedata.east_asian_width(char) in "WF" else 1
        if width < 0:
            return line[:end]
    return line


def plural(count: int, noun: str) -> str:
    """ "1 rollout", "2 rollouts"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def seconds(value: float) -> str:
    """A duration in seconds for people: "0.42s", "7.3s", "2m05s", "3h07m"."""
    if value < 1:
        return f"{value:.2f}s"
    return f"{value:.1f}s" if value < 59.95 else whole_seconds(value)


def whole_seconds(value: float) -> str:
    """The same without fractions: "7s", "2m05s", "3h07m"."""
    whole = int(value + 0.5)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def wants_color(stream: TextIO) -> bool:
    """Whether `stream` is a terminal whose user has not said no to colour (https://no-color.org)."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def is_terminal(stream: TextIO) -> bool:
    """Whether `stream` is a terminal that can redraw a line."""
    try:
        return stream.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:  # closed
        return False
