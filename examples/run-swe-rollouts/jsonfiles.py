"""Files of JSON that somebody wrote: what is wrong with one is told in one line, with the line's number."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agentix_runner.errors import BadArgument
from agentix_runner.remote.wire.codec import Malformed, check_depth


def read_lines(path: str | Path, *, what: str, errors: str = "strict") -> list[Any]:
    """What each line of a .jsonl file holds, blank ones aside. `what` says what they should be, `errors` what
    becomes of bytes that are no UTF-8.

    Raises:
        BadArgument: it can't be read, or a line is no JSON.
    """
    lines = _text(path, what, errors).split("\n")
    return [
        _parsed(line, f"{path}, line {number}, can't be read as {what}")
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]


def read_whole(path: str | Path, *, what: str, errors: str = "strict") -> Any:
    """What a .json file holds. Raises: BadArgument, likewise."""
    return _parsed(_text(path, what, errors), f"{path} can't be read as {what}")


def has_bytes(text: str) -> bool:
    """Whether a text can be written to a file: JSON may hold halves of characters that are nothing by themselves."""
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def content_hash(items: Iterable[Any]) -> str:
    """The same for the same items, in whatever order and file they stand."""
    texts = sorted(json.dumps(item, sort_keys=True, default=str) for item in items)
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def _text(path: str | Path, what: str, errors: str) -> str:
    try:
        # The mark that some editors put before a text is no part of it.
        return Path(path).read_bytes().decode("utf-8", errors).removeprefix("\ufeff")
    except (OSError, ValueError) as exc:
        raise BadArgument(f"{path} can't be read as {what}: {exc}") from exc


def _parsed(text: str, problem: str) -> Any:
    try:
        value = json.loads(text)
        check_depth(text.encode("utf-8", "surrogateescape"))
    except (RecursionError, Malformed):
        raise BadArgument(f"{problem}: it is nested too deep") from None
    except json.JSONDecodeError as exc:
        where = f"line {exc.lineno}, " if "\n" in text.strip() else ""
        raise BadArgument(f"{problem}: {exc.msg} ({where}column {exc.colno})") from None
    except ValueError as exc:  # a number of too many digits
        raise BadArgument(f"{problem}: {exc}") from None
    return value
