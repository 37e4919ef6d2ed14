"""What may go into a record: turns whatever an adapter returned into data that JSON gives back equal.

Two manners. `to_jsonable` is strict, for a score: a score is a verdict and must not be changed silently, so that what
JSON can't hold is an error naming the place. `to_jsonable_or_repr` is for an agent's notes: what JSON can't hold
becomes its `repr`. Nothing here trusts the values: their methods may raise, lie, or never have been meant for this.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import math
import pathlib
import reprlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs

from ..errors import BadOutcome

MAX_DEPTH = 100
"""How deep a value may be nested."""
MAX_TEXT = 64 * 1024 * 1024
"""How much a value, or a patch, may hold, in characters."""
MAX_DIGITS = 4300
"""How many digits a whole number may have: what Python reads back by default."""
MAX_REPR = 1000
"""How many characters of a `repr` are kept."""

_NODE = 16  # what one value costs of MAX_TEXT besides its text, so that endless small ones end too
_TOO_LARGE = 10**MAX_DIGITS
_REMEDY = "return plain data (dict, list, str, int, float, bool, None)"


def to_jsonable(value: Any, where: str = "value") -> Any:
    """`value` as plain data: dicts with text keys, lists, str, int, float, bool, None; always a copy.

    Sets become sorted lists, paths and dates text, enums their value, bytes text (surrogateescape), dataclasses and
    attrs objects dicts, numpy's scalars and arrays numbers and lists.

    Raises:
        BadOutcome: something in it can't be recorded; `where` of the error names it, as in `score["tests"][3]`.
    """
    try:
        return _Converter().convert(value, 0)
    except _NotJsonable as bad:
        place = where + "".join(reversed(bad.trail))
        raise BadOutcome(f"{place} {bad.reason}", where=place) from None


def to_jsonable_or_repr(value: Any) -> Any:
    """`value` as plain data, with `repr` (at most 1,000 characters) for what JSON can't hold. Never raises."""
    converter = _Converter(or_repr=True)
    try:
        return converter.convert(value, 0)
    except _NotJsonable as bad:
        return converter.stand_in(value, bad)


def patch_text(value: Any, where: str = "patch") -> str:
    """A patch as text: None is "", bytes are read as UTF-8 with surrogateescape, text is kept as it is.

    Raises:
        BadOutcome: it is neither, or longer than 64 Mi characters.
    """
    if value is None:
        return ""
    kind = type(value)
    if issubclass(kind, str):
        text = str.__str__(value)
    elif issubclass(kind, (bytes, bytearray, memoryview)):
        text = bytes(value).decode("utf-8", "surrogateescape")
    else:
        raise BadOutcome(f"{where} is {_a(value)}: return a unified diff as str or bytes, or None", where=where)
    if len(text) > MAX_TEXT:
        raise BadOutcome(f"{where} has {len(text):,} characters: at most {MAX_TEXT:,} are kept", where=where)
    return text


def patch_bytes(text: str) -> bytes:
    """A patch, or other text, as UTF-8: bytes that surrogateescape stands for come back as they were, other lone
    surrogates are written as surrogatepass does."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        ways = ((char, "surrogateescape" if "\udc80" <= char <= "\udcff" else "surrogatepass") for char in text)
        return b"".join(char.encode("utf-8", way) for char, way in ways)


def fields_of(kind: type) -> Sequence[Any] | None:
    """The fields of an attrs class or a dataclass; None of any other class."""
    if attrs.has(kind):
        fields: Sequence[Any] = attrs.fields(kind)
        return fields
    return dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else None


class _NotJsonable(Exception):
    """Something can't be recorded: why, and the way to it from the inside out."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.trail: list[str] = []


