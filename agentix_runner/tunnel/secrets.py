"""Secrets kept out of what leaves the host: of records, of error texts, and of answers that repeat a request's headers.

On the host. Asterisks stand for a secret, as many as it has bytes, so that a body keeps its length.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Callable, Mapping
from functools import partial
from urllib.parse import quote

from ..text import is_secret_header

# What is shorter can be guessed, and stands in any text.
_SHORTEST = 8


class SecretFilter:
    """Hides the secrets among a tunnel's own `headers`."""

    def __init__(self, headers: Mapping[str, str | None]) -> None:
        found: set[bytes] = set()
        for name, value in headers.items():
            if value and is_secret_header(name):
                found |= _spellings(value)
        # Longest first: where one is a part of another, all of it is hidden.
        self._secrets = sorted(found, key=len, reverse=True)
        self._begins = frozenset(secret[0] for secret in self._secrets)

    def hide(self, data: bytes) -> bytes:
        """`data` without secrets."""
        # One by one: searching for one text is a hundred times as fast as for one of several.
        for secret in self._secrets:
            if secret in data:
                data = data.replace(secret, b"*" * len(secret))
        return data

    def hide_text(self, text: str) -> str:
        """`text` without secrets."""
        if not self._secrets:
            return text
        return self.hide(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def stream(self) -> FilteredStream:
        """For a body that comes in pieces."""
        return FilteredStream(self)

    def unfinished(self, data: bytes) -> int:
        """How many bytes at the end of `data` may be the beginning of a secret."""
        for size in range(min(len(data), len(self._secrets[0]) - 1 if self._secrets else 0), 0, -1):
            if data[-size] in self._begins:
                end = data[-size:]
                if any(secret.startswith(end) for secret in self._secrets):
                    return size
        return 0


class FilteredStream:
    """A body on its way. What may be the beginning of a secret is held back until more is known."""

    def __init__(self, secrets: SecretFilter) -> None:
        self._secrets = secrets
        self._held = b""

    def feed(self, data: bytes, *, last: bool = False) -> bytes:
        """What may go on, now that `data` has come."""
        data = self._secrets.hide(self._held + data)
        held = 0 if last else self._secrets.unfinished(data)
        self._held = data[len(data) - held :]
        return data[: len(data) - held]


# How a secret may be written: as it is, in JSON (with or without its slashes escaped), and in URLs.
_WRITTEN: tuple[Callable[[str], str], ...] = (
    str,
    lambda text: json.dumps(text)[1:-1],
    lambda text: json.dumps(text)[1:-1].replace("/", "\\/"),
    quote,
    partial(quote, safe=""),
)


def _spellings(value: str) -> set[bytes]:
    """A header's value, and what stands in it: the token behind its scheme, and what that is the base64 of. Each as it
    may be written in a text, or in base64."""
    scheme, _, token = value.partition(" ")
    found = {value, token.strip()}
    if scheme.lower() == "basic":
        with contextlib.suppress(ValueError):
            pair = base64.b64decode(token, validate=True).decode("latin-1")
            found |= {pair, pair.partition(":")[2]}
    found = {one for one in found if len(one) >= _SHORTEST}
    spelled = {write(one).encode("latin-1", "replace") for one in found for write in _WRITTEN}
    for one in found:
        spelled |= _base64(one.encode("latin-1", "replace"))
    return spelled


def _base64(data: bytes) -> set[bytes]:
    """What base64, of either alphabet, makes of `data` wherever it stands in a longer text."""
    found = set()
    for before in range(3):
        # Only characters that are made of `data` alone.
        first = (before * 8 + 5) // 6
        last = (before + len(data)) * 8 // 6
        padded = b"\0" * before + data + b"\0" * 2
        found |= {how(padded)[first:last] for how in (base64.b64encode, base64.urlsafe_b64encode)}
    return found
