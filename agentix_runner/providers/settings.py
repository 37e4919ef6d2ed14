"""What providers' arguments must be. Raised when a provider is made, not rollout by rollout."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from ..errors import BadArgument

_MEMORY = re.compile(r"\d+(\.\d+)?\s*([bkmgt]b?)?", re.IGNORECASE)


def above_zero(provider: Any, attribute: Any, value: Any) -> None:
    if not _is_number(value) or not 0 < value < math.inf:
        raise _wrong(provider, attribute, value, "give a number above 0")


def above_zero_or_none(provider: Any, attribute: Any, value: Any) -> None:
    if value is not None and (not _is_number(value) or not 0 < value < math.inf):
        raise _wrong(provider, attribute, value, "give a number above 0, or None for no limit")


def whole_number(provider: Any, attribute: Any, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _wrong(provider, attribute, value, "give a whole number, 0 or more")


def memory(provider: Any, attribute: Any, value: Any) -> None:
    if value is None or (isinstance(value, str) and _MEMORY.fullmatch(value.strip())):
        return
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise _wrong(provider, attribute, value, 'give bytes, text such as "4g", or None for no limit')


def texts(provider: Any, attribute: Any, value: Any) -> None:
    """A mapping of text to text."""
    if not isinstance(value, Mapping) or not all(isinstance(part, str) for pair in value.items() for part in pair):
        raise _wrong(provider, attribute, value, "give a dict of str to str")


def mounts(provider: Any, attribute: Any, value: tuple[Any, ...]) -> None:
    for mount in value:
        if isinstance(mount, str) and not re.fullmatch(r"[^:]+:/[^:]*(:[^:]+)?", mount):
            raise _wrong(provider, attribute, mount, 'give "SOURCE:TARGET" or "SOURCE:TARGET:ro", TARGET from / on')


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _wrong(provider: Any, attribute: Any, value: Any, remedy: str) -> BadArgument:
    return BadArgument(f"{type(provider).__name__}.{attribute.name} is {value!r:.200}: {remedy}")
