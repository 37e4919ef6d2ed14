"""How a call's outcome travels from the sandbox to the host: JSON with tags, and raw bytes beside it. Both ends use it.

Runs in the sandbox too, so: standard library only. What the host decodes may have been made by an enemy: it is parsed,
never executed, and no part of it names a class. A message is

    length of the JSON: 4 bytes | number of blobs: 4 bytes | length of each blob: 8 bytes | JSON (ASCII) | blobs

None, booleans, integers, finite floats, text, lists and dicts with text keys are themselves in the JSON. All else is an
object whose first key is `TAG`: tuples, sets, dicts with other keys, NaN and infinities, complex numbers, huge
integers, bytes, and text that is long. Richer objects travel as what they are made of (a dataclass as a dict of its
fields, an enum as its value, a date as ISO text, a path as text): the host rebuilds them where the function's own
annotation says what they are.
"""

from __future__ import annotations

import json
import re
import struct
import sys
from collections import Counter
from enum import Enum

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

TAG = "$"
MAX_DEPTH = 200
"""Most levels of nesting in the JSON. The C parser would go on until it has overflown a thread's stack."""
MAX_JSON = 32 * 1024 * 1024
"""Most bytes of JSON. Parsed, it may take twenty times as much memory."""
MAX_DIGITS = 4000
"""Integers of more decimal digits than this travel as hexadecimal text: reading that takes linear time."""
MAX_HEX = 1024 * 1024
MAX_SAME_HASH = 200
"""Most keys of one set or dict that may have the same hash."""
LONG_TEXT = 4096
"""Text of more characters than this travels beside the JSON."""

_HEAD = struct.Struct(">II")
_SIZE = struct.Struct(">Q")
_BIG = 1 << int(MAX_DIGITS * 3.3)
_DIGITS = re.compile(rb"[0-9]{%d}" % (MAX_DIGITS + 1))
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
# Everything but what surrogateescape makes (U+DC80 to U+DCFF).
_STRAY = re.compile("[\ud800-\udc7f\udd00-\udfff]")
_ESCAPED = re.compile(rb"\\u[dD][89a-fA-F]")
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