class _Converter:
    """Converts one value, and knows how much it may still take. With `or_repr` text stands for what JSON can't hold."""

    def __init__(self, *, or_repr: bool = False) -> None:
        self.or_repr = or_repr
        self.left = MAX_TEXT
        self.open: set[int] = set()  # the ids of what the value is in

    def convert(self, value: Any, depth: int) -> Any:
        value = _enum_value(value)
        kind = type(value)
        if value is None or kind is bool:
            self._count(0)
            return value
        if issubclass(kind, str):
            return self._text(value)
        if issubclass(kind, int):
            return self._whole(int.__pos__(value))
        if issubclass(kind, float):
            return self._number(float.__pos__(value))
        if depth > MAX_DEPTH:
            raise _NotJsonable(f"is nested more than {MAX_DEPTH} deep: {_REMEDY} that is flatter")
        if id(value) in self.open:
            raise _NotJsonable(f"contains itself: {_REMEDY} without cycles")
        self.open.add(id(value))
        try:
            return self._compound(value, kind, depth + 1)
        except _NotJsonable:
            raise
        except Exception as exc:
            raise _NotJsonable(f"is {_a(value)} that can't be read ({_type_name(exc)}): {_REMEDY}") from None
        finally:
            self.open.discard(id(value))

    def stand_in(self, value: Any, bad: _NotJsonable) -> str:
        """The text that stands for `value`."""
        text = f"<left out: {bad.reason.split(':')[0]}>" if self.left < 0 else _repr(value)
        self.left -= len(text)
        return text

    def _compound(self, value: Any, kind: type, depth: int) -> Any:
        """Reads past the methods that a subclass may have of its own. `depth` is that of what is in the value."""
        if issubclass(kind, dict):
            return self._dict(list(dict.items(value)), depth)
        if issubclass(kind, list):
            return self._list(list.__iter__(value), depth)
        if issubclass(kind, tuple):
            return self._list(tuple.__iter__(value), depth)
        if issubclass(kind, (set, frozenset)):
            base = set if issubclass(kind, set) else frozenset
            return sorted(self._list(base.__iter__(value), depth, ordered=False), key=_rank)
        if issubclass(kind, (bytes, bytearray)):
            return self._text(bytes(value).decode("utf-8", "surrogateescape"))
        if issubclass(kind, pathlib.PurePath):
            return self._text(str(value))
        if issubclass(kind, (datetime.date, datetime.time)):
            return self._text(value.isoformat())
        fields = fields_of(kind)
        if fields is not None:
            return self._dict([(field.name, getattr(value, field.name)) for field in fields], depth)
        if hasattr(kind, "tolist") and hasattr(kind, "dtype"):
            return self._array(value, kind, depth)
        raise _NotJsonable(f"is {_a(value)}, which can't be recorded: {_REMEDY}")

    def _array(self, value: Any, kind: type, depth: int) -> Any:
        """Numpy's scalars and arrays, and what behaves like them; numpy itself is never imported."""
        size = int(getattr(value, "nbytes", 0))
        if size > MAX_TEXT:
            raise _NotJsonable(f"is an array of {size:,} bytes: return a summary of it")
        listed = value.tolist()
        if type(listed) is kind:
            raise _NotJsonable(f"is {_a(value)}, which can't be recorded: {_REMEDY}")
        return self.convert(listed, depth)

    def _dict(self, items: Iterable[tuple[Any, Any]], depth: int) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key, item in items:
            if self.left < 0 and self.or_repr:
                out["..."] = "<left out: too large>"
                break
            name = self._key(key)
            if name in out:
                if not self.or_repr:
                    raise _NotJsonable(f"has two keys that are both {_short(name)} in JSON: give them different names")
                name = _unused_name(name, out)
            out[name] = self._item(item, depth, name)
        return out

    def _list(self, items: Iterator[Any], depth: int, *, ordered: bool = True) -> list[Any]:
        out: list[Any] = []
        for index, item in enumerate(items):
            if self.left < 0 and self.or_repr:
                out.append("<left out: too large>")
                break
            out.append(self._item(item, depth, index if ordered else None))
        return out

    def _item(self, item: Any, depth: int, step: str | int | None) -> Any:
        """What `item` becomes. `step` is its key or its index in what it is in; a set's elements have neither."""
        try:
            return self.convert(item, depth)
        except _NotJsonable as bad:
            if self.or_repr:
                return self.stand_in(item, bad)
            bad.trail.append("{...}" if step is None else f"[{_short(step)}]")
            raise

    def _key(self, key: Any) -> str:
        """A dict's key as JSON writes it."""
        value = _enum_value(key)
        kind = type(value)
        try:
            if issubclass(kind, str):
                return self._text(value)
            if value is None or issubclass(kind, (int, float)):
                return self._text(json.dumps(self.convert(value, 0)))
            raise _NotJsonable(f"has a key that is {_a(key)} ({_repr(key)[:80]}): use text as keys")
        except _NotJsonable as bad:
            if self.or_repr:
                return self.stand_in(key, bad)
            raise

    def _text(self, text: str) -> str:
        text = str.__str__(text)  # raises where it is none
        self._count(len(text))
        return text

    def _whole(self, number: int) -> int:
        self._count(number.bit_length() // 3)
        if abs(number) >= _TOO_LARGE:
            raise _NotJsonable(f"has more than {MAX_DIGITS} digits: return it as text or as a float")
        return number

    def _number(self, number: float) -> float:
        self._count(0)
        if not math.isfinite(number):
            raise _NotJsonable(f"is {number}, which JSON can't hold: return a finite number, or None")
        return number

    def _count(self, characters: int) -> None:
        self.left -= characters + _NODE
        if self.left < 0:
            raise _NotJsonable(f"goes past {MAX_TEXT:,} characters in all: keep large output in AgentResult.files")


def _enum_value(value: Any) -> Any:
    return value._value_ if issubclass(type(value), enum.Enum) else value


def _rank(item: Any) -> tuple[str, Any]:
    """The place of a set's element: by type, then by value."""
    kind = type(item)
    return (kind.__name__, item if kind in (str, int, float, bool) else json.dumps(item, sort_keys=True))


def _unused_name(name: str, taken: dict[str, Any]) -> str:
    number = 2
    while f"{name} ({number})" in taken:
        number += 1
    return f"{name} ({number})"


def _short(step: str | int) -> str:
    return json.dumps(step[:57] + "..." if isinstance(step, str) and len(step) > 60 else step)


def _type_name(value: Any) -> str:
    try:
        return str(type(value).__name__)[:100]
    except Exception:  # a metaclass may do anything
        return "object"


def _a(value: Any) -> str:
    """ "an int", "a Path"."""
    name = _type_name(value)
    return f"{'an' if name[:1].lower() in ('a', 'e', 'i', 'o') else 'a'} {name}"


_short_repr = reprlib.Repr()
_short_repr.maxother = _short_repr.maxstring = _short_repr.maxlong = MAX_REPR


def _repr(value: Any) -> str:
    """`repr`, bounded in length and depth, whatever the value's own does."""
    try:
        return str.__str__(_short_repr.repr(value))[:MAX_REPR]
    except Exception:
        return f"<{_type_name(value)}>"
