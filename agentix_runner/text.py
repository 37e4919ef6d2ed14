"""Text as people see it, in a terminal and in HTML, and what a secret looks like, which is not to be seen at all.

What comes from datasets, agents and sandboxes is untrusted.
"""

from __future__ import annotations

import html
import os
import re
import unicodedata
from collections.abc import Mapping
from typing import Any, TextIO

MAX_LINE = 500
MAX_BLOCK = 20_000  # characters of one text in HTML
HTML_CELL = "text-align:left;vertical-align:top"

_SECRET_NAME = re.compile(
    r"secret|passw|passphrase|credential|authorization|bearer|cookie|(api|access|private|signing|encryption)_?key"
)
_MAYBE_SECRET_NAME = re.compile(r"key(s|_|$)|tokens?(_|$)|(^|_)auth(_|$)")  # unless it is a number, as "max_tokens" is
_SECRET_HEADER = re.compile(r"auth|key|token|session|signature")  # anywhere in a header's name
_SECRET_VALUE = re.compile(
    r"\b(sk|rk|pk|ak)-[\w-]{8,}"  # OpenAI, Anthropic and their like
    r"|\b(bearer|basic)\s+[\w+/=.~-]{8,}"
    r"|\b(ghp|gho|ghu|ghs|ghr|github_pat|glpat|hf|xox[abprs]|pypi|npm|gsk|xai)[-_][\w-]{8,}"
    r"|\bA(KIA|SIA)[0-9A-Z]{12,}|\bAIza[\w-]{20,}"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}"  # a JSON web token
    r"|-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|://[^/\s:@]*:[^/\s@]+@"  # a password in a URL
    r"|(api[-_]?key|access[-_]?token|secret|password)[\"']?\s*[=:]\s*\S",
    re.IGNORECASE,
)


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


def html_line(text: str, limit: int) -> str:
    """`clean` text as HTML."""
    return html.escape(clean(text, limit))


def html_block(text: str, *, folded: bool = True) -> str:
    """A text of several lines as HTML. A folded one shows how many there are, and itself when it is clicked."""
    lines = plural(text.count("\n") + (not text.endswith("\n")), "line")
    text = printable(text if len(text) <= MAX_BLOCK else text[:MAX_BLOCK] + "\n[cut here]")
    block = f"<pre>{html.escape(text)}</pre>"
    return f"<details><summary>{lines}</summary>{block}</details>" if folded else block


def html_table(rows: Mapping[str, str]) -> str:
    """A table of names and values, all of them HTML; those without a value are left out."""
    made = [
        f'<tr><th style="{HTML_CELL}">{name}</th><td style="{HTML_CELL}">{value}</td></tr>'
        for name, value in rows.items()
        if value
    ]
    return f"<table><tbody>{''.join(made)}</tbody></table>"


def is_secret(value: Any, name: str = "") -> bool:
    """Whether `value` looks like a secret, or is one by the name of the field or argument that it is of."""
    if isinstance(value, str) and _SECRET_VALUE.search(value):
        return True
    if value is None or isinstance(value, bool):
        return False
    name = snake_case(name)
    if _SECRET_NAME.search(name):
        return True
    counts = isinstance(value, (int, float)) or (isinstance(value, str) and value.isdigit() and name.endswith("tokens"))
    return not counts and _MAYBE_SECRET_NAME.search(name) is not None


def is_secret_header(name: str) -> bool:
    """Whether a header of this name holds a secret, by all appearances."""
    name = name.lower()
    return _SECRET_HEADER.search(name) is not None or _SECRET_NAME.search(name) is not None


def snake_case(name: str) -> str:
    """A name as "snake_case", whether it was "camelCase", "kebab-case" or "dotted.name"."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[\s.-]+", "_", name).lower()


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