class Unsendable(Exception):
    """A value can't travel. `where` leads to it, from the outside in."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why
        self.where: list[str] = []

    def __str__(self) -> str:
        return f"result{''.join(reversed(self.where))} {self.why}"


class Malformed(Exception):
    """A message breaks the rules above."""


# --- the sandbox's half -------------------------------------------------------------------------------------------


def encode(value: Any) -> list[bytes | memoryview]:
    """The message for `value`, in parts. Raises Unsendable."""
    blobs: list[bytes | memoryview] = []
    packed = _Packer(blobs).pack(value, 1)
    header = json.dumps(packed, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii")
    if len(header) > MAX_JSON:
        raise Unsendable(f"takes {len(header)} bytes of JSON; the limit is {MAX_JSON}. Return it as bytes or text")
    sizes = [_SIZE.pack(len(blob)) for blob in blobs]
    return [b"".join((_HEAD.pack(len(header), len(blobs)), *sizes, header)), *blobs]


class _Packer:
    def __init__(self, blobs: list[bytes | memoryview]) -> None:
        self.blobs = blobs

    def pack(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is str:
            return self._text(value)
        if kind is int:
            return value if -_BIG < value < _BIG else self._huge(value)
        if kind is float:
            return value if value - value == 0 else {TAG: "float", "v": repr(value)}
        if depth + 2 > MAX_DEPTH:
            raise Unsendable(f"is nested deeper than {MAX_DEPTH // 2} levels, or holds itself")
        if kind is list:
            return self._items(value, depth)
        if kind is dict:
            return self._dict(value, depth)
        return self._other(value, depth)

    def _text(self, value: str) -> Any:
        if not value.isascii():
            stray = _STRAY.search(value)
            if stray:
                raise Unsendable(f"has the lone surrogate {stray.group()!a} in its text")
        if len(value) <= LONG_TEXT:
            return value
        return {TAG: "text", "v": self._blob(value.encode("utf-8", "surrogatepass"))}

    def _huge(self, value: int) -> Any:
        digits = hex(value)
        if len(digits) > MAX_HEX:
            raise Unsendable(f"is an integer of more than {MAX_HEX} hexadecimal digits")
        return {TAG: "int", "v": digits}

    def _blob(self, data: bytes | memoryview) -> int:
        self.blobs.append(data)
        return len(self.blobs) - 1

    def _items(self, values: Iterable[Any], depth: int) -> list[Any]:
        packed = []
        for value in values:
            try:
                packed.append(self.pack(value, depth + 1))
            except Unsendable as error:
                error.where.append(f"[{len(packed)}]")
                raise
        return packed

    def _dict(self, value: dict[Any, Any], depth: int) -> Any:
        if TAG in value or not all(type(key) is str and len(key) <= LONG_TEXT for key in value):
            pairs = []
            for key, item in value.items():
                pairs.append([self.pack(key, depth + 3), self._entry(key, item, depth + 3)])
            return {TAG: "dict", "v": pairs}
        return {self._text(key): self._entry(key, item, depth + 1) for key, item in value.items()}

    def _entry(self, key: Any, item: Any, depth: int) -> Any:
        try:
            return self.pack(item, depth)
        except Unsendable as error:
            error.where.append(f"[{_short(key)}]")
            raise

    def _other(self, value: Any, depth: int) -> Any:
        if isinstance(value, Enum):
            return self.pack(value.value, depth)
        if isinstance(value, (bytes, bytearray, memoryview)):
            return {TAG: "bytes", "v": self._blob(value if type(value) is bytes else bytes(value))}
        for base in (bool, int, float, str):
            if isinstance(value, base):
                return self.pack(base(value) if base is not str else str.__str__(value), depth)
        if isinstance(value, dict):
            return self._dict(dict(value), depth)
        if isinstance(value, tuple):
            return {TAG: "tuple", "v": self._items(value, depth + 1)}
        if isinstance(value, (set, frozenset)):
            name = "set" if isinstance(value, set) else "frozenset"
            return {TAG: name, "v": self._items(value, depth + 1)}
        if isinstance(value, list):
            return self._items(value, depth)
        if isinstance(value, complex):
            return {TAG: "complex", "v": [repr(value.real), repr(value.imag)]}
        fields = _fields(value)
        if fields is not None:
            return self._dict({name: getattr(value, name) for name in fields}, depth)
        simple = _simple(value)
        if simple is not None:
            return self.pack(simple, depth)
        raise Unsendable(
            f"is a {type(value).__module__}.{type(value).__qualname__}, which can't be sent: return plain data, "
            "a dataclass or an attrs object"
        )


def _short(key: Any) -> str:
    text = repr(key)
    return text if len(text) <= 60 else text[:57] + "..."


def _fields(value: Any) -> list[str] | None:
    kind = type(value)
    if hasattr(kind, "__dataclass_fields__"):
        return [field.name for field in sys.modules["dataclasses"].fields(value)]
    attributes = getattr(kind, "__attrs_attrs__", None)
    return None if attributes is None else [attribute.name for attribute in attributes]


def _simple(value: Any) -> Any:
    """Text or a number for the standard library's (and numpy's) scalars. Their modules are not imported for it: where
    one isn't loaded, the value is none of its own."""
    if hasattr(type(value), "__fspath__"):
        return value.__fspath__()
    loaded = sys.modules.get
    dates = loaded("datetime")
    if dates is not None:
        if isinstance(value, (dates.date, dates.time)):
            return value.isoformat()
        if isinstance(value, dates.timedelta):
            return value.total_seconds()
    for module, name in (("decimal", "Decimal"), ("uuid", "UUID"), ("fractions", "Fraction")):
        home = loaded(module)
        if home is not None and isinstance(value, getattr(home, name)):
            return str(value)
    numpy = loaded("numpy")
    if numpy is not None and hasattr(numpy, "generic") and isinstance(value, numpy.generic):
        return value.item()
    return None


# --- the host's half ----------------------------------------------------------------------------------------------


def decode(message: bytes | bytearray | memoryview) -> Any:
    """The plain value of a message. Raises Malformed, and nothing else, whatever the bytes are."""
    view = memoryview(message)
    header, blobs = _take_apart(view)
    check_depth(header)
    unpacker = _Unpacker(blobs)
    parse_int = _refuse_long if _DIGITS.search(header) else None
    try:
        value = json.loads(
            header.decode("ascii"),
            object_pairs_hook=unpacker.object,
            parse_constant=_refuse_constant,
            parse_int=parse_int,
        )
    except Malformed:
        raise
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError, MemoryError) as error:
        raise Malformed(f"not the JSON of a result: {str(error)[:200]}") from None
    if _ESCAPED.search(header):
        _check_texts(value)
    return value


def check_depth(header: bytes) -> None:
    """Refuse JSON that is nested too deep, or not balanced, before any parser sees it.

    Every round takes away the innermost brackets, so the rounds are the depth.
    """
    brackets = _STRINGS.sub(b"", header).translate(_BRACKETS, _NOT_BRACKETS)
    depth = 0
    while brackets:
        depth += 1
        if depth > MAX_DEPTH:
            raise Malformed(f"JSON nested deeper than {MAX_DEPTH} levels")
        fewer = brackets.replace(b"[]", b"")
        if len(fewer) == len(brackets):
            raise Malformed("JSON with brackets that don't match")
        brackets = fewer


