"""How the text of an option becomes a value, and what is said when it doesn't."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

import click

from ..errors import BadArgument

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([smhd]?)")


def duration(text: str) -> float:
    """Seconds above 0 ("90", "1.5"), "30m", "2h"; "none", which is no limit, is infinity."""
    if text.lower() == "none":
        return math.inf
    match = _DURATION.fullmatch(text.strip().lower())
    seconds = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not 0 < seconds < math.inf:
        raise click.BadParameter(f"{text!r} is no time above 0: give seconds, 30m, 2h, or none")
    return seconds


def part(text: str) -> slice:
    """A slice, "A:B", ":B" or "A:", as in Python."""
    start, colon, stop = text.partition(":")
    try:
        if not colon:
            raise ValueError
        return slice(*(int(end) if end.strip() else None for end in (start, stop)))
    except ValueError:
        raise click.BadParameter(f"{text!r} is no slice: give A:B, A: or :B, whole numbers") from None


def error_limit(text: str) -> int | float:
    """How many errors end a run: a count, or a fraction of the batch below 1 ("0.1", "10%")."""
    try:
        if text.endswith("%"):
            return float(text[:-1]) / 100
        return float(text) if "." in text else int(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no number: give a count, or a fraction such as 0.1") from None


def key_value(text: str) -> tuple[str, str]:
    """A `K=V` pair."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip().isidentifier():
        # The value may be a secret, so only what stands before the equals sign is repeated.
        raise click.BadParameter(f"{key!r} is no K=V: give a name, an equals sign and a value")
    return key.strip(), value


def amount(text: str) -> tuple[str, float]:
    """A `K=N` pair: a resource and how much of it."""
    key, _, value = text.partition("=")
    try:
        number = float(value)
        if not key.strip() or not 0 < number < math.inf:
            raise ValueError
        return key.strip(), number
    except ValueError:
        raise click.BadParameter(f"{text!r} is no K=N: give a resource and a number above 0, GPU=1 say") from None


def to_mapping(pairs: Iterable[tuple[str, str]], option: str) -> dict[str, str]:
    """K=V pairs as a dict.

    Raises:
        BadArgument: a name is given twice.
    """
    out: dict[str, str] = {}
    for key, value in pairs:
        if key in out:
            raise BadArgument(f"{option} {key} is given twice: give each name once")
        out[key] = value
    return out
