"""Secrets kept out of what leaves the host: of records, of error texts, and of answers that repeat a request's headers.

A mask is as long as what it hides, so that a body keeps its length.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from functools import partial
from urllib.parse import quote, quote_plus

from ..text import is_secret_header

# What is shorter can be guessed, and stands in any text.
_SHORTEST = 8
_ESCAPE = re.compile(r"%[0-9A-F]{2}")


def is_secret(name: str) -> bool:
    """Whether a header of this name holds a secret, by all appearances."""
    return is_secret_header(name)


class Mask:
    """Hides the secrets among a tunnel's own `headers`."""

    def __init__(self, headers: Mapping[str, str | None]) -> None:
        found: set[bytes] = set()
        for name, value in headers.items():
            if value and is_secret(name):
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

    def stream(self) -> MaskedStream:
        """For a body that comes in pieces."""
        return MaskedStream(self)

    def begun(self, data: bytes) -> int:
        """How many bytes at the end of `data` may be the beginning of a secret."""
        for size in range(min(len(data), len(self._secrets[0]) - 1 if self._secrets else 0), 0, -1):
            if data[-size] in self._begins:
                end = data[-size:]
                if any(secret.startswith(end) for secret in self._secrets):
                    return size
        return 0


class MaskedStream:
    """A body on its way. What may be the beginning of a secret is held back until more is known."""

    def __init__(self, mask: Mask) -> None:
        self._mask = mask
        self._held = b""

    def feed(self, data: bytes, *, last: bool = False) -> bytes:
        """What may go on, now that `data` has come."""
        data = self._mask.hide(self._held + data)
        held = 0 if last else self._mask.begun(data)
        self._held = data[len(data) - held :]
        return data[: len(data) - held]


def _spellings(value: str) -> set[bytes]:
    """A header's value, and what stands in it: the token behind its scheme, and what that is the base64 of. Each as it
    is written in JSON, in URLs, in hexadecimal and in base64."""
    found = {value, value.partition(" ")[2].strip()}
    scheme, _, rest = value.partition(" ")
    if scheme.lower() == "basic":
        try:
            pair = base64.b64decode(rest, validate=True).decode("latin-1")
        except (binascii.Error, ValueError):
            pair = ""
        found |= {pair, pair.partition(":")[2]}
    found = {one for one in found if len(one) >= _SHORTEST}
    written = {json.dumps(one)[1:-1] for one in found}
    written |= {one.replace("/", "\\/") for one in written}
    written |= {how(one) for one in found for how in (quote, quote_plus, partial(quote, safe=""))}
    written |= {_ESCAPE.sub(lambda escape: escape.group().lower(), one) for one in written}
    plain = {one.encode("latin-1", "replace") for one in found}
    encoded = {how(one) for one in plain for how in (base64.b16encode, _base16_lower)}
    encoded |= {piece for one in plain for piece in _base64(one)}
    return plain | encoded | {one.encode("latin-1", "replace") for one in written}


def _base16_lower(data: bytes) -> bytes:
    return base64.b16encode(data).lower()


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