def _take_apart(view: memoryview) -> tuple[bytes, list[memoryview]]:
    if len(view) < _HEAD.size:
        raise Malformed(f"a message of {len(view)} bytes: at least {_HEAD.size} wanted")
    header_size, count = _HEAD.unpack_from(view)
    start = _HEAD.size + _SIZE.size * count
    if header_size > MAX_JSON:
        raise Malformed(f"{header_size} bytes of JSON; the limit is {MAX_JSON}")
    if start + header_size > len(view):
        raise Malformed(f"a message of {len(view)} bytes: at least {start + header_size} wanted")
    sizes = [_SIZE.unpack_from(view, _HEAD.size + _SIZE.size * index)[0] for index in range(count)]
    if start + header_size + sum(sizes) != len(view):
        raise Malformed(f"a message of {len(view)} bytes: {start + header_size + sum(sizes)} wanted")
    header = bytes(view[start : start + header_size])
    blobs = []
    at = start + header_size
    for size in sizes:
        blobs.append(view[at : at + size])
        at += size
    return header, blobs


class _Unpacker:
    def __init__(self, blobs: list[memoryview]) -> None:
        self.blobs: list[memoryview | None] = list(blobs)

    def object(self, pairs: list[tuple[str, Any]]) -> Any:
        result = dict(pairs)
        if len(result) != len(pairs):
            raise Malformed("JSON with the same key twice")
        if TAG not in result:
            return result
        if len(pairs) != 2 or pairs[0][0] != TAG or pairs[1][0] != "v":
            raise Malformed("a tag that is not of the form it must have")
        return self._tagged(pairs[0][1], pairs[1][1])

    def _tagged(self, tag: Any, value: Any) -> Any:
        if tag == "tuple":
            return tuple(_list(value))
        if tag == "bytes":
            return bytes(self._blob(value))
        if tag == "text":
            text = str(self._blob(value), "utf-8", "surrogatepass")
            _check_text(text)
            return text
        if tag == "dict":
            return self._dict(_list(value))
        if tag in ("set", "frozenset"):
            items = _list(value)
            _check_hashes(items)
            made = set(items) if tag == "set" else frozenset(items)
            if len(made) != len(items):
                raise Malformed("a set with the same item twice")
            return made
        if tag == "float":
            if value not in ("nan", "inf", "-inf"):
                raise Malformed("a float tag that is neither NaN nor an infinity")
            return float(value)
        if tag == "complex":
            real, imag = _list(value)
            return complex(_float(real), _float(imag))
        if tag == "int":
            if not isinstance(value, str) or len(value) > MAX_HEX or not re.fullmatch("-?0x[0-9a-f]+", value):
                raise Malformed("an integer tag that is not hexadecimal, or too long")
            return int(value, 16)
        raise Malformed(f"unknown tag {_short(tag)}")

    def _blob(self, index: Any) -> memoryview:
        # Each at most once: a short message must not become a large value.
        if type(index) is not int or not 0 <= index < len(self.blobs):
            raise Malformed("a reference to bytes that are not there")
        blob = self.blobs[index]
        if blob is None:
            raise Malformed("two references to the same bytes")
        self.blobs[index] = None
        return blob

    def _dict(self, pairs: list[Any]) -> dict[Any, Any]:
        items = [(key, value) for key, value in map(_list, pairs)]
        _check_hashes([key for key, _ in items])
        result = dict(items)
        if len(result) != len(pairs):
            raise Malformed("a dict with the same key twice")
        return result


def _check_hashes(keys: list[Any]) -> None:
    """Refuse keys made to collide: a set of them would take hours, and the whole process with it."""
    if len(keys) > MAX_SAME_HASH and max(Counter(map(hash, keys)).values()) > MAX_SAME_HASH:
        raise Malformed(f"more than {MAX_SAME_HASH} keys with the same hash")


def _list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise Malformed("a tag whose value is not a list")
    return value


def _float(text: Any) -> float:
    if not isinstance(text, str) or len(text) > 40:
        raise Malformed("a complex number whose parts are not numbers")
    return float(text)


def _refuse_constant(name: str) -> Any:
    raise Malformed(f"JSON with {name}, which is not JSON")


def _refuse_long(digits: str) -> int:
    if len(digits) > MAX_DIGITS + 1:
        raise Malformed(f"an integer of {len(digits)} digits; the limit is {MAX_DIGITS}")
    return int(digits)


def _check_text(text: str) -> None:
    if not text.isascii() and _STRAY.search(text):
        raise Malformed("text with a lone surrogate that stands for no byte")


def _check_texts(value: Any) -> None:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            _check_text(item)
        elif isinstance(item, dict):
            waiting.extend(item)
            waiting.extend(item.values())
        elif isinstance(item, (list, tuple, set, frozenset)):
            waiting.extend(item)
